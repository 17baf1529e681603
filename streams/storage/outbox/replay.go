package outbox

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// newSegmentName is the name of a segment until it is complete.
const newSegmentName = "new"

// replay reads all segments, and creates the first if there is none.
func (f *File) replay() error {
	r := &replayer{f: f}
	if err := r.all(); err != nil {
		return err
	}
	if err := f.disk.Remove(newSegmentName); err != nil && !isNotExist(err) {
		return err
	}
	for _, t := range r.tails {
		if err := t.repair(); err != nil {
			return err
		}
	}
	if len(f.segments) == 0 || f.current().damaged {
		next := uint64(1)
		if len(f.segments) > 0 {
			next = f.current().number + 1
		}
		if err := f.create(next); err != nil {
			return err
		}
	}
	if err := f.disk.Sync(); err != nil { // file names too
		return err
	}
	f.synced = f.start + f.end
	return f.salvage()
}

// A replayer reads the segments in order and writes nothing.
type replayer struct {
	f    *File
	stop func() error // called for each record; may be nil

	current  *segment // being read
	greatest Ticket   // of a record so far
	lost     []Damage
	tails    []tail
}

// A tail is a last segment: no segment with records follows it. bytes is its valid part.
type tail struct {
	seg   *segment
	bytes []byte
}

// repair truncates an incomplete record and makes the rest durable. A process that died may have left it
// unsynced, and after a failed fsync the kernel may treat pages as clean that were never written: so the
// bytes are written again.
func (t tail) repair() error {
	if end := int64(len(t.bytes)); end < t.seg.size {
		if err := t.seg.file.Truncate(end); err != nil {
			return err
		}
		t.seg.size = end
	}
	if err := writeAt(t.seg.file, t.bytes, 0); err != nil {
		return err
	}
	return t.seg.file.Sync()
}

// all reads all segments.
func (r *replayer) all() error {
	f := r.f
	names, err := f.disk.Names()
	if err != nil {
		return err
	}
	var numbers []uint64
	for _, name := range names {
		if n, ok := segmentNumber(name); ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		seg := &segment{number: n}
		if seg.file, err = f.disk.Open(segmentName(n), false); err == nil {
			f.segments = append(f.segments, seg)
			seg.size, err = seg.file.Size()
		}
		if err != nil {
			return err
		}
	}
	last := len(f.segments) - 1
	for last > 0 && f.segments[last].size <= headerBytes { // created, but the process ended before the first record
		last--
	}
	for i, seg := range f.segments {
		if i > 0 {
			if err := r.checkGap(f.segments[i-1], seg); err != nil {
				return err
			}
		}
		if err := r.segment(seg, i >= last); err != nil {
			return fmt.Errorf("segment %s: %w", segmentName(seg.number), err)
		}
	}
	return nil
}

// checkGap reports missing segments between two.
func (r *replayer) checkGap(before, after *segment) error {
	missing := after.number - before.number - 1
	if missing == 0 {
		return nil
	}
	if !r.f.cfg.Salvage {
		return fmt.Errorf("segments after %s are missing: %w", segmentName(before.number), ErrDamaged)
	}
	before.damaged = true // salvage moves all live records to the end
	r.lost = append(r.lost, Damage{Segment: segmentName(before.number + 1), Missing: missing, After: r.greatest})
	return nil
}

// segment reads one segment; last: no segment with records follows.
func (r *replayer) segment(seg *segment, last bool) error {
	f := r.f
	r.current = seg
	b := make([]byte, min(seg.size, math.MaxInt32))
	if _, err := seg.file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	n, ticket, err := parseHeader(b)
	if err == nil && n != seg.number {
		err = fmt.Errorf("its header says that it is number %d: %w", n, ErrDamaged)
	}
	if err != nil && (!f.cfg.Salvage || errors.Is(err, ErrFormat)) {
		return err
	}
	if err != nil {
		seg.damaged = true
		r.lost = append(r.lost, Damage{
			Segment: segmentName(seg.number), Bytes: min(seg.size, headerBytes), After: r.greatest,
		})
	}
	f.last = max(f.last, ticket)
	end, err := readSegment(b, last, r)
	if err != nil {
		return err
	}
	if last && !seg.damaged {
		f.end = end
		r.tails = append(r.tails, tail{seg, b[:end]})
	}
	return nil
}

