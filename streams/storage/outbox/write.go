package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Safe implements Outbox.
func (f *File) Safe(ctx context.Context) error {
	f.mu.Lock()
	target := f.start + f.end
	f.mu.Unlock()
	return f.syncTo(ctx, target)
}

// syncTo returns when everything up to a log offset is on disk. One of the waiting callers syncs for all.
func (f *File) syncTo(ctx context.Context, target int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.synced < target {
		if f.err != nil {
			return f.err
		}
		if f.closed {
			return errClosed
		}
		if round := f.syncRound; round != nil {
			f.mu.Unlock()
			select {
			case <-round:
			case <-ctx.Done():
				f.mu.Lock()
				return storage.ContextErr(ctx)
			}
			f.mu.Lock()
			continue
		}
		f.groupSync()
	}
	return nil
}

// groupSync syncs everything written so far; f.mu is held on entry and return, but not during the fsync.
func (f *File) groupSync() {
	round, file, goal := make(chan struct{}), f.current().file, f.start+f.end
	f.syncRound = round
	f.syncing.Lock() // before f.mu is released: a segment is closed only after another sync
	f.mu.Unlock()
	began := time.Now()
	err := f.fsync(file.Sync)
	took := time.Since(began)
	f.syncing.Unlock()
	f.mu.Lock()
	_ = f.finishSync(goal, took, err) // the error is in f.err
	f.syncRound = nil
	close(round)
}

// fsync calls sync, unless an earlier one failed; f.syncing is held. The kernel reports a write error once
// per open file and then treats the pages as clean: after a failed fsync the next one may succeed although
// data is lost. So there is one fsync at a time, and all later ones return the first error.
func (f *File) fsync(sync func() error) error {
	if f.firstSyncErr == nil {
		f.firstSyncErr = sync()
	}
	return f.firstSyncErr
}

// sync is fsync with f.mu held throughout.
func (f *File) sync(sync func() error) error {
	f.syncing.Lock()
	err := f.fsync(sync)
	f.syncing.Unlock()
	return f.keepSyncError(err)
}

// keepSyncError keeps err, an error of an fsync, if it is the first failure, and returns the first failure. f.mu is
// held.
func (f *File) keepSyncError(err error) error {
	if err != nil && f.err == nil {
		f.err = retry.Unavailable(fmt.Errorf("%w: %w", ErrFailed, err))
	}
	return f.err
}

// finishSync records the result of an fsync of everything up to a log offset; f.mu is held.
func (f *File) finishSync(goal int64, took time.Duration, err error) error {
	if f.observer != nil {
		f.observer(took)
	}
	if err == nil {
		f.synced = max(f.synced, goal)
	}
	return f.keepSyncError(err)
}

var errClosed = errors.New("outbox is closed")

func (f *File) current() *segment { return f.segments[len(f.segments)-1] }

// append writes a record to the end; f.mu is held.
func (f *File) append(b []byte, t Ticket, number uint64) (location, error) {
	switch {
	case f.err != nil:
		return location{}, f.err
	case f.closed:
		return location{}, errClosed
	}
	if f.end > headerBytes && f.end+int64(len(b)) > f.cfg.Segment {
		if err := f.rotate(); err != nil {
			return location{}, err
		}
	}
	seg := f.current()
	finishRecord(b, t, number, max(0, f.synced-f.start))
	if err := writeAt(seg.file, b, f.end); err != nil {
		_ = seg.file.Truncate(f.end) // bytes that stay are overwritten, or recognised as incomplete
		return location{}, classifyWriteError(err)
	}
	at := location{seg, f.end, int32(len(b))}
	f.end += int64(len(b))
	seg.size = f.end
	return at, nil
}

// classifyWriteError makes an error of a full or read-only disk unavailable: the disk may recover.
func classifyWriteError(err error) error {
	err = fmt.Errorf("write to the outbox: %w", err)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS) {
		return retry.Unavailable(err)
	}
	return err
}

