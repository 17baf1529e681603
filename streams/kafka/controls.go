package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// Controls are what is paused, and how many workers a role has: the newest control message
// of each key, as long as it is in force. They are safe for concurrent use and cheap to ask. A nil
// *Controls pauses nothing; the zero value is fed by Apply alone.
//
// An until is compared with the clock of the process that asks, without any message: where
// clocks differ by a second, so does the end of a pause. It ends the pause only; a number of
// workers holds until another is set.
type Controls struct {
	table   *Table
	current atomic.Pointer[activeControls] // nil: nothing is in force

	mu       sync.Mutex // guards the rest
	latest   map[string]*pb.Control
	expiry   *time.Timer // has the next until take effect; nil: there is none to come
	watchers map[chan struct{}]bool
}

// expiryLook is the longest time until the clock is asked again, since it may be set.
const maxExpiryWait = time.Minute

// A scope is what an entry pauses; what is empty matches everything.
type scope struct {
	role           schemas.Role
	account, store string
}

// shape tells which fields are not empty, one bit for each.
func (s scope) mask() (shape uint8) {
	for i, named := range []bool{s.role != "", s.account != "", s.store != ""} {
		if named {
			shape |= 1 << i
		}
	}
	return shape
}

// of returns s without the fields that are not in shape.
func (s scope) masked(shape uint8) scope {
	if shape&1 == 0 {
		s.role = ""
	}
	if shape&2 == 0 {
		s.account = ""
	}
	if shape&4 == 0 {
		s.store = ""
	}
	return s
}

// A force is what was in force at one time. It is never changed.
type activeControls struct {
	paused  map[scope]bool
	masks   uint8 // bit n: a scope of shape n is paused
	sweeps  map[string]bool
	workers map[schemas.Role]int
}

func (f *activeControls) matches(s scope) bool {
	all := s.mask()
	for shape := range uint8(8) {
		if f.masks&(1<<shape) != 0 && shape&^all == 0 && f.paused[s.masked(shape)] {
			return true
		}
	}
	return false
}

func (f *activeControls) equal(g *activeControls) bool {
	return maps.Equal(f.paused, g.paused) && maps.Equal(f.sweeps, g.sweeps) && maps.Equal(f.workers, g.workers)
}

// NewControls returns Controls that follow the topic while Run runs.
func NewControls(cfg Config) (*Controls, error) {
	c := &Controls{}
	t, err := NewTable(cfg, schemas.Controls, func(key []byte, d *schemas.Delivery) error {
		ctl, _ := d.Body.(*pb.Control) // nil for a tombstone
		return c.Apply(key, ctl)
	})
	if err != nil {
		return nil, err
	}
	c.table = t
	return c, nil
}

// Run follows the topic until ctx is done, and then returns nil. It is called once.
func (c *Controls) Run(ctx context.Context) error {
	defer c.stopTimer()
	return c.table.Run(ctx)
}

// Ready is closed when what was in the topic when Run began is in force.
func (c *Controls) Ready() <-chan struct{} { return c.table.Ready() }

// Apply puts the newest message of key in force; nil is a tombstone. What cannot be meant is a
// permanent error, and leaves in force what was.
func (c *Controls) Apply(key []byte, ctl *pb.Control) error {
	if err := checkControl(string(key), ctl); err != nil {
		return retry.Permanent(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctl == nil {
		delete(c.latest, string(key))
	} else {
		if c.latest == nil {
			c.latest = map[string]*pb.Control{}
		}
		c.latest[string(key)] = proto.CloneOf(ctl)
	}
	c.refresh()
	return nil
}

func checkControl(key string, c *pb.Control) error {
	named := scope{schemas.Role(c.GetRole()), c.GetAccount(), c.GetStore()}
	switch {
	case c == nil:
		return nil
	case key != schemas.Key(c.GetRole(), c.GetStore(), c.GetAccount(), c.GetSweep()):
		return fmt.Errorf("control %s: its key is %q, which is not what it names", c.GetId(), key)
	case c.GetSweep() != "" && named != scope{}:
		return fmt.Errorf("control %s: it names both a sweep and a part of the work", c.GetId())
	case c.GetWorkers() < 0:
		return fmt.Errorf("control %s: workers is negative", c.GetId())
	case c.GetWorkers() > 0 && (c.GetSweep() != "" || named != scope{role: named.role} || named.role == ""):
		return fmt.Errorf("control %s: workers are a role's only", c.GetId())
	case c.GetUntil() != nil && c.GetUntil().CheckValid() != nil:
		return errors.Join(fmt.Errorf("control %s: read until", c.GetId()), c.GetUntil().CheckValid())
	}
	return nil
}

// enforce works out what is in force now, tells the watchers if that is new, and sees to it
// that it is called when the next until comes. Its caller holds mu.
func (c *Controls) refresh() {
	now := time.Now()
	f := &activeControls{paused: map[scope]bool{}, sweeps: map[string]bool{}, workers: map[schemas.Role]int{}}
	var next time.Time
	for _, ctl := range c.latest {
		if n := ctl.GetWorkers(); n > 0 {
			f.workers[schemas.Role(ctl.GetRole())] = int(n)
		}
		if !isPausing(ctl, now) {
			continue
		}
		if until := ctl.GetUntil(); until != nil && (next.IsZero() || until.AsTime().Before(next)) {
			next = until.AsTime()
		}
		if ctl.GetSweep() != "" {
			f.sweeps[ctl.GetSweep()] = true
			continue
		}
		s := scope{schemas.Role(ctl.GetRole()), ctl.GetAccount(), ctl.GetStore()}
		f.paused[s] = true
		f.masks |= 1 << s.mask()
	}
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
	if !next.IsZero() {
		c.expiry = time.AfterFunc(min(next.Sub(now), maxExpiryWait), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.refresh()
		})
	}
	before := c.current.Swap(f)
	if before == nil {
		before = &activeControls{}
	}
	if before.equal(f) {
		return
	}
	for w := range c.watchers {
		select {
		case w <- struct{}{}:
		default: // it has not looked since the tick before
		}
	}
}

func isPausing(c *pb.Control, now time.Time) bool {
	return c.GetPaused() && (c.GetUntil() == nil || c.GetUntil().AsTime().After(now))
}

// rest stops the clock.
func (c *Controls) stopTimer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
}

