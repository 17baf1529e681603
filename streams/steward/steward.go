// Package steward manages the incidents of copies. It opens, updates and closes incidents according to the results of
// checks and of duplication, and orders repairs.
//
// At most one incident is open for a copy and kind. A message that is handled twice publishes the same decision again.
// Checks count in the order of their start times; an older check does not change the state of an incident. Repair
// orders carry preconditions, so that executing one twice has no further effect.
package steward

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A Mode determines how repairs of a store's copies are started.
type Mode string

// The modes.
const (
	Auto    Mode = "auto"    // without approval
	Approve Mode = "approve" // after the approval of an operator
	Off     Mode = "off"     // never
)

// Stores provides information about stores.
type Stores interface {
	// RepairMode returns the mode of a store for faults that were found at a time: the configured one, else Auto for
	// secondaries and Approve for primaries. Any other value counts as Off. Mode Auto does not hold for faults that were
	// found before it was configured.
	RepairMode(account, store string, found time.Time) Mode
	// Others returns the other stores that should hold the space, the primary first.
	Others(account, space, store string) []string
}

// Records reads the records of copies.
type Records interface {
	// Fresh returns the record of each copy, in the order of copies. The records include everything that was published
	// before the call. An error means that the records are unknown, not that they are empty.
	Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error)
}

// Config holds the settings of a Steward.
type Config struct {
	// MaxRepairs is the number of repairs of one incident that are ordered without approval; 0 means 3.
	MaxRepairs int
	// MaxSteps is the number of steps that an incident carries, the newest ones; 0 means 100.
	MaxSteps int
	// RepairTimeout is the time after which a repair without a result counts as failed; 0 means 24 h.
	RepairTimeout time.Duration
	// Recheck is the delay of the next check of a faulty copy if no repair could be ordered because the records were
	// unavailable; 0 means 5 min.
	Recheck time.Duration
	// Large is the smallest size in bytes of an item of class large; 0 means that no item is.
	Large int64
}

// Deps are the dependencies of a Steward. All are required.
type Deps struct {
	Stores  Stores
	Records Records
	Log     *slog.Logger
}

// A Steward handles results and approvals. It is safe for concurrent use.
type Steward struct {
	config  Config
	stores  Stores
	records Records
	log     *slog.Logger
	table   table
	reports reports
	seed    maphash.Seed

	// locks are held while an incident of a copy is read and changed. A copy uses the lock at its hash.
	locks [256]sync.Mutex
}

// New returns a Steward without incidents. Apply adds those of the topic.
func New(c Config, d Deps) (*Steward, error) {
	switch {
	case c.MaxRepairs < 0 || c.MaxSteps < 0 || c.RepairTimeout < 0 || c.Recheck < 0 || c.Large < 0:
		return nil, errors.New("steward: max repairs, max steps, repair timeout, recheck or large is negative")
	case d.Stores == nil || d.Records == nil || d.Log == nil:
		return nil, errors.New("steward: a dependency is missing")
	}
	if c.MaxRepairs == 0 {
		c.MaxRepairs = 3
	}
	if c.MaxSteps == 0 {
		c.MaxSteps = 100
	}
	if c.RepairTimeout == 0 {
		c.RepairTimeout = 24 * time.Hour
	}
	if c.Recheck == 0 {
		c.Recheck = 5 * time.Minute
	}
	return &Steward{
		config: c, stores: d.Stores, records: d.Records, log: d.Log.With("part", "steward"), seed: maphash.MakeSeed(),
	}, nil
}

// Apply applies a record of the topic incidents; nil is a tombstone.
func (s *Steward) Apply(key []byte, i *pb.Incident) { s.table.apply(string(key), i) }

// Handle handles the result of a check or of duplication, or an admin action. It returns the changed incidents, and the
// repair orders and checks that follow.
func (s *Steward) Handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	var out []schemas.Message
	var err error
	switch m := d.Body.(type) {
	case *pb.FixityResult:
		out, err = s.check(ctx, m)
	case *pb.DuplicationResult:
		out = s.duplication(m)
	case *pb.AdminAction:
		if !d.Timestamp.IsZero() { // else, in a test, it has the time of the command
			m.Time = timestamppb.New(d.Timestamp)
		}
		out, err = s.action(ctx, m)
	default:
		return nil, retry.Permanent(fmt.Errorf("steward: message is a %T", d.Body))
	}
	if err != nil {
		return nil, fmt.Errorf("steward: %w", err)
	}
	return s.restate(d.Body, out), nil
}

// Overwritten returns the incidents for which the newest record of the topic lacks steps that this Steward holds. This
// happens if a suspended process resumes and publishes an older decision. The result includes incidents for which a
// newer record is published but not read yet.
func (s *Steward) Overwritten() []*pb.Incident { return s.table.overwritten() }

// restate adds to out the incidents of the message's copies for which the newest record of the topic lacks steps.
func (s *Steward) restate(b schemas.Body, out []schemas.Message) []schemas.Message {
	for _, c := range s.copiesOf(b) {
		for _, i := range s.table.staleOf(c) {
			if !slices.ContainsFunc(out, func(m schemas.Message) bool { return m.Body == i }) {
				out = append(out, schemas.Message{Topic: schemas.Incidents, Body: i})
			}
		}
	}
	return out
}

// copiesOf returns the copies that a message is about.
func (s *Steward) copiesOf(b schemas.Body) []schemas.Copy {
	switch m := b.(type) {
	case *pb.FixityResult:
		return []schemas.Copy{schemas.CopyOf(m)}
	case *pb.DuplicationResult:
		source, destination := schemas.CopiesOf(m)
		return []schemas.Copy{source, destination}
	case *pb.AdminAction:
		if i := s.table.get(m.GetTarget()); i != nil {
			return []schemas.Copy{schemas.CopyOf(i)}
		}
	}
	return nil
}

// lock locks the incidents of c until the returned function is called.
func (s *Steward) lock(c schemas.Copy) (unlock func()) {
	m := &s.locks[maphash.Comparable(s.seed, c)%uint64(len(s.locks))]
	m.Lock()
	return m.Unlock
}
