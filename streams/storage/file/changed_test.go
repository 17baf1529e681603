package file

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// A listing of a local file system has the change times, which programs cannot set.
func TestListingHasChangeTimes(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Root: dir})
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	path := filepath.Join(dir, "photos", "a")
	before := time.Now().Add(-time.Second) // file timestamps are coarse
	must(t, os.WriteFile(path, []byte("text"), 0o644))
	old := time.Now().AddDate(-1, 0, 0)
	must(t, os.Chtimes(path, old, old))
	var fs unix.Statfs_t
	must(t, unix.Statfs(dir, &fs))
	for o, err := range s.List(t.Context(), "photos", "") {
		must(t, err)
		if local := isLocal(fs.Type); o.Changed.Before(before) == local || local && o.Changed.After(time.Now()) {
			t.Errorf("on a local file system: %t, it was changed at %v, and modified at %v", local, o.Changed, o.Modified)
		}
	}
}

func TestIsLocal(t *testing.T) {
	for name, tt := range map[string]struct {
		kind int64
		want bool
	}{
		"ext4": {unix.EXT4_SUPER_MAGIC, true}, "tmpfs": {unix.TMPFS_MAGIC, true}, "NFS": {unix.NFS_SUPER_MAGIC, false},
		"FUSE": {unix.FUSE_SUPER_MAGIC, false}, "SMB": {unix.SMB2_SUPER_MAGIC, false}, "unknown": {0, false},
	} {
		if got := isLocal(tt.kind); got != tt.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
