package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/access"
	"github.com/millrace/millrace/streams/kafka/client"
)

// An accessCommand is a command with the login that docs/deploy/access.md gives it. Words in braces are made for it.
type accessCommand struct {
	login schemas.Role
	line  string
	code  int
	said  string
	// without is a right that the command needs, and refused what it says without it.
	without access.Right
	refused string
	user    string // of ClickHouse, if not that of the login
}

// accessCommands are the commands of the command line that take a configuration, in an order in which they can run.
func accessCommands(cfg client.Config) []accessCommand {
	const (
		viewer, operator, migrate = access.Viewer, access.Operator, access.Migrate
		lacks                     = "the login lacks "
		target                    = "--account acme --store 2 --space s"
	)
	write := func(t schemas.Topic) access.Right {
		return access.Right{Resource: access.Topic, Name: cfg.Topic(t), Operation: access.Write}
	}
	readAll := access.Right{Resource: access.Topic, Name: cfg.Prefix, Prefixed: true, Operation: access.Read}
	groups := access.Right{Resource: access.Group, Name: cfg.Prefix, Prefixed: true, Operation: access.Describe}
	foreign := access.Right{Resource: access.Topic, Name: notified, Operation: access.Describe}
	var none access.Right
	return []accessCommand{
		{viewer, "config check", 0, "", none, "", ""},
		{viewer, "config print", 0, "bucket-events", none, "", ""},
		{viewer, "store list", 0, "acme", none, "", ""},
		{viewer, "store check", 0, "ok", none, "", ""},
		{viewer, "object show acme/s/a", 0, "add (client)", none, "", ""},
		{viewer, "space list acme", 0, "acme/s", none, "", ""},
		{viewer, "space show acme/s", 0, "exists", none, "", ""},
		{viewer, "object versions acme/s/a", 0, "add (client)", none, "", ""},
		{viewer, "object get acme/s/a -o -", 0, "", none, "", ""},
		{viewer, "object export acme/s {exports}", 0, "0 lacking", none, "", ""},
		{viewer, "incident list", 0, "acme/2/s/a", none, "", ""},
		{viewer, "incident list --pending", 0, "", none, "", ""},
		{viewer, "incident show {incident}", 0, "opened", none, "", ""},
		{viewer, "account list", 0, "acme", none, "", ""},
		{viewer, "account show acme", 0, "acme", none, "", ""},
		{viewer, "policy list", 0, "acme", readAll, lacks + "Describe on topic millrace.policies", ""},
		{viewer, "policy show acme", 0, "acme", none, "", ""},
		{viewer, "policy history acme", 0, "", none, "", ""},
		{viewer, "policy diff acme {policy}", 3, "", none, "", ""},
		{viewer, "policy check {policy}", 0, "no faults", none, "", ""},
		{viewer, "policy plan --account acme {policy}", 0, "DESTINATION", groups,
			lacks + "Describe on group millrace.", ""},
		{viewer, "policy unmanaged", 0, "STORE", none, "", ""},
		{viewer, "policy import {policies} --dry-run", 0, "acme", none, "", ""},
		{viewer, "pause list", 0, "", readAll, lacks + "Describe on topic millrace.control", ""},
		{viewer, "sweep list", 0, "fixity", readAll, lacks + "Describe on topic millrace.", ""},
		{viewer, "sweep status", 0, "SWEEP", none, "", ""},
		{viewer, "sweep report", 0, "KIND", none, "", ""},
		{viewer, "status", 0, "STORE", readAll, lacks + "Describe on topic millrace.", ""},
		{viewer, "fixity status acme", 0, "acme/2", none, "", ""},
		{viewer, "fixity overdue acme/2", 0, "LAST PASS", none, "", ""},
		{viewer, "fixity analysis acme", 0, "copies have failed", none, "", ""},
		{viewer, "fixity rounds", 0, "COVERAGE", none, "", ""},
		{viewer, "fixity report -o tsv", 0, "date-checked", none, "", ""},
		{viewer, "job list", 0, "NAME", none, "", ""},
		{viewer, "job history", 0, "NAME", none, "", ""},
		{viewer, "dead list", 0, "ingester", readAll, lacks + "Describe on topic millrace.", ""},
		{viewer, "dead list --each", 0, "ingester", none, "", ""},
		{viewer, "dead show {ingester}", 0, "foreign:bucket-events", none, "", ""},
		{viewer, "dead redrive {ingester} --dry-run", 0, "would redrive 1", none, "", ""},
		{viewer, "verify", 0, "", groups, lacks + "Describe on group millrace.", ""},
		{viewer, "verify --manifest", 0, "", groups, lacks + "Describe on group millrace.", "migrate"},
		{viewer, "import {listing} --dry-run " + target, 0, "", none, "", ""},

		{operator, "store init acme/2", 0, "", none, "", ""},
		{operator, "store probe acme/2", 0, "", none, "", ""},
		{operator, "policy set acme {policy} --reason test", 0, "revision", write(schemas.Policies),
			lacks + "Write on topic millrace.policies", ""},
		{operator, "policy import {policies}", 0, "revision", write(schemas.Policies),
			lacks + "Write on topic millrace.policies", ""},
		{operator, "account set {account} --reason test", 0, "revision 1", write(schemas.Accounts),
			lacks + "Write on topic millrace.accounts", ""},
		{viewer, "account history bell", 0, "test", none, "", ""},
		{viewer, "account diff bell", 3, "bell", none, "", ""},
		{operator, "account remove bell --reason test", 0, "revision 2", none, "", ""},
		{operator, "object dry-run acme/s/a --from 1 --to 2", 0, "WOULD BE", none, "", ""},
		{operator, "incident refuse {incident} --reason test", 5, "only a list", none, "", ""},
		{operator, "incident accept acme/2/s/none/replaced --reason test", 1, "no open incident", none, "", ""},
		{operator, "pause role sweeper --reason test", 0, "paused", write(schemas.Controls),
			lacks + "Write on topic millrace.control", ""},
		{operator, "resume role sweeper --reason test", 0, "", write(schemas.Controls),
			lacks + "Write on topic millrace.control", ""},
		{operator, "sweep pause reconcile --reason test", 0, "paused", write(schemas.Controls),
			lacks + "Write on topic millrace.control", ""},
		{operator, "sweep resume reconcile", 0, "resumed", write(schemas.Controls),
			lacks + "Write on topic millrace.control", ""},
		{operator, "sweep skip reconcile --reason test", 0, "no such round is unfinished", none, "", ""},
		{operator, "audit export {exports}", 0, "exported", none, "", ""},
		{operator, "job start expire", 0, "requested expire/acme/2", write(schemas.Admin),
			lacks + "Write on topic millrace.admin", ""},
		{operator, "job pause trim --reason test", 0, "paused", none, "", ""},
		{operator, "job resume trim", 0, "resumed", none, "", ""},
		{viewer, "schedule list", 0, "fixity", none, "", ""},
		{operator, "schedule set stats every 2d --reason test", 0, "stats: every 2d", write(schemas.Admin),
			lacks + "Write on topic millrace.admin", ""},
		{operator, "schedule reset stats --reason test", 0, "stats: the schedule of the settings", none, "", ""},
		{operator, "workers copier 3", 0, "", write(schemas.Controls), lacks + "Write on topic millrace.control", ""},
		{operator, "workers copier default", 0, "", none, "", ""},
		{operator, "import {listing} --wait " + target, 0, "", write(schemas.Changes),
			lacks + "Write on topic millrace.changes", ""},
		{operator, "sweep start fixity --store 1 --all --wait", 0, "", write(schemas.FixityHigh),
			lacks + "Write on topic millrace.fixity.high", ""},
		{operator, "fixity check acme/2/s/a --wait", 3, "fail", write(schemas.FixityHigh),
			lacks + "Write on topic millrace.fixity.high", ""},
		{operator, "incident check acme/2/s/none/replaced", 1, "no open incident", none, "", ""},
		{operator, "fixity import {listing} --time 2026-03-04T00:00:00Z", 1, "columns", none, "", ""},
		{operator, "sweep start fixity --store 1 --all", 0, "", groups, lacks + "Describe on group millrace.", ""},
		{operator, "incident approve {incident} --wait", 0, "the incident is closed", write(schemas.Admin),
			lacks + "Write on topic millrace.admin", ""},
		{operator, "incident close {incident} --reason test", 0, "the steward will close it", write(schemas.Admin),
			lacks + "Write on topic millrace.admin", ""},
		{operator, "object restore acme/s/ --prefix --at 0s --reason test", 0, "already", none, "", ""},
		{operator, "object delete acme/s/a --store 2 --reason test", 5, "the policy wants it", none, "", ""},
		{operator, "space gone acme/2/none --reason test", 0, "gone", write(schemas.Admin),
			lacks + "Write on topic millrace.admin", ""},
		{operator, "space back acme/2/none --reason test", 0, "expected", none, "", ""},
		{operator, "dead redrive {ingester} --wait", 3, "dead letters again", foreign,
			lacks + "Describe on topic bucket-events or millrace.again.ingester", ""},
		{operator, "dead redrive {ingester} --value {notification} --reason test", 0, "redriven 1",
			write(schemas.Again(schemas.RoleIngester)), lacks + "Write on topic millrace.again.ingester", ""},
		{operator, "dead redrive {planner} --wait", 3, "dead letters again", groups,
			lacks + "Describe on group millrace.", ""},
		{operator, "dead redrive {state}", 0, "redriven 1", write(schemas.Changes),
			lacks + "Write on topic millrace.changes", ""},
		{operator, "dead redrive {planner} --value {change} --reason test", 0, "redriven 1", write(schemas.Changes),
			lacks + "Write on topic millrace.changes", ""},
		{operator, "dead discard {planner} --reason test", 0, "discarded 1", write(schemas.Admin),
			lacks + "Write on topic millrace.admin", ""},
		{operator, "policy remove acme --reason test", 0, "revision", write(schemas.Policies),
			lacks + "Write on topic millrace.policies", ""},
		{operator, "rebuild", 0, "", none, "", "sink"},
		{operator, "rebuild --accept-loss --reason test", 0, "accepted: 0", none, "", "sink"},
		{migrate, "migrate --dry-run", 0, "", none, "", ""},
		{migrate, "migrate --again", 0, "", none, "", ""},
	}
}

