// Package embedded runs a private ClickHouse server: a child process that serves one directory on loopback, for
// standalone runs, the demo and tests.
//
// It uses the clickhouse binary on PATH if there is one, otherwise libchdb through the command millrace-clickhouse.
// The child never outlives the process that started it, however that process ended. Two engines never share a
// directory: Start waits until the previous engine has ended. Rows that the engine has acknowledged survive kill -9.
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

// errInUse means that another engine uses the directory.
var errInUse = errors.New("in use by another engine")

// Config holds the options of Start.
type Config struct {
	// Dir is the directory for the tables, the lock and the log of the engine. It is created if it is missing.
	Dir string
	// Binary is the path of millrace-clickhouse. If it is empty, the one beside this executable is used, or the one on
	// PATH.
	Binary string
	// library is the path of libchdb.so. If it is set, a clickhouse binary on PATH is ignored. Default:
	// MILLRACE_LIBCHDB, otherwise the one that Fetch returns.
	library string
	// Settings are additional elements (XML) of the server configuration, such as clusters and macros.
	Settings string
	// Users is the configuration (XML) of users, profiles and quotas. Default: the user default with all rights and
	// without a password.
	Users string
	// Port is the port of the native protocol on loopback; 0: a free one. If the port is in use, Start fails.
	Port int
	// Log is the log of Start. It may be nil.
	Log *slog.Logger
	// Progress receives a message before the library is fetched. It may be nil.
	Progress io.Writer
}

const (
	lockWait  = 10 * time.Second
	readyWait = 30 * time.Second
	stopWait  = 1500 * time.Millisecond
	killWait  = 10 * time.Second // a loaded machine takes long to free the memory of a process
)

// A Server is a running engine.
type Server struct {
	addr string
	cmd  *exec.Cmd
	pipe io.Closer // stdin of the child; millrace-clickhouse ends when it is closed
	log  string
	done chan struct{} // closed after the child has ended; err is set before
	err  error
}

// Start starts the engine in cfg.Dir and returns when it answers. It waits up to ten seconds for another engine to
// leave the directory, and then returns an error.
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
	// The child inherits the lock. It is released when both processes have closed it.
	defer lock.Close()
	for attempt := 1; ; attempt++ {
		s, err := engine.start(ctx, cfg, lock)
		if err == nil {
			if cfg.Log != nil {
				cfg.Log.Info("start embedded ClickHouse", "address", s.addr, "dir", dir, "engine", engine.path)
			}
			return s, nil
		}
		// A port that was free when it was chosen may be in use by now.
		if attempt == 3 || ctx.Err() != nil || !errors.Is(err, errExited) {
			return nil, fmt.Errorf("start ClickHouse in %s: %w", dir, err)
		}
	}
}

// Addr returns host:port of the native protocol.
func (s *Server) Addr() string { return s.addr }

// Pid returns the process id of the engine.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Wait waits until the engine has ended or ctx is done. If the engine has ended, it returns an error with the end of
// the engine's log.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the engine with SIGTERM, or with SIGKILL after 1.5 seconds or when ctx is done.
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
	t.Reset(killWait)
	select {
	case <-s.done:
		return nil
	case <-t.C:
		return fmt.Errorf("stop ClickHouse (process %d): it survives SIGKILL", s.Pid())
	}
}

var errExited = errors.New("the engine ended before it answered")

// start runs the engine once, on two free ports.
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

// run starts the child, and closes done when it ends.
func (s *Server) run(began int64) error {
	exited, err := child.Start(s.cmd)
	if err != nil {
		return err
	}
	go func() {
		<-exited
		s.err = fmt.Errorf("ClickHouse ended: %v; the end of its log %s:\n%s",
			s.cmd.ProcessState, s.log, logTail(s.log, began))
		s.pipe.Close()
		close(s.done)
	}()
	return nil
}

// ready waits until the engine answers a ping.
func (s *Server) ready(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWait,
		fmt.Errorf("no answer within %v; its log is %s", readyWait, s.log))
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

// lockDir locks a directory. It waits up to lockWait for another engine to end.
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

// logTail returns the last 2,000 bytes of the log that were written after offset began.
func logTail(path string, began int64) string {
	b, err := os.ReadFile(path)
	if err != nil || began >= int64(len(b)) {
		return ""
	}
	b = bytes.TrimSpace(b[began:])
	return string(b[max(0, len(b)-2000):])
}
