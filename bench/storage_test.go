package bench

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/bench/s3bench"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
)

// TestMain lets the test binary also run as a child process of Config.Self.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		os.Exit(m.Run())
	}
	if err := process(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// process runs a hidden command of cmd/millrace-bench.
func process(ctx context.Context, name string, args []string) error {
	var (
		load  s3bench.Load
		side  StorageSide
		flags = flag.NewFlagSet(name, flag.ContinueOnError)
	)
	if name == "objects" {
		flags.StringVar(&load.Bucket, "bucket", "", "")
		flags.IntVar(&load.Objects, "objects", 0, "")
		flags.Int64Var(&load.Size, "size", 0, "")
		flags.IntVar(&load.Keys, "keys", 0, "")
		if err := flags.Parse(args); err != nil {
			return err
		}
		return s3bench.Serve(ctx, load, os.Stdin, os.Stdout)
	}
	for value, name := range map[*string]string{
		&side.Do: "do", &side.Endpoint: "endpoint", &side.Root: "root", &side.Source: "source", &side.Target: "target",
		&side.Space: "space",
	} {
		flags.StringVar(value, name, "", "")
	}
	flags.IntVar(&side.Workers, "workers", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	line, err := side.Run(ctx)
	if err == nil {
		_, err = fmt.Printf("%s\n", line)
	}
	return err
}

func quickConfig(t *testing.T, progress *bytes.Buffer) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{Quick: true, Self: self, Peers: t.TempDir(), Progress: progress}
}

// All figures of the stores run with minimal amounts and without peers. The rows of the peers stay.
func TestStorageQuick(t *testing.T) {
	need.Integration(t)
	t.Setenv("PATH", t.TempDir()) // hashdeep is found on PATH
	var progress bytes.Buffer
	rows, err := Storage(t.Context(), quickConfig(t, &progress))
	if err != nil {
		t.Fatalf("%v; progress so far:\n%s", err, &progress)
	}
	if len(rows) != 21 {
		t.Errorf("%d rows, want 21", len(rows))
	}
	for _, r := range rows {
		real := strings.HasPrefix(r.Name, realServer) || strings.HasPrefix(r.Name, otherServer)
		if (r.Value > 0) == real {
			t.Errorf("%s: %v, want a value only if no server on disk is needed", r.Name, r.Value)
		}
		absent := "(absent: make peers)"
		switch {
		case r.Peer == "lstat" || strings.HasPrefix(r.Peer, "write, "): // no program
			if r.PeerValue == nil || r.Met == nil {
				t.Errorf("%s: peer %q has no value", r.Name, r.Peer)
			}
			continue
		case real:
			absent = "(absent: make servers)"
		case strings.HasPrefix(r.Name, "files: ") && strings.HasSuffix(r.Name, "sha256"):
			absent = "(absent: make peers, or apt-get install hashdeep)"
		}
		if r.Peer != "" && (!strings.HasSuffix(r.Peer, absent) || r.PeerValue != nil || r.Met != nil) {
			t.Errorf("%s: peer %q has %v, met %v; want %s and nothing", r.Name, r.Peer, r.PeerValue, r.Met, absent)
		}
	}
}

// An installed peer runs, and skipped items are an error.
func TestStoragePeerSkipsItems(t *testing.T) {
	need.Integration(t)
	for name, tt := range map[string]struct{ row, want string }{
		"digests":          {"in memory: .* read, md5 and sha256$", "rclone printed digests of 1 of "},
		"copies":           {"in memory: .* copied", "rclone copied 0 of 100 items"},
		"digests of files": {"files: 100 x", "hashdeep printed digests of 0 of 100 files"},
	} {
		t.Run(name, func(t *testing.T) {
			var progress bytes.Buffer
			cfg := quickConfig(t, &progress)
			cfg.Rows = regexp.MustCompile(tt.row)
			t.Setenv("PATH", cfg.Peers+":"+os.Getenv("PATH"))
			for _, peer := range []string{"rclone", "hashdeep"} {
				if err := os.WriteFile(filepath.Join(cfg.Peers, peer),
					[]byte("#!/bin/sh\necho d41d8cd98f00b204e9800998ecf8427e  one.tif\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Storage(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// Invalid options fail before the first request.
func TestStorageSideInvalidOptions(t *testing.T) {
	whole := StorageSide{Do: "copy", Endpoint: "http://127.0.0.1:1", Source: "a", Target: "b", Space: space, Workers: 1}
	for name, edit := range map[string]func(*StorageSide){
		"an unknown job":     func(s *StorageSide) { s.Do = "move" },
		"a copy to nowhere":  func(s *StorageSide) { s.Target = "" },
		"no server":          func(s *StorageSide) { s.Endpoint = "" },
		"a server and files": func(s *StorageSide) { s.Root = "here" },
		"no source":          func(s *StorageSide) { s.Source = "" },
		"no space":           func(s *StorageSide) { s.Space = "" },
		"no workers":         func(s *StorageSide) { s.Workers = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			side := whole
			edit(&side)
			if _, err := side.Run(t.Context()); err == nil || !strings.Contains(err.Error(), usage.Err.Error()) {
				t.Errorf("got %v, want an error of usage", err)
			}
		})
	}
}

func TestDropWithoutServer(t *testing.T) {
	cfg := quickConfig(t, new(bytes.Buffer))
	p, err := s3bench.Start(t.Context(), cfg.Self, "objects")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{url: p.URL, dropBucket: p.Drop, close: p.Close}
	store, err := s.createStore(t.Context(), "some")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Stat(t.Context(), space, "x"); !strings.Contains(fmt.Sprint(err), storage.ErrNotFound.Error()) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if err := s.dropBucket(t.Context(), "some-"+space); err != nil {
		t.Error(err)
	}
	if err := s.dropBucket(t.Context(), "some-"+space); err == nil || !strings.Contains(err.Error(),
		fmt.Sprint(http.StatusNotFound)) {
		t.Errorf("got %v, want 404", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if err := s.dropBucket(t.Context(), "some-"+space); err == nil {
		t.Error("a server that is gone has dropped a bucket")
	}
}
