package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/millrace/usage"
)

// folderOf writes files and returns their folder.
func folderOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return dir
}

func TestScan(t *testing.T) {
	dir := folderOf(t, map[string]string{"b/2": "22", "a": "1", "b/é": "", "c/line\nbreak": "x", "b.": "3"})
	long := strings.Repeat("d/", 5) + strings.Repeat("x", 250)
	for range 4 {
		long = strings.Repeat("y", 250) + "/" + long
	}
	must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(long)), 0o755))
	must(t, errors.Join(os.WriteFile(filepath.Join(dir, long), nil, 0o644), os.Symlink("a", filepath.Join(dir, "link")),
		os.Symlink(".", filepath.Join(dir, "loop")), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644),
		os.WriteFile(filepath.Join(dir, "bad\xff"), nil, 0o644), os.Mkdir(filepath.Join(dir, "dir\xfe"), 0o755)))
	files, skipped, err := scan(t.Context(), dir, 0)
	must(t, err)
	wantFiles := []file{{"a", 1}, {"b/2", 2}, {"b/é", 0}, {"b.", 1}, {"c/line\nbreak", 1}}
	if !reflect.DeepEqual(files, wantFiles) {
		t.Errorf("files %+v, want %+v", files, wantFiles)
	}
	wantSkipped := map[string]string{`"bad\xff"`: "its name is not UTF-8", `"dir\xfe"`: "its name is not UTF-8",
		"link": "it is a symbolic link", "loop": "it is a symbolic link", "pipe": "it is a fifo",
		long: "its name is longer than 1024 bytes"}
	if len(long) <= maxItem { // a file system with short paths
		t.Fatalf("the long name has %d bytes", len(long))
	}
	got := map[string]string{}
	for _, s := range skipped {
		got[s.Path] = s.Reason
	}
	if !reflect.DeepEqual(got, wantSkipped) {
		t.Errorf("skipped %q, want %q", got, wantSkipped)
	}
	few, _, err := scan(t.Context(), dir, 2)
	if err != nil || !reflect.DeepEqual(few, wantFiles[:2]) {
		t.Errorf("with a limit: %+v, %v, want %+v", few, err, wantFiles[:2])
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := scan(ctx, dir, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestDistinct(t *testing.T) {
	same := map[string]string{"empty": ""}
	for i := range 40 {
		same[fmt.Sprintf("f%02d", i)] = fmt.Sprint(i % 4) // four contents
	}
	for name, tt := range map[string]struct {
		files map[string]string
		fails bool
	}{
		"five of five": {files: map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}},
		"empty ones between": {files: map[string]string{"a": "1", "a0": "", "b": "2", "b0": "", "c": "3", "d": "4",
			"e": "5"}},
		"four contents":     {files: same, fails: true},
		"four and an empty": {files: map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "e": ""}, fails: true},
		"nothing":           {fails: true},
		"one of many is other": {files: map[string]string{"a": "1", "b": "1", "c": "1", "d": "2", "e": "3", "f": "4",
			"g": "5", "h": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folderOf(t, tt.files)
			files, _, err := scan(t.Context(), dir, 0)
			must(t, err)
			got, err := pickDistinct(dir, files)
			if tt.fails {
				if !errors.Is(err, usage.Err) {
					t.Errorf("distinct = %q, %v, want usage.Err", got, err)
				}
				return
			}
			must(t, err)
			contents := map[string]bool{}
			for _, item := range got {
				contents[tt.files[item]] = true
			}
			if len(got) != 5 || len(contents) != 5 || contents[""] {
				t.Errorf("picked %q with contents %v, want five of different content", got, contents)
			}
			if again, err := pickDistinct(dir, files); err != nil || !reflect.DeepEqual(again, got) {
				t.Errorf("a second time it picked %q (%v), not %q", again, err, got)
			}
		})
	}
}

func TestMemo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "demo.json")
	m, err := loadCheckpoint(path)
	if err != nil || m.Step != 0 {
		t.Fatalf("recall of nothing = %+v, %v, want step 0", m, err)
	}
	m.Dir, m.Files, m.Picks.Flip = "/some/where", []file{{"a\nb", 3}}, "a\nb"
	m.Rounds = map[string]time.Time{"r": time.Unix(1, 2000000).UTC()}
	m.Originals = map[string]original{"a\nb": {0xff, time.Unix(3, 4).UTC()}}
	must(t, m.completed(stepDamage))
	got, err := loadCheckpoint(path)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("recall = %+v, %v, want %+v", got, err, m)
	}
	must(t, os.WriteFile(path, []byte("{"), 0o644))
	if _, err := loadCheckpoint(path); err == nil {
		t.Error("a memo that cannot be read is taken for none")
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
