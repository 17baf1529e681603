package outbox

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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
	"github.com/millrace/millrace/streams/storage/outbox/disk"
	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
)

const sp = "photos"

func fileOn(t testing.TB, d disk.Disk, edit ...func(*Config)) *File {
	t.Helper()
	f, err := tryFile(d, edit...)
	must(t, err)
	return f
}

func tryFile(d disk.Disk, edit ...func(*Config)) (*File, error) {
	cfg := Config{Dir: "x", Disk: d}
	for _, e := range edit {
		e(&cfg)
	}
	return Open(cfg)
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
	must(t, err)
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
		p, err := f.Read(h.Ticket)
		must(t, err)
		s := fmt.Sprintf("%d %s outcome %d concurrent %v", h.Ticket, h.Key, h.Outcome, h.Concurrent)
		if p.Streamed != nil {
			s += fmt.Sprintf(" streamed %d", p.Streamed.Size)
		}
		if p.Change != nil {
			s += " change " + p.Change.GetVersion()
		}
		all = append(all, s)
	}
	return all
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
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) ||
		!strings.Contains(err.Error(), "this process") {
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
	inherited, err := unix.Dup(int(f.dir.lock.Fd())) // as a process has while it is being started
	must(t, err)
	defer unix.Close(inherited)
	must(t, f.Close())
	// Another process has it open.
	flock := exec.CommandContext(t.Context(), "flock", "-n", filepath.Join(dir, lockName), "sh", "-c", "echo; read x")
	in, err := flock.StdinPipe()
	must(t, err)
	out, err := flock.StdoutPipe()
	must(t, err)
	if err := flock.Start(); err != nil {
		need.Missing(t, need.Program("flock"), err)
	}
	_, err = out.Read(make([]byte, 1))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, lockName), []byte("4711\n"), 0o600))
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) ||
		!strings.Contains(err.Error(), "process 4711") {
		t.Errorf("a second process: %v", err)
	}
	must(t, in.Close())
	_ = flock.Wait()
	// A process that only reads it does not write its pid.
	d, err := readDirectory(dir)
	must(t, err)
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) || strings.Contains(err.Error(), "4711") ||
		!strings.Contains(err.Error(), "by a process that reads it") {
		t.Errorf("while it is read: %v", err)
	}
	_, err = Inspect(t.Context(), dir) // a second reader
	must(t, err)
	must(t, d.close())
	f, err = Open(Config{Dir: dir})
	must(t, err)
	must(t, f.Close())
	if _, err := Open(Config{}); err == nil {
		t.Error("no directory: got no error")
	}
}

// segmentOf returns the bytes of the only segment.
func segmentOf(t testing.TB, d *outboxtest.Disk) []byte {
	t.Helper()
	b := d.Read(segmentName(1))
	if b == nil {
		t.Fatal("there is no first segment")
	}
	return b
}

// diskOf returns a disk with one segment.
func diskOf(b []byte) *outboxtest.Disk {
	d := outboxtest.New()
	d.Write(segmentName(1), b)
	return d
}

// recordsOf returns the end offsets of the records of a segment.
func recordsOf(t testing.TB, b []byte) (ends []int) {
	t.Helper()
	_, err := readSegment(b, true, endsVisitor{&ends})
	must(t, err)
	return ends
}

type endsVisitor struct{ ends *[]int }

func (r endsVisitor) record(_ segmentRecord, at int64, size int32) error {
	*r.ends = append(*r.ends, int(at)+int(size))
	return nil
}

func (endsVisitor) damaged(int64, int64) error { return nil }

// A segment that is cut at any byte, or has garbage after it, keeps its complete records.
func TestTornAtEveryByte(t *testing.T) {
	d := outboxtest.New()
	f := fileOn(t, d)
	for i := range 4 {
		ticket := intend(t, f, fmt.Sprint(i))
		if i%2 == 0 {
			must(t, f.Content(ticket, Content{Size: int64(i)}))
			_, err := f.Outcome(ticket, changeOf(fmt.Sprint(i), int64(i)))
			must(t, err)
		}
	}
	b := segmentOf(t, d)
	ends := recordsOf(t, b)
	if len(ends) != 8 {
		t.Fatalf("got %d records, want 8", len(ends))
	}
	whole := func(cut int) []string {
		end := headerBytes
		for _, e := range ends {
			if e <= cut {
				end = e
			}
		}
		return state(t, fileOn(t, diskOf(b[:end])))
	}
	for cut := headerBytes; cut < len(b); cut++ {
		want := whole(cut)
		for name, rest := range map[string][]byte{
			"cut": nil, "zeros": make([]byte, 100), "garbage": bytes.Repeat([]byte{0xa5}, 100),
			"other bytes": slices.Repeat([]byte{1, 0, 0, 0}, 64),
		} {
			same := 0 // leading bytes of rest that equal the original
			for same < len(rest) && cut+same < len(b) && rest[same] == b[cut+same] {
				same++
			}
			want := want
			if same > 0 {
				want = whole(cut + same)
			}
			torn := diskOf(append(slices.Clone(b[:cut]), rest...))
			f, err := tryFile(torn)
			if err != nil {
				t.Fatalf("%s at byte %d: %v", name, cut, err)
			}
			if got := state(t, f); !slices.Equal(got, want) {
				t.Fatalf("%s at byte %d: got  %q\nwant %q", name, cut, got, want)
			}
			intend(t, f, "after")
			if got := len(state(t, fileOn(t, torn.After(false, nil)))); got != len(want)+1 {
				t.Fatalf("%s at byte %d: got %d held after a record and a restart, want %d", name, cut, got, len(want)+1)
			}
		}
	}
}

