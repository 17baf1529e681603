package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// importOf returns an import of listings with these contents: NAME\nTEXT.
func importOf(t *testing.T, listings ...string) *Import {
	t.Helper()
	dir := t.TempDir()
	i := &Import{From: 1, Faults: 100, Show: 2, temp: dir,
		Target: Target{Account: "acme", Store: "1", Space: "maps", User: "ann"}}
	for _, l := range listings {
		name, text, _ := strings.Cut(l, "\n")
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		listed, err := Open(path, Options{})
		must(t, err)
		i.Listings = append(i.Listings, listed)
	}
	return i
}

func checked(t *testing.T, i *Import) *Check {
	t.Helper()
	c, err := i.Check(t.Context())
	must(t, err)
	return c
}

// publisher records published messages. It fails from call failing on; with persisted set it
// records them nevertheless.
type publisher struct {
	published []schemas.Message
	ids       []string
	items     []string
	calls     int
	failing   int // 0: never
	persisted bool
}

var errBroker = errors.New("no broker")

func (p *publisher) Publish(_ context.Context, msgs ...schemas.Message) error {
	p.calls++
	failed := p.failing > 0 && p.calls >= p.failing
	if failed && !p.persisted {
		return errBroker
	}
	p.published = append(p.published, msgs...)
	for _, m := range msgs {
		c := m.Body.(*pb.Change)
		p.ids, p.items = append(p.ids, c.GetId()), append(p.items, c.GetItem())
	}
	if failed {
		return errBroker
	}
	return nil
}

func nothing(Progress) {}

// Rows of two listings become valid Changes in topic changes. A second import publishes the same
// ids.
func TestImport(t *testing.T) {
	var sums strings.Builder
	for n := range 2500 {
		fmt.Fprintf(&sums, "%s  photos/%d.jpg\n", emptyMD5, n)
	}
	i := importOf(t, "MD5SUMS\n"+sums.String(),
		"list.csv\nkey,size,md5,mtime\na/b,7,"+otherMD5+",2020-01-02T03:04:05.006Z\n")
	c := checked(t, i)
	if c.Rows != 2501 || c.Faulty != 0 || c.Sound() != 2501 || c.NoTime != 2500 || c.NoSize != 2500 || len(c.First) != 2 {
		t.Fatalf("checked: %+v", c)
	}
	var steps []int64
	p := new(publisher)
	for range 2 {
		done, err := i.Publish(t.Context(), p, c, func(d Progress) { steps = append(steps, d.Next) })
		if err != nil || done != (Progress{Published: 2501, Next: 2502}) {
			t.Fatalf("done: %+v, %v", done, err)
		}
	}
	if want := []int64{1001, 2001, 2502, 1001, 2001, 2502}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	ids := map[string]int{}
	for _, m := range p.published {
		change := m.Body.(*pb.Change)
		ids[change.GetId()]++
		if err := schemas.Validate(change); err != nil || m.Topic != schemas.Changes ||
			change.GetOrigin() != pb.Origin_ORIGIN_IMPORT || change.GetProvenance() != pb.Provenance_PROVENANCE_CLAIMED ||
			change.GetId() != schemas.ChangeID(change) {
			t.Fatalf("change %v in %s, %v", change, m.Topic, err)
		}
	}
	for id, n := range ids {
		if n != 2 {
			t.Errorf("id %s comes %d times", id, n)
		}
	}
	if len(ids) != 2501 {
		t.Errorf("%d ids, want 2501", len(ids))
	}
}

