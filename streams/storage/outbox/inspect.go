package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/streams/storage/outbox/disk"
)

// An Inspection describes an outbox on disk.
type Inspection struct {
	Dir      string `json:"dir"`
	Segments int    `json:"segments"`
	Bytes    int64  `json:"bytes"` // of segments
	// Pending is the number of mutations in the outbox: their Changes are not acknowledged.
	Pending int `json:"pending"`
	// Unknown lists those without an outcome: it is looked up in the store when a program opens the outbox.
	Unknown []UnknownOutcome `json:"unknown"`
	// Undecided and Rejected are the numbers of reports of undecided mutations and of rejected Changes.
	Undecided int `json:"undecided"`
	Rejected  int `json:"rejected"`
	// Incomplete is the number of bytes at the end that form no complete record, if no later record says that they
	// were synced. A process that is killed while it writes leaves them; they are no damage.
	Incomplete int64 `json:"incomplete"`
	// Damage lists the parts that cannot be read; empty: the outbox is sound. Missing segments at either end are
	// not detected.
	Damage []Damage `json:"damage"`
}

// An UnknownOutcome is a mutation without a recorded outcome.
type UnknownOutcome struct {
	Ticket Ticket    `json:"ticket"`
	Op     string    `json:"op"`
	Space  string    `json:"space"`
	Item   string    `json:"item,omitempty"`
	Began  time.Time `json:"began"`
}

// Damage is a part of an outbox that was synced to disk and cannot be read.
type Damage struct {
	Segment string `json:"segment"`
	// From is the offset of the first unreadable byte of the segment, and Bytes the number of unreadable
	// bytes.
	From  int64 `json:"from"`
	Bytes int64 `json:"bytes"`
	// Missing is the number of missing segments, from this one on; 0: the segment exists.
	Missing uint64 `json:"missing,omitempty"`
	// After and Before are the tickets around the lost records: the greatest read before them, and the first
	// greater one read after them; 0: none. If Before is After+1, no intent and no outcome is lost, except one
	// that was moved there from an older segment.
	After  Ticket `json:"after"`
	Before Ticket `json:"before"`
}

// Inspect reads the whole outbox in dir and writes nothing. The error wraps ErrLocked if a process has it
// open, and ErrFormat if another version wrote it.
func Inspect(ctx context.Context, dir string) (Inspection, error) {
	d, err := readDirectory(dir)
	if err != nil {
		return Inspection{}, err
	}
	in, err := inspect(ctx, dir, d, d.lock != nil)
	return in, errors.Join(explain(dir, err), d.close())
}

// inspect reads an outbox from d; hadLock: the directory has a lock file, so it was opened as an outbox
// before.
func inspect(ctx context.Context, dir string, d disk.Disk, hadLock bool) (in Inspection, err error) {
	f := newFile(Config{Dir: dir, Salvage: true}, d)
	defer func() { err = errors.Join(err, f.release()) }()
	r := &replayer{f: f, stop: func() error { return context.Cause(ctx) }}
	if err = r.all(); err == nil {
		err = f.countReports()
	}
	switch {
	case err != nil:
		return in, fmt.Errorf("read outbox %s: %w", dir, err)
	case len(f.segments) == 0 && !hadLock:
		return in, fmt.Errorf("%s is no outbox: it has neither segments nor a lock", dir)
	}
	in = Inspection{
		Dir: dir, Segments: len(f.segments), Pending: len(f.index),
		Undecided: f.stats.Undecided, Rejected: f.stats.Rejected,
		Damage: append([]Damage{}, r.lost...), Unknown: []UnknownOutcome{},
	}
	for _, s := range f.segments {
		in.Bytes += s.size
	}
	for _, t := range r.tails {
		in.Incomplete += t.seg.size - int64(len(t.bytes))
	}
	for h := range f.Held() {
		if h.Outcome != 0 {
			continue
		}
		m, err := f.Read(h.Ticket)
		if err != nil {
			return in, fmt.Errorf("read outbox %s: %w", dir, err)
		}
		c := m.Draft
		op := strings.TrimPrefix(c.GetOp().String(), "OP_")
		in.Unknown = append(in.Unknown, UnknownOutcome{h.Ticket, op, c.GetSpace(), c.GetItem(), h.Began.UTC()})
	}
	return in, nil
}
