package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	clickhouse "github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/embedded"
	"github.com/millrace/millrace/streams/storage"
)

// A kept is a state directory with two stores; the first has items that no role has handled.
type kept struct {
	t   *testing.T
	dir string
}

const keptItems = 5

func newKept(t *testing.T) *kept {
	t.Helper()
	engineOnPath(t)
	k := &kept{t, t.TempDir()}
	must(t, k.make(t.Context()))
	return k
}

// engineOnPath builds the command of the engine, and adds it to PATH.
func engineOnPath(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if _, err := clickhouse.Fetch(ctx, t.Output()); err != nil && os.Getenv("MILLRACE_LIBCHDB") == "" {
		need.Missing(t, need.ClickHouse(), err)
	}
	bin := t.TempDir()
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "../millrace-clickhouse")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as make build does
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the engine's command: %v\n%s", err, out)
	}
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

func (k *kept) make(ctx context.Context) (err error) {
	log := slog.New(slog.DiscardHandler)
	state, err := statedir.Open(ctx, statedir.Config{Dir: k.dir, Log: log})
	if err != nil {
		return err
	}
	defer func() {
		if e := state.Close(ctx); err == nil {
			err = e
		}
	}()
	cfg := config.Default()
	acc := config.Account{ID: "acme"}
	for _, id := range []string{"1", "2"} {
		if err := os.MkdirAll(k.path(id), 0o755); err != nil {
			return err
		}
		acc.Stores = append(acc.Stores, config.Store{ID: id, Driver: "file", Root: k.path(id), Primary: id == "1"})
	}
	cfg.Accounts = []config.Account{acc}
	cfg.Policies.Folder = state.Path("policies")
	policies := map[string]string{
		"duplication-accounts.json":    `["acme"]`,
		"acme-duplication-policy.json": `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}]}`,
	}
	if err := os.Mkdir(cfg.Policies.Folder, 0o755); err != nil {
		return err
	}
	for name, doc := range policies {
		if err := os.WriteFile(filepath.Join(cfg.Policies.Folder, name), []byte(doc), 0o644); err != nil {
			return err
		}
	}
	cfg.Sink.Age = 50 * time.Millisecond
	cfg.Delay.Lanes = []config.Lane{{Name: "200ms", Delay: 200 * time.Millisecond}}
	cfg.Fixity.Settle, cfg.Fixity.MinInterval = time.Millisecond, time.Millisecond
	cfg.Fixity.Recheck = []time.Duration{200 * time.Millisecond}
	cfg.Duplication.Wait = []time.Duration{200 * time.Millisecond}
	cfg.Log.Level = "error"
	cfg.Outbox.Dir = state.Path("outbox")
	if err := state.SaveConfig(&cfg); err != nil {
		return err
	}
	state.Configure(&cfg)
	a, err := app.Open(ctx, &cfg, app.Options{Log: log, Drain: app.QuickDrain})
	if err != nil {
		return err
	}
	defer a.Close()
	if _, err := a.Migrate(ctx); err != nil {
		return err
	}
	for _, id := range []string{"1", "2"} {
		if err := app.InitStore(ctx, &cfg, log, app.StoreName{Account: "acme", Store: id}); err != nil {
			return err
		}
	}
	store, err := a.EmittingStore("acme", "1", "test")
	if err != nil {
		return err
	}
	if err := store.CreateSpace(ctx, storage.Space{Name: "maps"}); err != nil {
		return err
	}
	for i := range keptItems {
		content := strings.NewReader(fmt.Sprintf("content %d", i))
		item, unknown := fmt.Sprintf("item-%d", i), storage.PutOptions{Size: storage.UnknownSize}
		if _, err := store.Put(ctx, "maps", item, content, unknown); err != nil {
			return err
		}
	}
	if err := store.Flush(ctx); err != nil {
		return err
	}
	return a.RunWhile(ctx, []schemas.Role{schemas.RoleSink}, a.CatchUp, state.Watch)
}

func (k *kept) path(id string) string { return filepath.Join(k.dir, "store-"+id) }

// run runs a command with the state, and expects its exit code.
func (k *kept) run(ctx context.Context, want int, stderr interface {
	Write([]byte) (int, error)
	String() string
}, args ...string) string {
	k.t.Helper()
	var out bytes.Buffer
	if code := run(ctx, append(args, "--state", k.dir), &out, stderr); code != want {
		k.t.Fatalf("millrace %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, out.String(),
			stderr.String())
	}
	return out.String()
}

// sweep runs a sweep of both stores with --wait.
func (k *kept) sweep(want int) (r sweepReport) {
	k.t.Helper()
	stderr := new(bytes.Buffer)
	out := k.run(k.t.Context(), want, stderr, "sweep", "start", "fixity", "--all", "--wait", "-o", "json")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		k.t.Fatalf("%v: %s", err, out)
	}
	return r
}

