// Package s3proc runs a real S3 server, versitygw or MinIO, as a process on a loopback address, for the demo
// and tests. `make servers` builds them.
package s3proc

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/millrace/millrace/streams/child"
)

const (
	readyWait    = 60 * time.Second
	stopWait     = 5 * time.Second
	logTailBytes = 2000 // from the end of the log, in errors
)

// ErrNotInstalled means that the program does not exist.
var ErrNotInstalled = errors.New("no such program")

// Config configures a Server.
type Config struct {
	Program string // path of the program; its base name is versitygw or minio
	Dir     string // for the data and the log; created if absent
	Port    int    // 0: a free port
	// Access and Secret are the keys of clients; empty: new random ones.
	Access, Secret string
	Versions       bool     // buckets can have versioning (with MinIO they always can)
	Env            []string // added to the environment, as in exec.Cmd
	Args           []string // added before the arguments of the backend
}

// A Server is a running server process.
type Server struct {
	URL            string // of the endpoint
	Access, Secret string
	Port           int

	cmd      *exec.Cmd
	log      string
	exited   <-chan struct{}
	stopWait time.Duration // between SIGTERM and SIGKILL in Close
}

// Start starts a server and returns when it is ready.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s, err := start(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cfg.Program), err)
	}
	return s, nil
}

func start(ctx context.Context, cfg Config) (*Server, error) {
	if _, err := os.Stat(cfg.Program); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotInstalled, cfg.Program)
	}
	s := &Server{
		Access: cmp.Or(cfg.Access, rand.Text()), Secret: cmp.Or(cfg.Secret, rand.Text()), Port: cfg.Port,
		log: filepath.Join(cfg.Dir, "server.log"), stopWait: stopWait,
	}
	data := filepath.Join(cfg.Dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	if s.Port == 0 {
		ports, err := child.FreePorts(1)
		if err != nil {
			return nil, err
		}
		s.Port = ports[0]
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
	s.URL = "http://" + addr
	f, ok := programs()[filepath.Base(cfg.Program)]
	if !ok {
		return nil, fmt.Errorf("%s is not a known server", filepath.Base(cfg.Program))
	}
	args, env, err := f.command(cfg, s, addr, data)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = exec.Command(cfg.Program, args...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = cfg.Dir, log, log
	s.cmd.Env = append(append(os.Environ(), env...), cfg.Env...)
	if s.exited, err = child.Start(s.cmd); err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx, s.URL+f.health); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	return s, nil
}

// A program describes the command line and the health check of one kind of server.
type program struct {
	health  string // path that returns 200 when the server is ready
	command func(cfg Config, s *Server, addr, data string) (args, env []string, err error)
}

func programs() map[string]program {
	return map[string]program{
		"versitygw": {"/health-of-the-server", versitygw},
		"minio":     {"/minio/health/cluster", minio},
	}
}

func versitygw(cfg Config, s *Server, addr, data string) (args, env []string, err error) {
	args = append([]string{"--port", addr, "--quiet", "--health", "/health-of-the-server"}, cfg.Args...)
	args = append(args, "posix")
	if cfg.Versions {
		versions := data + ".versions"
		if err := os.MkdirAll(versions, 0o700); err != nil {
			return nil, nil, err
		}
		args = append(args, "--versioning-dir", versions)
	}
	return append(args, data), []string{"ROOT_ACCESS_KEY=" + s.Access, "ROOT_SECRET_KEY=" + s.Secret}, nil
}

func minio(cfg Config, s *Server, addr, data string) (args, env []string, err error) {
	args = append([]string{"server", "--quiet", "--address", addr}, cfg.Args...)
	return append(args, data), []string{
		"MINIO_ROOT_USER=" + s.Access, "MINIO_ROOT_PASSWORD=" + s.Secret,
		"MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_API_ODIRECT=off",
	}, nil
}

// Pid returns the id of the server's process.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Exited returns a channel that is closed when the process has exited.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// ProcessState returns the CPU time and the memory used by the process. It is nil until the process has exited.
func (s *Server) ProcessState() *os.ProcessState { return s.cmd.ProcessState }

// LogTail returns the end of the server's log.
func (s *Server) LogTail() string {
	b, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	b = bytes.TrimSpace(b)
	return string(b[max(0, len(b)-logTailBytes):])
}

// Close stops the server with SIGTERM, and with SIGKILL if it takes longer than 5 s.
func (s *Server) Close() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // fails if the process has exited
	t := time.NewTimer(s.stopWait)
	defer t.Stop()
	select {
	case <-s.exited:
		return nil
	case <-t.C:
		return s.Kill()
	}
}

// Kill stops the server with SIGKILL.
func (s *Server) Kill() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", s.Pid(), err)
	}
	<-s.exited
	return nil
}

// waitReady waits until the health check succeeds.
func (s *Server) waitReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWait, fmt.Errorf("no response within %v", readyWait))
	defer cancel()
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if isReady(ctx, client, url) {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("the process exited (%v); end of its log:\n%s", s.cmd.ProcessState, s.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("%w; end of its log:\n%s", context.Cause(ctx), s.LogTail())
		case <-tick.C:
		}
	}
}

func isReady(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
