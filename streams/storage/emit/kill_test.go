package emit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// childEnv makes the test binary run a program that stores through emit, in the given directory, instead of
// tests.
const childEnv = "MILLRACE_TEST_EMIT_DIR"

// drainEnv makes the program publish what is pending and exit.
const drainEnv = "MILLRACE_TEST_EMIT_DRAIN"

// progressFD is the descriptor that the program writes to after it has made mutations.
const progressFD = 3

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := child(context.Background(), dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A published is the part of a Change that the test needs.
type published struct {
	ID, Op, Item, Version, Media, Origin string
	MS                                   int64
}

// A flakyPublisher publishes to a file, and fails during 20 ms of every 60.
type flakyPublisher struct{ log *storagetest.Journal }

func (p flakyPublisher) Publish(_ context.Context, messages ...schemas.Message) error {
	c := messages[0].Body.(*pb.Change)
	if time.Now().UnixMilli()%60 < 20 && os.Getenv(drainEnv) == "" {
		return errors.New("unavailable")
	}
	return p.log.Add(published{
		c.GetId(), c.GetOp().String(), c.GetItem(), c.GetVersion(), c.GetMediaType(), c.GetOrigin().String(),
		c.GetTime().AsTime().UnixMilli(),
	})
}

// A loggedMutation is a mutation that was certainly made: the store returned it, or it was found at a
// start.
type loggedMutation struct{ Op, Item, Version, Media string }

// A loggingStore logs the mutations that were made.
type loggingStore struct {
	storage.Store
	log *storagetest.Journal
}

func (l loggingStore) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	obj, err := l.Store.Put(ctx, space, item, r, o)
	if err == nil {
		err = l.log.Add(loggedMutation{"PUT", item, obj.Version, ""})
	}
	return obj, err
}

func (l loggingStore) Delete(
	ctx context.Context, space, item string, o storage.DeleteOptions,
) (storage.Deleted, error) {
	d, err := l.Store.Delete(ctx, space, item, o)
	if err == nil {
		err = l.log.Add(loggedMutation{"DELETE", item, d.Object.Version, ""})
	}
	return d, err
}

func (l loggingStore) SetProperties(
	ctx context.Context, space, item string, p storage.Properties, c storage.Condition,
) (storage.Object, error) {
	o, err := l.Store.SetProperties(ctx, space, item, p, c)
	if err == nil {
		err = l.log.Add(loggedMutation{"SET", item, o.Version, p.MediaType})
	}
	return o, err
}

// child mutates a file store through emit until it is killed.
func child(ctx context.Context, dir string) error {
	files, err := file.Open(file.Config{ID: "1", Root: filepath.Join(dir, "store"), Create: true})
	if err != nil {
		return err
	}
	mutations, err := storagetest.OpenJournal(filepath.Join(dir, "mutations"))
	if err != nil {
		return err
	}
	out, err := storagetest.OpenJournal(filepath.Join(dir, "changes"))
	if err != nil {
		return err
	}
	if err := files.WriteMarker(ctx); err != nil {
		return err
	}
	if err := files.CreateSpace(ctx, storage.Space{Name: sp}); err != nil && !errors.Is(err, storage.ErrExists) {
		return err
	}
	for o, err := range files.List(ctx, sp, "") { // what the last one had done when it was killed
		if err != nil {
			return err
		}
		o, err := files.Stat(ctx, sp, o.Item)
		if err == nil {
			err = errors.Join(mutations.Add(loggedMutation{"PUT", o.Item, o.Version, ""}),
				mutations.Add(loggedMutation{"SET", o.Item, o.Version, o.Properties.MediaType}))
		}
		if err != nil {
			return err
		}
	}
	box, err := outbox.Open(outbox.Config{Dir: filepath.Join(dir, "outbox"), Limit: 8 << 20, Segment: 32 << 10})
	if err != nil {
		return err
	}
	s, err := New(loggingStore{files, mutations}, Config{
		Account: "acme", Store: "1", Outbox: box, Retry: 10 * time.Millisecond, Wait: 20 * time.Millisecond,
	}, flakyPublisher{out})
	if err != nil {
		return err
	}
	if os.Getenv(drainEnv) != "" {
		return errors.Join(s.Flush(ctx), box.Close())
	}
	var wg sync.WaitGroup
	failed := make(chan error, 32)
	wg.Go(func() { failed <- s.Run(ctx) })
	for worker := range 12 {
		wg.Go(func() { failed <- mutateOn(ctx, s, worker) })
	}
	return <-failed
}

// mutateOn makes random mutations of a worker's own items, and sometimes of one that all workers share.
func mutateOn(ctx context.Context, s *Store, worker int) error {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(worker)))
	for n := 0; ; n++ {
		item := fmt.Sprintf("own/%d/%d", worker, random.IntN(3))
		if random.IntN(8) == 0 {
			item = "shared"
		}
		var err error
		unique := fmt.Sprintf("%d/%d/%d", time.Now().UnixNano(), worker, n)
		switch random.IntN(6) {
		case 0:
			_, err = s.Delete(ctx, sp, item, storage.DeleteOptions{})
		case 1:
			_, err = s.SetProperties(ctx, sp, item, storage.Properties{MediaType: "x/" + unique}, storage.Condition{})
		default:
			_, err = s.Put(ctx, sp, item, strings.NewReader(unique), storage.PutOptions{
				Size: storage.UnknownSize, Properties: storage.Properties{MediaType: "p/" + unique},
			})
		}
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		if n == 5 {
			_, _ = syscall.Write(progressFD, []byte{1}) // nothing depends on it when it fails
		}
	}
}

