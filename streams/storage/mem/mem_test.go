package mem_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func open(t *testing.T, cfg mem.Config) *mem.Store {
	t.Helper()
	s, err := mem.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func kept(t *testing.T, s storage.Store, space, item string) (all [][]byte) {
	for _, k := range s.(*mem.Store).AllKept() {
		if k.Space == space && k.Object.Item == item {
			all = append(all, k.Bytes)
		}
	}
	return all
}

func TestContract(t *testing.T) {
	still := func() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }
	versions := []string{"PutVersions", "OpenPinned", "OpenWhileChange", "RaceReplace", "RaceDelete"}
	times := []string{"PutVersions", "Delete", "Keep", "Properties"}
	properties := []string{"Put", "Properties", "PropertyValues", "PropertyBytes"}
	for name, tt := range map[string]struct {
		cfg  mem.Config
		only []string // the parts that the setting touches; make integration runs all
	}{
		"machine's clock":           {},
		"a clock that stands still": {mem.Config{Now: still}, times},
		"versions of bytes":         {mem.Config{Weak: mem.Weak{Versions: true}}, versions},
		"whole seconds":             {mem.Config{Weak: mem.Weak{Times: time.Second}}, times},
		"no properties are set":     {mem.Config{Weak: mem.Weak{Properties: true}}, properties},
		"properties are bounded":    {mem.Config{Weak: mem.Weak{MaxPropertyBytes: 2048}}, properties},
		"conditions are looked at": {mem.Config{Weak: mem.Weak{Conditions: true}},
			[]string{"PutCondition", "RacePut", "RaceReplace", "RaceDelete"}},
		"as weak as an object store's": {mem.Config{
			Weak: mem.Weak{Versions: true, Times: time.Second, Properties: true, Conditions: true, MaxPropertyBytes: 2048},
		}, slices.Concat(versions, times, properties)},
	} {
		tt.cfg.ID = "1"
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if need.Amount(0, 1, 1) > 0 {
				tt.only = nil
			}
			storagetest.Run(t, func(t *testing.T) storage.Store { return open(t, tt.cfg) }, storagetest.WithKept(kept),
				storagetest.Only(tt.only...))
		})
	}
}

// A store behind a Faulty without faults passes the contract.
func TestFaultyContract(t *testing.T) {
	inner := map[storage.Store]*mem.Store{}
	storagetest.Run(t, func(t *testing.T) storage.Store {
		m := open(t, mem.Config{ID: "1"})
		f := storagetest.NewFaulty(m)
		inner[f] = m
		return f
	}, storagetest.WithKept(func(t *testing.T, s storage.Store, space, item string) [][]byte {
		return kept(t, inner[s], space, item)
	}))
}

func TestDamage(t *testing.T) {
	ctx := t.Context()
	s := open(t, mem.Config{ID: "1"})
	if err := s.CreateSpace(ctx, storage.Space{Name: "s"}); err != nil {
		t.Fatal(err)
	}
	was, err := s.Put(ctx, "s", "a", strings.NewReader("good"), storage.PutOptions{Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	if !s.Corrupt("s", "a", []byte("gaad")) {
		t.Fatal("Corrupt did not find the item")
	}
	r, o, err := s.Open(ctx, "s", "a", was.Version)
	if err != nil || o.Digests["md5"] != was.Digests["md5"] || !o.Modified.Equal(was.Modified) {
		t.Errorf("after Corrupt: got %+v, %v, want the version and digests of before", o, err)
	}
	if b, _ := io.ReadAll(r); string(b) != "gaad" {
		t.Errorf("after Corrupt: got %q", b)
	}
	s.Rewrite("s", "a", []byte("new"))
	if o, _ := s.Stat(ctx, "s", "a"); len(o.Digests) != 0 || o.Version == was.Version || !o.Modified.After(was.Modified) ||
		o.Size != 3 {
		t.Errorf("after Rewrite: got %+v, want another, later version without digests", o)
	}
	s.Date("s", "a", was.Modified.Add(time.Hour))
	if o, _ := s.Stat(ctx, "s", "a"); !o.Modified.Equal(was.Modified.Add(time.Hour)) {
		t.Errorf("after Date: got %v", o.Modified)
	}
	s.Strip("s", "a")
	if o, _ := s.Stat(ctx, "s", "a"); !o.PropertiesUnknown || len(o.Digests) != 0 ||
		!o.Modified.Equal(was.Modified.Add(time.Hour)) || o.Size != 3 {
		t.Errorf("after Strip: got %+v, want unknown properties, and no digests", o)
	}
	set := storage.Properties{MediaType: "text/plain"}
	if o, err := s.SetProperties(ctx, "s", "a", set, storage.Condition{}); err != nil || o.PropertiesUnknown ||
		o.Properties.MediaType != "text/plain" {
		t.Errorf("after SetProperties: got %+v, %v", o, err)
	}
	s.Lose("s", "a")
	if _, err := s.Stat(ctx, "s", "a"); !errors.Is(err, storage.ErrNotFound) || s.Lose("s", "a") {
		t.Errorf("after Lose: got %v, want ErrNotFound", err)
	}
	s.Mark("2")
	if err := s.Marker(ctx); !errors.Is(err, storage.ErrWrongMarker) {
		t.Errorf("got %v, want ErrWrongMarker", err)
	}
	if err := s.WriteMarker(ctx); !errors.Is(err, storage.ErrExists) {
		t.Errorf("got %v, want ErrExists", err)
	}
	s.Mark("")
	if err := s.Marker(ctx); !errors.Is(err, storage.ErrNoMarker) {
		t.Errorf("got %v, want ErrNoMarker", err)
	}
}

// A snapshot comes back with its versions and times, twice, and what is written then has a version of its own.
func TestSnapshot(t *testing.T) {
	ctx := t.Context()
	s := open(t, mem.Config{ID: "1"})
	put := func(text string) storage.Object {
		t.Helper()
		o, err := s.Put(ctx, "s", "a", strings.NewReader(text),
			storage.PutOptions{Size: int64(len(text)), KeepReplaced: true})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if err := s.CreateSpace(ctx, storage.Space{Name: "s"}); err != nil {
		t.Fatal(err)
	}
	was := put("old")
	restore := s.Snapshot()
	for range 2 {
		newer := put("newer")
		if _, err := s.Delete(ctx, "s", "a", storage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		restore()
		o, err := s.Stat(ctx, "s", "a")
		if err != nil || o.Version != was.Version || !o.Modified.Equal(was.Modified) {
			t.Errorf("after restore: got %+v, %v, want %+v", o, err, was)
		}
		if kept := s.AllKept(); len(kept) != 0 {
			t.Errorf("after restore: kept are %v, which the snapshot has not", kept)
		}
		if again := put("again"); again.Version == newer.Version {
			t.Errorf("version %s was given before", again.Version)
		}
		restore()
	}
}

func TestNew(t *testing.T) {
	for name, cfg := range map[string]mem.Config{"no id": {}, "bad digest": {ID: "1", Digests: []string{"crc"}}} {
		if _, err := mem.New(cfg); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}
