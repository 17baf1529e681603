package outbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/need"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
)

const sp = "photos"

// open opens an outbox whose transactions are not synced; commit may be nil.
func open(t testing.TB, dir string, edit ...func(*Config)) *File {
	t.Helper()
	cfg := Config{Dir: dir, Commit: func(commit func() error) error { return commit() }}
	for _, e := range edit {
		e(&cfg)
	}
	f, err := Open(cfg)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() }) // it may have failed
	return f
}

// after returns the content of an outbox after its process was killed.
func after(t testing.TB, f *File) []string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "copy")
	must(t, os.CopyFS(dir, os.DirFS(f.cfg.Dir)))
	left := open(t, dir)
	defer left.Close()
	return state(t, left)
}

func intentOf(item string) Mutation {
	return Mutation{
		Draft:  &pb.Change{Op: pb.Op_OP_UPDATE, Account: "acme", Store: "1", Space: sp, Item: item, User: "ann"},
		Before: &pb.Change{Account: "acme", Store: "1", Space: sp, Item: item, Version: "0", Size: 7},
		Began:  time.UnixMilli(1_700_000_000_000),
	}
}

func changeOf(item string, ms int64) *pb.Change {
	return &pb.Change{
		Op: pb.Op_OP_UPDATE, Account: "acme", Store: "1", Space: sp, Item: item, Id: "x", Version: fmt.Sprint(ms),
		Time: timestamppb.New(time.UnixMilli(ms)),
	}
}

func intend(t testing.TB, f *File, item string) Ticket {
	t.Helper()
	ticket, err := f.Intend(t.Context(), intentOf(item))
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// state returns the content of an outbox in a comparable form.
func state(t testing.TB, f *File) (all []string) {
	t.Helper()
	for h := range f.Held() {
		m, err := f.Read(h.Ticket)
		must(t, err)
		if m.Key != h.Key || m.Outcome != h.Outcome || m.Concurrent != h.Concurrent {
			t.Errorf("Held has %+v, Read %+v", h, m)
		}
		all = append(all, text(m))
	}
	return all
}

func text(m Mutation) string {
	s := fmt.Sprintf("%d %s outcome %d concurrent %v", m.Ticket, m.Key, m.Outcome, m.Concurrent)
	if m.Streamed != nil {
		s += fmt.Sprintf(" streamed %d", m.Streamed.Size)
	}
	if m.Change != nil {
		s += " change " + m.Change.GetVersion()
	}
	return s
}

func TestFileKeeps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "outbox")
	f, err := Open(Config{Dir: dir})
	must(t, err)
	a, b, c, d := intend(t, f, "a"), intend(t, f, "b"), intend(t, f, "c"), intend(t, f, "d")
	e := intend(t, f, "a") // while another of a is under way
	must(t, f.Content(b, Content{digest.Set{"md5": "00"}, 5}))
	outcome, err := f.Outcome(c, changeOf("c", 1_700_000_000_005))
	must(t, err)
	_, err = f.Outcome(d, nil)
	must(t, err)
	must(t, f.Safe(t.Context()))
	x := intend(t, f, "x")
	_, err = f.Outcome(x, changeOf("x", 1))
	must(t, err)
	must(t, f.Done(x))
	must(t, f.Done(x))
	must(t, f.Close())
	must(t, f.Close())
	if _, err := f.Intend(t.Context(), intentOf("z")); !errors.Is(err, errClosed) {
		t.Errorf("Intend of a closed outbox: %v", err)
	}

	f, err = Open(Config{Dir: dir})
	must(t, err)
	defer f.Close()
	want := []string{
		fmt.Sprintf("%d acme/photos/a outcome 0 concurrent true", a),
		fmt.Sprintf("%d acme/photos/b outcome 0 concurrent false streamed 5", b),
		fmt.Sprintf("%d acme/photos/c outcome %d concurrent false change 1700000000005", c, outcome),
		fmt.Sprintf("%d acme/photos/a outcome 0 concurrent true", e),
	}
	if got := state(t, f); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	p, err := f.Read(b)
	must(t, err)
	if w := intentOf("b"); !proto.Equal(p.Draft, w.Draft) || !proto.Equal(p.Before, w.Before) || !p.Began.Equal(w.Began) {
		t.Errorf("got %+v, want %+v", p, w)
	}
	if next := intend(t, f, "n"); next <= x {
		t.Errorf("got ticket %d, want one after %d", next, x)
	}
	if _, err := f.Read(d); !errors.Is(err, ErrNotHeld) {
		t.Errorf("Read of a mutation that was not done: %v", err)
	}
}