// TestLeastPrivilegeOfCommands runs every command with the login of operators, viewers or migrate, while each role runs
// with its own. A command without a right that it needs says which.
func TestLeastPrivilegeOfCommands(t *testing.T) {
	need.Full(t)
	commands := configCommands(t)
	w := newRestricted(t, harness.Options{}, "classic")
	w.prepare(t)
	w.startAll(t)
	p := w.program(t)
	p.put(t, "a")
	w.copied(t, "a")
	made := w.words(t)
	all := accessCommands(w.logins[access.Operator])
	for _, path := range commands {
		if !slices.ContainsFunc(all, func(c accessCommand) bool {
			words := strings.Fields(c.line)
			return slices.Equal(words[:min(len(path), len(words))], path)
		}) {
			t.Errorf("no row runs: millrace %s", strings.Join(path, " "))
		}
	}
	for _, c := range all {
		t.Run(string(c.login)+" "+c.line, func(t *testing.T) {
			args := func() (args []string) {
				for _, word := range strings.Fields(c.line) {
					if f := made[strings.Trim(word, "{}")]; f != nil && word[0] == '{' {
						word = f(t)
					}
					args = append(args, word)
				}
				return args
			}
			if c.refused != "" {
				w.brokers.Withdraw(t, acl(c.login, c.without))
				begun := time.Now()
				code, said := w.run(t, c, args())
				w.brokers.Grant(t, acl(c.login, c.without))
				if code != 1 || !strings.Contains(said, c.refused) {
					t.Errorf("without %s: exit code %d after %v, want 1, and %q in:\n%s",
						c.without, code, time.Since(begun), c.refused, said)
				}
			}
			if code, said := w.run(t, c, args()); code != c.code || !strings.Contains(said, c.said) ||
				strings.Contains(said, "AUTHORIZATION_FAILED") {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", code, c.code, c.said, said)
			}
		})
	}
}

