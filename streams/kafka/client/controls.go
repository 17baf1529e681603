package client

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

// Controls hold the active pauses and worker counts: the latest control message of each key, until it
// expires. They are safe for concurrent use and cheap to query. A nil *Controls pauses nothing. The zero
// value has no topic; it is fed by Apply.
//
// The end of a pause is compared with the clock of the local process, without a message: if the clocks of two
// processes differ by a second, so does the end of the pause. Worker counts do not expire; they hold until
// another one is set.
type Controls struct {
	topic   controlsTopic                  // nil: the zero value
	current atomic.Pointer[activeControls] // nil: none

	mu       sync.Mutex // guards the fields below
	latest   map[string]*pb.Control
	inactive map[string]bool // accounts that are not active
	expiry   *time.Timer     // applies the next end of a pause; nil: there is none
	watchers map[chan struct{}]bool
}

// A controlsTopic reads the topic control and applies its records.
type controlsTopic interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
}

// Follow sets the reader of the topic, which calls Apply, for Run and Ready.
func (c *Controls) Follow(topic controlsTopic) { c.topic = topic }

// maxExpiryWait is the longest time until the clock is read again, because it may be adjusted.
const maxExpiryWait = time.Minute

// A scope is the part of the work that a control pauses. Empty fields match everything.
type scope struct {
	role           schemas.Role
	account, store string
}

// mask returns which fields are set, one bit for each.
func (s scope) mask() (mask uint8) {
	for i, named := range []bool{s.role != "", s.account != "", s.store != ""} {
		if named {
			mask |= 1 << i
		}
	}
	return mask
}

// masked returns s with only the fields in mask shape.
func (s scope) masked(mask uint8) scope {
	if mask&1 == 0 {
		s.role = ""
	}
	if mask&2 == 0 {
		s.account = ""
	}
	if mask&4 == 0 {
		s.store = ""
	}
	return s
}

// activeControls are the controls in force at one time. They are immutable.
type activeControls struct {
	paused  map[scope]bool
	masks   uint8 // bit n: a scope with mask n is paused
	sweeps  map[string]bool
	workers map[schemas.Role]int
}

func (a *activeControls) matches(s scope) bool {
	all := s.mask()
	for mask := range uint8(8) {
		if a.masks&(1<<mask) != 0 && mask&^all == 0 && a.paused[s.masked(mask)] {
			return true
		}
	}
	return false
}

func (a *activeControls) equal(other *activeControls) bool {
	return maps.Equal(a.paused, other.paused) && maps.Equal(a.sweeps, other.sweeps) && maps.Equal(a.workers, other.workers)
}

// Run follows the topic until ctx is done, and then returns nil. It must be called only once.
func (c *Controls) Run(ctx context.Context) error {
	defer c.stopTimer()
	return c.topic.Run(ctx)
}

// Ready returns a channel that is closed when the records that the topic held at the start of Run are
// applied.
func (c *Controls) Ready() <-chan struct{} { return c.topic.Ready() }

// Apply applies the latest message of key; nil is a tombstone. It rejects an invalid message with a permanent
// error, and the message before stays in force.
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

// SetActive sets whether an account is active. Work of one that is not waits as if the account were paused; Active,
// which lists messages, does not have it.
func (c *Controls) SetActive(account string, active bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inactive == nil {
		c.inactive = map[string]bool{}
	}
	if c.inactive[account] == !active {
		return
	}
	if active {
		delete(c.inactive, account)
	} else {
		c.inactive[account] = true
	}
	c.refresh()
}

