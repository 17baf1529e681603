package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An event is an inotify event.
type event struct {
	watch int    // watch that reports it
	mask  uint32 // unix.IN_*
	name  string // name in the watched directory; empty for the directory itself
}

// A notifier is an inotify instance. The kernel has one watch per inode, even if it is added under several names.
type notifier struct {
	fd     int
	file   *os.File
	events chan event
}

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		err = fmt.Errorf("%w: fs.inotify.max_user_instances or the limit of open files is reached", err)
	}
	if err != nil {
		return nil, fmt.Errorf("initialise inotify: %w", err)
	}
	return &notifier{fd: fd, file: os.NewFile(uintptr(fd), "inotify"), events: make(chan event)}, nil
}

func (n *notifier) add(path string, mask uint32) (watch int, err error) {
	return unix.InotifyAddWatch(n.fd, path, mask)
}

// remove removes a watch. Its unread events are still delivered.
func (n *notifier) remove(watch int) {
	_, _ = unix.InotifyRmWatch(n.fd, uint32(watch)) // the kernel may have removed it already
}

// close closes the instance. Nothing may use it any more.
func (n *notifier) close() { _ = n.file.Close() }

// run sends events until ctx is done.
func (n *notifier) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = n.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		size, err := n.file.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read the kernel's events: %w", err)
		}
		for rest := buf[:size]; len(rest) >= unix.SizeofInotifyEvent; {
			var e event
			e, rest = parse(rest)
			select {
			case n.events <- e:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// parse parses the first event of b, in the format of inotify(7), and returns the rest. The kernel writes whole events.
func parse(b []byte) (e event, rest []byte) {
	end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
	e.watch = int(int32(binary.NativeEndian.Uint32(b))) //nolint:gosec // it is signed
	e.mask = binary.NativeEndian.Uint32(b[4:])
	e.name = strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
	return e, b[end:]
}
