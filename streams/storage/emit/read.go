package emit

import (
	"fmt"
	"iter"
	"time"
)

// Held implements Outbox.
func (f *File) Held() iter.Seq[Held] {
	return func(yield func(Held) bool) {
		f.mu.Lock()
		all := make([]Held, 0, len(f.index))
		for t, h := range f.index {
			x := Held{Ticket: t, Key: h.key, Began: time.UnixMilli(h.began), Crowded: h.crowded, Settled: h.settled}
			if h.settled != 0 {
				x.Time = time.UnixMilli(h.time)
			}
			all = append(all, x)
		}
		f.mu.Unlock()
		for _, h := range sorted(all) {
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
	n, err := f.read(h.main)
	if err != nil {
		return Pending{}, err
	}
	if n.kind == kindOutcome {
		p.Settled = h.settled
		p.Change, err = parseChange(n.body)
		return p, err
	}
	p.Intent = Intent{Began: time.UnixMilli(h.began), Crowded: h.crowded}
	if p.Intent.Draft, p.Intent.Before, err = parseIntent(n.body); err != nil || h.content.seg == nil {
		return p, err
	}
	if n, err = f.read(h.content); err == nil {
		p.Came, err = parseContent(n.body)
	}
	return p, err
}

// read reads a note; f.mu is held.
func (f *File) read(at place) (note, error) {
	if f.closed {
		return note{}, errClosed
	}
	b := make([]byte, at.size)
	if _, err := at.seg.file.ReadAt(b, at.at); err != nil {
		return note{}, fmt.Errorf("read the outbox: %w", err)
	}
	n, _, ok := parseNote(b)
	if !ok {
		return note{}, fmt.Errorf("segment %s, byte %d: %w", segmentName(at.seg.number), at.at, ErrOutboxDamaged)
	}
	return n, nil
}

// Stats implements Outbox.
func (f *File) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Held, s.Bytes, s.Err = len(f.index), f.live, f.err
	return s
}
