package file

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// otherUser may read the stores of root, and not write to them.
const otherUser = 65532

// asOther runs the calling test again as another user, with a directory that everyone may enter. It returns the
// directory, and whether this is the process of the other user. prepare is called before, as root.
func asOther(t *testing.T, prepare func(dir string)) (dir string, is bool) {
	t.Helper()
	const child = "MILLRACE_TEST_OTHER_USER"
	if dir, is = os.LookupEnv(child); is {
		return dir, true
	}
	if os.Geteuid() != 0 {
		need.Missing(t, need.Root(), "only root can run a test as another user")
	}
	dir = t.TempDir()
	exe, err := os.Executable()
	must(t, err, os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755))
	program, err := os.ReadFile(exe)
	at := filepath.Join(dir, "file.test")
	must(t, err, os.WriteFile(at, program, 0o755)) // the other user cannot enter the directory of exe
	prepare(dir)
	cmd := exec.CommandContext(t.Context(), at, "-test.run=^"+t.Name()+"$", "-test.timeout=100s")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), child+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("as the other user: %v: %s", err, out)
	}
	return dir, false
}

// A store of another user cannot be opened. If one comes into the place of an open store, writes count as unavailable,
// so that they wait until the directory is right: nothing is applied, and the error names the owner. Reads go on.
func TestWritesToTheStoreOfAnother(t *testing.T) {
	dir, other := asOther(t, func(dir string) {
		s, err := Open(Config{ID: "1", Root: filepath.Join(dir, "theirs"), Create: true})
		must(t, err)
		must(t, s.WriteMarker(t.Context()), s.CreateSpace(t.Context(), storage.Space{Name: sp}))
		put(t, s, "a", "x")
		must(t, s.Close(), os.Chown(dir, otherUser, otherUser))
	})
	theirs, root := filepath.Join(dir, "theirs"), filepath.Join(dir, "store")
	if !other {
		if got := files(t, root); len(got) != 1 {
			t.Errorf("the store of root has %q, want the item alone", got)
		}
		return
	}
	says := func(dir string) string {
		return fmt.Sprintf("%s is owned by uid 0 with mode 0755, and this process runs as uid %d", dir, otherUser)
	}
	if _, err := Open(Config{ID: "1", Root: theirs}); !errors.Is(err, ErrDenied) ||
		!strings.Contains(err.Error(), says(theirs)) {
		t.Errorf("Open: got %v, want ErrDenied, and %q", err, says(theirs))
	}
	s, err := Open(Config{ID: "1", Root: root, Create: true})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	must(t, s.WriteMarker(t.Context()), s.CreateSpace(t.Context(), storage.Space{Name: sp}))
	put(t, s, "a", "y")
	must(t, os.Rename(root, filepath.Join(dir, "was")), os.Rename(theirs, root)) // as if another disk was mounted
	for call, err := range mutations(t.Context(), s) {
		if retry.ClassOf(err) != retry.ClassUnavailable || !errors.Is(err, ErrDenied) || !storage.IsNotApplied(err) ||
			!strings.Contains(err.Error(), says(root)) {
			t.Errorf("%s: got %v of class %v, want ErrDenied as unavailable, and %q", call, err, retry.ClassOf(err), says(root))
		}
	}
	if got, err := read(t, s, "a", ""); got != "x" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}