// run runs a command, and returns its exit code and output.
func (w *restricted) run(t *testing.T, c accessCommand, args []string) (code int, said string) {
	t.Helper()
	cmd := w.command(t, c.login, args...)
	if c.user != "" {
		cmd.Env = append(cmd.Env, "MILLRACE_CLICKHOUSE__USER="+c.user, "CLICKHOUSE_PASSWORD=secret-"+c.user)
	}
	stop := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// words returns what stands for the words in braces. Messages that no role can read become the dead letters.
func (w *restricted) words(t *testing.T) map[string]func(t *testing.T) string {
	t.Helper()
	w.brokers.Write(t, client.Config{}, harness.Record{Partition: -1,
		Record: schemas.Record{Topic: notified, Value: []byte("no notification")}})
	w.brokers.Write(t, w.logins[access.Operator], harness.Record{Partition: -1,
		Record: schemas.Record{Topic: schemas.Changes, Value: []byte("no change")}})
	file := func(name string, text []byte) func(*testing.T) string {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, text, 0o600))
		return func(*testing.T) string { return path }
	}
	change := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "2", Space: "s", Item: "edited", Version: "1", Size: 1,
		Time: timestamppb.New(time.UnixMilli(1790000000000)), Origin: pb.Origin_ORIGIN_CLIENT}
	change.Id = schemas.ChangeID(change)
	body, err := protojson.Marshal(change)
	must(t, err)
	made := map[string]func(t *testing.T) string{
		"listing": file("SHA256SUMS", []byte("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  listed\n")),
		"change":  file("change.json", body), "notification": file("n.json", notification("s", "a")),
		"exports": func(t *testing.T) string { t.Helper(); return t.TempDir() },
		"incident": func(t *testing.T) string {
			for _, k := range w.incidents(t) {
				if strings.HasPrefix(k, "acme/2/s/a") {
					return k
				}
			}
			_, _, key := w.damage(t, "a")
			return key
		},
	}
	const document = `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}], "spacesToIgnore": ["%s"]}`
	made["policy"] = file("acme-duplication-policy.json", fmt.Appendf(nil, document, "a"))
	folder := t.TempDir()
	for name, text := range map[string]string{"duplication-accounts.json": `["acme"]`,
		"acme-duplication-policy.json": fmt.Sprintf(document, "b")} {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	made["policies"] = func(*testing.T) string { return folder }
	made["account"] = file("bell.yaml", fmt.Appendf(nil, "id: bell\nstores:\n- {id: \"1\", driver: file, root: %s}\n",
		t.TempDir()))
	for _, role := range []schemas.Role{schemas.RoleIngester, schemas.RolePlanner, schemas.RoleState} {
		made[string(role)] = func(t *testing.T) string { return w.letter(t, role) }
	}
	made["incident"](t)
	made["ingester"](t)
	return made
}