// active says whether anything at all is paused.
func (c *Controls) anyPaused() bool {
	f := c.load()
	return f != nil && (len(f.paused) > 0 || len(f.sweeps) > 0)
}

// Role says whether role is paused as a whole, by itself or with everything.
func (c *Controls) Role(role schemas.Role) bool { return c.Paused(role, "", "") }

// Paused says whether role is paused for a store of an account, as a whole or for either alone. An
// empty account or store is none in particular, and matches no pause of one.
func (c *Controls) Paused(role schemas.Role, account, store string) bool {
	f := c.load()
	return f != nil && f.masks != 0 && f.matches(scope{role, account, store})
}

// Sweep says whether a sweep is paused, by itself, with its role or with everything.
func (c *Controls) Sweep(name string) bool {
	f := c.load()
	return f != nil && (f.sweeps[name] || f.matches(scope{role: schemas.RoleSweeper}))
}

// workers returns how many workers each process gives role, where that is set.
func (c *Controls) workers(role schemas.Role) (n int, set bool) {
	f := c.load()
	if f == nil {
		return 0, false
	}
	n, set = f.workers[role]
	return n, set
}

func (c *Controls) load() *activeControls {
	if c == nil {
		return nil
	}
	return c.current.Load()
}

// Watch returns a channel that ticks after what is in force has changed; ticks that are not
// taken become one. cancel ends it. Look at what is in force after Watch, not before.
func (c *Controls) Watch() (changed <-chan struct{}, cancel func()) {
	if c == nil {
		return nil, func() {}
	}
	w := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watchers == nil {
		c.watchers = map[chan struct{}]bool{}
	}
	c.watchers[w] = true
	return w, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watchers, w)
	}
}

// InForce returns the messages that are in force, by role, account, store and sweep.
func (c *Controls) InForce() []*pb.Control {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*pb.Control
	for _, ctl := range c.latest {
		ctl = proto.CloneOf(ctl)
		if !isPausing(ctl, time.Now()) {
			ctl.Paused, ctl.Until = false, nil
		}
		if ctl.GetPaused() || ctl.GetWorkers() > 0 {
			out = append(out, ctl)
		}
	}
	slices.SortFunc(out, func(a, b *pb.Control) int {
		return cmp.Or(cmp.Compare(a.GetRole(), b.GetRole()), cmp.Compare(a.GetAccount(), b.GetAccount()),
			cmp.Compare(a.GetStore(), b.GetStore()), cmp.Compare(a.GetSweep(), b.GetSweep()))
	})
	return out
}

// wait returns true when role is not paused, or false when stop is closed before.
func (c *Controls) waitResumed(role schemas.Role, stop <-chan struct{}) bool {
	if !c.Role(role) {
		return true
	}
	changed, cancel := c.Watch()
	defer cancel()
	for c.Role(role) {
		select {
		case <-stop:
			return false
		case <-changed:
		}
	}
	return true
}

// About says whose message b is, and which stores it is about: the Describe of a PoolConfig whose tasks are alike.
func About(b schemas.Body) (w Work) {
	if m, ok := b.(interface{ GetAccount() string }); ok {
		w.Account = m.GetAccount()
	}
	if m, ok := b.(interface{ GetStore() string }); ok {
		w.Stores[0] = m.GetStore()
	}
	if m, ok := b.(interface{ GetDestinationStore() string }); ok {
		w.Stores[0] = m.GetDestinationStore()
	}
	if m, ok := b.(interface{ GetSourceStore() string }); ok {
		w.Stores[1] = m.GetSourceStore()
	}
	return w
}