// A record behind an incomplete one, if never known to be synced, does not come back when the gap is
// overwritten.
func TestTornWithMoreBehind(t *testing.T) {
	d := outboxtest.New()
	f := fileOn(t, d)
	ticket := intend(t, f, "a")
	must(t, f.Content(ticket, Content{Size: 1}))
	must(t, f.Content(ticket, Content{Size: 2}))
	b := slices.Clone(segmentOf(t, d))
	ends := recordsOf(t, b)
	b[ends[0]+recordHeaderBytes] ^= 1
	torn := diskOf(b)
	f = fileOn(t, torn)
	must(t, f.Content(ticket, Content{Size: 3})) // as long as the one that is torn
	want := []string{fmt.Sprintf("%d acme/photos/a outcome 0 concurrent false streamed 3", ticket)}
	if got := state(t, fileOn(t, torn.After(false, nil))); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Bytes that were known to be synced and have changed are never ignored silently.
func TestDamagedAtEveryByte(t *testing.T) {
	d := outboxtest.New()
	f := fileOn(t, d)
	var tickets []Ticket
	for i := range 3 {
		tickets = append(tickets, intend(t, f, fmt.Sprint(i)))
	}
	b := segmentOf(t, d)
	ends := recordsOf(t, b)
	for at := range b {
		bad := slices.Clone(b)
		bad[at] ^= 0x10
		_, err := tryFile(diskOf(bad))
		// No later record says that the last one was synced.
		if at < ends[1] && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) {
			t.Fatalf("byte %d: got %v, want ErrDamaged", at, err)
		}
		if at >= ends[1] && err != nil {
			t.Fatalf("byte %d, of the tail: %v", at, err)
		}
		if at >= 8 && at < 12 || at >= ends[1] { // a newer format, for all that is known
			continue
		}
		want := 2
		if at < headerBytes {
			want = 3
		}
		dd := diskOf(bad)
		f, err := tryFile(dd, func(c *Config) { c.Salvage = true })
		if err != nil {
			t.Fatalf("salvage with byte %d: %v", at, err)
		}
		if got := len(state(t, f)); got != want {
			t.Fatalf("salvage with byte %d: got %d held, want %d of %v", at, got, want, tickets)
		}
		if dd.Read(segmentName(1)+".damaged") == nil {
			t.Fatalf("salvage with byte %d: the damaged segment is gone", at)
		}
		intend(t, f, "after")
		if got := len(state(t, fileOn(t, dd.After(false, nil)))); got != want+1 {
			t.Fatalf("after salvage with byte %d and a restart: got %d held, want %d", at, got, want+1)
		}
	}
}

func TestFormats(t *testing.T) {
	d := outboxtest.New()
	intend(t, fileOn(t, d), "a")
	newer := slices.Clone(segmentOf(t, d))
	newer[8] = 2
	if _, err := tryFile(diskOf(newer), func(c *Config) { c.Salvage = true }); !errors.Is(err, ErrFormat) ||
		!strings.Contains(err.Error(), "format 2") {
		t.Errorf("a newer format: %v", err)
	}
	if _, err := tryFile(diskOf([]byte("what is this"))); !errors.Is(err, ErrDamaged) {
		t.Errorf("no outbox: %v", err)
	}
	gap := diskOf(segmentOf(t, d))
	gap.Write(segmentName(3), segmentOf(t, d))
	if _, err := tryFile(gap); !errors.Is(err, ErrDamaged) {
		t.Errorf("a segment is missing: %v", err)
	}
	renamed := outboxtest.New()
	renamed.Write(segmentName(2), segmentOf(t, d))
	if _, err := tryFile(renamed); !errors.Is(err, ErrDamaged) {
		t.Errorf("a segment of another number: %v", err)
	}
}

// The records on both sides of a missing segment are kept, and the outbox can be opened from then on.
func TestSalvageOverAGap(t *testing.T) {
	d := outboxtest.New()
	f := fileOn(t, d, func(c *Config) { c.Segment = 200 })
	for i := range 6 {
		intend(t, f, fmt.Sprint(i))
	}
	must(t, f.Close())
	all := len(f.segments)
	if all < 3 {
		t.Fatalf("got %d segments, want 3", all)
	}
	must(t, d.Remove(segmentName(2)))
	f = fileOn(t, d, func(c *Config) { c.Salvage = true })
	want := state(t, f)
	if len(want) == 0 || len(want) >= 6 {
		t.Fatalf("got %q, want those of all segments but one", want)
	}
	must(t, f.Close())
	if got := state(t, fileOn(t, d)); !slices.Equal(got, want) {
		t.Errorf("opened once more: got %q, want %q", got, want)
	}
}

