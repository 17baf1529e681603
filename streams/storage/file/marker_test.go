package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// mutations makes all mutating calls and returns their errors.
func mutations(ctx context.Context, s *Store) map[string]error {
	_, put := s.Put(ctx, sp, "a", strings.NewReader("x"), storage.PutOptions{Size: storage.UnknownSize})
	_, set := s.SetProperties(ctx, sp, "a", storage.Properties{}, storage.Condition{})
	_, del := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
	_, expire := s.Expire(ctx, storage.ExpireOptions{RetainedBefore: s.now()})
	return map[string]error{
		"Put": put, "SetProperties": set, "Delete": del, "Expire": expire,
		"CreateSpace": s.CreateSpace(ctx, storage.Space{Name: "new"}),
		"SetSpace":    s.SetSpace(ctx, storage.Space{Name: sp}), "DeleteSpace": s.DeleteSpace(ctx, sp),
	}
}

// Nothing is written into a root without the store's marker: an empty mount point, or the disk of another store, also
// if it replaces the root of an open store.
func TestWritesNeedTheMarker(t *testing.T) {
	ctx := t.Context()
	plain := func(t *testing.T, id, root string) *Store {
		s, err := Open(Config{ID: id, Root: root, Create: true})
		must(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	marked := func(t *testing.T, id, root string) *Store {
		s := plain(t, id, root)
		must(t, s.WriteMarker(ctx), s.CreateSpace(ctx, storage.Space{Name: sp}))
		return s
	}
	tests := map[string]struct {
		make func(t *testing.T, root string) *Store
		want error
	}{
		"an empty directory": {func(t *testing.T, root string) *Store { return plain(t, "1", root) }, storage.ErrNoMarker},
		"a directory with files": {func(t *testing.T, root string) *Store {
			must(t, os.MkdirAll(filepath.Join(root, sp), 0o777), os.WriteFile(filepath.Join(root, sp, "a"), []byte("x"), 0o666))
			return plain(t, "1", root)
		}, storage.ErrNoMarker},
		"another store": {func(t *testing.T, root string) *Store {
			marked(t, "2", root)
			return plain(t, "1", root)
		}, storage.ErrWrongMarker},
		"another store, though no marker is asked for": {func(t *testing.T, root string) *Store {
			marked(t, "2", root)
			return open(t, Config{Root: root})
		}, storage.ErrWrongMarker},
		"another store came into its place": {func(t *testing.T, root string) *Store {
			s := marked(t, "1", root)
			put(t, s, "b", "x")
			marked(t, "2", root+".other")
			must(t, os.Rename(root, root+".old"), os.Rename(root+".other", root))
			return s
		}, storage.ErrWrongMarker},
		"a root whose marker went came into its place": {func(t *testing.T, root string) *Store {
			s := marked(t, "1", root)
			marked(t, "1", root+".other")
			must(t, os.Remove(filepath.Join(root+".other", markerFile)), os.Rename(root, root+".old"),
				os.Rename(root+".other", root))
			return s
		}, storage.ErrNoMarker},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			s := tt.make(t, root)
			before := everything(t, root)
			for call, err := range mutations(ctx, s) {
				if !errors.Is(err, tt.want) || retry.ClassOf(err) != retry.ClassUnavailable || !storage.IsNotApplied(err) {
					t.Errorf("%s: got %v, want %v, as unavailable and not applied", call, err, tt.want)
				}
			}
			if after := everything(t, root); after != before {
				t.Errorf("the root has %s, and had %s", after, before)
			}
			if tt.want == storage.ErrNoMarker {
				must(t, s.WriteMarker(ctx))
				if err := s.CreateSpace(ctx, storage.Space{Name: "new"}); err != nil {
					t.Errorf("when it is marked: %v", err)
				}
			}
		})
	}
}

// A root of another format is refused, by name and unchanged. A root of an earlier build can be marked again: its items
// keep their metadata.
func TestOtherFormats(t *testing.T) {
	ctx := t.Context()
	for _, other := range []int{1, 3} {
		s := open(t, Config{sidecars: true})
		must(t, s.WriteMarker(ctx), s.CreateSpace(ctx, storage.Space{Name: sp}))
		put(t, s, "a", "x")
		want := stat(t, s, "a")
		must(t, s.writeMarkerFile(s.sess, markerDoc{Format: other, Store: "1"}), s.Close())
		root := s.cfg.Root
		before := everything(t, root)
		again := open(t, Config{Root: root})
		for call, err := range mutations(ctx, again) {
			if !errors.Is(err, ErrFormat) || !errors.Is(err, storage.ErrWrongMarker) ||
				retry.ClassOf(err) != retry.ClassUnavailable ||
				!strings.Contains(err.Error(), fmt.Sprintf("it is %d, this version of millrace needs 2", other)) {
				t.Errorf("%s: got %v, want that format %d is refused", call, err, other)
			}
		}
		if after := everything(t, root); after != before {
			t.Errorf("the root has %s, and had %s", after, before)
		}
		if err := again.WriteMarker(ctx); !errors.Is(err, storage.ErrExists) || !errors.Is(err, storage.ErrWrongMarker) {
			t.Errorf("WriteMarker: got %v, want ErrExists", err)
		}
		must(t, os.Remove(filepath.Join(root, markerFile)), again.WriteMarker(ctx))
		if got := stat(t, again, "a"); !reflect.DeepEqual(got, want) {
			t.Errorf("marked again: got %+v, want %+v", got, want)
		}
	}
}

// everything returns all paths below root.
func everything(t *testing.T, root string) string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		all = append(all, strings.TrimPrefix(path, root))
		return err
	}))
	return strings.Join(all, " ")
}
