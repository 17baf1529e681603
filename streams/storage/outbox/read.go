package outbox

import (
	"fmt"
	"iter"
	"time"
)

// Held implements Outbox.
func (f *File) Held() iter.Seq[Summary] {
	return func(yield func(Summary) bool) {
		f.mu.Lock()
		all := make([]Summary, 0, len(f.index))
		for t, h := range f.index {
			x := Summary{Ticket: t, Key: h.key, Began: time.UnixMilli(h.began), Concurrent: h.concurrent, Outcome: h.outcome}
			if h.outcome != 0 {
				x.Time = time.UnixMilli(h.time)
			}
			all = append(all, x)
		}
		f.mu.Unlock()
		for _, h := range sortedByTicket(all) {
			if !yield(h) {
				return
			}
		}
	}
}

// Read implements Outbox.
func (f *File) Read(t Ticket) (p Pending, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, err := f.find(t)
	if err != nil {
		return Pending{}, err
	}
	n, err := f.read(h.record)
	if err != nil {
		return Pending{}, err
	}
	if n.kind == kindOutcome {
		p.Outcome = h.outcome
		p.Change, err = parseChange(n.body)
		return p, err
	}
	p.Intent = Intent{Began: time.UnixMilli(h.began), Concurrent: h.concurrent}
	if p.Intent.Draft, p.Intent.Before, err = parseIntent(n.body); err != nil || h.content.seg == nil {
		return p, err
	}
	if n, err = f.read(h.content); err == nil {
		p.Streamed, err = parseContent(n.body)
	}
	return p, err
}

// read reads a record; f.mu is held.
func (f *File) read(at location) (segmentRecord, error) {
	if f.closed {
		return segmentRecord{}, errClosed
	}
	b := make([]byte, at.size)
	if _, err := at.seg.file.ReadAt(b, at.offset); err != nil {
		return segmentRecord{}, fmt.Errorf("read the outbox: %w", err)
	}
	n, _, ok := parseRecord(b)
	if !ok {
		return segmentRecord{}, fmt.Errorf("segment %s, byte %d: %w", segmentName(at.seg.number), at.offset, ErrDamaged)
	}
	return n, nil
}

// Stats implements Outbox.
func (f *File) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Held, s.Bytes, s.Err = len(f.index), f.liveBytes, f.err
	return s
}
