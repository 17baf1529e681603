package file

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// Files that get their alternate names while their directory is read are listed once.
func TestListWhileFilesMove(t *testing.T) {
	const n = 800 // with names so long that one getdents returns less than half of them
	for name, made := range map[string]bool{"the directories are made": true, "the directories are not made yet": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var do func()
			reported := map[string]int{}
			s := store(t, Config{Skipped: func(path, _ string) {
				if reported[path]++; do != nil { // in the midst of the reading
					do()
					do = nil
				}
			}})
			dir := filepath.Join(s.cfg.Root, sp)
			var want []string
			for i := range n {
				want = append(want, fmt.Sprintf("f%04d", i)+strings.Repeat("x", 150))
				must(t, os.WriteFile(filepath.Join(dir, want[i]), nil, 0o666))
				if i%10 == 0 {
					must(t, os.Symlink("x", filepath.Join(dir, fmt.Sprintf("link%04d", i))))
				}
			}
			do = func() {
				for _, item := range want {
					path := filepath.Join(dir, item)
					must(t, os.Rename(path, path+tokenAlt))
					if made {
						must(t, os.Mkdir(path, 0o777))
					}
				}
			}
			if got := list(t, s); !slices.Equal(got, want) {
				t.Errorf("got %d items, want %d", len(got), n)
			}
			if do != nil {
				t.Fatal("nothing moved")
			}
			for path, times := range reported {
				if times > 1 || !strings.HasPrefix(path, sp+"/link") {
					t.Errorf("%q was reported %d times", path, times)
				}
			}
			if len(reported) != n/10 {
				t.Errorf("got %d reported, want %d", len(reported), n/10)
			}
		})
	}
}

// addAltNames finds the file of an item that the scan has missed.
func TestAddAltNames(t *testing.T) {
	long := strings.Repeat("n", 255)
	s := store(t, Config{})
	for _, item := range []string{"a", "b", "c/x", long, ""} {
		put(t, s, item+"/below", "x")
	}
	put(t, s, "a", "x")
	put(t, s, "b", "x")
	put(t, s, long, "x")
	must(t, os.Symlink("a%=", filepath.Join(s.cfg.Root, sp, "c%=")))
	seen := []entry{
		{"/", "%-", true},
		{"a/", "a", true},
		{"b", "b%=", false},
		{"b/", "b", true},
		{"c/", "c", true},
		{"gone/", "gone", true},
		{long + "/", long, true},
	}
	want := slices.Insert(slices.Clone(seen), 1, entry{"a", "a%=", false})
	want = slices.Insert(want, len(want)-1, entry{long, segment(long, true), false})
	r := &dirWindow{l: &lister{root: &s.root, sess: s.sess, space: sp}, dir: sp, entries: seen}
	must(t, r.addAltNames())
	if !reflect.DeepEqual(r.entries, want) {
		t.Errorf("got %v, want %v", r.entries, want)
	}
}

func TestChanged(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 500e6, time.UTC)
	st := func(changed time.Time) unix.Stat_t {
		ts := unix.NsecToTimespec(changed.UnixNano())
		return unix.Stat_t{Mtim: ts, Ctim: ts}
	}
	tests := map[string]struct {
		before, after time.Time
		want          bool
	}{
		"quiet":               {at.Add(-time.Second), at.Add(-time.Second), false},
		"changed under way":   {at.Add(-time.Second), at.Add(time.Millisecond), true},
		"changed just before": {at.Add(-5 * time.Millisecond), at.Add(-5 * time.Millisecond), true},
		"coarse times, quiet": {at.Truncate(time.Second).Add(-2 * time.Second),
			at.Truncate(time.Second).Add(-2 * time.Second), false},
		"coarse times, just before":  {at.Truncate(time.Second), at.Truncate(time.Second), true},
		"the other clock is fast":    {at.Add(time.Hour), at.Add(time.Hour), false},
		"a little faster than ours":  {at.Add(time.Millisecond), at.Add(time.Millisecond), true},
		"the other clock was turned": {at.Add(-time.Second), at.Add(-time.Hour), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before, after := st(tt.before), st(tt.after)
			if got := changed(&before, &after, at); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// Writes within one millisecond get increasing times in milliseconds.
func TestVersionsGrowInMilliseconds(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 300, time.UTC)
	clock := func() time.Time { return now }
	s := store(t, Config{now: clock})
	other := open(t, Config{Root: s.cfg.Root, now: clock})
	tests := map[string]struct {
		item   string
		second *Store
		touch  time.Duration // of the first file, from its own time
	}{
		"one process":         {"a", s, 0},
		"another process":     {"b", other, 0},
		"a file from ahead":   {"c", s, 4 * time.Minute},
		"an older file":       {"d", s, -time.Hour},
		"the millisecond's 0": {"e", s, -300},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			first := put(t, s, tt.item, "first")
			path, err := s.Path(sp, tt.item)
			must(t, err)
			if tt.touch != 0 {
				must(t, os.Chtimes(path, time.Time{}, first.Modified.Add(tt.touch)))
				first = stat(t, s, tt.item)
			}
			second := put(t, tt.second, tt.item, "second")
			if second.Modified.UnixMilli() <= first.Modified.UnixMilli() {
				t.Errorf("got %v after %v, want a later millisecond", second.Modified, first.Modified)
			}
			if got := stat(t, s, tt.item); got.Version != second.Version || !reflect.DeepEqual(got.Digests, second.Digests) {
				t.Errorf("Stat: got %+v, want %+v", got, second)
			}
		})
	}
}

// If a file is replaced or removed before its sidecar is read, Stat starts again.
func TestStatWhileDeleted(t *testing.T) {
	remove := func(t *testing.T, s *Store) {
		_, err := s.Delete(t.Context(), sp, "a", storage.DeleteOptions{})
		must(t, err)
	}
	tests := map[string]struct {
		do   func(t *testing.T, s *Store)
		sure bool // the sidecar speaks of the file that was opened
	}{
		"deleted":         {do: remove},
		"deleted and put": {do: func(t *testing.T, s *Store) { remove(t, s); put(t, s, "a", "another") }},
		"replaced":        {do: func(t *testing.T, s *Store) { put(t, s, "a", "another") }, sure: true},
		"nothing":         {do: func(*testing.T, *Store) {}, sure: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{sidecars: true})
			o := put(t, s, "a", "old")
			p, err := newItemPath(sp, "a")
			must(t, err)
			fd, _, st, err := s.sess.openItem(p)
			must(t, err)
			defer unix.Close(fd)
			tt.do(t, s)
			a, sure, err := s.sess.readMetadata(fd, p, &st)
			if err != nil || sure != tt.sure || sure && a.Digests["md5"] != o.Digests["md5"] || !sure && len(a.Digests) > 0 {
				t.Errorf("got %+v, %v, %v, want sure: %v", a, sure, err, tt.sure)
			}
		})
	}
}
