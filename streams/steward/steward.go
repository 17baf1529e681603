// Package steward keeps the incidents: it turns the results of checks and of
// duplication into open and closed incidents, and has repaired what may be repaired.
//
// There is at most one open incident of a copy and kind. What is decided is a function
// of the incident and of the message, so handling a message twice tells the same thing
// twice and decides it once; checks count in the order in which they began, and
// an older one changes nothing. Orders of repair carry what must still hold when they
// are executed: a second execution finds that it does not.
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

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A Mode says who decides that bad copies of a store are repaired.
type Mode string

// The modes.
const (
	Auto    Mode = "auto"
	Approve Mode = "approve"
	Off     Mode = "off"
)

// Stores says what the steward needs to know of the stores.
type Stores interface {
	// RepairMode returns the mode of a store: what is configured, else Auto for
	// secondaries and Approve for primaries. Any other than the three counts as Off.
	RepairMode(account, store string) Mode
	// Others returns the other stores that should hold the space, the primary first.
	Others(account, space, store string) []string
}

// Records reads what is on record.
type Records interface {
	// Fresh returns a record of each copy, in their order, that tells of everything
	// that was published before the call. An error means that it cannot say.
	Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error)
}

// Config is how a Steward works.
type Config struct {
	// MaxRepairs is how many repairs of one incident are ordered without a person; 0 means 3.
	MaxRepairs int
	// MaxSteps is how many of its newest steps an incident carries; 0 means 100.
	MaxSteps int
	// Patience is how long a repair may be on its way before the incident is treated as
	// if it had come to nothing; 0 means 24 h.
	Patience time.Duration
	// Recheck is how long after the check that found a fault its copy is checked again if no repair could be ordered,
	// since the records did not answer; 0 means 5 min.
	Recheck time.Duration
	// Large is the size in bytes from which on what is ordered is of the class large; 0: never.
	Large int64
}

// Deps are what a Steward works with.
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
	seed    maphash.Seed
	// locks, by copy, are held while an incident of the copy is thought about.
	locks [256]sync.Mutex
}

// New returns a Steward that knows of no incident yet: Apply tells it of them.
func New(c Config, d Deps) (*Steward, error) {
	switch {
	case c.MaxRepairs < 0 || c.MaxSteps < 0 || c.Patience < 0 || c.Recheck < 0 || c.Large < 0:
		return nil, errors.New("steward: max repairs, max steps, patience, recheck or large is negative")
	case d.Stores == nil || d.Records == nil || d.Log == nil:
		return nil, errors.New("steward: stores, records or log are missing")
	}
	if c.MaxRepairs == 0 {
		c.MaxRepairs = 3
	}
	if c.MaxSteps == 0 {
		c.MaxSteps = 100
	}
	if c.Patience == 0 {
		c.Patience = 24 * time.Hour
	}
	if c.Recheck == 0 {
		c.Recheck = 5 * time.Minute
	}
	return &Steward{
		config: c, stores: d.Stores, records: d.Records,
		log: d.Log.With("part", "steward"), seed: maphash.MakeSeed(),
	}, nil
}

// Apply takes a record of the topic incidents; nil is a tombstone.
func (s *Steward) Apply(key []byte, i *pb.Incident) { s.table.apply(string(key), i) }

// Handle takes a result of a check or of duplication, or an admin action, and returns
// the incidents that it changed and the orders that follow.
func (s *Steward) Handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	var out []schemas.Message
	var err error
	switch m := d.Body.(type) {
	case *pb.FixityResult:
		out, err = s.check(ctx, m)
	case *pb.DuplicationResult:
		out = s.duplication(m)
	case *pb.AdminAction:
		out, err = s.action(ctx, m)
	default:
		return nil, retry.Permanent(fmt.Errorf("steward: message is a %T", d.Body))
	}
	if err != nil {
		return nil, fmt.Errorf("steward: %w", err)
	}
	return s.restate(d.Body, out), nil
}

// Overwritten returns the incidents of which the topic's newest record lacks something that is held: a process that was
// frozen has published what it had decided before. It also returns those of which a newer record is on its way.
func (s *Steward) Overwritten() []*pb.Incident { return s.table.overwritten() }

// restate adds to out the incidents of the copies that a message is about of which the topic's newest record lacks
// something.
func (s *Steward) restate(b schemas.Body, out []schemas.Message) []schemas.Message {
	for _, c := range s.concerned(b) {
		for _, i := range s.table.unsaid(c) {
			if !slices.ContainsFunc(out, func(m schemas.Message) bool { return m.Body == i }) {
				out = append(out, schemas.Message{Topic: schemas.Incidents, Body: i})
			}
		}
	}
	return out
}

// concerned returns the copies that a message is about.
func (s *Steward) concerned(b schemas.Body) []schemas.Copy {
	switch m := b.(type) {
	case *pb.FixityResult:
		return []schemas.Copy{schemas.CopyOf(m)}
	case *pb.DuplicationResult:
		c := schemas.Copy{Account: m.GetAccount(), Store: m.GetSourceStore(), Space: m.GetSpace(), Item: m.GetItem()}
		other := c
		other.Store = m.GetDestinationStore()
		return []schemas.Copy{c, other}
	case *pb.AdminAction:
		if i := s.table.get(m.GetTarget()); i != nil {
			return []schemas.Copy{schemas.CopyOf(i)}
		}
	}
	return nil
}

// lock keeps everybody else from thinking about c until the returned function is called.
func (s *Steward) lock(c schemas.Copy) (unlock func()) {
	m := &s.locks[maphash.Comparable(s.seed, c)%uint64(len(s.locks))]
	m.Lock()
	return m.Unlock
}
