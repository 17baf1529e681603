// Package embedded runs a ClickHouse of one's own: a child process that serves one
// directory on loopback, for standalone runs, the demo and tests.
//
// A clickhouse binary on PATH is taken where there is one, else libchdb through the
// command millrace-clickhouse. The child never outlives the process that started it,
// however that ended, and two engines never share a directory: a starter waits for the
// engine before it to be gone. What the engine has acknowledged survives kill -9.
package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// errInUse means that another engine holds the directory.
var errInUse = errors.New("in use by another engine")

// Config says which engine to start, and where.
type Config struct {
	// Dir holds the tables, the lock and the log of the engine; it is made where missing.
	Dir string
	// Binary is the path of millrace-clickhouse. Empty: beside this executable, else on PATH.
	Binary string
	// library is the path of libchdb.so, which is then used although a clickhouse
	// binary is on PATH. Empty: MILLRACE_LIBCHDB, else the one that Fetch returns.
	library string
	// Settings are more elements of the server's settings (XML): clusters, macros. May be empty.
	Settings string
	// Users is the document of users, profiles and quotas (XML). Empty: the user default, without
	// a password, who may do everything.
	Users string
	// Port of the native protocol on loopback; 0: one that is free. With one that is taken nothing starts.
	Port int
	// Log takes what the starter has to say; nil: nothing is said.
	Log *slog.Logger
	// Progress is told when the library has to be fetched; may be nil.
	Progress io.Writer
}

const (
	lockWait  = 10 * time.Second
	readyWait = 30 * time.Second
	stopWait  = 1500 * time.Millisecond
)

// A Server is a running engine.
type Server struct {
	addr string
	cmd  *exec.Cmd
	pipe io.Closer // held open for as long as the child may run
	log  string
	done chan struct{} // closed when the child has ended; err is set before
	err  error
}

// Start starts the engine on cfg.Dir and returns when it answers. It waits up to ten
// seconds for an engine before it to leave the directory, and returns an error after that.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, errors.New("start ClickHouse: no directory given")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("start ClickHouse: %w", err)
	}
	cfg.Dir = dir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("start ClickHouse: %w", err)
	}
	engine, err := findEngine(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("find a ClickHouse: %w", err)
	}
	lock, err := lockDir(ctx, filepath.Join(dir, "engine.lock"))
	if err != nil {
		return nil, fmt.Errorf("lock the directory of ClickHouse %s: %w", dir, err)
	}
	// The child inherits the lock; it is held until both of us have let go.
	defer lock.Close()
	for attempt := 1; ; attempt++ {
		s, err := engine.start(ctx, cfg, lock)
		if err == nil {
			if cfg.Log != nil {
				cfg.Log.Info("embedded ClickHouse is up", "address", s.addr, "dir", dir, "engine", engine.path)
			}
			return s, nil
		}
		// A port that was free a moment ago may be taken by now.
		if attempt == 3 || ctx.Err() != nil || !errors.Is(err, errExited) {
			return nil, fmt.Errorf("start ClickHouse in %s: %w", dir, err)
		}
	}
}

// Addr returns host and port of the native protocol.
func (s *Server) Addr() string { return s.addr }

// Pid returns the id of the engine's process.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Done is closed when the engine has ended, whether told to or not.
func (s *Server) Done() <-chan struct{} { return s.done }

// Wait waits until the engine has ended or ctx is done. An engine that ended without
// Close is an error, with the end of its log.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the engine: by SIGTERM, and by SIGKILL after one and a half seconds or when ctx is done.
func (s *Server) Close(ctx context.Context) error {
	s.cmd.Process.Signal(syscall.SIGTERM)
	t := time.NewTimer(stopWait)
	defer t.Stop()
	select {
	case <-s.done:
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	s.cmd.Process.Kill()
	t.Reset(stopWait)
	select {
	case <-s.done:
		return nil
	case <-t.C:
		return fmt.Errorf("stop ClickHouse (process %d): it survives SIGKILL", s.Pid())
	}
}

var errExited = errors.New("the engine ended before it answered")

// start runs the engine once, on two ports that are free now.
func (e engine) start(ctx context.Context, cfg Config, lock *os.File) (*Server, error) {
	dir := cfg.Dir
	ports, err := child.FreePorts(2)
	if err != nil {
		return nil, err
	}
	if cfg.Port != 0 {
		ports[0] = cfg.Port
	}
	args, err := e.arguments(dir, ports, cfg)
	if err != nil {
		return nil, err
	}
	logPath := filepath.Join(dir, "engine.log")
	if st, err := os.Stat(logPath); err == nil && st.Size() > 1<<20 {
		if err := os.Rename(logPath, logPath+".1"); err != nil {
			return nil, err
		}
	}
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	began, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(e.path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.ExtraFiles = []*os.File{lock}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	s := &Server{
		addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])),
		cmd:  cmd, pipe: pipe, log: logPath, done: make(chan struct{}),
	}
	if err := s.run(began); err != nil {
		return nil, err
	}
	if err := s.ready(ctx, ports[1]); err != nil {
		s.cmd.Process.Kill()
		<-s.done
		return nil, err
	}
	return s, nil
}

// run starts the child and watches it.
func (s *Server) run(began int64) error {
	exited, err := child.Start(s.cmd)
	if err != nil {
		return err
	}
	go func() {
		<-exited
		s.err = fmt.Errorf("ClickHouse ended: %v; the end of its log %s:\n%s", s.cmd.ProcessState, s.log, logTail(s.log, began))
		s.pipe.Close()
		close(s.done)
	}()
	return nil
}

// ready waits until the engine answers a ping.
func (s *Server) ready(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWait, fmt.Errorf("no answer within %v; its log is %s", readyWait, s.log))
	defer cancel()
	url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/ping"
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		if ping(ctx, client, url) {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("%w: %w", errExited, s.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func ping(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16))
	return err == nil && bytes.HasPrefix(body, []byte("Ok."))
}

// lockDir takes the lock of a directory, waiting for a dying engine to let go.
func lockDir(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, errInUse)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// logTail returns the last lines that were written to the log since offset began.
func logTail(path string, began int64) string {
	b, err := os.ReadFile(path)
	if err != nil || began >= int64(len(b)) {
		return ""
	}
	b = bytes.TrimSpace(b[began:])
	return string(b[max(0, len(b)-2000):])
}
