package outbox

import (
	"fmt"
	"iter"
	"time"
)

// Held implements Outbox.
func (f *File) Held() iter.Seq[Mutation] {
	return func(yield func(Mutation) bool) {
		f.mu.Lock()
		all := make([]Mutation, 0, len(f.index))
		for t, h := range f.index {
			all = append(all, h.mutation(t))
		}
		f.mu.Unlock()
		for _, h := range sortedByTicket(all) {
			if !yield(h) {
				return
			}
		}
	}
}

// mutation returns a mutation as Held does.
func (h *indexEntry) mutation(t Ticket) Mutation {
	m := Mutation{
		Ticket: t, Key: h.key, Began: time.UnixMilli(h.began), Concurrent: h.concurrent, Outcome: h.outcome,
	}
	if h.outcome != 0 {
		m.Time = time.UnixMilli(h.time)
	}
	return m
}

// Read implements Outbox.
func (f *File) Read(t Ticket) (Mutation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, err := f.find(t)
	if err != nil {
		return Mutation{}, err
	}
	n, err := f.read(h.record)
	if err != nil {
		return Mutation{}, err
	}
	m := h.mutation(t)
	if n.kind == kindOutcome {
		m.Change, err = parseChange(n.body)
		return m, err
	}
	if m.Draft, m.Before, err = parseIntent(n.body); err != nil || h.content.seg == nil {
		return m, err
	}
	if n, err = f.read(h.content); err == nil {
		m.Streamed, err = parseContent(n.body)
	}
	return m, err
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
	s.Pending, s.Bytes, s.Err = len(f.index), f.liveBytes, f.err
	return s
}