// Faults are found before anything is published.
func TestImportFaults(t *testing.T) {
	for name, c := range map[string]struct {
		listings []string
		set      func(*Import)
		faults   []string // what each contains
		sound    []string // items that are published with SkipFaulty
	}{
		"none": {[]string{"x\n" + emptyMD5 + "  a\n"}, nil, nil, []string{"a"}},
		"a row": {[]string{"x\n" + emptyMD5 + "  a\n" + emptyMD5 + "  /b\n" + emptyMD5 + "  c\n"}, nil,
			[]string{"x:2: \"/b\" is an absolute path"}, []string{"a", "c"}},
		"twice alike": {[]string{"x\n" + emptyMD5 + "  a\n" + emptyMD5 + "  a\n"}, nil, nil, []string{"a", "a"}},
		"twice alike, strict": {[]string{"x\n" + emptyMD5 + "  a\n" + emptyMD5 + "  a\n"},
			func(i *Import) { i.Strict = true }, []string{"x:2: item acme/maps/a is listed again: see"}, []string{"a", "a"}},
		"a contradiction": {[]string{"x\n" + emptyMD5 + "  a\n" + emptyMD5 + "  b\n" + otherMD5 + "  ./a\n"}, nil,
			[]string{"x:3: item acme/maps/a is listed again, with another md5 than at"}, []string{"b"}},
		"a contradiction of two": {
			[]string{"x\n" + emptyMD5 + "  a\n", "y.csv\npath,md5\na," + otherMD5 + "\nb," + emptyMD5 + "\n"}, nil,
			[]string{"y.csv:2: item acme/maps/a"}, []string{"b"}},
		"no digest, strict": {[]string{"x.csv\npath,size\na,1\n"}, func(i *Import) { i.Strict = true },
			[]string{`x.csv:2: "a" has no digest`}, []string{"a"}},
		"a column, strict": {[]string{"x.csv\npath,md5,colour\na," + emptyMD5 + ",red\n"},
			func(i *Import) { i.Strict = true }, []string{`x.csv: column "colour" is not read`}, []string{"a"}},
		"nothing": {[]string{"x.csv\npath,size\n"}, nil, []string{"x.csv: it lists nothing"}, nil},
		"more than are kept": {[]string{"x\n" + emptyMD5 + "  a\n" + strings.Repeat("bad\n", 5)},
			func(i *Import) { i.Faults = 1 },
			[]string{"x:2: it is not a line"}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := importOf(t, c.listings...)
			if c.set != nil {
				c.set(i)
			}
			found := checked(t, i)
			if len(found.Faults) != len(c.faults) || found.Faulty < int64(len(c.faults)) ||
				found.Sound() != int64(len(c.sound)) {
				t.Fatalf("faults %v of %d, sound %d; want %v, %d", found.Faults, found.Faulty, found.Sound(), c.faults,
					len(c.sound))
			}
			for n, f := range found.Faults {
				if !strings.Contains(f.Error(), c.faults[n]) {
					t.Errorf("fault %q, want %q", f, c.faults[n])
				}
			}
			strict := new(publisher)
			_, err := i.Publish(t.Context(), strict, found, nothing)
			if wrong := found.Faulty > 0; errors.Is(err, errFaulty) != wrong || wrong && strict.calls > 0 {
				t.Errorf("published %v with %d faults: %v", strict.items, found.Faulty, err)
			}
			i.SkipFaulty = true
			p := new(publisher)
			done, err := i.Publish(t.Context(), p, found, nothing)
			if err != nil || !slices.Equal(p.items, c.sound) || done.Published != int64(len(c.sound)) ||
				done.Skipped != found.Skipped || done.Next != found.Rows+1 {
				t.Errorf("published %v, %+v, %v; want %v", p.items, done, err, c.sound)
			}
		})
	}
}

// After a failed publish, or a lost acknowledgement, continuing at Next publishes all rows in
// order.
func TestImportGoesOn(t *testing.T) {
	var sums strings.Builder
	for n := range 2*importBatch + 10 {
		fmt.Fprintf(&sums, "%s  %d\n", emptyMD5, n)
	}
	for name, persisted := range map[string]bool{"failed": false, "failed, but persisted": true} {
		t.Run(name, func(t *testing.T) {
			i := importOf(t, "x\n"+sums.String())
			c := checked(t, i)
			p := &publisher{failing: 2, persisted: persisted}
			done, err := i.Publish(t.Context(), p, c, nothing)
			if !errors.Is(err, errBroker) || done != (Progress{Published: importBatch, Next: importBatch + 1}) {
				t.Fatalf("done %+v, %v", done, err)
			}
			p.failing, i.From = 0, done.Next
			if done, err = i.Publish(t.Context(), p, c, nothing); err != nil || done.Published != importBatch+10 {
				t.Fatalf("done %+v, %v", done, err)
			}
			seen := map[string]bool{}
			var order []string
			for n, id := range p.ids {
				if !seen[id] {
					order = append(order, p.items[n])
				}
				seen[id] = true
			}
			for n, item := range order {
				if item != fmt.Sprint(n) {
					t.Fatalf("item %d is %s", n, item)
				}
			}
			if len(order) != 2*importBatch+10 {
				t.Errorf("%d items", len(order))
			}
		})
	}
	i := importOf(t, "x\n"+sums.String())
	c := checked(t, i)
	ctx, stop := context.WithCancel(t.Context())
	p := new(publisher)
	done, err := i.Publish(ctx, p, c, func(Progress) { stop() })
	if !errors.Is(err, context.Canceled) || done.Next != importBatch+1 || len(p.ids) != importBatch {
		t.Errorf("stopped: %+v, %v, %d published", done, err, len(p.ids))
	}
	if _, err := i.Check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a check that is stopped: %v", err)
	}
	i.From = 5000
	if done, err := i.Publish(t.Context(), p, c, nothing); err != nil || done != (Progress{Next: 5000}) {
		t.Errorf("from behind the end: %+v, %v", done, err)
	}
}

// A listing that changes between check and publishing, or is damaged, is not published.
func TestImportDamaged(t *testing.T) {
	i := importOf(t, "x\n"+emptyMD5+"  a\n")
	c := checked(t, i)
	must(t, os.WriteFile(i.Listings[0].Path(), []byte(otherMD5+"  aa\n"), 0o600))
	p := new(publisher)
	if _, err := i.Publish(t.Context(), p, c, nothing); !errors.Is(err, ErrInvalid) || len(p.ids) > 0 {
		t.Errorf("published %v: %v", p.items, err)
	}
}
