package s3proc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeEnv makes the test binary a fake server. Its value is the behaviour.
const fakeEnv = "MILLRACE_TEST_S3PROC"

// Behaviours of the fake server.
const (
	healthy  = "healthy"
	ends     = "ends"     // at once
	deaf     = "deaf"     // does not answer
	stubborn = "stubborn" // serves, and takes no SIGTERM
)

func TestMain(m *testing.M) {
	if how := os.Getenv(fakeEnv); how != "" {
		os.Exit(fake(how))
	}
	os.Exit(m.Run())
}

// fake behaves like versitygw or minio at start and stop.
func fake(how string) int {
	fmt.Println("arguments:", os.Args[1:])
	addr := ""
	for _, flag := range []string{"--port", "--address"} {
		if i := slices.Index(os.Args, flag); i > 0 {
			addr = os.Args[i+1]
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch how {
	case ends:
		fmt.Fprintln(os.Stderr, "the disk is upside down")
		return 3
	case deaf:
		<-ctx.Done()
		return 0
	case stubborn:
		signal.Ignore(syscall.SIGTERM)
		ctx = context.Background()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/health-of-the-server", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/minio/health/cluster", func(http.ResponseWriter, *http.Request) {})
	srv := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = srv.ListenAndServe() }()
	<-ctx.Done()
	fmt.Println("stopped in order")
	return 0
}

// config returns the configuration of the fake under the name of a server.
func config(t *testing.T, name, how string) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	return Config{Program: program, Dir: filepath.Join(t.TempDir(), "of", name), Env: []string{fakeEnv + "=" + how}}
}

func begin(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Kill() })
	return s
}

func TestStart(t *testing.T) {
	for _, name := range []string{"versitygw", "minio"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, name, healthy)
			cfg.Versions, cfg.Args = true, []string{"--more"}
			s := begin(t, cfg)
			if s.Access == "" || s.Secret == "" || s.Port == 0 || !strings.HasSuffix(s.URL, fmt.Sprint(":", s.Port)) {
				t.Errorf("got %+v, want keys, a port and a URL", s)
			}
			if said := s.LogTail(); !strings.Contains(said, "--more") || strings.Contains(said, s.Secret) {
				t.Errorf("it was started so: %s", said)
			}
			resp, err := http.Get(s.URL + "/health-of-the-server")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			err = s.Close()
			if err != nil || !s.ProcessState().Success() || !strings.Contains(s.LogTail(), "stopped in order") {
				t.Errorf("Close: %v, %v, and it said last: %s", err, s.ProcessState(), s.LogTail())
			}
			if err := s.Kill(); err != nil {
				t.Errorf("Kill of one that has ended: %v", err)
			}
			again, err := Start(t.Context(), Config{
				Program: cfg.Program, Dir: cfg.Dir, Port: s.Port, Access: s.Access, Secret: s.Secret, Env: cfg.Env,
			})
			if err != nil {
				t.Fatalf("start it again, at the same port: %v", err)
			}
			if again.URL != s.URL || again.Secret != s.Secret {
				t.Errorf("got %s, want what it was: %s", again.URL, s.URL)
			}
			if err := again.Kill(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	s := begin(t, config(t, "minio", stubborn))
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.Exited()
	if w, ok := s.ProcessState().Sys().(syscall.WaitStatus); !ok || w.Signal() != syscall.SIGKILL {
		t.Errorf("it ended so: %v", s.ProcessState())
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close of one that was killed: %v", err)
	}
}

// A server that ignores SIGTERM is killed after a bounded time.
func TestCloseOfStubborn(t *testing.T) {
	t.Parallel()
	s := begin(t, config(t, "versitygw", stubborn))
	s.stopWait = 200 * time.Millisecond
	if err := s.Close(); err != nil || s.ProcessState().Success() {
		t.Errorf("Close: %v, %v", err, s.ProcessState())
	}
}

func TestStartFaults(t *testing.T) {
	enough := errors.New("enough")
	for name, tt := range map[string]struct {
		cfg   func(t *testing.T) Config
		is    error
		parts []string
	}{
		"absent": {
			func(t *testing.T) Config {
				return Config{Program: filepath.Join(t.TempDir(), "minio"), Dir: t.TempDir()}
			}, ErrNotInstalled, []string{"start minio"},
		},
		"unknown": {func(t *testing.T) Config {
			return config(t, "weed", healthy)
		}, nil, []string{"weed is not a known server"}},
		"ends at once": {
			func(t *testing.T) Config {
				return config(t, "versitygw", ends)
			}, nil, []string{"exit status 3", "the disk is upside down"},
		},
		"no answer": {func(t *testing.T) Config {
			return config(t, "minio", deaf)
		}, enough, []string{"end of its log", "arguments:"}},
		"a folder that cannot be": {func(t *testing.T) Config {
			cfg := config(t, "minio", healthy)
			cfg.Dir = filepath.Join(cfg.Program, "below a file")
			return cfg
		}, syscall.ENOTDIR, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, enough)
			defer cancel()
			s, err := Start(ctx, tt.cfg(t))
			if err == nil {
				t.Fatalf("got a server, %v", errors.Join(s.Kill()))
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %v", err, tt.is)
			}
			for _, part := range tt.parts {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want %q in it", err, part)
				}
			}
		})
	}
}