func checkControl(key string, c *pb.Control) error {
	named := scope{schemas.Role(c.GetRole()), c.GetAccount(), c.GetStore()}
	switch {
	case c == nil:
		return nil
	case key != schemas.Key(c.GetRole(), c.GetStore(), c.GetAccount(), c.GetSweep()):
		return fmt.Errorf("control %s: key %q does not match its fields", c.GetId(), key)
	case c.GetSweep() != "" && named != scope{}:
		return fmt.Errorf("control %s: names both a sweep and a role, account or store", c.GetId())
	case c.GetWorkers() < 0:
		return fmt.Errorf("control %s: workers is negative", c.GetId())
	case c.GetWorkers() > 0 && (c.GetSweep() != "" || named != scope{role: named.role} || named.role == ""):
		return fmt.Errorf("control %s: workers apply to a role only", c.GetId())
	case c.GetUntil() != nil && c.GetUntil().CheckValid() != nil:
		return errors.Join(fmt.Errorf("control %s: read until", c.GetId()), c.GetUntil().CheckValid())
	}
	return nil
}

// refresh computes the active controls, notifies the watchers of changes, and sets a timer for the next end
// of a pause. The caller holds mu.
func (c *Controls) refresh() {
	now := time.Now()
	a := &activeControls{paused: map[scope]bool{}, sweeps: map[string]bool{}, workers: map[schemas.Role]int{}}
	var next time.Time
	for _, ctl := range c.latest {
		if n := ctl.GetWorkers(); n > 0 {
			a.workers[schemas.Role(ctl.GetRole())] = int(n)
		}
		if !isPausing(ctl, now) {
			continue
		}
		if until := ctl.GetUntil(); until != nil && (next.IsZero() || until.AsTime().Before(next)) {
			next = until.AsTime()
		}
		if ctl.GetSweep() != "" {
			a.sweeps[ctl.GetSweep()] = true
			continue
		}
		s := scope{schemas.Role(ctl.GetRole()), ctl.GetAccount(), ctl.GetStore()}
		a.paused[s] = true
		a.masks |= 1 << s.mask()
	}
	for account := range c.inactive {
		s := scope{account: account}
		a.paused[s] = true
		a.masks |= 1 << s.mask()
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
	before := c.current.Swap(a)
	if before == nil {
		before = &activeControls{}
	}
	if before.equal(a) {
		return
	}
	for w := range c.watchers {
		select {
		case w <- struct{}{}:
		default: // a notification is pending already
		}
	}
}

func isPausing(c *pb.Control, now time.Time) bool {
	return c.GetPaused() && (c.GetUntil() == nil || c.GetUntil().AsTime().After(now))
}

// stopTimer stops the timer.
func (c *Controls) stopTimer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
}

// AnyPaused reports whether anything is paused.
func (c *Controls) AnyPaused() bool {
	a := c.load()
	return a != nil && (len(a.paused) > 0 || len(a.sweeps) > 0)
}

// Role reports whether the whole role is paused, by itself or with everything.
func (c *Controls) Role(role schemas.Role) bool { return c.Paused(role, "", "") }

// Paused reports whether role is paused for a store of an account. This includes pauses of the role, the
// account or the store alone. An empty account or store matches no pause of one.
func (c *Controls) Paused(role schemas.Role, account, store string) bool {
	a := c.load()
	return a != nil && a.masks != 0 && a.matches(scope{role, account, store})
}

// Sweep reports whether a sweep is paused, by itself, with its role or with everything.
func (c *Controls) Sweep(name string) bool {
	a := c.load()
	return a != nil && (a.sweeps[name] || a.matches(scope{role: schemas.RoleSweeper}))
}

// Workers returns the number of workers that each process gives to role, if it is set.
func (c *Controls) Workers(role schemas.Role) (n int, set bool) {
	a := c.load()
	if a == nil {
		return 0, false
	}
	n, set = a.workers[role]
	return n, set
}

func (c *Controls) load() *activeControls {
	if c == nil {
		return nil
	}
	return c.current.Load()
}

// Watch returns a channel that receives a value after the active controls have changed. Several changes may
// cause one value. cancel ends it. Query the controls after calling Watch, not before.
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

// Active returns the active messages, sorted by role, account, store and sweep.
func (c *Controls) Active() []*pb.Control {
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

// WaitResumed returns true when role is not paused, or false if stop is closed first.
func (c *Controls) WaitResumed(role schemas.Role, stop <-chan struct{}) bool {
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