// damaged handles bytes that cannot be read.
func (r *replayer) damaged(at, size int64) error {
	if !r.f.cfg.Salvage {
		return fmt.Errorf("%d bytes from byte %d on cannot be read: %w", size, at, ErrDamaged)
	}
	r.current.damaged = true
	r.lost = append(r.lost, Damage{Segment: segmentName(r.current.number), From: at, Bytes: size, After: r.greatest})
	return nil
}

// advance handles a ticket that was assigned to a record: lost records before it have smaller tickets.
func (r *replayer) advance(t Ticket) {
	if t <= r.greatest {
		return // the record was moved
	}
	r.greatest = t
	for i := len(r.lost) - 1; i >= 0 && r.lost[i].Before == 0; i-- {
		r.lost[i].Before = t
	}
}

// record handles one record.
func (r *replayer) record(n segmentRecord, from int64, size int32) error {
	if r.stop != nil {
		if err := r.stop(); err != nil {
			return err
		}
	}
	f, at := r.f, location{r.current, from, size}
	f.last = max(f.last, n.ticket)
	switch n.kind {
	case kindIntent:
		r.advance(n.ticket)
		return r.intent(n, at)
	case kindContent:
		if h := f.index[n.ticket]; h != nil && h.outcome == 0 {
			f.unpin(&h.content)
			f.pin(&h.content, at)
		}
	case kindOutcome:
		r.advance(Ticket(n.number))
		f.last = max(f.last, Ticket(n.number))
		return r.outcome(n, at)
	case kindDone:
		f.forget(n.ticket)
	}
	return nil
}

func (r *replayer) intent(n segmentRecord, at location) error {
	f := r.f
	draft, _, err := parseIntent(n.body)
	if err != nil {
		return fmt.Errorf("read an intent: %w: %w", ErrDamaged, err)
	}
	if h := f.index[n.ticket]; h != nil { // the record was moved
		f.unpin(&h.record)
		f.pin(&h.record, at)
		return nil
	}
	h := &indexEntry{
		key: r.addOwner(draft), began: int64(n.number), reserve: int64(draft.SizeVT() + 4096),
		concurrent: n.flags&flagConcurrent != 0,
	}
	f.begin(n.ticket, h, at)
	return nil
}

// addOwner adds the account and store of a Change to the owners, and returns its key.
func (r *replayer) addOwner(c *pb.Change) string {
	r.f.replayedOwners[c.GetAccount()+"/"+c.GetStore()] = true
	return keyOf(c)
}

func (r *replayer) outcome(n segmentRecord, at location) error {
	f := r.f
	h := f.index[n.ticket]
	if len(n.body) == 0 {
		f.forget(n.ticket)
		return nil
	}
	c, err := parseChange(n.body)
	if err != nil {
		return fmt.Errorf("read an outcome: %w: %w", ErrDamaged, err)
	}
	if h == nil { // its intent was in a segment that is removed
		h = &indexEntry{key: r.addOwner(c), began: c.GetTime().AsTime().UnixMilli()}
		f.index[n.ticket] = h
	}
	h.concurrent = h.concurrent || n.flags&flagConcurrent != 0
	f.setOutcome(h, Ticket(n.number), c, at)
	return nil
}

// salvage moves all live records out of damaged segments.
func (f *File) salvage() error {
	if !slices.ContainsFunc(f.segments, func(s *segment) bool { return s.damaged }) {
		return nil
	}
	for slices.ContainsFunc(f.segments, func(s *segment) bool { return s.damaged }) {
		s := f.segments[0]
		if err := f.relocate(s); err != nil {
			return err
		}
		s.liveRecords = 0 // those left cannot be read
		if err := f.compact(); err != nil {
			return err
		}
	}
	return nil
}
