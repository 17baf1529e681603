package emit

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// newName is what a segment is called while it is made.
const newName = "new"

// replay reads all segments, and makes the first where there is none.
func (f *File) replay() error {
	names, err := f.disk.names()
	if err != nil {
		return err
	}
	var numbers []uint64
	for _, name := range names {
		if n, ok := segmentNumber(name); ok {
			numbers = append(numbers, n)
		} else if name == newName {
			if err := f.disk.remove(name); err != nil {
				return err
			}
		}
	}
	slices.Sort(numbers)
	r := replayer{f}
	for i, n := range numbers {
		if i > 0 && n != numbers[i-1]+1 {
			if !f.cfg.Salvage {
				return fmt.Errorf("segments after %s are missing: %w", segmentName(numbers[i-1]), ErrOutboxDamaged)
			}
			f.segments[i-1].damaged = true // all up to the gap is moved behind it
		}
		seg := &segment{number: n}
		if seg.file, err = f.disk.open(segmentName(n), false); err == nil {
			f.segments = append(f.segments, seg)
			seg.size, err = seg.file.size()
		}
		if err != nil {
			return err
		}
	}
	last := len(f.segments) - 1
	for last > 0 && f.segments[last].size <= headerBytes { // made, but the process ended there
		last--
	}
	for i, seg := range f.segments {
		if err := r.segment(seg, i >= last); err != nil {
			return fmt.Errorf("segment %s: %w", segmentName(seg.number), err)
		}
	}
	if len(f.segments) == 0 || f.current().damaged {
		var next uint64 = 1
		if len(numbers) > 0 {
			next = numbers[len(numbers)-1] + 1
		}
		if err := f.create(next); err != nil {
			return err
		}
	}
	if err := f.disk.sync(); err != nil { // of names too
		return err
	}
	f.synced = f.start + f.end
	return f.salvage()
}

// A replayer reads segments in their order.
type replayer struct{ f *File }

// segment reads one segment; after the last there is nothing.
func (r *replayer) segment(seg *segment, last bool) error {
	f, file := r.f, seg.file
	b := make([]byte, min(seg.size, math.MaxInt32))
	if _, err := file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	n, ticket, err := parseHeader(b)
	if err == nil && n != seg.number {
		err = fmt.Errorf("its header says that it is number %d: %w", n, ErrOutboxDamaged)
	}
	if err != nil && (!f.cfg.Salvage || errors.Is(err, ErrOutboxFormat)) {
		return err
	}
	seg.damaged = seg.damaged || err != nil
	f.last = max(f.last, ticket)
	s, err := readSegment(b, last, func(n note, at int64, size int32) error { return r.note(n, place{seg, at, size}) })
	if err != nil {
		return err
	}
	if s.damaged >= 0 {
		if !f.cfg.Salvage {
			return fmt.Errorf("%d bytes from byte %d on cannot be read: %w", s.lost, s.damaged, ErrOutboxDamaged)
		}
		seg.damaged = true
	}
	if !last || seg.damaged {
		return nil
	}
	if f.end = s.end; s.end < seg.size {
		if err := file.Truncate(s.end); err != nil {
			return err
		}
		seg.size = s.end
	}
	// A process that died may have left it unsynced, and one whose fsync failed may have left pages that count as written
	// and are not: they are written once more.
	if err := writeAt(file, b[:s.end], 0); err != nil {
		return err
	}
	return file.Sync()
}

// note takes in one note.
func (r *replayer) note(n note, at place) error {
	f := r.f
	f.last = max(f.last, n.ticket)
	switch n.kind {
	case kindIntent:
		return r.intent(n, at)
	case kindContent:
		if h := f.index[n.ticket]; h != nil && h.settled == 0 {
			f.unpin(&h.content)
			f.pin(&h.content, at)
		}
	case kindOutcome:
		f.last = max(f.last, Ticket(n.number))
		return r.outcome(n, at)
	case kindDone:
		f.forget(n.ticket)
	}
	return nil
}

func (r *replayer) intent(n note, at place) error {
	f := r.f
	draft, _, err := parseIntent(n.body)
	if err != nil {
		return fmt.Errorf("read an intent: %w: %w", ErrOutboxDamaged, err)
	}
	if h := f.index[n.ticket]; h != nil { // it was moved
		f.unpin(&h.main)
		f.pin(&h.main, at)
		return nil
	}
	h := &held{
		key: r.own(draft), began: int64(n.number), reserve: int64(draft.SizeVT() + 4096), crowded: n.flags&flagCrowded != 0,
	}
	f.begin(n.ticket, h, at)
	return nil
}

// own remembers whose a Change is, and returns its key.
func (r *replayer) own(c *pb.Change) string {
	r.f.owners[c.GetAccount()+"/"+c.GetStore()] = true
	return schemas.ItemKey(c.GetAccount(), c.GetSpace(), c.GetItem())
}

func (r *replayer) outcome(n note, at place) error {
	f := r.f
	h := f.index[n.ticket]
	if len(n.body) == 0 {
		f.forget(n.ticket)
		return nil
	}
	c, err := parseChange(n.body)
	if err != nil {
		return fmt.Errorf("read an outcome: %w: %w", ErrOutboxDamaged, err)
	}
	if h == nil { // its intent is in a segment that is gone
		h = &held{key: r.own(c), began: c.GetTime().AsTime().UnixMilli()}
		f.index[n.ticket] = h
	}
	h.crowded = h.crowded || n.flags&flagCrowded != 0
	f.settle(h, Ticket(n.number), c, at)
	return nil
}

// salvage moves all that counts out of segments that are damaged.
func (f *File) salvage() error {
	if !slices.ContainsFunc(f.segments, func(s *segment) bool { return s.damaged }) {
		return nil
	}
	for slices.ContainsFunc(f.segments, func(s *segment) bool { return s.damaged }) {
		s := f.segments[0]
		if err := f.move(s); err != nil {
			return err
		}
		s.pins = 0 // what could not be read does not count
		if err := f.tidy(); err != nil {
			return err
		}
	}
	return nil
}
