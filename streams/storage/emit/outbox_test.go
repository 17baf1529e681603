package emit

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// A disk is the directory of an outbox whose transactions are not synced. Its steps are the transactions; fail makes
// one of them fail.
type disk struct {
	t   testing.TB
	dir string

	mu      sync.Mutex // guards the fields below
	steps   int
	failAt  int // the step that fails; 0: none
	failure stepFailure
}

// A stepFailure is how a step fails.
type stepFailure struct {
	err     error // [errFull]
	stop    bool  // all later steps fail too
	applied bool  // the failing step is carried out nevertheless
}

// errFull is the error of a transaction that finds no space on the disk, and has no effect.
var errFull = &fs.PathError{Op: "write", Path: "outbox", Err: unix.ENOSPC}

func newDisk(t testing.TB) *disk { return &disk{t: t, dir: t.TempDir()} }

// fail makes the nth step from now fail; 1 is the next.
func (d *disk) fail(n int, how stepFailure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if how.err == nil {
		how.err = errFull
	}
	d.failAt, d.failure = d.steps+n, how
}

// failed reports whether the step that fails was reached.
func (d *disk) failed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failAt > 0 && d.steps >= d.failAt
}

// commit is a Config.Commit.
func (d *disk) commit(commit func() error) error {
	d.mu.Lock()
	d.steps++
	fails := d.failAt > 0 && (d.steps == d.failAt || d.failure.stop && d.steps > d.failAt)
	applied := d.failure.applied && d.steps == d.failAt
	d.mu.Unlock()
	if fails && !applied {
		return d.failure.err
	}
	if err := commit(); err != nil || !fails {
		return err
	}
	return d.failure.err
}

// after returns a copy of the disk, as the death of the process or of the machine leaves it.
func (d *disk) after() *disk {
	d.t.Helper()
	left := &disk{t: d.t, dir: filepath.Join(d.t.TempDir(), "left")}
	must(d.t, os.CopyFS(left.dir, os.DirFS(d.dir)))
	return left
}

func fileOn(t testing.TB, d *disk, edit ...func(*outbox.Config)) *outbox.File {
	t.Helper()
	cfg := outbox.Config{Dir: d.dir, Commit: d.commit}
	for _, e := range edit {
		e(&cfg)
	}
	f, err := outbox.Open(cfg)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() }) // it may have failed
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An outbox serves one Store in its life, and only the account and store of the Changes that it holds.
func TestNewClaimsTheFile(t *testing.T) {
	m, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	dir := t.TempDir()
	refused := func(f *outbox.File, store, why string) {
		t.Helper()
		if _, err := New(m, Config{Account: "acme", Store: store, Outbox: f}, &topic{}); err == nil ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("of store %s: got %v, want %s", store, err, why)
		}
	}
	f, err := outbox.Open(outbox.Config{Dir: dir})
	must(t, err)
	_, err = New(m, Config{Account: "acme", Store: "1", Outbox: f}, &topic{})
	must(t, err)
	refused(f, "1", "already serves store acme/1")
	refused(f, "2", "already serves store acme/1")
	draft := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: sp, Item: "a"}
	_, err = f.Intend(t.Context(), outbox.Mutation{Draft: draft})
	must(t, err)
	must(t, f.Close())
	f, err = outbox.Open(outbox.Config{Dir: dir})
	must(t, err)
	refused(f, "2", "holds changes of store acme/1, not of acme/2")
	_, err = New(m, Config{Account: "acme", Store: "1", Outbox: f}, &topic{})
	must(t, err)
	must(t, f.Close())
}

// A program that opens a salvaged outbox publishes what can be read, looks up unknown outcomes in the store, and
// publishes each mutation once.
func TestSalvagedIsLookedUp(t *testing.T) {
	d, m := newDisk(t), memory(t)
	w := durable(t, d, m)
	w.topic.set(func(*pb.Change) (bool, error) { return false, errUnavailable })
	for i := range 5 {
		must(t, w.putItem(fmt.Sprint("item-", i), "x"))
	}
	must(t, w.outbox.Close())
	name := filepath.Join(d.dir, "outbox.db")
	b, err := os.ReadFile(name)
	must(t, err)
	must(t, os.WriteFile(name, bytes.ReplaceAll(b, []byte("item-1"), []byte("item-x")), 0o600))
	in, err := outbox.Salvage(t.Context(), d.dir)
	must(t, err)
	if in.Lost != 1 || in.Pending != 4 {
		t.Errorf("got %+v, want one of five lost", in)
	}
	w = durable(t, d, m)
	must(t, w.s.Flush(t.Context()))
	got := w.topic.take()
	if len(got) != 4 || w.held() != 0 {
		t.Errorf("got %v, %d left, want four", items(got), w.held())
	}
	for _, c := range got {
		o, err := m.Stat(t.Context(), sp, c.GetItem())
		must(t, err)
		if c.GetVersion() != o.Version || !c.GetTime().AsTime().Equal(o.Modified) || c.GetOp() != pb.Op_OP_ADD {
			t.Errorf("got %v, want the observed item: %+v", c, o)
		}
	}
}
