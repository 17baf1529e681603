package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/inventory"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

const (
	md5A = "d41d8cd98f00b204e9800998ecf8427e"
	md5B = "ab9503789e4af0669bcea10bc79d1ff7"
)

// importOf returns an import of listings with these contents: NAME\nTEXT.
func importOf(t *testing.T, listings ...string) *Import {
	t.Helper()
	dir := t.TempDir()
	i := &Import{From: 1, Faults: 100, Show: 2, temp: dir,
		Target: inventory.Target{Account: "acme", Store: "1", Space: "maps", User: "ann", Now: time.Now()}}
	for _, l := range listings {
		name, text, _ := strings.Cut(l, "\n")
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		listed, err := inventory.Open(path, inventory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		i.Listings = append(i.Listings, listed)
	}
	return i
}

func checked(t *testing.T, i *Import) *ImportCheck {
	t.Helper()
	c, err := i.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// publisher records published messages. It fails from call failing on; with persisted set it
// records them nevertheless.
type publisher struct {
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
	for _, m := range msgs {
		c := m.Body.(*pb.Change)
		p.ids, p.items = append(p.ids, c.GetId()), append(p.items, c.GetItem())
	}
	if failed {
		return errBroker
	}
	return nil
}

func nothing(ImportProgress) {}

// Rows of two listings become valid Changes in topic changes. A second import publishes the same
// ids.
func TestImport(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Options{Partitions: 3})
	p, err := kafka.NewProducer(b.Config(), "millrace/import")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var sums strings.Builder
	for n := range 2500 {
		fmt.Fprintf(&sums, "%s  photos/%d.jpg\n", md5A, n)
	}
	i := importOf(t, "MD5SUMS\n"+sums.String(), "list.csv\nkey,size,md5,mtime\na/b,7,"+md5B+",2020-01-02T03:04:05.006Z\n")
	c := checked(t, i)
	if c.Rows != 2501 || c.Faulty != 0 || c.Sound() != 2501 || c.NoTime != 2500 || c.NoSize != 2500 || len(c.First) != 2 {
		t.Fatalf("checked: %+v", c)
	}
	var steps []int64
	for range 2 {
		done, err := i.Publish(t.Context(), p, c, func(d ImportProgress) { steps = append(steps, d.Next) })
		if err != nil || done != (ImportProgress{Published: 2501, Next: 2502}) {
			t.Fatalf("done: %+v, %v", done, err)
		}
	}
	if want := []int64{1001, 2001, 2502, 1001, 2001, 2502}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	ids := map[string]int{}
	for _, body := range b.Bodies(schemas.Changes) {
		change := body.(*pb.Change)
		ids[change.GetId()]++
		if change.GetOrigin() != pb.Origin_ORIGIN_IMPORT || change.GetProvenance() != pb.Provenance_PROVENANCE_CLAIMED ||
			change.GetId() != schemas.ChangeID(change) {
			t.Fatalf("change %v", change)
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
	for _, r := range b.Read(schemas.Changes) {
		if r.Header(schemas.HeaderSource) != "millrace/import" {
			t.Fatalf("headers %v", r.Headers)
		}
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
		"none": {[]string{"x\n" + md5A + "  a\n"}, nil, nil, []string{"a"}},
		"a row": {[]string{"x\n" + md5A + "  a\n" + md5A + "  /b\n" + md5A + "  c\n"}, nil,
			[]string{"x:2: \"/b\" is an absolute path"}, []string{"a", "c"}},
		"twice alike": {[]string{"x\n" + md5A + "  a\n" + md5A + "  a\n"}, nil, nil, []string{"a", "a"}},
		"twice alike, strict": {[]string{"x\n" + md5A + "  a\n" + md5A + "  a\n"}, func(i *Import) { i.Strict = true },
			[]string{"x:2: item acme/maps/a is listed again: see"}, []string{"a", "a"}},
		"a contradiction": {[]string{"x\n" + md5A + "  a\n" + md5A + "  b\n" + md5B + "  ./a\n"}, nil,
			[]string{"x:3: item acme/maps/a is listed again, with another md5 than at"}, []string{"b"}},
		"a contradiction of two": {[]string{"x\n" + md5A + "  a\n", "y.csv\npath,md5\na," + md5B + "\nb," + md5A + "\n"},
			nil, []string{"y.csv:2: item acme/maps/a"}, []string{"b"}},
		"no digest, strict": {[]string{"x.csv\npath,size\na,1\n"}, func(i *Import) { i.Strict = true },
			[]string{`x.csv:2: "a" has no digest`}, []string{"a"}},
		"a column, strict": {[]string{"x.csv\npath,md5,colour\na," + md5A + ",red\n"},
			func(i *Import) { i.Strict = true }, []string{`x.csv: column "colour" is not read`}, []string{"a"}},
		"nothing": {[]string{"x.csv\npath,size\n"}, nil, []string{"x.csv: it lists nothing"}, nil},
		"more than are kept": {[]string{"x\n" + md5A + "  a\n" + strings.Repeat("bad\n", 5)},
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
		fmt.Fprintf(&sums, "%s  %d\n", md5A, n)
	}
	for name, persisted := range map[string]bool{"failed": false, "failed, but persisted": true} {
		t.Run(name, func(t *testing.T) {
			i := importOf(t, "x\n"+sums.String())
			c := checked(t, i)
			p := &publisher{failing: 2, persisted: persisted}
			done, err := i.Publish(t.Context(), p, c, nothing)
			if !errors.Is(err, errBroker) || done != (ImportProgress{Published: importBatch, Next: importBatch + 1}) {
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
	done, err := i.Publish(ctx, p, c, func(ImportProgress) { stop() })
	if !errors.Is(err, context.Canceled) || done.Next != importBatch+1 || len(p.ids) != importBatch {
		t.Errorf("stopped: %+v, %v, %d published", done, err, len(p.ids))
	}
	if _, err := i.Check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a check that is stopped: %v", err)
	}
	i.From = 5000
	if done, err := i.Publish(t.Context(), p, c, nothing); err != nil || done != (ImportProgress{Next: 5000}) {
		t.Errorf("from behind the end: %+v, %v", done, err)
	}
}

// A listing that changes between check and publishing, or is damaged, is not published.
func TestImportDamaged(t *testing.T) {
	i := importOf(t, "x\n"+md5A+"  a\n")
	c := checked(t, i)
	if err := os.WriteFile(i.Listings[0].Path(), []byte(md5B+"  aa\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := new(publisher)
	if _, err := i.Publish(t.Context(), p, c, nothing); !errors.Is(err, inventory.ErrInvalid) || len(p.ids) > 0 {
		t.Errorf("published %v: %v", p.items, err)
	}
}

func TestCheckStore(t *testing.T) {
	cfg := &config.Config{Accounts: []config.Account{{ID: "acme", Stores: []config.Store{{ID: "1"}}}}}
	for _, c := range []struct {
		account, store string
		ok             bool
	}{{"acme", "1", true}, {"acme", "2", false}, {"other", "1", false}} {
		if err := RequireStore(cfg, c.account, c.store); (err == nil) != c.ok || err != nil &&
			!errors.Is(err, precondition.Err) {
			t.Errorf("%s/%s: %v", c.account, c.store, err)
		}
	}
}
