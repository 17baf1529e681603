package tally

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// dirEnv makes the test binary a process that holds a temporary file in a directory, and waits.
const dirEnv = "MILLRACE_TEST_TALLY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirEnv); dir != "" {
		b := New(dir)
		fmt.Println(b.Add(nil, make([]byte, chunkSize)), b.file != nil)
		_, _ = io.Copy(io.Discard, os.Stdin) // blocks until the process is killed
	}
	os.Exit(m.Run())
}

// All records of a key are in one part, in order, from memory and from the file.
func TestEach(t *testing.T) {
	const keys, recordSize = 100, 16
	for name, n := range map[string]int{"none": 0, "in memory": 900, "in the file": 2 * keys * chunkSize / recordSize} {
		t.Run(name, func(t *testing.T) {
			b := New(t.TempDir())
			defer b.Close()
			for i := range n {
				key := binary.BigEndian.AppendUint64(nil, uint64(i%keys))
				must(t, b.Add(key, binary.BigEndian.AppendUint64(key, uint64(i))))
			}
			if (b.file != nil) != (n > 900) {
				t.Errorf("%d records: the file is %v", n, b.file)
			}
			next, owner := map[uint64]uint64{}, map[uint64]int{}
			part, got, done := 0, 0, 0
			err := b.Each(t.Context(), func(records []byte) error {
				part++
				for ; len(records) > 0; records = records[recordSize:] {
					key, i := binary.BigEndian.Uint64(records), binary.BigEndian.Uint64(records[8:])
					if _, ok := owner[key]; !ok {
						owner[key], next[key] = part, key
					}
					if owner[key] != part || next[key] != i {
						t.Fatalf("record %d of key %d in part %d, want record %d in part %d", i, key, part, next[key], owner[key])
					}
					next[key] += keys
					got++
				}
				return nil
			}, func(n, of int) { done = n*10_000 + of })
			if err != nil || got != n || done != parts*10_000+parts {
				t.Errorf("got %d of %d records, done %d, %v", got, n, done, err)
			}
		})
	}
}

// Memory does not grow with the number of records, even with consecutive keys.
func TestMemory(t *testing.T) {
	b := New(t.TempDir())
	defer b.Close()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	record := make([]byte, 256)
	const n = 200_000 // 51 MB
	for i := range n {
		binary.BigEndian.PutUint64(record, uint64(i))
		must(t, b.Add(record[:8], record))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
		t.Errorf("%d bytes are held", grown)
	}
	largest, all := 0, 0
	err := b.Each(t.Context(), func(records []byte) error {
		largest = max(largest, len(records))
		all += len(records)
		return nil
	}, nil)
	if err != nil || all != n*len(record) {
		t.Errorf("%d bytes, %v", all, err)
	}
	if largest > 4*all/parts {
		t.Errorf("a part has %d bytes of %d: keys that count up are not spread", largest, all)
	}
}

func TestEachStops(t *testing.T) {
	b := New("")
	full := errors.New("full")
	if err := b.Each(t.Context(), func([]byte) error { return full }, nil); !errors.Is(err, full) {
		t.Errorf("got %v, want the callback's error", err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(full)
	if err := b.Each(ctx, func([]byte) error { return nil }, nil); !errors.Is(err, full) {
		t.Errorf("got %v, want why the context ended", err)
	}
}

// After a failed write, every later call returns its error, so that no record is left out.
func TestSpillFails(t *testing.T) {
	b := New(filepath.Join(t.TempDir(), "nowhere"))
	err := b.Add(nil, make([]byte, chunkSize))
	again, each := b.Add(nil, nil), b.Each(t.Context(), nil, nil)
	for what, err := range map[string]error{"Add": err, "Add again": again, "Each": each} {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s = %v, want that there is no such directory", what, err)
		}
	}
}

// A killed process leaves no file.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), dirEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	must(t, err)
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	must(t, cmd.Start())
	var failed, spilled string
	_, err = fmt.Fscan(out, &failed, &spilled)
	if kill := cmd.Process.Kill(); kill != nil {
		t.Fatal(kill)
	}
	var exit *exec.ExitError
	if wait := cmd.Wait(); !errors.As(wait, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended otherwise than by the kill: %v", wait)
	}
	if err != nil || failed != "<nil>" || spilled != "true" {
		t.Fatalf("the process says %s %s, %v", failed, spilled, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