// A program is killed at random moments while its publisher fails now and then. After restarts each
// mutation that the store shows, or showed, has one Change, in the order of its item, and no other Change
// exists.
func TestKilled(t *testing.T) {
	need.Integration(t)
	kills := need.Amount(12, 50, 300)
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for n := range kills {
		// Each third one may be killed while it starts; the others are killed after some mutations.
		out, killed := runChild(t, dir, n%3 > 0, time.Duration(random.Int64N(int64(300*time.Millisecond))))
		if !killed {
			t.Fatalf("kill %d: it ended: %s", n, out)
		}
	}
	if out, killed := runChild(t, dir, false, time.Minute, drainEnv+"=1"); killed || out != "" {
		t.Fatalf("the last run did not publish everything: killed %v: %s", killed, out)
	}
	checkKilled(t, dir, kills)
}

// runChild runs the program, and kills it some time after its start, or after it has made mutations.
func runChild(t *testing.T, dir string, progress bool, after time.Duration, env ...string) (out string, killed bool) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), append(env, childEnv+"="+dir)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	made, report, err := os.Pipe()
	must(t, err)
	defer made.Close()
	cmd.ExtraFiles = []*os.File{report}
	must(t, errors.Join(cmd.Start(), report.Close()))
	if progress {
		must(t, made.SetReadDeadline(time.Now().Add(time.Minute)))
		if _, err := made.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) { // io.EOF: it has ended
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatalf("it has made no mutations within a minute: %s", said.String())
		}
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait() // its state says how it ended
	return said.String(), cmd.ProcessState.ExitCode() < 0
}

func checkKilled(t *testing.T, dir string, kills int) {
	t.Helper()
	changes := storagetest.ReadJournal[published](t, filepath.Join(dir, "changes"), kills)
	mutations := map[loggedMutation]bool{}
	for _, d := range storagetest.ReadJournal[loggedMutation](t, filepath.Join(dir, "mutations"), kills) {
		mutations[d] = true
	}
	ids, idOf := map[string]bool{}, map[loggedMutation]string{}
	newest := map[string]published{} // by item
	unknown := map[string]int{}      // reports, by item
	for _, l := range storagetest.ReadJournal[struct{ Intent struct{ Item string } }](t,
		filepath.Join(dir, "outbox", "undecided.jsonl"), kills) {
		unknown[l.Intent.Item]++
	}
	again, sweeps := 0, 0
	for _, c := range changes {
		if ids[c.ID] {
			again++
			continue
		}
		ids[c.ID] = true
		d := loggedMutation{"PUT", c.Item, c.Version, ""}
		switch c.Op {
		case "OP_DELETE":
			d.Op = "DELETE"
		case "OP_SET_PROPERTIES":
			d.Op, d.Media = "SET", c.Media
		}
		sweep := c.Origin == pb.Origin_ORIGIN_SWEEP.String()
		if sweep {
			sweeps++
		}
		if other := idOf[d]; other != "" && !sweep {
			t.Errorf("%+v has ids %s and %s", d, other, c.ID)
		}
		idOf[d] = c.ID
		// A delete that was killed is known from the item's absence.
		if !mutations[d] && (d.Op != "DELETE" || !mutations[loggedMutation{"PUT", d.Item, d.Version, ""}]) && !sweep {
			t.Errorf("%+v was published and not done", c)
		}
		last := newest[c.Item]
		if c.MS < last.MS && !sweep {
			t.Errorf("%+v overtakes %+v", c, last)
		}
		if c.MS > last.MS {
			newest[c.Item] = c
		}
	}
	missing := 0
	for d := range mutations {
		if d.Op == "SET" && !strings.HasPrefix(d.Media, "x/") { // as put
			continue
		}
		if idOf[d] == "" && unknown[d.Item] == 0 {
			missing++
			t.Errorf("%+v was done and not published", d)
		}
	}
	for item, n := range unknown {
		if item != "shared" {
			t.Errorf("%d unknown of %s, which has one writer at a time", n, item)
		}
	}
	checkStore(t, dir, idOf)
	t.Logf("%d mutations, %d changes of %d ids (%d of sweeps), %d unknown", len(mutations), len(changes), len(ids), sweeps,
		unknown["shared"])
	if len(ids) < 50 || again > len(changes)/2 || missing > 0 {
		t.Errorf("got %d ids, %d published again, %d missing", len(ids), again, missing)
	}
}

// checkStore checks that every present item has a Change, and that no present version was published as
// deleted.
func checkStore(t *testing.T, dir string, changes map[loggedMutation]string) {
	t.Helper()
	s, err := file.Open(file.Config{ID: "1", Root: filepath.Join(dir, "store"), ReadOnly: true})
	must(t, err)
	defer s.Close()
	for o, err := range s.List(t.Context(), sp, "") {
		must(t, err)
		if changes[loggedMutation{"PUT", o.Item, o.Version, ""}] == "" {
			t.Errorf("%s is present in version %s, and was not published", o.Item, o.Version)
		}
		if changes[loggedMutation{"DELETE", o.Item, o.Version, ""}] != "" {
			t.Errorf("%s is present in version %s, and was published as deleted", o.Item, o.Version)
		}
	}
}
