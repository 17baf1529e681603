package outbox

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
)

// outboxBytes returns the segment of an outbox with all kinds of records.
func outboxBytes(t *testing.T) []byte {
	t.Helper()
	d := outboxtest.New()
	f := fileOn(t, d)
	a := intend(t, f, "a")
	must(t, f.Content(a, Content{Size: 1}))
	_, err := f.Outcome(a, changeOf("a", 1))
	must(t, err)
	b := intend(t, f, "b")
	must(t, f.Content(b, Content{Size: 2}))
	c := intend(t, f, "c")
	_, err = f.Outcome(c, changeOf("c", 3))
	must(t, err)
	must(t, f.Done(c))
	_, err = f.Outcome(intend(t, f, "d"), nil)
	must(t, err)
	intend(t, f, "e")
	intend(t, f, "f")
	must(t, f.Close())
	return segmentOf(t, d)
}

// A recordNumbers collects the end offsets of the records of a segment, and the tickets assigned to them.
type recordNumbers struct {
	ends    []int
	numbers []Ticket
}

func (r *recordNumbers) record(n segmentRecord, at int64, size int32) error {
	r.ends = append(r.ends, int(at)+int(size))
	number := Ticket(0)
	switch n.kind {
	case kindIntent:
		number = n.ticket
	case kindOutcome:
		number = Ticket(n.number)
	}
	r.numbers = append(r.numbers, number)
	return nil
}

func (*recordNumbers) damaged(int64, int64) error { return nil }

// A flipped bit anywhere in an outbox is reported with its range and the tickets around it, unless it is in
// the tail that was never known to be synced. Inspect counts what Salvage keeps, and writes nothing.
func TestInspectAtEveryBit(t *testing.T) {
	good := outboxBytes(t)
	all := &recordNumbers{}
	_, err := readSegment(good, true, all)
	must(t, err)
	sound, err := inspect(t.Context(), "x", diskOf(good), false)
	must(t, err)
	if len(sound.Damage) > 0 || sound.Pending != 4 || len(sound.Unknown) != 3 || sound.Incomplete != 0 ||
		sound.Bytes != int64(len(good)) {
		t.Fatalf("got %+v, want 4 that wait, 3 without an outcome", sound)
	}
	for bit := range 8 * len(good) {
		at := bit / 8
		bad := slices.Clone(good)
		bad[at] ^= 1 << (bit % 8)
		d := diskOf(bad)
		in, err := inspect(t.Context(), "x", d, false)
		if d.Steps() > 0 || !slices.Equal(segmentOf(t, d), bad) {
			t.Fatalf("bit %d: it was written to", bit)
		}
		if at >= 8 && at < 12 {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("bit %d, of the format: got %v", bit, err)
			}
			continue
		}
		must(t, err)
		n := len(all.ends) // the record that contains the bit
		from := 0
		if at >= headerBytes {
			from = headerBytes
			for n = range all.ends {
				if at < all.ends[n] {
					break
				}
				from = all.ends[n]
			}
		}
		switch {
		case at < headerBytes:
			want := []Damage{{Segment: segmentName(1), Bytes: headerBytes, Before: 1}}
			if !slices.Equal(in.Damage, want) || in.Pending != sound.Pending {
				t.Fatalf("bit %d, of the header: got %+v, want damage %+v", bit, in, want)
			}
		case n == len(all.ends)-1: // no later record says that it was synced
			if len(in.Damage) > 0 || in.Incomplete != int64(len(good)-from) || in.Pending != sound.Pending-1 {
				t.Fatalf("bit %d, of the last record: got %+v", bit, in)
			}
		default:
			want := Damage{Segment: segmentName(1), From: int64(from), Bytes: int64(all.ends[n] - from)}
			for _, number := range all.numbers[:n] {
				want.After = max(want.After, number)
			}
			for _, number := range all.numbers[n+1:] {
				if want.Before == 0 {
					want.Before = number
				}
			}
			if !slices.Equal(in.Damage, []Damage{want}) {
				t.Fatalf("bit %d: got damage %+v, want %+v", bit, in.Damage, want)
			}
		}
		f, err := tryFile(d, func(c *Config) { c.Salvage = true })
		must(t, err)
		unknown := 0
		for h := range f.Held() {
			if h.Outcome == 0 {
				unknown++
			}
		}
		if st := f.Stats(); st.Pending != in.Pending || unknown != len(in.Unknown) {
			t.Fatalf("bit %d: Inspect reports %d that wait and %d without an outcome, and Salvage keeps %d and %d",
				bit, in.Pending, len(in.Unknown), st.Pending, unknown)
		}
	}
}

