package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
)

const (
	scriptLimit = 10 // deletes or rewrites that the brake permits
	scriptItems = 40 // in the full form
)

// scripted is an installation with the stores 1 and 2, of which 2 has copies of 1, and a client of store 1.
type scripted struct {
	*setup
	t      *testing.T
	app    *app.App
	client *emit.Store
}

func newScripted(t *testing.T, edits ...func(*config.Config)) *scripted {
	t.Helper()
	x := &scripted{t: t, setup: newSetup(t, append([]func(*config.Config){func(cfg *config.Config) {
		cfg.Accounts[0].Stores = cfg.Accounts[0].Stores[:2]
		cfg.Deletes.MaxShare, cfg.Deletes.MaxCount = 1, scriptLimit
		cfg.Replaced.MaxShare, cfg.Replaced.MaxCount = 1, scriptLimit
	}}, edits...)...)}
	x.write(t, "policies/acme-duplication-policy.json", `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}]}`)
	x.want(t, 0, "applied", "migrate")
	for _, id := range []string{"1", "2"} {
		x.want(t, 0, "has its marker", "store", "init", "acme/"+id)
	}
	x.app, x.client = x.openClient(t)
	return x
}

// onS3 returns the edit of a configuration that puts each store into a bucket of its own on a server.
func onS3(t *testing.T, versions bool) func(*config.Config) {
	t.Helper()
	server := harness.S3(t, harness.S3Options{Kind: harness.Versitygw, Versions: versions})
	t.Setenv("AWS_ACCESS_KEY_ID", server.Access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", server.Secret)
	return func(cfg *config.Config) {
		for i, s := range cfg.Accounts[0].Stores {
			at := config.Store{ID: s.ID, Primary: s.Primary, Driver: "s3", Endpoint: server.URL, PathStyle: true,
				Bucket: server.NewName()}
			at.Credentials.FromEnvironment = true
			server.Bucket(t, at.Bucket, versions)
			cfg.Accounts[0].Stores[i] = at
		}
	}
}

func (x *scripted) must(err error) {
	x.t.Helper()
	must(x.t, err)
}

// role starts a process with a role.
func (x *scripted) role(name string) *process {
	x.t.Helper()
	return startProgram(x.t, name, exec.Command(binaries(x.t), "run", "--config", x.file, "--roles", name))
}

func scriptItem(n int) string { return fmt.Sprintf("item-%04d", n) }

// put puts the first n items of a space, with a text each.
func (x *scripted) put(space, text string, n int) {
	x.t.Helper()
	for i := range n {
		_, err := x.client.Put(x.t.Context(), space, scriptItem(i), strings.NewReader(fmt.Sprintf("%s %d", text, i)),
			storage.PutOptions{Size: storage.UnknownSize})
		x.must(err)
	}
}

func (x *scripted) remove(space string, n int) {
	x.t.Helper()
	for i := range n {
		_, err := x.client.Delete(x.t.Context(), space, scriptItem(i), storage.DeleteOptions{})
		x.must(err)
	}
}

// filled creates a space with n copied items, and returns a time between these writes and those that follow. A service
// dates objects in whole seconds, and deletes by a clock that may be a second slow.
func (x *scripted) filled(space string, n int) (before time.Time) {
	x.t.Helper()
	x.must(x.client.CreateSpace(x.t.Context(), storage.Space{Name: space}))
	x.put(space, "plain", n)
	harness.Eventually(x.t, 3*time.Minute, "copy space "+space, func(ctx context.Context) error {
		live, err := read.LiveCopies(ctx, x.app.DB(), schemas.Copy{Account: "acme", Store: "2", Space: space})
		if err == nil && live != int64(n) {
			err = fmt.Errorf("%d of %d copies are on record", live, n)
		}
		return err
	})
	before = time.Now().Truncate(time.Second).Add(time.Second)
	<-time.After(time.Until(before.Add(3 * time.Second)))
	return before
}

// having counts the items of a space in a store that have their number and a text as content.
func (x *scripted) having(store, space, text string, n int) (have int) {
	x.t.Helper()
	s, ok := x.app.Stores().Store("acme", store)
	if !ok {
		x.t.Fatalf("no store %s", store)
	}
	for i := range n {
		r, _, err := s.Open(x.t.Context(), space, scriptItem(i), "")
		if errors.Is(err, storage.ErrNotFound) {
			continue
		}
		x.must(err)
		b, err := io.ReadAll(r)
		x.must(errors.Join(err, r.Close()))
		if string(b) == fmt.Sprintf("%s %d", text, i) {
			have++
		}
	}
	return have
}

// list waits until a space has one open list with n items, and returns its key.
func (x *scripted) list(space string, n int) (key string) {
	x.t.Helper()
	return lists(x.t, x.app, "acme", space, 1, n)[0]
}

// lists waits until a space has some open lists with n items each, and returns their keys.
func lists(t *testing.T, a *app.App, account, space string, number, n int) (keys []string) {
	t.Helper()
	harness.Eventually(t, 3*time.Minute, "list what waits in space "+space, func(ctx context.Context) error {
		open, err := read.OpenIncidents(ctx, a.DB(), account)
		if err != nil {
			return err
		}
		keys = nil
		for _, i := range open {
			if i.GetSpace() != space || !app.HasList(i.GetKind()) {
				continue
			}
			q, _, err := app.QueryOfList(ctx, a.DB(), i)
			if err != nil {
				return err
			}
			if p, err := read.ProgressOfList(ctx, a.DB(), q); err != nil || p.Items != uint64(n) {
				return fmt.Errorf("%d of %d items are listed (%w)", p.Items, n, cmpOr(err, errNotYet))
			}
			keys = append(keys, schemas.IncidentKey(i))
		}
		if len(keys) != number {
			return fmt.Errorf("%d lists are open", len(keys))
		}
		return nil
	})
	return keys
}

// background starts a command, and returns when it has printed a text.
func (x *scripted) background(said string, args ...string) *process {
	x.t.Helper()
	p := startProgram(x.t, args[0], exec.Command(binaries(x.t), append(args, "--config", x.file)...))
	harness.Eventually(x.t, 2*time.Minute, "say "+said, func(context.Context) error {
		if out := x.output(p); !strings.Contains(out, said) {
			return fmt.Errorf("it says %s", out)
		}
		return nil
	})
	return p
}

func (x *scripted) output(p *process) string {
	x.t.Helper()
	out, err := os.ReadFile(p.log)
	x.must(err)
	return string(out)
}

// ends waits for the end of a command, and expects an exit code and a text.
func (x *scripted) ends(p *process, code int, said string) {
	x.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(3 * time.Minute):
		x.t.Fatalf("the command has not ended: %s", x.output(p))
	}
	if got, out := p.cmd.ProcessState.ExitCode(), x.output(p); got != code || !strings.Contains(out, said) {
		x.t.Fatalf("exit code %d, want %d, and %q in:\n%s", got, code, said, out)
	}
}