// A sweep with --state runs the roles, and ends when its checks are recorded: the verdicts are read
// from the records.
func TestSweepWaits(t *testing.T) {
	k := newKept(t)
	r := k.sweep(exitOK)
	// The roles copy the items meanwhile: store 2 may have a round too.
	if len(r.Rounds) == 0 || r.Rounds[0].Store != "1" || r.Rounds[0].Space != "maps" ||
		r.Rounds[0].Requested != keptItems || r.Verdicts["pass"] != r.Requested || r.failed() != 0 {
		t.Fatalf("got %+v, want %d checks of store 1 on record, and all passed", r, keptItems)
	}
}

// A sweep that is interrupted while no check can run prints the remaining work; the next one
// completes it.
func TestInterruptedSweep(t *testing.T) {
	need.Full(t)
	k := newKept(t)
	quiet := new(bytes.Buffer)
	k.run(t.Context(), exitOK, quiet, "pause", "role", "checker", "--reason", "test")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stderr := &cutter{mark: `"step":"checks"`, cut: stop}
	k.run(ctx, exitInterrupted, stderr, "sweep", "start", "fixity", "--store", "1", "--all", "--wait")
	want := fmt.Sprintf("stopped: 0 of %d checks are recorded; the rest is done when", keptItems)
	if !strings.Contains(stderr.String(), want) {
		t.Errorf("it does not say %q:\n%s", want, stderr.String())
	}
	k.run(t.Context(), exitOK, quiet, "resume", "role", "checker")
	if r := k.sweep(exitOK); r.Verdicts["pass"] != r.Requested || r.Requested < keptItems {
		t.Errorf("after the interruption: %+v, want all checks on record", r)
	}

	// What was asked for of one store is reported also if the next one fails.
	k.run(t.Context(), exitOK, quiet, "pause", "store", "acme/2", "--reason", "test")
	out := k.run(t.Context(), exitPrecondition, quiet, "sweep", "start", "fixity", "--all")
	if want := fmt.Sprintf(": %d checks requested", keptItems); !strings.Contains(out, "in store acme/1: round ") ||
		!strings.Contains(out, want) {
		t.Errorf("printed %q, want the round of store 1", out)
	}
}

