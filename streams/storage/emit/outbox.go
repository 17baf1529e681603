package emit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
)

// A Ticket is a point in the order of what an Outbox was told. It names the mutation whose
// intent was noted there.
type Ticket uint64

// An Intent is what is known of a mutation before it is made.
type Intent struct {
	// Draft is the Change as far as it can be told before: what, where, who, which way.
	Draft *pb.Change
	// Before is the item or space as it was, with version, size, digests and properties as far
	// as they are known; nil where it was absent.
	Before *pb.Change
	// Began is when, by the emitter's clock.
	Began time.Time
	// Crowded: other mutations of the same item were under way meanwhile, so Before may not be
	// what this one found.
	Concurrent bool
}

// A Content is what was streamed.
type Content struct {
	Digests digest.Set `json:"digests"`
	Size    int64      `json:"size"` // bytes
}

// A Pending is what an Outbox knows of a mutation that is not told of.
type Pending struct {
	Intent   Intent   // zero once there is a Change
	Streamed *Content // what was streamed, where that was noted
	Change   *pb.Change
	// Settled is when Change was noted; 0: it was not.
	Outcome Ticket
}

// A Held is one mutation in an Outbox, in short.
type Summary struct {
	Ticket     Ticket
	Key        string    // of the item
	Began      time.Time // as in its Intent
	Concurrent bool
	// Settled is when its outcome was noted, and Time that of its Change; zero where nobody
	// knows yet what came of it.
	Outcome Ticket
	Time    time.Time
}

// A Report is what a person has to know of.
type Report struct {
	// Aside: Pending.Change was refused for good, which Err says. Otherwise nobody can say
	// whether what was intended was done, and Pending.Change is what is seen; nil where that
	// tells nothing.
	Rejected bool
	Ticket
	Pending
	Err error
}

// Stats are the measures of an Outbox.
type Stats struct {
	Held      int   // mutations
	Bytes     int64 // of them
	Rejected  int   // reports that are kept, by kind
	Undecided int
	Err       error // why nothing is noted any more
}

// An Outbox holds mutations from before they are made until their changes have been
// acknowledged. It is safe for concurrent use, and serves one Store.
type Outbox interface {
	Journal
	Reports
	// Durable reports whether what is in it outlives the process.
	Durable() bool
	// Held returns all that is held, oldest first.
	Held() iter.Seq[Summary]
	// Read returns what is known of a mutation.
	Read(t Ticket) (Pending, error)
}

// Reports is what an Outbox keeps for people.
type Reports interface {
	// Report keeps what a person has to know of, safely; twice where it is told twice.
	Report(r Report) error
	Stats() Stats
}

// A Journal is what an Outbox is told of each mutation, in this order.
type Journal interface {
	// Intend notes a mutation that is about to be made, and returns when that is as safe as it
	// will be. An error refuses the mutation; one that wraps ErrOutboxFull may pass.
	Intend(ctx context.Context, in Intent) (Ticket, error)
	// Content notes what was streamed and is about to become visible.
	Content(t Ticket, c Content) error
	// Outcome notes what came of a mutation: the Change to tell, or nil where nothing was done,
	// which forgets it. What it returns is greater than any ticket so far, also with an error.
	Outcome(t Ticket, c *pb.Change) (settled Ticket, err error)
	// Safe returns when all that was noted so far is as safe as it will be.
	Safe(ctx context.Context) error
	// Done forgets a mutation: its Change was acknowledged, or is in a report.
	Done(t Ticket) error
}

// What a refusal of mutations wraps.
var (
	// ErrOutboxFull: too much waits to be told.
	ErrOutboxFull = errors.New("outbox is full")
	// ErrOutboxFailed: the disk did not take what it was to keep, and nobody knows what it
	// holds now. Nothing is noted any more until the outbox is opened again.
	ErrOutboxFailed = errors.New("outbox could not be kept on disk")
)

var errNotHeld = errors.New("outbox does not hold it")

// A Memory is an Outbox that is lost with its process.
type Memory struct {
	limit int

	mu    sync.Mutex // guards what follows
	last  Ticket
	held  map[Ticket]*Pending
	stats Stats
}

var _ Outbox = (*Memory)(nil)

// NewMemory returns an outbox that holds at most limit mutations.
func NewMemory(limit int) *Memory { return &Memory{limit: limit, held: map[Ticket]*Pending{}} }

// Durable implements Outbox.
func (m *Memory) Durable() bool { return false }

// Intend implements Outbox.
func (m *Memory) Intend(_ context.Context, in Intent) (Ticket, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.held) >= m.limit {
		return 0, retry.Unavailable(ErrOutboxFull)
	}
	m.last++
	m.held[m.last] = &Pending{Intent: in}
	return m.last, nil
}

func (m *Memory) find(t Ticket) (*Pending, error) {
	if r := m.held[t]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("ticket %d: %w", t, errNotHeld)
}

// Content implements Outbox.
func (m *Memory) Content(t Ticket, c Content) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.find(t)
	if err == nil {
		r.Streamed = &c
	}
	return err
}

// Outcome implements Outbox.
func (m *Memory) Outcome(t Ticket, c *pb.Change) (Ticket, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	r, err := m.find(t)
	switch {
	case err != nil:
	case c == nil:
		delete(m.held, t)
	default:
		r.Change, r.Outcome = c, m.last
	}
	return m.last, err
}

// Safe implements Outbox.
func (m *Memory) Safe(context.Context) error { return nil }

// Done implements Outbox.
func (m *Memory) Done(t Ticket) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, t)
	return nil
}

// Report implements Outbox. It keeps the count only.
func (m *Memory) Report(r Report) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.count(r.Rejected)
	return nil
}

func (s *Stats) count(aside bool) {
	if aside {
		s.Rejected++
	} else {
		s.Undecided++
	}
}

// Held implements Outbox.
func (m *Memory) Held() iter.Seq[Summary] {
	return func(yield func(Summary) bool) {
		m.mu.Lock()
		all := make([]Summary, 0, len(m.held))
		for t, r := range m.held {
			all = append(all, r.summary(t))
		}
		m.mu.Unlock()
		for _, h := range sortedByTicket(all) {
			if !yield(h) {
				return
			}
		}
	}
}

func sortedByTicket(all []Summary) []Summary {
	slices.SortFunc(all, func(a, b Summary) int { return int(int64(a.Ticket) - int64(b.Ticket)) })
	return all
}

func (p Pending) summary(t Ticket) Summary {
	h := Summary{Ticket: t, Outcome: p.Outcome, Began: p.Intent.Began, Concurrent: p.Intent.Concurrent}
	c := p.Intent.Draft
	if p.Change != nil {
		c = p.Change
		h.Time = c.GetTime().AsTime()
	}
	h.Key = schemas.ItemKey(c.GetAccount(), c.GetSpace(), c.GetItem())
	return h
}

// Read implements Outbox.
func (m *Memory) Read(t Ticket) (Pending, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.find(t)
	if err != nil {
		return Pending{}, err
	}
	return *r, nil
}

// Stats implements Outbox.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Held = len(m.held)
	return s
}
