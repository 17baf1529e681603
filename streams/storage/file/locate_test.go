package file

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What keeps a new item from its name is looked up after the rename failed, and may be gone by then. Only a file that
// is neither regular nor a directory refuses the item for good.
func TestObstacle(t *testing.T) {
	none := func(string) error { return nil }
	tests := map[string]struct {
		make, remove func(path string) error
		want         obstacle
	}{
		"nothing":                {none, none, obstacleNone},
		"a directory":            {func(p string) error { return os.Mkdir(p, 0o777) }, none, obstacleDir},
		"a directory, removed":   {func(p string) error { return os.Mkdir(p, 0o777) }, os.Remove, obstacleNone},
		"a file of another put":  {func(p string) error { return os.WriteFile(p, nil, 0o666) }, none, obstacleNone},
		"a link":                 {func(p string) error { return os.Symlink("x", p) }, none, obstacleOther},
		"a link, removed":        {func(p string) error { return os.Symlink("x", p) }, os.Remove, obstacleNone},
		"a named pipe":           {func(p string) error { return unix.Mkfifo(p, 0o666) }, none, obstacleOther},
		"a named pipe, replaced": {func(p string) error { return unix.Mkfifo(p, 0o666) }, toDir, obstacleDir},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{Root: inMemory(t)})
			path := filepath.Join(s.cfg.Root, sp, "item")
			must(t, tt.make(path))
			at, err := s.sess.locationOf(sp + "/item")
			must(t, err)
			defer at.close()
			must(t, tt.remove(path), at.lookup("item"))
			if got := obstacleOf(&at.st); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func toDir(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o777)
}
