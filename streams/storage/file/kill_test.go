package file

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/streams/storage"
)

// errEnds ends a call after a step. As a panic it simulates a killed process: only deferred unlocks run, as the kernel
// releases locks. As an error it simulates a step that fails.
var errEnds = errors.New("ends here")

// endsAt calls f with a store that ends after step n, and reports whether f had that many steps.
func endsAt(s *Store, n int, kill bool, f func(s *Store) error) (ended bool, err error) {
	defer func() {
		s.cfg.step = nil
		if r := recover(); r != nil {
			if r != any(errEnds) {
				panic(r)
			}
			ended = true
		}
	}()
	var steps atomic.Int64
	s.cfg.step = func(string) error {
		switch {
		case steps.Add(1) <= int64(n):
			return nil
		case kill:
			panic(errEnds)
		}
		return errEnds
	}
	err = f(s)
	return errors.Is(err, errEnds), err
}

// state returns a text with the content and the metadata of an item.
func state(t *testing.T, s *Store, item string) string {
	t.Helper()
	o, err := s.Stat(t.Context(), sp, item)
	if errors.Is(err, storage.ErrNotFound) {
		return "absent"
	}
	must(t, err)
	content, err := read(t, s, item, o.Version)
	must(t, err)
	return fmt.Sprintf("%s, %s %.9s, digests agree: %v, unknown: %v", content, o.Properties.MediaType,
		o.Properties.User["k"],
		o.Digests["md5"] == sum(content), o.PropertiesUnknown)
}

func sum(content string) string {
	m := md5.Sum([]byte(content))
	return hex.EncodeToString(m[:])
}

// sidecarBytes returns all sidecars of a root by path.
func sidecarBytes(t *testing.T, root string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, metaDir, sp, "*", "*"))
	must(t, err)
	all := map[string][]byte{}
	for _, path := range paths {
		all[path], err = os.ReadFile(path)
		must(t, err)
	}
	return all
}

// A process is killed after each step of each mutation, or the next step fails, in both layouts and with the metadata
// in attribute or sidecar. The item then has its old or its new state, and the same call completes the mutation. This
// also holds if a file that was removed without a sync comes back.
func TestKilledAtEachStep(t *testing.T) {
	ctx := t.Context()
	props := storage.Properties{MediaType: "new/type", User: map[string]string{"k": "v"}}
	replace := func(keep bool) func(s *Store) error {
		return func(s *Store) error {
			_, err := s.Put(ctx, sp, "a", strings.NewReader("new"),
				storage.PutOptions{Size: 3, Properties: props, KeepReplaced: keep})
			return err
		}
	}
	remove := func(keep bool) func(s *Store) error {
		return func(s *Store) error {
			_, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{KeepDeleted: keep})
			if errors.Is(err, storage.ErrNotFound) {
				return nil
			}
			return err
		}
	}
	const old, changed, put = "old, text/plain , digests agree: true, unknown: false",
		"old, new/type v, digests agree: true, unknown: false",
		"new, new/type v, digests agree: true, unknown: false"
	mutations := map[string]struct {
		do   func(s *Store) error
		want string
	}{
		"put":             {replace(false), put},
		"put and keep":    {replace(true), put},
		"delete":          {remove(false), "absent"},
		"delete and keep": {remove(true), "absent"},
		"set properties": {func(s *Store) error {
			_, err := s.SetProperties(ctx, sp, "a", props, storage.Condition{})
			return err
		}, changed},
		"put of a new one": {func(s *Store) error {
			_, err := s.Put(ctx, sp, "d/b", strings.NewReader("new"), storage.PutOptions{Size: 3, Properties: props})
			return err
		}, old},
	}
	ways := map[string]Config{"attribute": {}, "sidecar": {sidecars: true}, "no room": {maxAttr: 1}}
	for was, before := range ways {
		for now, cfg := range ways {
			for name, m := range mutations {
				t.Run(fmt.Sprintf("%s, %s, then %s", name, was, now), func(t *testing.T) {
					for n := 0; endsAfter(t, n, false, before, cfg, m.do, old, m.want); n++ {
						if n > 20 {
							t.Fatal("it never ends")
						}
						endsAfter(t, n, true, before, cfg, m.do, old, m.want)
					}
				})
			}
		}
	}
}

