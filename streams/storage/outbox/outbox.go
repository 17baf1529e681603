// Package outbox is a write-ahead log of mutations of a store. A decorator such as emit records the intent of a
// mutation before it makes it, and the resulting Change after it; the record is deleted when the Change is
// acknowledged. So no Change is forgotten if the process or the machine fails in between.
//
// A File keeps its records in a directory:
//
//   - Durability. An intent is on disk before Intend returns, all other records when Safe returns. After a failed
//     fsync nothing is recorded until the outbox is opened again.
//   - Order. An intent or outcome gets a ticket greater than all tickets before it, also across restarts. A
//     mutation is recorded in the steps intent, content, outcome, done.
//   - A crash of the process leaves at most one incomplete record at the end; it is ignored and overwritten. A
//     crash of the machine loses at most the records that were not synced. A mutation whose outcome was not
//     recorded stays, without an outcome: the caller looks it up in the store.
//   - Damage. Each record has a checksum. Bytes that are known to have been synced are never skipped silently:
//     Open fails with ErrDamaged, Inspect lists them, and Salvage keeps the rest.
//   - Space. Segments without live records are removed, oldest first; live records that block them are moved to
//     the end. At the limit new mutations are refused with ErrFull, and the outcome of a recorded one still fits.
//
// A directory is open in one process at a time, and serves one store.
package outbox

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

// A Ticket is the sequence number of an intent or an outcome in an Outbox. The ticket of its intent identifies a
// mutation.
type Ticket uint64

// A Mutation is a mutation of an item or space that an Outbox holds: its intent, recorded before it is made, and the
// steps recorded since.
type Mutation struct {
	Ticket Ticket
	Key    string // of the item or space
	// Draft is the Change without the fields that only the mutation yields (version, size, digests, time). It
	// may be nil once there is a Change, and so may Before and Streamed.
	Draft *pb.Change
	// Before is the item or space before the mutation, with version, size, digests and properties as far as
	// they are known; nil if it was absent.
	Before *pb.Change
	// Began is the start of the mutation, by the clock of the program that makes it.
	Began time.Time
	// Concurrent: other mutations of the same item ran at the same time, so this one may have found another
	// state than Before.
	Concurrent bool
	Streamed   *Content // of a Put; nil if it was not recorded
	// Change is the result of the mutation, Outcome the ticket at which it was recorded, and Time that of the
	// Change; zero if the outcome is unknown.
	Change  *pb.Change
	Outcome Ticket
	Time    time.Time
}

// Content describes the bytes that a Put streamed.
type Content struct {
	Digests digest.Set `json:"digests"`
	Size    int64      `json:"size"` // bytes
}

// Stats are the gauges of an Outbox.
type Stats struct {
	Pending   int   // mutations held
	Bytes     int64 // their bytes
	Rejected  int   // reports of rejected Changes
	Undecided int   // reports of undecided mutations
	Err       error // the failure after which the outbox records nothing any more; nil: it works
}

// An Outbox holds mutations from before they are made until their Changes are acknowledged. It is safe for
// concurrent use, and serves one Store.
type Outbox interface {
	Journal
	Reports
	// Claim reserves the outbox for one Store, which is named account/store.
	Claim(name string) error
	// Held returns the mutations that the outbox holds, oldest first, without Draft, Before, Streamed and
	// Change.
	Held() iter.Seq[Mutation]
	// Read returns a mutation. The error wraps ErrNotHeld if the outbox does not hold it.
	Read(t Ticket) (Mutation, error)
}

// Reports are the part of an Outbox for the operator.
type Reports interface {
	// Report durably keeps a mutation that an operator has to examine. If rejected is set, the publisher rejected
	// m.Change permanently with that error. Otherwise the mutation is undecided: the store's state does not prove
	// whether it was applied. Then m.Change is the observed state; nil if the item was absent before and is absent
	// now. A repeated call keeps it twice.
	Report(m Mutation, rejected error) error
	Stats() Stats
}

// A Journal records the steps of each mutation, in the order of its methods.
type Journal interface {
	// Intend records a mutation that is about to be made (Draft, Before, Began and Concurrent; the other fields
	// are ignored), and returns when the record is durable. After an error the
	// mutation must not be made; an error that wraps ErrFull is transient.
	Intend(ctx context.Context, m Mutation) (Ticket, error)
	// Content records the streamed bytes before they become visible.
	Content(t Ticket, c Content) error
	// Outcome records the Change of a mutation; nil means that nothing was done, and deletes the mutation. The
	// returned ticket is greater than all tickets before it, also if the call fails.
	Outcome(t Ticket, c *pb.Change) (outcome Ticket, err error)
	// Safe returns when all records so far are durable.
	Safe(ctx context.Context) error
	// Done deletes a mutation: its Change was acknowledged, or is kept in a report.
	Done(t Ticket) error
}

// Errors of an Outbox.
var (
	// ErrFull: too many mutations are pending.
	ErrFull = errors.New("outbox is full")
	// ErrFailed: a write to disk failed, so the content on disk is unknown. Nothing is recorded until
	// the outbox is opened again.
	ErrFailed = errors.New("outbox could not be kept on disk")
	// ErrNotHeld: the outbox does not hold the mutation, or no longer.
	ErrNotHeld = errors.New("outbox does not hold the mutation")
)

func (s *Stats) count(rejected error) {
	if rejected != nil {
		s.Rejected++
	} else {
		s.Undecided++
	}
}

func sortedByTicket(all []Mutation) []Mutation {
	slices.SortFunc(all, func(a, b Mutation) int { return int(int64(a.Ticket) - int64(b.Ticket)) })
	return all
}

// keyOf returns the key of the item or space of a Change.
func keyOf(c *pb.Change) string { return schemas.ItemKey(c.GetAccount(), c.GetSpace(), c.GetItem()) }
