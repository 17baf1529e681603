package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
)

// otherUser is the user of the processes that may not use the directories of root.
const otherUser = 65532

// A refusal is a directory for a command that is refused at its start.
type refusal struct {
	t       *testing.T
	program string
	dir     string // everyone may enter it
}

func newRefusal(t *testing.T) *refusal {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} { // other users may enter them
		must(t, os.Chmod(d, 0o755))
	}
	self, err := os.Executable()
	must(t, err)
	f := &refusal{t, filepath.Join(dir, "millrace"), dir}
	f.check(copyProgram(self, f.program))
	f.write("config.yaml", "kafka: {brokers: [\"127.0.0.1:1\"]}\nclickhouse: {addresses: [\"127.0.0.1:1\"]}\n"+
		"accounts: [{id: acme, stores: [{id: \"1\", driver: file, root: "+dir+"/store, primary: true}]}]\n")
	return f
}

func copyProgram(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func (f *refusal) check(err error) {
	f.t.Helper()
	must(f.t, err)
}

func (f *refusal) write(name, text string) {
	f.t.Helper()
	f.check(os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644))
}

func (f *refusal) mkdir(name string, owner int) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	f.check(os.Mkdir(path, 0o755))
	f.check(os.Chown(path, owner, -1))
}

// run runs millrace in the directory, and returns its exit code and output.
func (f *refusal) run(uid int, args ...string) (code int, output string) {
	f.t.Helper()
	var out bytes.Buffer
	c := exec.CommandContext(f.t.Context(), f.program, args...)
	c.Dir, c.Stdout, c.Stderr, c.WaitDelay = f.dir, &out, &out, time.Second
	if uid != os.Geteuid() {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		f.t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), out.String()
}

// A directory of another user is refused at the start, with its owner, this user and what to do.
func TestRefusesDirectoriesOfOthers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		need.Missing(t, need.Root(), "only root can run a command as another user")
	}
	store := func(f *refusal) { // made by root
		f.mkdir("store", 0)
		if code, stderr := f.run(0, "store", "init", "--config", "config.yaml", "acme/1"); code != exitOK {
			f.t.Fatalf("make the store: exit code %d: %s", code, stderr)
		}
	}
	const to = "is owned by uid 0 with mode 0755, and this process runs as uid 65532"
	for name, tt := range map[string]struct {
		prepare func(f *refusal)
		command string
		code    int
		want    []string
	}{
		"state directory": {func(f *refusal) { f.mkdir("state", 0); f.write("state/lock", "") },
			"standalone --state state", exitPrecondition, []string{"state " + to, "chown -R 65532 state"}},
		"state directory of a command": {func(f *refusal) { f.mkdir("state", 0); f.write("state/lock", "") },
			"object show --state state acme/x/y", exitPrecondition, []string{"state " + to, "chown -R 65532 state"}},
		"new state directory": {func(f *refusal) {
			f.mkdir("store", otherUser)
			f.run(otherUser, "store", "init", "--config", "config.yaml", "acme/1")
		},
			"standalone --config config.yaml --state new", exitPrecondition, []string{"install -d -o 65532 new"}},
		"file of root in the state directory": {func(f *refusal) { f.mkdir("state", otherUser); f.write("state/lock", "") },
			"standalone --state state", exitPrecondition, []string{"state/lock is owned by uid 0", "chown -R 65532 state"}},
		"store at the start of its role": {store,
			"run --config config.yaml --roles copier", exitPrecondition,
			[]string{"store acme/1", "/store " + to, "chown -R 65532 /"}},
		"store of a check": {store,
			"store check --config config.yaml", exitFindings, []string{"/store " + to, "chown -R 65532 /"}},
		"store of standalone": {store,
			"standalone --config config.yaml --state new", exitPrecondition, []string{"/store " + to, "chown -R 65532 /"}},
		"store that is made": {func(f *refusal) { f.mkdir("store", 0) },
			"store init --config config.yaml acme/1", exitPrecondition, []string{"/store " + to, "chown -R 65532 /"}},
		"tree of another user that is only read": {func(f *refusal) {
			f.mkdir("photos", 0)
			f.write("photos/README", "an archive")
			f.check(os.Chmod(filepath.Join(f.dir, "photos"), 0o700))
			f.write("plain.yaml", "kafka: {brokers: [\"127.0.0.1:1\"]}\naccounts: [{id: acme, stores: [{id: \"1\", "+
				"driver: file, layout: plain, expect: README, root: "+f.dir+"/photos, primary: true}]}]\n")
		},
			"store check --config plain.yaml", exitFindings,
			[]string{"/photos is owned by uid 0 with mode 0700", "setfacl -R -m u:65532:rX /"}},
		"outbox": {func(f *refusal) {
			f.mkdir("outbox", 0)
			f.write("outbox/lock", "")
			f.check(os.Chmod(filepath.Join(f.dir, "outbox/lock"), 0o600))
		},
			"outbox check outbox", exitPrecondition, []string{"outbox " + to, "chown -R 65532 outbox"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newRefusal(t)
			tt.prepare(f)
			code, stderr := f.run(otherUser, strings.Fields(tt.command)...)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("not said: %q", want)
				}
			}
			if strings.Contains(stderr, "run as uid 0") {
				t.Error("it proposes to run as root")
			}
			if t.Failed() {
				t.Log(stderr)
			}
		})
	}
}

// A process whose address is taken does not start, and says which setting is wrong.
func TestRefusesTakenPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	f := newRefusal(t)
	f.write("config.yaml", fmt.Sprintf("kafka: {brokers: [\"127.0.0.1:1\"]}\nhttp: {listen: %s}\n",
		strconv.Quote(l.Addr().String())))
	code, stderr := f.run(os.Geteuid(), "run", "--config", "config.yaml", "--roles", "delayer")
	const want = "address already in use: another process listens there (ss -ltnp names it): stop it, or set another port"
	if code != exitPrecondition || !strings.Contains(stderr, "http.listen: ") || !strings.Contains(stderr, want) {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// A secret that is not set is refused before anything starts, and one in clear text with the configuration. Neither is
// printed.
func TestRefusesSecrets(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		secret, want string
		code         int
	}{
		"in clear text": {"hunter2", "never the secret itself", exitUsage},
		"not set": {"env:MILLRACE_TEST_NOT_SET", "env:MILLRACE_TEST_NOT_SET refers to is empty or not set",
			exitPrecondition},
		"no such file": {"file:/does/not/exist", "open /does/not/exist", exitPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newRefusal(t)
			f.write("config.yaml", "kafka: {brokers: [\"127.0.0.1:1\"], "+
				"sasl: {mechanism: PLAIN, user: u, password: \""+tt.secret+"\"}}\n")
			code, stderr := f.run(os.Geteuid(), "run", "--config", "config.yaml", "--roles", "delayer")
			if code != tt.code || !strings.Contains(stderr, "kafka.sasl.password: ") || !strings.Contains(stderr, tt.want) ||
				strings.Contains(stderr, "hunter2") {
				t.Errorf("exit code %d, want %d: %s", code, tt.code, stderr)
			}
		})
	}
}