// Inspect refuses a directory that is no outbox, and one in use; it creates nothing.
func TestInspectDirectories(t *testing.T) {
	box := func(t *testing.T, dir string) {
		f, err := Open(Config{Dir: dir})
		must(t, err)
		intend(t, f, "a")
		must(t, f.Close())
	}
	for name, tt := range map[string]struct {
		make func(t *testing.T, dir string)
		want string // of the error
		held int
	}{
		"sound":  {make: box, held: 1},
		"absent": {func(*testing.T, string) {}, "no such file or directory", 0},
		"empty":  {func(t *testing.T, dir string) { must(t, os.Mkdir(dir, 0o700)) }, "is no outbox", 0},
		"a file": {func(t *testing.T, dir string) { must(t, os.WriteFile(dir, []byte("x"), 0o600)) },
			"not a directory", 0},
		"something else": {func(t *testing.T, dir string) { must(t, os.CopyFS(dir, os.DirFS("."))) }, "is no outbox", 0},
		"not begun": {func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.WriteFile(filepath.Join(dir, lockName), nil, 0o600))
		}, "", 0},
		"copied without its lock": {func(t *testing.T, dir string) {
			box(t, dir)
			must(t, os.Remove(filepath.Join(dir, lockName)))
		}, "", 1},
		"held": {func(t *testing.T, dir string) {
			f, err := Open(Config{Dir: dir})
			must(t, err)
			t.Cleanup(func() { must(t, f.Close()) })
		}, "in use by this process", 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "box")
			tt.make(t, dir)
			was := contents(t, filepath.Dir(dir))
			in, err := Inspect(t.Context(), dir)
			_, serr := Salvage(t.Context(), dir)
			for call, err := range map[string]error{"Inspect": err, "Salvage": serr} {
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("%s: got %v, want %q", call, err, tt.want)
				}
			}
			if in.Pending != tt.held || len(in.Damage) > 0 {
				t.Errorf("got %+v", in)
			}
			if got := contents(t, filepath.Dir(dir)); !maps.Equal(got, was) {
				t.Errorf("it was written to: got %v, was %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(was)))
			}
		})
	}
}

// contents returns the files below a directory, by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, dir)] = string(b)
		return err
	}))
	return all
}

// damagedOutbox creates an outbox of several segments with a report and one unreadable record.
func damagedOutbox(t *testing.T) (dir string, want []string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "box")
	f, err := Open(Config{Dir: dir, Segment: 400})
	must(t, err)
	for i := range 9 {
		intend(t, f, fmt.Sprint(i))
	}
	must(t, f.Report(Mutation{Ticket: 1, Change: changeOf("z", 1)}, errors.New("no")))
	lost := ""
	for i, s := range state(t, f) {
		if i == 1 {
			lost = s
			continue
		}
		want = append(want, s)
	}
	must(t, f.Close())
	if !strings.HasPrefix(lost, "2 ") {
		t.Fatalf("got %q, want ticket 2", lost)
	}
	name := filepath.Join(dir, segmentName(1))
	b, err := os.ReadFile(name)
	must(t, err)
	b[recordsOf(t, b)[0]+recordHeaderBytes] ^= 4
	must(t, os.WriteFile(name, b, 0o600))
	return dir, want
}

// opened opens an outbox and returns its content.
func opened(t *testing.T, dir string) []string {
	t.Helper()
	f, err := Open(Config{Dir: dir})
	must(t, err)
	defer f.Close()
	if st := f.Stats(); st.Rejected != 1 {
		t.Errorf("got %+v, want the report", st)
	}
	return state(t, f)
}

// Salvage keeps the readable records, and the damaged segment under another name.
func TestSalvage(t *testing.T) {
	dir, want := damagedOutbox(t)
	was := contents(t, dir)
	in, err := Salvage(t.Context(), dir)
	must(t, err)
	if len(in.Damage) != 1 || in.Damage[0].After != 1 || in.Damage[0].Before != 3 || in.Pending != len(want) ||
		len(in.Unknown) != len(want) {
		t.Errorf("got %+v, want ticket 2 lost", in)
	}
	u, i := in.Unknown[0], intentOf("0")
	if want := (UnknownOutcome{1, "UPDATE", sp, "0", i.Began.UTC()}); u != want {
		t.Errorf("got %+v, want %+v", u, want)
	}
	if got := opened(t, dir); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if contents(t, dir)["/"+segmentName(1)+damagedSuffix] != was["/"+segmentName(1)] {
		t.Error("the damaged segment is not kept")
	}
	if again, err := Salvage(t.Context(), dir); err != nil || len(again.Damage) > 0 || again.Pending != len(want) {
		t.Errorf("again: got %+v, %v, want it sound", again, err)
	}
}

// Whichever step of a salvage fails, or is the last one of the process, the next salvage keeps as
// much.
func TestSalvageAtEveryStep(t *testing.T) {
	bad := outboxBytes(t)
	bad[recordsOf(t, bad)[3]+recordHeaderBytes] ^= 1 // the intent of b has no content any more
	salvage := func(c *Config) { c.Salvage = true }
	want := state(t, fileOn(t, diskOf(bad), salvage))
	for _, how := range []outboxtest.Failure{{}, {Applied: true}, {Stop: true}, {Stop: true, Applied: true}} {
		for step := 1; ; step++ {
			d := diskOf(bad)
			d.Fail(step, how)
			_, err := tryFile(d, salvage)
			if !d.Failed() {
				must(t, err)
				if step < 5 {
					t.Errorf("%+v: only %d steps", how, step)
				}
				break
			}
			left := d.After(false, nil)
			if got := state(t, fileOn(t, left, salvage)); !slices.Equal(got, want) {
				t.Fatalf("%+v, step %d: got %q, want %q", how, step, got, want)
			}
			if got := state(t, fileOn(t, left)); !slices.Equal(got, want) {
				t.Fatalf("%+v, step %d, opened once more: got %q, want %q", how, step, got, want)
			}
		}
	}
}