// letter waits for an open dead letter of a role, and returns its id.
func (w *restricted) letter(t *testing.T, role schemas.Role) (id string) {
	t.Helper()
	harness.Eventually(t, time.Minute, "a dead letter of "+string(role), func(context.Context) error {
		out, err := w.command(t, access.Operator, "dead", "list", "--each", "--role", string(role), "-o", "json").Output()
		if err != nil {
			return err
		}
		var all []struct{ ID string }
		if err := json.Unmarshal(out, &all); err != nil {
			return err
		}
		if len(all) == 0 {
			return errNotYet
		}
		id = all[0].ID
		return nil
	})
	return id
}

// configCommands returns the commands that take a configuration and end by themselves. Those of pauses are one each.
func configCommands(t *testing.T) (paths [][]string) {
	t.Helper()
	var visit func(path []string)
	visit = func(path []string) {
		out, err := exec.CommandContext(t.Context(), binaries(t), append(append([]string{"__complete"}, path...), "")...).
			Output()
		if err != nil {
			t.Fatalf("complete %v: %v", path, err)
		}
		var below [][]string
		for line := range strings.Lines(string(out)) {
			if name, _, ok := strings.Cut(line, "\t"); ok {
				below = append(below, append(slices.Clone(path), name))
			}
		}
		if len(below) > 0 && path == nil || len(below) > 0 && path[0] != "pause" && path[0] != "resume" {
			for _, p := range below {
				visit(p)
			}
			return
		}
		if slices.Contains([]string{"run", "standalone", "demo", "bench", "help", "completion"}, path[0]) {
			return // roles run in other tests; demo, standalone and bench have a broker of their own
		}
		help, err := exec.CommandContext(t.Context(), binaries(t), append(slices.Clone(path), "--help")...).Output()
		if err != nil {
			t.Fatalf("%v --help: %v", path, err)
		}
		if strings.Contains(string(help), "--config FILE") || path[0] == "resume" {
			paths = append(paths, path)
		}
	}
	visit(nil)
	if len(paths) < 20 {
		t.Fatalf("found only %v", paths)
	}
	return paths
}