// An import is recorded when its command ends. The findings of a sweep are its exit code. The wait
// for an approved repair ends when the incident is closed.
func TestCommandsWait(t *testing.T) {
	need.Full(t)
	k := newKept(t)
	quiet := new(bytes.Buffer)
	k.sweep(exitOK) // the copies of store 2 are made meanwhile

	sums := filepath.Join(t.TempDir(), "sums.txt")
	must(t, os.WriteFile(sums, []byte("5d41402abc4b2a76b9719d911017c592  imported\n"), 0o644))
	k.run(t.Context(), exitOK, quiet, "import", sums, "--account", "acme", "--store", "1", "--space", "maps", "--wait")
	out := k.run(t.Context(), exitOK, quiet, "object", "show", "acme/maps/imported", "-o", "ndjson")
	if !strings.Contains(out, "import") {
		t.Errorf("the import is not on record: %s", out)
	}

	// A copy is replaced: the sweep finds it, and the repair is approved.
	must(t, os.WriteFile(filepath.Join(k.path("2"), "maps", "item-1"), []byte("something else"), 0o644))
	if r := k.sweep(exitFindings); r.failed() == 0 {
		t.Errorf("got %+v, want a failed check", r)
	}
	var open []incidentRow
	incidents := func(flags ...string) []incidentRow {
		t.Helper()
		open = nil
		out := k.run(t.Context(), exitOK, quiet, append([]string{"incident", "list", "-o", "json"}, flags...)...)
		if err := json.Unmarshal([]byte(out), &open); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return slices.DeleteFunc(slices.Clone(open), func(r incidentRow) bool { return r.Item != "item-1" })
	}
	found := incidents()
	if len(found) != 1 || found[0].State != "awaiting-approval" || found[0].Expected["md5"] == "" ||
		found[0].Found["md5"] == found[0].Expected["md5"] {
		t.Fatalf("open incidents: %+v, want one that waits for approval", found)
	}
	if other := incidents("--kind", "no-quorum", "--store", "2"); len(open) != 0 {
		t.Errorf("of another kind: %+v", other)
	}
	out = k.run(t.Context(), exitFindings, quiet, "incident", "check", found[0].Key, "--wait", "-o", "ndjson")
	if !strings.Contains(out, `"verdict":"fail"`) || !strings.Contains(out, `"evidence_level":4`) {
		t.Errorf("the check printed %s", out)
	}
	out = k.run(t.Context(), exitPartly, quiet, "incident", "approve", "acme/2/maps/other/replaced", found[0].Key,
		"--reason", "test", "--wait")
	if want := "approved " + found[0].Key + ": the incident is closed\n"; out != want {
		t.Errorf("approve printed %q, want %q", out, want)
	}
	if left := incidents(); len(left) != 0 {
		t.Errorf("still open after the repair: %+v", left)
	}
	if all := incidents("--all"); len(all) != 1 || all[0].ID != found[0].ID || all[0].State != "closed" ||
		all[0].Closed == nil || found[0].Closed != nil {
		t.Errorf("open and closed are %+v, want %s as closed", all, found[0].ID)
	}
	content, err := os.ReadFile(filepath.Join(k.path("2"), "maps", "item-1"))
	if err != nil || string(content) != "content 1" {
		t.Errorf("the copy is %q, %v", content, err)
	}

	// An incident without an item is closed at once.
	unread := incident.Subject{Kind: incident.RecordUnreadable, Name: "policies/0@99"} // of another process
	k.withBroker(func(cfg client.Config) error {
		p, err := kafka.NewProducer(cfg, "test")
		if err != nil {
			return err
		}
		defer p.Close()
		return incident.NewBoard(p, slog.New(slog.DiscardHandler)).Open(t.Context(), unread, "not a policy")
	})
	k.sweep(exitFindings) // the sink stores it meanwhile; what was imported is not there
	if incidents(); !slices.ContainsFunc(open, func(r incidentRow) bool {
		return r.Key == unread.Key() && r.Subject == unread.Name && r.Last == "opened: not a policy"
	}) {
		t.Errorf("open are %+v, want %s", open, unread.Key())
	}
	out = k.run(t.Context(), exitOK, quiet, "incident", "close", unread.Key(), "--reason", "restored")
	if want := "close " + unread.Key() + ": closed\n"; out != want {
		t.Errorf("close printed %q, want %q", out, want)
	}
	k.sweep(exitFindings)
	if incidents(); slices.ContainsFunc(open, func(r incidentRow) bool { return r.Key == unread.Key() }) {
		t.Errorf("open are %+v", open)
	}

	// Dead letters of a planner are handled when their redrive ends.
	k.withBroker(func(cfg client.Config) error { return refuse(t.Context(), cfg, 3) })
	stderr := new(bytes.Buffer)
	out = k.run(t.Context(), exitOK, stderr, "dead", "redrive", "--role", "planner", "--wait")
	if out != "redriven 3 dead letters\n" {
		t.Errorf("redrive printed %q", out)
	}
	handled := regexp.MustCompile(`"step":"messages of planner","done":\d+,"total":\d+,.*"ended":true`)
	if !handled.MatchString(stderr.String()) {
		t.Errorf("the redrive does not show that the planner has handled the letters: %s", stderr.String())
	}
	if out := k.run(t.Context(), exitOK, quiet, "dead", "list", "-o", "json"); out != "[]\n" {
		t.Errorf("dead letters are left: %s", out)
	}

	// A message that is a dead letter again is a finding; others, here of the planner, are not counted.
	k.withBroker(func(cfg client.Config) error {
		task := &pb.FixityTask{Id: schemas.NewID(), Account: "acme", Store: "9", Space: "maps", Item: "item-1",
			Reason: pb.FixityReason_FIXITY_REASON_DEMAND, Priority: pb.Priority_PRIORITY_HIGH, Time: timestamppb.Now()}
		msgs := []schemas.Message{{Topic: schemas.FixityHigh, Body: task}}
		return errors.Join(refuseAll(t.Context(), cfg, schemas.RoleChecker, msgs), refuse(t.Context(), cfg, 2))
	})
	stderr.Reset()
	out = k.run(t.Context(), exitFindings, stderr, "dead", "redrive", "--role", "checker", "--wait")
	if !strings.HasPrefix(out, "redriven ") ||
		!strings.Contains(stderr.String(), "findings: 1 messages are dead letters again") {
		t.Errorf("redrive printed %q and %q", out, stderr)
	}
}

// withBroker calls do with the broker of the state.
func (k *kept) withBroker(do func(client.Config) error) {
	k.t.Helper()
	b, err := embedded.StartBroker(embedded.BrokerConfig{Dir: filepath.Join(k.dir, "kafka"), SyncWrites: true})
	must(k.t, err)
	defer b.Close()
	cfg := client.Config{Brokers: []string{b.Addr()}, Prefix: "millrace.", Heartbeat: 100 * time.Millisecond}
	must(k.t, do(cfg))
}

// A cutter cancels a context when a text has been written.
type cutter struct {
	bytes.Buffer
	mark string
	cut  context.CancelFunc
}

func (c *cutter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.mark)) {
		c.cut()
	}
	return c.Buffer.Write(p)
}
