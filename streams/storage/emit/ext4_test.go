package emit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// A mounted is a file system in a file, mounted through a loop device.
type mounted struct{ image, dir, device string }

func run(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// newExt4 creates and mounts an ext4 that becomes read-only at its first error.
func newExt4(t *testing.T) *mounted {
	t.Helper()
	dir := t.TempDir()
	m := &mounted{image: filepath.Join(dir, "image"), dir: filepath.Join(dir, "mounted")}
	must(t, os.Mkdir(m.dir, 0o700))
	must(t, os.WriteFile(m.image, nil, 0o600))
	must(t, os.Truncate(m.image, 64<<20))
	if _, err := run(t.Context(), "mkfs.ext4", "-q", "-F", m.image); err != nil {
		need.Missing(t, need.Kernel("mkfs.ext4"), err)
	}
	m.mount(t)
	t.Cleanup(func() { _, _ = run(context.Background(), "umount", m.dir) })
	return m
}

func (m *mounted) mount(t *testing.T) {
	t.Helper()
	_, err := run(t.Context(), "mount", "-o", "loop,errors=remount-ro", m.image, m.dir)
	if err == nil {
		m.device, err = run(t.Context(), "findmnt", "-n", "-o", "SOURCE", m.dir)
	}
	if err != nil {
		need.Missing(t, need.Kernel("a loop device to mount"), err)
	}
}

// fail makes the file system find an error, as in a bad block: it refuses writes from then on.
func (m *mounted) fail(t *testing.T) {
	t.Helper()
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(m.device), "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("1"), 0); err != nil {
		need.Missing(t, need.Kernel(trigger), err)
	}
}

// repair checks the file system and mounts it again.
func (m *mounted) repair(t *testing.T) {
	t.Helper()
	_, err := run(t.Context(), "umount", m.dir)
	must(t, err)
	_, _ = run(t.Context(), "e2fsck", "-fy", m.image) // its exit code says what it found
	m.mount(t)
}

// A file system that becomes read-only during a mutation returns "read-only file system" before the first
// and after the last step: what is on disk afterwards was published, or is in the outbox.
func TestFileSystemGoesReadOnly(t *testing.T) {
	need.Full(t)
	for range need.Amount(1, 4, 20) {
		fs := newExt4(t)
		files, err := file.Open(file.Config{ID: "1", Root: fs.dir})
		must(t, err)
		must(t, files.WriteMarker(t.Context()))
		must(t, files.CreateSpace(t.Context(), storage.Space{Name: sp}))
		box, err := outbox.Open(outbox.Config{Dir: t.TempDir()})
		must(t, err)
		out := &topic{}
		s, err := New(files, Config{Account: "acme", Store: "1", Outbox: box}, out)
		must(t, err)
		failed := mutateUntilErrors(t, s, func() { fs.fail(t) })
		waits := map[string]bool{}
		for h := range box.Held() {
			waits[h.Key] = true
		}
		seen := listed(t, files)
		must(t, files.Close())
		must(t, box.Close())
		fs.repair(t)
		compareToDisk(t, fs, out.take(), failed, seen, waits)
		_, err = run(t.Context(), "umount", fs.dir)
		must(t, err)
	}
}

// A failure is the error of a call.
type failure struct {
	deletes bool
	err     error
}

// mutateUntilErrors puts and deletes items until each caller gets an error, and calls then after each has
// put some. It returns the failures by item.
func mutateUntilErrors(t *testing.T, s *Store, then func()) map[string]failure {
	var mu sync.Mutex
	failed := map[string]failure{}
	const callers, each = 48, 10
	var begun, ended sync.WaitGroup
	begun.Add(callers * each)
	for caller := range callers {
		ended.Go(func() {
			for n := 0; ; n++ {
				item := fmt.Sprintf("%d-%d", caller, n)
				_, err := s.Put(t.Context(), sp, item, strings.NewReader("some bytes"), storage.PutOptions{
					Size: storage.UnknownSize, Condition: storage.Condition{Absent: true},
				})
				deletes := err == nil && n%8 != 0
				if deletes {
					_, err = s.Delete(t.Context(), sp, item, storage.DeleteOptions{})
				}
				if n < each {
					begun.Done()
				}
				if err != nil {
					mu.Lock()
					failed[item] = failure{deletes, err}
					mu.Unlock()
					for ; n < each-1; n++ {
						begun.Done()
					}
					return
				}
			}
		})
	}
	begun.Wait()
	then()
	ended.Wait()
	return failed
}

func listed(t *testing.T, s storage.Store) map[string]bool {
	t.Helper()
	there := map[string]bool{}
	for o, err := range s.List(t.Context(), sp, "") {
		must(t, err)
		there[o.Item] = true
	}
	return there
}

// compareToDisk checks that each effect of a failed call is published or in the outbox. Items that existed
// after all calls ended and are not on disk were lost by the file system: some kernels return no error for
// an fsync while the journal is aborted.
func compareToDisk(
	t *testing.T, fs *mounted, published []*pb.Change, failed map[string]failure, seen, pending map[string]bool,
) {
	t.Helper()
	last := map[string]pb.Op{}
	for _, c := range published {
		last[c.GetItem()] = c.GetOp()
	}
	files, err := file.Open(file.Config{ID: "1", Root: fs.dir, ReadOnly: true})
	must(t, err)
	defer files.Close()
	there, lost := listed(t, files), 0
	for item, f := range failed {
		if pending[schemas.ItemKey("acme", sp, item)] {
			continue
		}
		op, ok := last[item]
		switch {
		case !there[item] && seen[item]:
			lost++
		case there[item] && !ok:
			t.Errorf("item %s is on the disk, and neither published nor in the outbox; its call returned: %v", item, f.err)
		case !there[item] && f.deletes && op == pb.Op_OP_ADD:
			t.Errorf("item %s is deleted, and that is neither published nor in the outbox; its call returned: %v", item, f.err)
		}
	}
	t.Logf("%d calls failed, %d items are on the disk, %d are lost, %d changes, %d pending",
		len(failed), len(there), lost, len(published), len(pending))
}