// restoreSpace returns the command that restores a space.
func restoreSpace(space string, at time.Time) []string {
	return []string{"object", "restore", "acme/" + space + "/", "--prefix", "--at", at.Format(time.RFC3339), "--wait",
		"--reason", "a script"}
}

// A script deletes a whole space, and another encrypts one. The brake stops their copies at the limit, incident refuse
// brings back the sources of the copies that it has protected, and object restore, or --all, brings back the rest,
// also if sweeps have compared the stores between the script and the decision.
func TestDestructiveScripts(t *testing.T) {
	need.Integration(t)
	all := map[string]struct {
		edit    func(*testing.T) func(*config.Config)
		sweeper bool
		full    bool // only in the full form
	}{
		"files": {edit: func(*testing.T) func(*config.Config) { return func(*config.Config) {} }, full: true},
		"files, and sweeps before the decision": {edit: func(*testing.T) func(*config.Config) {
			return func(c *config.Config) { c.Reconcile.Settle = time.Second }
		}, sweeper: true},
		"an S3 server": {edit: func(t *testing.T) func(*config.Config) { return onS3(t, false) }, full: true},
		"an S3 server with versions, and sweeps before the decision": {
			edit: func(t *testing.T) func(*config.Config) { return onS3(t, true) }, sweeper: true, full: true},
	}
	items := need.Amount(scriptLimit+4, scriptItems, scriptItems)
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			if c.full {
				need.Full(t)
			}
			x := newScripted(t, c.edit(t))
			x.serve(t, "planner,copier,checker,deleter,steward,delayer,sink")
			before, keys := map[string]time.Time{}, map[string]string{}
			protected := items - scriptLimit
			for space, script := range map[string]func(space string){
				"removed":   func(space string) { x.remove(space, items) },
				"encrypted": func(space string) { x.put(space, "encrypted", items) },
			} {
				before[space] = x.filled(space, items)
				script(space)
				keys[space] = x.list(space, protected)
			}
			if c.sweeper {
				x.sweeps(len(keys))
			} else {
				x.want(t, 0, "only at the destination", "sweep", "start", "duplication") // no role sweeper runs
			}
			for space, key := range keys {
				if again := x.list(space, protected); again != key {
					t.Errorf("%s: the list is %s, want %s", space, again, key)
				}
				source, kept := x.having("1", space, "plain", items), x.having("2", space, "plain", items)
				if source != 0 || kept != protected {
					t.Fatalf("%s: %d sources and %d copies have their content, want none and %d", space, source, kept, protected)
				}
				refuse := []string{"incident", "refuse", key, "--reason", "a script", "--wait"}
				if space == "removed" {
					x.want(t, 0, fmt.Sprintf("%d orders: restored", 2*scriptLimit), append(refuse, "--all")...)
					x.back(space, items)
					continue
				}
				x.want(t, 0, fmt.Sprintf("%d of %d items are back", protected, protected), refuse...)
				if n := x.having("1", space, "plain", items); n != protected {
					t.Fatalf("%s: %d sources are back, want %d", space, n, protected)
				}
				x.want(t, 0, fmt.Sprintf("%d orders: restored", 2*scriptLimit), restoreSpace(space, before[space])...)
				x.back(space, items)
				x.want(t, 0, fmt.Sprintf("store 2\n%d copies: already\n", 2*items), restoreSpace(space, before[space])...)
			}
		})
	}
}

