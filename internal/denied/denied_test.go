package denied

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The error names the owner of the directory, or of what is in it, and the remedy fits.
func TestExplain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	us := os.Geteuid()
	if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		dir, path string // path is that of the error
		uid       int
		blamed    string
		remedy    string
	}{
		"directory of another user":   {dir, "lock", us + 1, dir, "chown -R"},
		"read-only file of this user": {dir, "lock", us, filepath.Join(dir, "lock"), "chmod u+rwX"},
		"absolute path":               {dir, filepath.Join(dir, "lock"), us, filepath.Join(dir, "lock"), "chmod u+rwX"},
		"missing directory":           {filepath.Join(dir, "a"), filepath.Join(dir, "a"), us + 1, dir, "install -d -o"},
	} {
		t.Run(name, func(t *testing.T) {
			e := explain(tt.dir, &fs.PathError{Op: "open", Path: tt.path, Err: fs.ErrPermission}, tt.uid)
			if e.path != tt.blamed || !strings.HasPrefix(e.Error(), tt.blamed+" is owned by uid ") {
				t.Errorf("blames %s, want %s: %v", e.path, tt.blamed, e)
			}
			if !strings.Contains(e.Remedy(), tt.remedy) || !errors.Is(e, fs.ErrPermission) {
				t.Errorf("remedy %q, want %q", e.Remedy(), tt.remedy)
			}
		})
	}
}

// Other errors stay as they are, and an explained one is not explained again.
func TestExplainOthers(t *testing.T) {
	t.Parallel()
	if err := Explain("/", fs.ErrNotExist); err != fs.ErrNotExist || RemedyOf(err) != "" {
		t.Errorf("got %v", err)
	}
	once := Explain("/", fs.ErrPermission)
	if twice := Explain("/tmp", once); twice != once || RemedyOf(twice) == "" {
		t.Errorf("got %v, want %v", twice, once)
	}
}