// create creates a segment to write to. It is renamed to its final name when it is complete.
func (f *File) create(number uint64) error {
	if err := f.disk.Remove(newSegmentName); err != nil && !isNotExist(err) {
		return err
	}
	file, err := f.disk.Open(newSegmentName, true)
	if err != nil {
		return err
	}
	err = writeAt(file, segmentHeader(number, f.last), 0)
	if err == nil {
		err = f.sync(file.Sync)
	}
	if err == nil {
		err = f.disk.Rename(newSegmentName, segmentName(number))
	}
	if err == nil {
		err = f.sync(f.disk.Sync)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.start += f.end
	f.segments = append(f.segments, &segment{number: number, file: file, size: headerBytes})
	f.end, f.synced = headerBytes, f.start+headerBytes
	return nil
}

// rotate syncs the current segment and continues in a new one; f.mu is held.
func (f *File) rotate() error {
	if err := f.syncNow(); err != nil {
		return err
	}
	if err := f.create(f.current().number + 1); err != nil {
		return classifyWriteError(fmt.Errorf("create segment: %w", err))
	}
	return nil
}

// syncNow syncs everything; f.mu is held throughout.
func (f *File) syncNow() error {
	if f.err != nil {
		return f.err
	}
	began := time.Now()
	err := f.sync(f.current().file.Sync)
	return f.finishSync(f.start+f.end, time.Since(began), err)
}

// compact removes segments without live records, from the oldest on: a later segment may hold the outcome of an
// intent in an earlier one. If live records in the oldest segment block that while a large part of the outbox is
// dead, it moves them to the end; f.mu is held.
func (f *File) compact() error {
	size := int64(0)
	for _, s := range f.segments {
		size += s.size
	}
	if len(f.segments) > 1 && f.segments[0].liveRecords > 0 && size > f.liveBytes+f.liveBytes/4+2*f.cfg.Segment {
		if err := f.relocate(f.segments[0]); err != nil {
			return err
		}
	}
	if len(f.segments) < 2 || f.segments[0].liveRecords > 0 {
		return nil
	}
	// The records that replace those removed must be on disk first.
	if err := f.syncNow(); err != nil {
		return err
	}
	for len(f.segments) > 1 && f.segments[0].liveRecords == 0 {
		if err := f.discard(f.segments[0]); err != nil {
			return fmt.Errorf("remove segment: %w", err)
		}
		f.segments = slices.Delete(f.segments, 0, 1)
	}
	return nil
}

// discard removes a segment, or renames it if it is damaged.
func (f *File) discard(s *segment) error {
	name := segmentName(s.number)
	var err error
	if s.damaged {
		err = f.disk.Rename(name, name+damagedSuffix)
	} else {
		err = f.disk.Remove(name)
	}
	if err != nil && !isNotExist(err) {
		return err
	}
	if err := f.sync(f.disk.Sync); err != nil {
		return err
	}
	return s.file.Close()
}

// relocate appends the live records of a segment to the end.
func (f *File) relocate(s *segment) error {
	b := make([]byte, min(s.size, math.MaxInt32))
	if _, err := s.file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err := readSegment(b, false, relocator{f, s, b})
	return err
}

// A relocator appends the live records of a segment to the end of the outbox.
type relocator struct {
	f       *File
	segment *segment
	bytes   []byte
}

func (m relocator) record(n segmentRecord, at int64, size int32) error {
	h := m.f.index[n.ticket]
	if h == nil || h.record.seg != m.segment || h.record.offset != at {
		return nil
	}
	content := h.content
	if err := m.f.rewrite(&h.record, h, m.bytes[at:at+int64(size)], n); err != nil || content.seg == nil {
		return err
	}
	c, err := m.f.read(content) // the content record follows its intent
	if err != nil {
		return err
	}
	return m.f.rewrite(&h.content, h, append(make([]byte, recordHeaderBytes), c.body...), c)
}

// damaged skips bytes that cannot be read: they are not live.
func (relocator) damaged(int64, int64) error { return nil }

// rewrite appends a record again and makes the copy the live one.
func (f *File) rewrite(at *location, h *indexEntry, b []byte, n segmentRecord) error {
	b = slices.Clone(b)
	b[8] = byte(n.kind)
	if b[9] = n.flags; h.concurrent {
		b[9] |= flagConcurrent
	}
	to, err := f.append(b, n.ticket, n.number)
	if err != nil {
		return err
	}
	f.unpin(at)
	f.pin(at, to)
	return nil
}
