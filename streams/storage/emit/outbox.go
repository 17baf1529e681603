package emit

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A Ticket names one mutation in an Outbox.
type Ticket uint64

// An Intent is what is known of a mutation before it is made.
type Intent struct {
	// Draft is the Change as far as it can be told before: what, where, who, which way.
	Draft *pb.Change
	// Before is the item as it was; nil where it was absent, and for spaces.
	Before *storage.Object
}

// A Pending is a mutation that is not told of.
type Pending struct {
	Ticket Ticket
	Intent Intent
	// Change is what is to be told; nil where nobody knows yet what came of it.
	Change *pb.Change
}

// An Outbox holds mutations from before they are made until their changes have been
// acknowledged. It is safe for concurrent use.
type Outbox interface {
	// Intend notes a mutation that is about to be made. An error refuses it.
	Intend(ctx context.Context, in Intent) (Ticket, error)
	// Outcome notes what came of it: the Change to tell, or nil where nothing was done,
	// which forgets it.
	Outcome(ctx context.Context, t Ticket, c *pb.Change) error
	// Done forgets a mutation: its Change was acknowledged.
	Done(ctx context.Context, t Ticket) error
	// Pending returns all that is held, oldest first.
	Pending(ctx context.Context) iter.Seq2[Pending, error]
}

// ErrOutboxFull is what a refusal of mutations wraps while too much waits to be told.
var ErrOutboxFull = errors.New("outbox is full")

// A Memory is an Outbox that is lost with its process.
type Memory struct {
	limit int

	mu   sync.Mutex // guards what follows
	next Ticket
	held map[Ticket]Pending
}

var _ Outbox = (*Memory)(nil)

// NewMemory returns an outbox that holds at most limit mutations.
func NewMemory(limit int) *Memory { return &Memory{limit: limit, held: map[Ticket]Pending{}} }

// Intend implements Outbox.
func (m *Memory) Intend(_ context.Context, in Intent) (Ticket, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.held) >= m.limit {
		return 0, retry.Unavailable(ErrOutboxFull)
	}
	m.next++
	m.held[m.next] = Pending{Ticket: m.next, Intent: in}
	return m.next, nil
}

// Outcome implements Outbox.
func (m *Memory) Outcome(_ context.Context, t Ticket, c *pb.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c == nil {
		delete(m.held, t)
		return nil
	}
	p := m.held[t]
	p.Ticket, p.Change = t, c
	m.held[t] = p
	return nil
}

// Done implements Outbox.
func (m *Memory) Done(_ context.Context, t Ticket) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, t)
	return nil
}

// Pending implements Outbox.
func (m *Memory) Pending(context.Context) iter.Seq2[Pending, error] {
	return func(yield func(Pending, error) bool) {
		m.mu.Lock()
		all := make([]Pending, 0, len(m.held))
		for _, p := range m.held {
			all = append(all, p)
		}
		m.mu.Unlock()
		slices.SortFunc(all, func(a, b Pending) int { return int(int64(a.Ticket) - int64(b.Ticket)) })
		for _, p := range all {
			if !yield(p, nil) {
				return
			}
		}
	}
}
