package emit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// An Inspection is what is found in an outbox on disk.
type Inspection struct {
	Dir      string `json:"dir"`
	Segments int    `json:"segments"`
	Bytes    int64  `json:"bytes"` // of segments
	// Held is how many mutations wait: their Changes are not acknowledged.
	Held int `json:"held"`
	// Unknown are those of them without an outcome. It is looked up in the store when a program opens the outbox.
	Unknown []UnknownOutcome `json:"unknown"`
	// Undecided and Aside count reports, by kind.
	Undecided int `json:"undecided"`
	Aside     int `json:"aside"`
	// Torn is how many bytes at the end are no whole note, and no later note says that they were on disk. A process that
	// is killed while it writes leaves it so; it is no damage.
	Torn int64 `json:"torn"`
	// Damage is what cannot be read; none: the outbox is sound. It does not show if the oldest or newest segments are
	// missing.
	Damage []Damage `json:"damage"`
}

// An UnknownOutcome is a mutation of which the outbox does not say whether it was made.
type UnknownOutcome struct {
	Ticket Ticket    `json:"ticket"`
	Op     string    `json:"op"`
	Space  string    `json:"space"`
	Item   string    `json:"item,omitempty"`
	Began  time.Time `json:"began"`
}

// Damage is a part of an outbox that was on disk and cannot be read.
type Damage struct {
	Segment string `json:"segment"`
	// From is the first byte of the segment that cannot be read, and Bytes is how many cannot.
	From  int64 `json:"from"`
	Bytes int64 `json:"bytes"`
	// Missing is how many segments are missing, from this one on; 0: it is there.
	Missing uint64 `json:"missing,omitempty"`
	// After and Before are the tickets between which the lost notes lie: the greatest that was read before them, and the
	// first greater one that was read after them. 0: none. If Before follows After, no intent and no outcome is lost, unless it
	// was moved there from an older segment.
	After  Ticket `json:"after"`
	Before Ticket `json:"before"`
}

// Inspect reads the outbox of a directory, all of it, and writes nothing. The error wraps ErrLocked if a process has it
// open, and ErrOutboxFormat if a newer version wrote it.
func Inspect(ctx context.Context, dir string) (Inspection, error) {
	d, err := readDirectory(dir)
	if err != nil {
		return Inspection{}, err
	}
	in, err := inspect(ctx, dir, d, d.lock != nil)
	return in, errors.Join(err, d.close())
}

// inspect reads an outbox from d; was says that it was opened as one.
func inspect(ctx context.Context, dir string, d disk, was bool) (in Inspection, err error) {
	f := newFile(FileConfig{Dir: dir, Salvage: true}, d)
	defer func() { err = errors.Join(err, f.release()) }()
	r := &replayer{f: f, stop: func() error { return context.Cause(ctx) }}
	if err = r.all(); err == nil {
		err = f.countReports()
	}
	switch {
	case err != nil:
		return in, fmt.Errorf("read outbox %s: %w", dir, err)
	case len(f.segments) == 0 && !was:
		return in, fmt.Errorf("%s is no outbox: it has neither segments nor a lock", dir)
	}
	in = Inspection{Dir: dir, Segments: len(f.segments), Held: len(f.index), Undecided: f.stats.Undecided, Aside: f.stats.Rejected,
		Damage: append([]Damage{}, r.lost...), Unknown: []UnknownOutcome{}}
	for _, s := range f.segments {
		in.Bytes += s.size
	}
	for _, t := range r.tails {
		in.Torn += t.seg.size - int64(len(t.bytes))
	}
	for h := range f.Held() {
		if h.Outcome != 0 {
			continue
		}
		p, err := f.Read(h.Ticket)
		if err != nil {
			return in, fmt.Errorf("read outbox %s: %w", dir, err)
		}
		c := p.Intent.Draft
		in.Unknown = append(in.Unknown, UnknownOutcome{h.Ticket, strings.TrimPrefix(c.GetOp().String(), "OP_"), c.GetSpace(), c.GetItem(), h.Began.UTC()})
	}
	return in, nil
}