// An outbox is open once at a time, and holds the Changes of one store.
func TestFileOwners(t *testing.T) {
	dir := t.TempDir()
	f, err := Open(Config{Dir: dir})
	must(t, err)
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("a second opener: %v", err)
	}
	must(t, f.Claim("acme/1"))
	if err := f.Claim("acme/1"); err == nil {
		t.Error("it serves two")
	}
	intend(t, f, "a")
	must(t, f.Close())
	f, err = Open(Config{Dir: dir})
	must(t, err)
	if err := f.Claim("acme/2"); err == nil || !strings.Contains(err.Error(), "acme/1") {
		t.Errorf("another store's: %v", err)
	}
	must(t, f.Claim("acme/1"))
	inherited, err := unix.Dup(int(f.dir.Fd())) // as a process has while it is being started
	must(t, err)
	defer unix.Close(inherited)
	must(t, f.Close())
	reader, err := lockDirectory(dir, false)
	must(t, err)
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("while it is read: %v", err)
	}
	_, err = Inspect(t.Context(), dir) // a second reader
	must(t, err)
	must(t, unlockDirectory(reader))
	// Another process has it open.
	flock := exec.CommandContext(t.Context(), "flock", "-n", dir, "sh", "-c", "echo; read x")
	in, err := flock.StdinPipe()
	must(t, err)
	out, err := flock.StdoutPipe()
	must(t, err)
	if err := flock.Start(); err != nil {
		need.Missing(t, need.Program("flock"), err)
	}
	_, err = out.Read(make([]byte, 1))
	must(t, err)
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) ||
		!strings.Contains(err.Error(), "a process has it open") {
		t.Errorf("a second process: %v", err)
	}
	must(t, in.Close())
	_ = flock.Wait()
	f, err = Open(Config{Dir: dir})
	must(t, err)
	must(t, f.Close())
	if _, err := Open(Config{}); err == nil {
		t.Error("no directory: got no error")
	}
}

// A database in which many mutations were pending is made smaller when it is opened empty; tickets go on.
func TestFileShrinks(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	var held []Ticket
	for i := range 4000 {
		held = append(held, intend(t, f, fmt.Sprint(i)))
	}
	for _, ticket := range held {
		must(t, f.Done(ticket))
	}
	must(t, f.Close())
	was, err := os.Stat(databaseName(dir))
	must(t, err)
	f = open(t, dir)
	is, err := os.Stat(databaseName(dir))
	must(t, err)
	if was.Size() < spareBytes || is.Size() > spareBytes/2 {
		t.Errorf("it had %d bytes, and has %d", was.Size(), is.Size())
	}
	if next := intend(t, f, "n"); next <= held[len(held)-1] {
		t.Errorf("got ticket %d, want one after %d", next, held[len(held)-1])
	}
}

// Records that take many pages are kept.
func TestLargeRecords(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	for range 9 {
		in := intentOf("large")
		in.Draft.User = strings.Repeat("u", maxRecordBytes-4096)
		_, err := f.Intend(t.Context(), in)
		must(t, err)
	}
	want := state(t, f)
	must(t, f.Close())
	f = open(t, dir)
	if got := state(t, f); len(got) != 9 || !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	in := intentOf("larger")
	in.Draft.User = strings.Repeat("u", maxRecordBytes)
	if _, err := f.Intend(t.Context(), in); !retry.IsPermanent(err) {
		t.Errorf("a record that is too large: %v", err)
	}
}

func TestFileFull(t *testing.T) {
	f := open(t, t.TempDir(), func(c *Config) { c.Limit = 100 << 10 })
	var tickets []Ticket
	for {
		ticket, err := f.Intend(t.Context(), intentOf("a"))
		if err != nil {
			if !errors.Is(err, ErrFull) || retry.ClassOf(err) != retry.ClassUnavailable {
				t.Fatalf("got %v, want ErrFull, as unavailable", err)
			}
			break
		}
		// The outcome of a recorded intent always fits.
		_, err = f.Outcome(ticket, changeOf("a", 1))
		must(t, err)
		tickets = append(tickets, ticket)
	}
	if n := len(tickets); n < 200 || f.Stats().Bytes > 100<<10 {
		t.Errorf("%d in %d bytes", n, f.Stats().Bytes)
	}
	for _, ticket := range tickets[:100] {
		must(t, f.Done(ticket))
	}
	intend(t, f, "b")
	// Reports count towards the limit until they are moved away.
	must(t, f.Report(Mutation{Change: &pb.Change{User: strings.Repeat("u", 100<<10)}}, errors.New("x")))
	if _, err := f.Intend(t.Context(), intentOf("c")); !errors.Is(err, ErrFull) {
		t.Errorf("with reports: got %v, want ErrFull", err)
	}
	must(t, os.Remove(filepath.Join(f.cfg.Dir, rejectedName)))
	intend(t, f, "c")
}

