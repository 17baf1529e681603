package statedir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

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
	if err != nil {
		t.Fatal(err)
	}
	_, err = open(t, dir)
	if !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())+":") {
		t.Errorf("a second one: got %v, want that it is in use", err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := open(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A directory with other contents, or of another version, is refused and stays as it is.
func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct{ file, content, want string }{
		"other contents":  {"letter.txt", "Dear", "holds letter.txt but no state.json"},
		"another version": {versionFile, `{"version":7}`, "has version 7"},
		"damaged":         {versionFile, "{", "is not readable"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, tt.file)
			if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := open(t, dir); !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a precondition: %q", err, tt.want)
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != tt.content {
				t.Errorf("it has %q, %v", got, err)
			}
		})
	}
}

// A process that was killed while it made the directory leaves a lock and a temporary file.
func TestOpenAfterKill(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"lock", tmpPrefix + "1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := open(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(t.Context()); err != nil || !Is(dir) {
		t.Errorf("got %v, a state directory: %t", err, Is(dir))
	}
}

// The saved configuration has no settings of engines, and only its owner can read it.
func TestSaveConfig(t *testing.T) {
	dir := t.TempDir()
	d, err := open(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Health.StallAfter = []string{"elsewhere:9092"}, time.Hour
	if err := d.SaveConfig(&cfg); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- d.Watch(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
