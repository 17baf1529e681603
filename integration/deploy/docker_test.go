package deploy_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/retry"
)

// run runs a program in the root of the repository and returns its output and exit code.
func run(t *testing.T, env []string, name string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env = root, append(os.Environ(), env...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	if c.ProcessState == nil || ctx.Err() != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out.String())
	}
	return out.String(), c.ProcessState.ExitCode()
}

// command is run for what follows a test, whose context has ended.
func command(env []string, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir, c.Env = root, append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// mustRun is run for a program that must end with code 0.
func mustRun(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, code := run(t, env, name, args...)
	if code != 0 {
		t.Fatalf("%s %s: exit code %d\n%s", name, strings.Join(args, " "), code, out)
	}
	return out
}

// A project is a running compose.yaml with an environment of its own, with locally built images where no registry can
// be reached.
type project struct {
	name    string
	secrets string   // the file of setup.sh
	args    []string // of docker compose
	env     []string
	port    string // of health and metrics of the process with the role ingester
}

// newProject writes the environment of a project of the given size. Its containers and volumes are removed at the end
// of the test.
func newProject(t *testing.T, size string) *project {
	t.Helper()
	file := filepath.Join(t.TempDir(), "env")
	mustRun(t, nil, "deploy/compose/setup.sh", size, file)
	p := &project{name: fmt.Sprintf("millrace-e2e-%d", os.Getpid()), secrets: file}
	p.args = []string{"--project-name", p.name, "--env-file", file, "-f", "deploy/compose.yaml"}
	if os.Getenv("PUBLIC_IMAGES") == "" {
		p.args = append(p.args, "-f", "deploy/compose.local.yaml")
	}
	p.port = freePort(t)
	p.env = []string{"DEPLOY_EVENTS_PORT=" + p.port}
	t.Cleanup(func() {
		// The context of the test has ended.
		last := func(args ...string) string {
			out, err := command(p.env, "bash", "-c", compose(append(p.args, args...)))
			if err != nil {
				t.Errorf("docker compose %v: %v\n%s", args, err, out)
			}
			return out
		}
		if t.Failed() {
			t.Logf("logs:\n%s", last("logs", "--tail", "60"))
		}
		last("down", "--volumes", "--timeout", "5", "--remove-orphans")
	})
	return p
}

// compose returns a command line of docker compose: of the plugin, or of the program that make e2e builds.
func compose(args []string) string {
	return `if docker compose version >/dev/null 2>&1; then c="docker compose"; else c=bin/tools/docker-compose; fi; ` +
		`exec $c ` + quote(args)
}

func quote(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// compose runs docker compose and returns its output and exit code.
func (p *project) compose(t *testing.T, args ...string) (string, int) {
	t.Helper()
	return run(t, p.env, "bash", "-c", compose(append(p.args, args...)))
}

func (p *project) must(t *testing.T, args ...string) string {
	t.Helper()
	return mustRun(t, p.env, "bash", "-c", compose(append(p.args, args...)))
}

const configFlag = "--config=/etc/millrace/millrace.yaml"

// millrace runs a command of millrace in a container of the project.
func (p *project) millrace(t *testing.T, args ...string) (string, int) {
	t.Helper()
	return p.compose(t, append(append([]string{"run", "--rm", "--no-deps", "-T", "cli"}, args...), configFlag)...)
}

// script runs a shell script in a container of the project that has the stores.
func (p *project) script(t *testing.T, text string) (string, int) {
	t.Helper()
	return p.compose(t, "run", "--rm", "--no-deps", "-T", "prepare", "-c", "set -euo pipefail; "+text)
}

// container returns the name of the container of a service.
func (p *project) container(service string) string { return p.name + "-" + service + "-1" }

// ended waits until the container of a service has ended with code 0, after the restarts that the file allows.
func (p *project) ended(t *testing.T, service string) {
	t.Helper()
	eventually(t, func() string {
		out, _ := run(t, nil, "docker", "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", p.container(service))
		if out = strings.TrimSpace(out); out == "exited 0" {
			return ""
		}
		return service + " is " + out
	})
}

// metric reports whether the metrics of the process of p.port have a line that matches.
func (p *project) metric(t *testing.T, line string) bool {
	t.Helper()
	_, code := run(t, nil, "bash", "-c",
		"curl -sf http://127.0.0.1:"+p.port+"/metrics | grep -qE "+quote([]string{line}))
	return code == 0
}

// patience bounds what takes a minute, also on a machine with much other work.
const patience = 10 * time.Minute

// eventually repeats check until it returns "", for at most patience. It fails the test with its last result.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	for end := time.Now().Add(patience); ; pause(t, time.Second) {
		last := check()
		if last == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %v: %s", patience, last)
		}
	}
}

// pause waits for d, or until the test ends.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	must(t, retry.Sleep(t.Context(), d))
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	return port
}

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