// errFull is the error of bbolt for a full disk.
var errFull = &fs.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}

// After a transaction that failed for any reason but a full disk, such as a failed fsync, nothing is recorded any
// more, whether or not it took effect; what was recorded before is kept.
func TestFsyncFails(t *testing.T) {
	for _, did := range []bool{false, true} {
		t.Run(fmt.Sprint("took effect ", did), func(t *testing.T) {
			fail := false
			f := open(t, t.TempDir(), func(c *Config) {
				c.Commit = func(commit func() error) error {
					if !fail {
						return commit()
					}
					if fail = false; did {
						must(t, commit())
					}
					return unix.EIO
				}
			})
			a := intend(t, f, "a")
			fail = true
			if _, err := f.Intend(t.Context(), intentOf("b")); !errors.Is(err, ErrFailed) || !errors.Is(err, unix.EIO) {
				t.Errorf("got %v, want ErrFailed and why", err)
			}
			_, intent := f.Intend(t.Context(), intentOf("c"))
			_, outcome := f.Outcome(a, changeOf("a", 1))
			for call, err := range map[string]error{
				"Intend": intent, "Outcome": outcome, "Done": f.Done(a), "Safe": f.Safe(t.Context()),
				"Content": f.Content(a, Content{}), "Close": f.Close(), "Stats": f.Stats().Err,
			} {
				if !errors.Is(err, ErrFailed) || retry.ClassOf(err) != retry.ClassUnavailable {
					t.Errorf("%s: got %v, want ErrFailed, as unavailable", call, err)
				}
			}
			if got := after(t, f); len(got) != 1 && (len(got) != 2 || !did) {
				t.Errorf("after a restart: got %q, want a, and b perhaps", got)
			}
		})
	}
}

// While the disk is full intents are refused, and outcomes wait; when there is space they are stored.
func TestDiskFull(t *testing.T) {
	full := false
	f := open(t, t.TempDir(), func(c *Config) {
		c.Commit = func(commit func() error) error {
			if full {
				return errFull
			}
			return commit()
		}
	})
	a, b := intend(t, f, "a"), intend(t, f, "b")
	full = true
	for range 3 {
		if _, err := f.Intend(t.Context(), intentOf("c")); !errors.Is(err, unix.ENOSPC) ||
			retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("got %v, of class %v", err, retry.ClassOf(err))
		}
	}
	_, err := f.Outcome(a, changeOf("a", 1))
	must(t, err)
	must(t, f.Done(b))
	if err := f.Safe(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Safe: got %v", err)
	}
	if n := len(f.waiting.records); n > 3 {
		t.Errorf("%d records wait", n)
	}
	full = false
	must(t, f.Safe(t.Context()))
	want := state(t, f)
	if got := after(t, f); len(got) != 1 || !strings.Contains(got[0], "change 1") || !slices.Equal(got, want) {
		t.Errorf("got %q after a restart, want %q", got, want)
	}
	intend(t, f, "d")
}

// A disk that is full is one to bbolt, too.
func TestRealDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		need.Missing(t, need.Root(), err)
	}
	defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	f, err := Open(Config{Dir: dir})
	must(t, err)
	var held []Ticket
	for err == nil && len(held) < 10_000 {
		var ticket Ticket
		if ticket, err = f.Intend(t.Context(), intentOf(fmt.Sprint(len(held)))); err == nil {
			held = append(held, ticket)
		}
	}
	if !errors.Is(err, unix.ENOSPC) || retry.ClassOf(err) != retry.ClassUnavailable || len(held) < 50 {
		t.Fatalf("%d intents, then %v", len(held), err)
	}
	want := state(t, f)
	must(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
	for _, ticket := range held[10:] {
		must(t, f.Done(ticket))
	}
	must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=2m"))
	must(t, f.Close())
	f = open(t, dir)
	if got := state(t, f); !slices.Equal(got, want[:10]) {
		t.Errorf("got %q, want %q", got, want[:10])
	}
	must(t, f.Close())
}

