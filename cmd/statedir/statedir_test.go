package statedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
)

func open(t *testing.T, dir string) (*Dir, error) {
	t.Helper()
	return Open(t.Context(), Config{Dir: dir, WithoutBroker: true, WithoutEngine: true})
}

// A second process is refused with the id of the first, until that one has closed the directory.
func TestOneHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first, err := open(t, dir)
	must(t, err)
	_, err = open(t, dir)
	if !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())+":") {
		t.Errorf("a second one: got %v, want that it is in use", err)
	}
	must(t, first.Close(t.Context()))
	again, err := open(t, dir)
	must(t, err)
	if err := again.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A process that is being started holds copies of all descriptors until it runs its program.
func TestUnlockedWhileAProcessStarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first, err := open(t, dir)
	must(t, err)
	inherited, err := unix.Dup(int(first.lock.Fd()))
	must(t, err)
	defer unix.Close(inherited)
	must(t, first.Close(t.Context()))
	again, err := open(t, dir)
	must(t, err)
	must(t, again.Close(t.Context()))
}

// A directory with other contents, or of another version, is refused and stays as it is.
func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct{ file, content, want string }{
		"other contents":  {"letter.txt", "Dear", "holds letter.txt but no state.json"},
		"earlier version": {versionFile, `{"version":1}`, "has version 1, this millrace reads version 3: use the millrace"},
		"later version":   {versionFile, `{"version":7}`, "has version 7"},
		"damaged":         {versionFile, "{", "is not readable"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, tt.file)
			must(t, os.WriteFile(file, []byte(tt.content), 0o600))
			if _, err := open(t, dir); !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a precondition: %q", err, tt.want)
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != tt.content {
				t.Errorf("it has %q, %v", got, err)
			}
		})
	}
}

// Only errors about files in the state directory are explained as those of the state directory.
func TestExplainWithin(t *testing.T) {
	dir := t.TempDir()
	here, err := os.Getwd()
	must(t, err)
	relative, err := filepath.Rel(here, dir)
	must(t, err)
	at := func(path string) error { return &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission} }
	for name, tt := range map[string]struct {
		dir     string
		err     error
		explain bool
	}{
		"file in it":               {dir, at(filepath.Join(dir, "kafka", "log")), true},
		"the directory":            {dir, at(dir), true},
		"relative":                 {relative, at(filepath.Join(relative, "kafka")), true},
		"relative name, elsewhere": {dir, at("kafka"), false},
		"program of an engine": {dir,
			&fs.PathError{Op: "fork/exec", Path: "/opt/clickhouse", Err: fs.ErrPermission}, false},
		"its name is a prefix": {dir, at(dir + "-2"), false},
		"no file":              {dir, fmt.Errorf("listen tcp: %w", fs.ErrPermission), false},
		"another error":        {dir, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := explainWithin(tt.dir, fmt.Errorf("start: %w", tt.err))
			if explained := errors.Is(got, precondition.Err); explained != tt.explain || !errors.Is(got, tt.err) {
				t.Errorf("got %v", got)
			}
		})
	}
}

// A program of the engine that the kernel refuses to run is no fault of the state directory.
func TestOpenRefusedElsewhere(t *testing.T) {
	programs := t.TempDir()
	interpreter, program := filepath.Join(programs, "interpreter"), filepath.Join(programs, "clickhouse")
	must(t, errors.Join(os.WriteFile(interpreter, nil, 0o600),
		os.WriteFile(program, []byte("#!"+interpreter+"\n"), 0o700)))
	t.Setenv("PATH", programs)
	t.Setenv("MILLRACE_LIBCHDB", "")
	_, err := Open(t.Context(), Config{Dir: filepath.Join(t.TempDir(), "state"), WithoutBroker: true})
	if !errors.Is(err, fs.ErrPermission) || errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), program) {
		t.Errorf("got %v", err)
	}
}

// A process that was killed while it made the directory leaves a lock and a temporary file.
func TestOpenAfterKill(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"lock", ".tmp-1"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	d, err := open(t, dir)
	must(t, err)
	if err := d.Close(t.Context()); err != nil || !Is(dir) {
		t.Errorf("got %v, a state directory: %t", err, Is(dir))
	}
}

// The saved configuration has no settings of engines, and only its owner can read it.
func TestSaveConfig(t *testing.T) {
	dir := t.TempDir()
	d, err := open(t, dir)
	must(t, err)
	defer d.Close(t.Context())
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Health.StallAfter = []string{"elsewhere:9092"}, time.Hour
	must(t, d.SaveConfig(&cfg))
	data, err := os.ReadFile(ConfigFile(dir))
	if err != nil || strings.Contains(string(data), "elsewhere") || !strings.Contains(string(data), "1h") {
		t.Errorf("got %q, %v", data, err)
	}
	if s, err := os.Stat(ConfigFile(dir)); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", s.Mode(), err)
	}
}

// Without ClickHouse, Watch waits for its context.
func TestWatchWithoutEngine(t *testing.T) {
	d, err := open(t, t.TempDir())
	must(t, err)
	defer d.Close(t.Context())
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- d.Watch(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
