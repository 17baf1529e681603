package denied

import (
	"errors"
	"fmt"
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
	inner := filepath.Join(dir, "lock")
	for name, tt := range map[string]struct {
		dir, path string // path is that of the error
		uid       int
		readOnly  bool
		blamed    string
		remedy    string
	}{
		"directory of another user": {dir, "lock", us + 1, false, dir,
			fmt.Sprintf("give it to this user (chown -R %d %s)", us+1, dir) + orRun(us)},
		"read-only file of this user": {dir, "lock", us, false, inner,
			"give its owner the right to write (chmod u+rwX " + inner + ")"},
		"absolute path": {dir, inner, us, false, inner,
			"give its owner the right to write (chmod u+rwX " + inner + ")"},
		"path elsewhere": {dir, "/etc/passwd", us, false, dir,
			"give its owner the right to write (chmod u+rwX " + dir + ")"},
		"missing directory": {filepath.Join(dir, "a"), filepath.Join(dir, "a"), us + 1, false, dir,
			fmt.Sprintf("create %s/a and give it to this user (install -d -o %d %s/a)", dir, us+1, dir) + orRun(us)},
		"only read: directory of another user": {dir, dir, us + 1, true, dir,
			fmt.Sprintf("give this user the right to read (a group, or setfacl -R -m u:%d:rX %s)", us+1, dir)},
		"only read: file of another user": {dir, "lock", us + 1, true, inner,
			fmt.Sprintf("give this user the right to read (a group, or setfacl -R -m u:%d:rX %s)", us+1, dir)},
		"only read: file of this user": {dir, "lock", us, true, inner,
			"give its owner the right to read (chmod u+rX " + inner + ")"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Error{dir: tt.dir, readOnly: tt.readOnly, uid: tt.uid,
				err: &fs.PathError{Op: "open", Path: tt.path, Err: fs.ErrPermission}}
			e.explain()
			if e.path != tt.blamed || !strings.HasPrefix(e.Error(), tt.blamed+" is owned by uid ") {
				t.Errorf("blames %s, want %s: %v", e.path, tt.blamed, e)
			}
			if e.Remedy() != tt.remedy || !errors.Is(e, fs.ErrPermission) {
				t.Errorf("remedy %q, want %q", e.Remedy(), tt.remedy)
			}
		})
	}
}

// orRun is the second remedy, if the owner is not root.
func orRun(uid int) string {
	if uid == 0 {
		return ""
	}
	return fmt.Sprintf(", or run as uid %d", uid)
}

// What the directory needs depends on whether the path that refuses is above it, not on the lengths of their names,
// and root is never proposed as the user.
func TestRemedy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		e    Error
		want string
	}{
		"of another user": {Error{dir: "/srv/state", path: "/srv/state", owner: 7},
			"give it to this user (chown -R 1000 /srv/state), or run as uid 7"},
		"of root": {Error{dir: "/srv/state", path: "/srv/state"}, "give it to this user (chown -R 1000 /srv/state)"},
		"of an unknown owner": {Error{dir: "/srv/state", path: "/srv/state", owner: -1},
			"give it to this user (chown -R 1000 /srv/state)"},
		"below a directory of another user": {Error{dir: "/srv/a/state", path: "/srv/a", owner: 7},
			"create /srv/a/state and give it to this user (install -d -o 1000 /srv/a/state), or run as uid 7"},
		"below a directory of root": {Error{dir: "/srv/a/state", path: "/"},
			"create /srv/a/state and give it to this user (install -d -o 1000 /srv/a/state)"},
		"relative": {Error{dir: "state", path: "."},
			"create state and give it to this user (install -d -o 1000 state)"},
		"shorter, but elsewhere": {Error{dir: "/srv/state", path: "/mnt", owner: 7},
			"give it to this user (chown -R 1000 /srv/state), or run as uid 7"},
		"shorter, with a common start": {Error{dir: "/srv/state", path: "/srv/sta", owner: 7},
			"give it to this user (chown -R 1000 /srv/state), or run as uid 7"},
		"below a closed directory": {Error{dir: "/srv/a/state", path: "/srv/a", owner: 7, closed: true},
			"choose a directory that this user can reach, or run as uid 7"},
		"below a closed directory of root": {Error{dir: "/srv/a/state", path: "/srv/a", closed: true},
			"choose a directory that this user can reach"},
		"only read, of root": {Error{dir: "/srv/photos", path: "/srv/photos", readOnly: true},
			"give this user the right to read (a group, or setfacl -R -m u:1000:rX /srv/photos)"},
		"only read, below a closed directory": {
			Error{dir: "/home/ann/photos", path: "/home/ann", owner: 7, closed: true, readOnly: true},
			"give this user the right to read (a group, or setfacl -m u:1000:x /home/ann and " +
				"setfacl -R -m u:1000:rX /home/ann/photos)"},
		"only read, closed itself": {Error{dir: "/srv/photos", path: "/srv/photos", owner: 7, closed: true, readOnly: true},
			"give this user the right to read (a group, or setfacl -R -m u:1000:rX /srv/photos)"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.e.uid = 1000
			if got := tt.e.Remedy(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
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
	if twice := ExplainRead("/tmp", once); twice != once || RemedyOf(twice) == "" {
		t.Errorf("got %v, want %v", twice, once)
	}
}