// A call that was cancelled while it waited leaves no intent.
func TestCancelledIntent(t *testing.T) {
	begun, release := make(chan struct{}, 10), make(chan struct{})
	f := open(t, t.TempDir(), func(c *Config) {
		c.Commit = func(commit func() error) error {
			begun <- struct{}{}
			<-release
			return commit()
		}
	})
	first := make(chan error, 1)
	go func() {
		_, err := f.Intend(t.Context(), intentOf("a"))
		first <- err
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := f.Intend(ctx, intentOf("b"))
		second <- err
	}()
	for f.Stats().Pending < 2 {
		runtime.Gosched()
	}
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(release)
	must(t, <-first)
	must(t, f.Safe(t.Context()))
	if got := after(t, f); len(got) != 1 {
		t.Errorf("got %q, want a", got)
	}
}

// A lack of file descriptors fails reports, and nothing else.
func TestShortageOfDescriptors(t *testing.T) {
	f := open(t, t.TempDir())
	must(t, f.Report(intentOf("r"), nil))
	restore := leaveNoDescriptors(t)
	ticket, err := f.Intend(t.Context(), intentOf("a"))
	err = errors.Join(err, f.Done(ticket))
	rerr := f.Report(intentOf("r"), nil)
	restore()
	must(t, err)
	if !errors.Is(rerr, unix.EMFILE) {
		t.Errorf("a report: %v", rerr)
	}
	must(t, f.Report(intentOf("r"), nil))
	must(t, f.Stats().Err)
}

// leaveNoDescriptors lets the process open no more files until restore is called.
func leaveNoDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	return func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }
}

// Concurrent callers share a transaction.
func TestGroupSync(t *testing.T) {
	f, err := Open(Config{Dir: t.TempDir()})
	must(t, err)
	defer f.Close()
	var syncs atomic.Int64
	f.ObserveSync(func(time.Duration) { syncs.Add(1) })
	var wg sync.WaitGroup
	const callers, each = 32, 20
	for i := range callers {
		wg.Go(func() {
			for n := range each {
				ticket, err := f.Intend(t.Context(), intentOf(fmt.Sprint(i, n)))
				if err != nil {
					t.Error(err)
					return
				}
				if err := f.Done(ticket); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := syncs.Load(); got == 0 || got > callers*each/2 {
		t.Errorf("got %d transactions of %d intents", got, callers*each)
	}
	if got := f.Stats().Pending; got != 0 {
		t.Errorf("got %d held", got)
	}
}

func TestReports(t *testing.T) {
	dir := t.TempDir()
	f, err := Open(Config{Dir: dir})
	must(t, err)
	must(t, f.Report(Mutation{Ticket: 1, Change: changeOf("a", 1)}, errors.New("too large")))
	b, c := intentOf("b"), intentOf("c")
	b.Ticket, b.Streamed, c.Ticket = 2, &Content{Size: 3}, 3
	must(t, f.Report(b, nil))
	must(t, f.Report(c, nil))
	for name, want := range map[string][]string{
		rejectedName:  {"too large", `"item":"a"`},
		undecidedName: {`"user":"ann"`, `"streamed":{`, `"ticket":3`},
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		for _, w := range want {
			if !strings.Contains(strings.ReplaceAll(string(b), ": ", ":"), w) {
				t.Errorf("%s: no %s in %s", name, w, b)
			}
		}
	}
	if s := f.Stats(); s.Rejected != 1 || s.Undecided != 2 {
		t.Errorf("got %+v", s)
	}
	must(t, f.Close())
	// An incomplete line stays a line of its own.
	half, err := os.OpenFile(filepath.Join(dir, rejectedName), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = half.WriteString(`{"ticket":`)
	must(t, err)
	must(t, half.Close())
	f, err = Open(Config{Dir: dir})
	must(t, err)
	defer f.Close()
	must(t, f.Report(Mutation{Ticket: 4, Change: changeOf("d", 1)}, errors.New("x")))
	all, err := os.ReadFile(filepath.Join(dir, rejectedName))
	must(t, err)
	if lines := strings.Split(strings.TrimSpace(string(all)), "\n"); len(lines) != 3 ||
		!strings.HasPrefix(lines[2], `{"ticket":4`) {
		t.Errorf("got %q", lines)
	}
	if s := f.Stats(); s.Undecided != 2 {
		t.Errorf("after a restart: got %+v", s)
	}
}