// back checks that both stores have the items of a space again.
func (x *scripted) back(space string, items int) {
	x.t.Helper()
	for _, store := range []string{"1", "2"} {
		if n := x.having(store, space, "plain", items); n != items {
			x.t.Errorf("%s: store %s has %d items again, want %d", space, store, n, items)
		}
	}
}

// sweeps starts a sweeper, and waits until its rounds of reconcile and duplication over some spaces are handled.
func (x *scripted) sweeps(spaces int) {
	x.t.Helper()
	x.role("sweeper")
	for sweep, rounds := range map[string]int{"reconcile": 2 * spaces, "duplication": spaces} {
		harness.Eventually(x.t, 3*time.Minute, "have rounds of "+sweep, func(context.Context) error {
			_, out := x.millrace(x.t, "sweep", "report", sweep, "-o", "ndjson")
			if n := strings.Count(out, `"kind"`); n != rounds {
				return fmt.Errorf("%d reports: %s", n, out)
			}
			return nil
		})
	}
	harness.Eventually(x.t, 3*time.Minute, "handle what the rounds found", func(context.Context) error {
		if _, out := x.millrace(x.t, "status"); !strings.Contains(out, "no messages wait for a role") {
			return errors.New(out)
		}
		return nil
	})
}

// The exit codes of incident approve of a closed list, incident refuse and object restore with --wait; that of success
// is in TestScripts.
func TestExitCodesOfRestores(t *testing.T) {
	need.Full(t)
	x := newScripted(t)
	x.serve(t, "planner,deleter,steward,delayer,sink")
	copier := x.role("copier")
	refuse := func(key string) []string { return []string{"incident", "refuse", key, "--reason", "a test", "--wait"} }

	x.filled("partly", scriptLimit+2)
	x.remove("partly", scriptLimit+2)
	key := x.list("partly", 2)
	source, _ := x.app.Stores().Store("acme", "1")
	for i := range scriptLimit + 2 { // a client was first, and no report of it is there yet
		_, err := source.Put(t.Context(), "partly", scriptItem(i), strings.NewReader("new"), storage.PutOptions{Size: 3})
		x.must(err)
	}
	x.want(t, 4, "0 of 2 items are back", refuse(key)...)

	x.filled("closed", scriptLimit+2)
	x.remove("closed", scriptLimit+2)
	key = x.list("closed", 2)
	x.want(t, 0, "closed", "incident", "close", key, "--reason", "a test")
	x.want(t, 0, "all that is on the list has a result", "incident", "approve", key, "--reason", "a test", "--wait")
	if n := x.having("2", "closed", "plain", scriptLimit+2); n != 0 {
		t.Errorf("%d copies are left when the command ends", n)
	}

	before := x.filled("decided", scriptLimit+2)
	x.remove("decided", scriptLimit+2)
	key = x.list("decided", 2)
	x.want(t, 0, "", "incident", "approve", key, "--reason", "a test")
	x.want(t, 5, "decided before (approve-list)", refuse(key)...)

	one := append([]string{"object", "restore", "acme/decided/" + scriptItem(0)}, restoreSpace("decided", before)[4:]...)
	copier.stop(t)
	moot := x.background(`"step":"restore orders"`, append(one, "--store", "1")...)
	x.put("decided", "new", 1) // the client was first
	x.role("copier")
	x.ends(moot, 3, "1 orders: restore-moot")

	sums := "5d41402abc4b2a76b9719d911017c592  claimed\n"
	x.write(t, "sums.txt", sums)
	x.want(t, 0, "", "import", strings.TrimSuffix(x.file, "millrace.yaml")+"sums.txt", "--account", "acme", "--store", "1",
		"--space", "decided", "--wait")
	x.want(t, 4, "unproven", "object", "restore", "acme/decided/claimed", "--at", time.Now().Format(time.RFC3339Nano),
		"--reason", "a test", "--wait")
}

