package integration

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/need"
)

// s3Server returns the path of the S3 server that the demo runs.
func s3Server(t *testing.T) string {
	t.Helper()
	need.Integration(t)
	path, err := filepath.Abs(filepath.Join("..", "bin", "peers", "versitygw"))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		need.Missing(t, need.S3(), err)
	}
	return path
}

// TestS3Demo runs the demo with an S3 server.
func TestS3Demo(t *testing.T) {
	need.Full(t)
	code, s, stderr := demo(t, "--stores", "s3", "--s3-server", s3Server(t), tree(t, 60))
	wantAll(t, code, s, stderr, 60)
	for i, want := range []string{"file", "s3", "s3"} {
		if got := s.Stores[i].Driver; got != want {
			t.Errorf("store %s is of driver %q, want %q", s.Stores[i].Store, got, want)
		}
	}
}

// TestS3DemoServerDies checks that the demo ends with an error if its S3 server dies, and that it can continue with the
// same state and stores.
func TestS3DemoServerDies(t *testing.T) {
	need.Full(t)
	program := s3Server(t)
	dir, state := tree(t, 60), filepath.Join(t.TempDir(), "state")
	cmd := exec.CommandContext(t.Context(), binaries(t), "demo", "-o", "json", "--state", state, "--stores", "s3",
		"--s3-server", program, dir)
	var stderr bytes.Buffer
	pipe, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	killed := false
	buf := make([]byte, 4096)
	for err == nil {
		var n int
		n, err = pipe.Read(buf)
		stderr.Write(buf[:n])
		if !killed && bytes.Contains(stderr.Bytes(), []byte(`"step":"write to store 1"`)) {
			kill(t, childOf(t, cmd.Process.Pid, program))
			killed = true
		}
	}
	_ = cmd.Wait() // ProcessState has the exit status
	if code := cmd.ProcessState.ExitCode(); !killed || code != 1 || !strings.Contains(stderr.String(),
		"the S3 server ended (signal: killed)") {
		t.Fatalf("killed: %v, exit code %d, want 1 and the reason:\n%s", killed, code, stderr.String())
	}
	code, _, out := demo(t, "--state", state, "--stores", "file", dir)
	if code != 5 || !strings.Contains(out, "has stores of kind s3, not file") {
		t.Errorf("with other stores: exit code %d, want 5 and why:\n%s", code, out)
	}
	code, s, out := demo(t, "--state", state, "--s3-server", program, dir)
	wantAll(t, code, s, out, 60)
	for _, name := range []string{"access-key", "secret-key"} {
		info, err := os.Stat(filepath.Join(state, "s3", name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want a file of mode 0600", name, info, err)
		}
	}
}

// TestS3DemoKilled is TestDemoKilled with an S3 server, which is killed too.
func TestS3DemoKilled(t *testing.T) {
	need.Full(t)
	demoKilled(t, 5, "--stores", "s3", "--s3-server", s3Server(t))
}

// childOf returns the process id of the child of parent that runs a program.
func childOf(t *testing.T, parent int, program string) int {
	t.Helper()
	children, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(parent), "task", "*", "children"))
	must(t, err)
	for _, file := range children {
		list, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) { // the thread has ended
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		for _, pid := range strings.Fields(string(list)) {
			if exe, err := os.Readlink(filepath.Join("/proc", pid,
				"exe")); err == nil && filepath.Base(exe) == filepath.Base(program) {
				n, err := strconv.Atoi(pid)
				must(t, err)
				return n
			}
		}
	}
	t.Fatalf("process %d has no child that runs %s", parent, program)
	return 0
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	must(t, err)
}
