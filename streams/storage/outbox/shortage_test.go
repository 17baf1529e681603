package outbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A shortage of file descriptors fails the calls that need one, and is temporary: it is no failed fsync.
// Records made meanwhile are kept.
func TestShortageOfDescriptorsPasses(t *testing.T) {
	for free := range 3 {
		t.Run(fmt.Sprint("free ", free), func(t *testing.T) {
			dir := t.TempDir()
			f, err := Open(Config{Dir: dir, Segment: 1 << 10})
			must(t, err)
			var held []Ticket
			note := func(i int) error { // begins segments, and removes old ones
				ticket, err := f.Intend(t.Context(), intentOf(fmt.Sprint(i)))
				if err != nil {
					return err
				}
				if held = append(held, ticket); len(held) < 5 {
					return nil
				}
				err = f.Done(held[0])
				if _, rerr := f.Read(held[0]); rerr != nil { // it is forgotten, also if a segment could not be removed
					held = held[1:]
				}
				return err
			}
			report := func() error { return f.Report(intentOf("r"), nil) }
			for i := range 20 {
				must(t, note(i))
			}
			restore := leaveDescriptors(t, free)
			failed := 0
			for i := range 40 {
				for _, err := range []error{note(i), report()} {
					if err == nil {
						continue
					}
					failed++
					if !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrFailed) {
						t.Errorf("with %d descriptors: %v", free, err)
					}
				}
			}
			restore()
			if (failed > 0) != (free == 0) {
				t.Errorf("with %d descriptors %d calls failed", free, failed)
			}
			must(t, note(0))
			must(t, report())
			if err := f.Stats().Err; err != nil {
				t.Errorf("afterwards: %v", err)
			}
			must(t, f.Close())
			f, err = Open(Config{Dir: dir})
			must(t, err)
			defer f.Close()
			var got []Ticket
			for h := range f.Held() {
				got = append(got, h.Ticket)
			}
			if !slices.Equal(got, held) {
				t.Errorf("after a restart: got %v, want %v", got, held)
			}
		})
	}
}

// leaveDescriptors lets the process open only free more files until restore is called.
func leaveDescriptors(t *testing.T, free int) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(was.Cur, 256), Max: was.Max}))
	var taken []int
	restore = func() {
		for _, fd := range taken {
			must(t, unix.Close(fd))
		}
		taken = nil
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	}
	t.Cleanup(restore)
	for {
		fd, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		must(t, err)
		taken = append(taken, fd)
	}
	for range free {
		must(t, unix.Close(taken[0]))
		taken = taken[1:]
	}
	return restore
}