// A command that restores a space is interrupted and killed, before and while its orders are executed. The same command
// brings everything back, and writes each copy once.
func TestKilledRestoreCommand(t *testing.T) {
	need.Full(t)
	const items = 150
	x := newScripted(t)
	x.serve(t, "planner,deleter,steward,delayer,sink")
	copier := x.role("copier")
	before := x.filled("many", items)
	x.remove("many", items)
	x.list("many", items-scriptLimit)
	command := restoreSpace("many", before)

	copier.stop(t)
	stopped := x.background(`"step":"restore orders"`, command...)
	stopped.signal(t, syscall.SIGINT)
	x.ends(stopped, 130, fmt.Sprintf("stopped: 0 of %d restore orders are recorded; running roles continue with the rest",
		items+scriptLimit))
	x.background(`"step":"restore orders"`, command...).kill()
	x.role("copier")
	run := func(kill time.Duration) (code int, said string) {
		p := startProgram(t, "restore", exec.Command(binaries(t), append(command, "--config", x.file)...))
		if kill > 0 {
			timer := time.AfterFunc(kill, func() { _ = p.cmd.Process.Kill() }) // it may have ended
			defer timer.Stop()
		}
		x.engine.reviveUntil(t, p.exited) // it may abort when its client is killed
		return p.cmd.ProcessState.ExitCode(), x.output(p)
	}
	for n := range 5 {
		run(time.Duration(n+1) * 200 * time.Millisecond)
	}
	harness.Eventually(t, 3*time.Minute, "restore the space", func(context.Context) error {
		code, said := run(0)
		switch {
		case code == 0:
			return nil
		case !strings.Contains(said, "ClickHouse") && !strings.Contains(said, "EOF"): // the engine may abort
			t.Fatalf("exit code %d: %s", code, said)
		}
		return errNotYet
	})
	for _, store := range []string{"1", "2"} {
		if n := x.having(store, "many", "plain", items); n != items {
			t.Errorf("store %s has %d items again, want all", store, n)
		}
	}
	const written = "SELECT concat(toString(uniqExact(store, item)), ' copies, ', toString(count()), ' writes')" +
		" FROM {db}.audit_log_v WHERE space = 'many' AND item != '' AND op != 'delete'" +
		" AND ts > fromUnixTimestamp64Milli(?, 'UTC')"
	copies := fmt.Sprintf("%d copies, ", items+scriptLimit)
	var got []string
	harness.Eventually(t, time.Minute, "record the restores", func(ctx context.Context) (err error) {
		x.engine.revive(t)
		got, err = clickhousetest.Strings(ctx, x.app.DB(), written, before.UnixMilli())
		if err == nil && (len(got) != 1 || !strings.HasPrefix(got[0], copies)) {
			err = fmt.Errorf("got %q, want %s", got, copies)
		}
		return err
	})
	if want := fmt.Sprintf("%s%d writes", copies, items+scriptLimit); got[0] != want {
		t.Errorf("got %s, want %s", got[0], want)
	}
}
