package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/need"
)

// TestMain lets the test binary also run as a child process of Config.Self.
func TestMain(m *testing.M) {
	if len(os.Args) != 4 || os.Args[1] != "child" {
		os.Exit(m.Run())
	}
	if err := Child(context.Background(), os.Args[2], os.Args[3], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runQuick runs the figures of an area whose names match, with the fake peers in a directory that is also on PATH.
func runQuick(t *testing.T, area, rows, peers string) ([]Row, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", peers)
	var progress bytes.Buffer
	cfg := Config{Quick: true, Self: self, Peers: peers, Progress: &progress, Rows: regexp.MustCompile(rows)}
	for _, a := range Areas() {
		if a.Name == area {
			tables, err := Run(t.Context(), cfg, []Area{a})
			if err != nil {
				return nil, fmt.Errorf("%w; progress so far:\n%s", err, &progress)
			}
			return tables[0].Rows, nil
		}
	}
	t.Fatalf("no area %s", area)
	return nil, nil
}

// The figures run with minimal amounts and without peers, whose rows stay.
func TestPeerAbsent(t *testing.T) {
	need.Integration(t)
	for _, area := range []string{"runtime", "storage"} {
		rows, err := runQuick(t, area, "", t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			isProgram := strings.HasPrefix(r.Peer, "rclone") || strings.HasPrefix(r.Peer, watermill)
			absent := strings.HasSuffix(r.Peer, " (absent: make peers)") && r.PeerValue == nil && r.Ratio == nil && r.Met == nil
			if r.Value <= 0 || r.Target == "" || isProgram != absent || !isProgram && (r.Ratio == nil || r.Met == nil) {
				t.Errorf("%+v", r)
			}
		}
	}
}

// A peer that fails, skips items or reports nonsense makes the run fail.
func TestPeerFails(t *testing.T) {
	need.Integration(t)
	for name, tt := range map[string]struct{ area, row, program, script, want string }{
		"it fails": {"runtime", "a process a side", watermill, "echo no luck >&2; exit 7",
			"exit status 7: no luck"},
		"it reports nonsense": {"runtime", "a process a side", watermill, `echo '{"records":5000,"seconds":0}'`,
			"invalid result: 0 s"},
		"it digests too few": {"storage", "in memory: .* read", "rclone", "echo d41d8cd98f one.tif",
			"printed digests of 1 of 100"},
		"it copies too few":     {"storage", "in memory: .* copied", "rclone", "exit 0", "rclone copied 0 of 100 items"},
		"it finds no differing": {"sweep", "^pairs", "rclone", "exit 0", "did not report 1 differences found"},
	} {
		t.Run(name, func(t *testing.T) {
			peers := t.TempDir()
			if err := os.WriteFile(filepath.Join(peers, tt.program), []byte("#!/bin/sh\n"+tt.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := runQuick(t, tt.area, tt.row, peers); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