// endsAfter puts an item with the configuration before, ends do after n steps, and checks the item. It reports whether
// do had that many steps.
func endsAfter(
	t *testing.T, n int, kill bool, before, cfg Config, do func(s *Store) error, old, want string,
) bool {
	t.Helper()
	before.Root = inMemory(t)
	cfg.Root = before.Root
	s := store(t, before)
	put(t, s, "a", "old")
	must(t, s.writeMarkerFile(s.sess, markerDoc{format, cfg.sidecars, "1"}), s.Close())
	there := sidecarBytes(t, cfg.Root)
	first := open(t, cfg)
	ended, err := endsAt(first, n, kill, do)
	if !ended {
		must(t, err)
	}
	must(t, first.Close())
	again := open(t, cfg)
	if got := state(t, again, "a"); got != want && (!ended || got != old) {
		t.Errorf("after %d steps: got %s", n, got)
	}
	if err := do(again); err != nil {
		t.Errorf("after %d steps, again: %v", n, err)
	}
	if got := state(t, again, "a"); got != want {
		t.Errorf("after %d steps, again: got %s, want %s", n, got, want)
	}
	for path, b := range there {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			must(t, os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, b, 0o666))
		}
	}
	if got := state(t, again, "a"); got != want {
		t.Errorf("after %d steps, with the sidecar back: got %s, want %s", n, got, want)
	}
	return ended
}

// Without ordered metadata, the sidecar is synced before its file is renamed, and the directory of the file before the
// sidecar of the old file is removed.
func TestOrderOfSteps(t *testing.T) {
	ctx := t.Context()
	replace := func(s *Store) error {
		_, err := s.Put(ctx, sp, "a", strings.NewReader("new"), storage.PutOptions{Size: 3})
		return err
	}
	remove := func(s *Store) error { _, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{}); return err }
	set := func(s *Store) error {
		_, err := s.SetProperties(ctx, sp, "a", storage.Properties{}, storage.Condition{})
		return err
	}
	side, attr, full := Config{sidecars: true}, Config{}, Config{maxAttr: 1}
	for name, tt := range map[string]struct {
		was, now           Config
		do                 func(*Store) error
		ordered, unordered string
	}{
		"put, sidecar over sidecar": {side, side, replace, "written, sidecar placed, moved",
			"written, sidecar placed, sidecar synced, moved"},
		"put, attribute over sidecar":   {side, attr, replace, "written, moved", "written, moved, directory synced"},
		"put, attribute over attribute": {attr, attr, replace, "written, moved", "written, moved"},
		"put, sidecar over attribute": {attr, full, replace, "written, sidecar placed, moved",
			"written, sidecar placed, sidecar synced, moved"},
		"delete, sidecar":   {side, attr, remove, "recorded, removed", "recorded, removed, directory synced"},
		"delete, attribute": {attr, attr, remove, "recorded, removed", "recorded, removed"},
		"set properties, from a sidecar": {side, attr, set, "attribute written, attribute synced",
			"attribute written, attribute synced"},
		"set properties, from an attribute": {
			attr, full, set, "sidecar placed, attribute removed", "sidecar placed, attribute removed",
		},
	} {
		for kept, want := range map[bool]string{true: tt.ordered, false: tt.unordered} {
			t.Run(fmt.Sprintf("%s, order is kept: %v", name, kept), func(t *testing.T) {
				was, now := tt.was, tt.now
				was.Root = inMemory(t)
				now.Root = was.Root
				put(t, store(t, was), "a", "old")
				var steps []string
				now.step = func(done string) error { steps = append(steps, done); return nil }
				s := open(t, now)
				s.sess.ordered = kept
				must(t, tt.do(s))
				if got := strings.Join(steps, ", "); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		}
	}
}