func FuzzReadSegment(f *testing.F) {
	d := outboxtest.New()
	o := fileOn(f, d)
	ticket, err := o.Intend(f.Context(), intentOf("a"))
	must(f, err)
	must(f, o.Content(ticket, Content{Size: 1}))
	_, err = o.Outcome(ticket, changeOf("a", 1))
	must(f, err)
	f.Add(segmentOf(f, d))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := diskOf(b)
		o, err := tryFile(d, func(c *Config) { c.Salvage = true })
		if err != nil {
			return
		}
		before := state(t, o)
		intend(t, o, "after")
		got := state(t, o)
		if len(got) != len(before)+1 {
			t.Errorf("got %q after %q and another", got, before)
		}
		must(t, o.Close())
		if again := state(t, fileOn(t, d)); !slices.Equal(again, got) {
			t.Errorf("opened once more: got %q, want %q", again, got)
		}
	})
}

// Published mutations do not stay on disk, even while one old mutation is pending.
func TestFileDoesNotGrow(t *testing.T) {
	d := outboxtest.New()
	f := fileOn(t, d, func(c *Config) { c.Limit, c.Segment = 64<<10, 4<<10 })
	old := intend(t, f, "old")
	must(t, f.Content(old, Content{Size: 42}))
	waits := intend(t, f, "waits")
	_, err := f.Outcome(waits, changeOf("waits", 1))
	must(t, err)
	for i := range 500 {
		ticket := intend(t, f, fmt.Sprint(i))
		_, err := f.Outcome(ticket, changeOf(fmt.Sprint(i), int64(i)))
		must(t, err)
		must(t, f.Done(ticket))
		if size := d.Bytes(); size > 4*4<<10 {
			t.Fatalf("%d bytes after %d published mutations", size, i)
		}
	}
	want := state(t, f)
	if len(want) != 2 || !strings.Contains(want[0], "streamed 42") {
		t.Fatalf("got %q, want the two that wait", want)
	}
	must(t, f.Close())
	if got := state(t, fileOn(t, d)); !slices.Equal(got, want) {
		t.Errorf("after a restart: got %q, want %q", got, want)
	}
}

func TestFileFull(t *testing.T) {
	d := outboxtest.New()
	f := fileOn(t, d, func(c *Config) { c.Limit = 100 << 10 })
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
	must(t, d.Remove(rejectedName))
	intend(t, f, "c")
}

// After a failed fsync nothing is recorded any more; records synced before it are kept.
func TestFsyncFails(t *testing.T) {
	d := outboxtest.New()
	f := fileOn(t, d)
	a := intend(t, f, "a")
	d.Fail(2, outboxtest.Failure{}) // the write goes well
	if _, err := f.Intend(t.Context(), intentOf("b")); !errors.Is(err, ErrFailed) || !errors.Is(err, outboxtest.ErrStep) {
		t.Errorf("got %v, want ErrFailed and why", err)
	}
	if _, err := f.Intend(t.Context(), intentOf("c")); !errors.Is(err, ErrFailed) ||
		retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("the next: got %v, want ErrFailed, as unavailable", err)
	}
	if _, err := f.Outcome(a, changeOf("a", 1)); !errors.Is(err, ErrFailed) {
		t.Errorf("an outcome: got %v, want ErrFailed", err)
	}
	if err := f.Done(a); !errors.Is(err, ErrFailed) {
		t.Errorf("done: got %v, want ErrFailed", err)
	}
	if f.Stats().Err == nil {
		t.Error("Stats do not say so")
	}
	if got := state(t, fileOn(t, d.After(true, rand.New(rand.NewPCG(1, 1))))); len(got) != 1 && len(got) != 2 {
		t.Errorf("after a restart: got %q, want a, and b perhaps", got)
	}
}

// A record whose write fails, or seems to, is not kept, and those after it are.
func TestWriteFails(t *testing.T) {
	for _, did := range []bool{false, true} {
		for _, cause := range []error{outboxtest.ErrStep, unix.ENOSPC} {
			t.Run(fmt.Sprintf("done %v %v", did, cause), func(t *testing.T) {
				d := outboxtest.New()
				f := fileOn(t, d)
				a := intend(t, f, "a")
				d.Fail(1, outboxtest.Failure{Err: cause, Applied: did})
				_, err := f.Intend(t.Context(), intentOf("b"))
				if !errors.Is(err, cause) || (retry.ClassOf(err) == retry.ClassUnavailable) != (cause == unix.ENOSPC) {
					t.Errorf("got %v, of class %v", err, retry.ClassOf(err))
				}
				c := intend(t, f, "c")
				got := state(t, f)
				if len(got) != 2 || !slices.Equal(got, state(t, fileOn(t, d.After(false, nil)))) {
					t.Errorf("got %q, then %q after a restart, want %d and %d", got, state(t, fileOn(t, d.After(false, nil))), a, c)
				}
			})
		}
	}
}

// Concurrent callers share an fsync.
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
		t.Errorf("got %d fsyncs of %d intents", got, callers*each)
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
