// Package brake limits how many copies of a space at a destination, and of all spaces there, are deleted, replaced with
// other content, or repaired after they were lost, without a person's approval.
//
// Counts are checkpoints, one for each space at a destination and one for the destination, which all
// processes read and change by compare-and-set. A process counts there before it permits anything or, while Brake.Run
// runs, within a second: processes that are killed, or work beside each other, may pass a limit by what they do in a
// second. What has no checkpoint is counted from the records first, and what cannot be counted permits nothing. A wrong
// clock of a process, or of a broker, empties no window.
package brake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// History is what the records have of a space at a destination, or of all spaces there.
type History struct {
	Live     int64 // live copies
	Executed []Executed
}

// Executed are deletes, or rewrites, that were executed without a list in the five minutes that begin at At.
type Executed struct {
	At    time.Time
	Count int64
}

// Deps are the dependencies of a Brake. All are required.
type Deps struct {
	Ledger *Ledger
	// CatchUp returns when the Ledger has all checkpoints that the topic has at the time of the call.
	CatchUp   func(context.Context) error
	Publisher schemas.Publisher
	// Now returns Kafka's time.
	Now func() time.Time
	// Live counts the live copies of a space at a destination; without a space, those of all spaces. The answer includes
	// everything that was published before the call.
	Live func(ctx context.Context, space schemas.Copy) (int64, error)
	// History reads the deletes, or the rewrites, since a time too, as Live reads the copies.
	History func(ctx context.Context, space schemas.Copy, since time.Time) (History, error)
	// Limits returns the limits of a space.
	Limits func(account, space string) Limits
	// Park runs a wait during which the task needs no worker; see kafka.Park.
	Park func(context.Context, func(context.Context) error) error
}

// A Brake permits deletes, or rewrites, of copies, and counts them; see Run. It is safe for concurrent use.
type Brake struct {
	deps Deps

	counts atomic.Bool // Run counts what is owed
	mu     sync.Mutex
	spaces map[schemas.Copy]*braked // and stores, whose space is empty; guarded by mu
}

// braked is the part of the state of a space, or of a store, that is not in its checkpoint.
type braked struct {
	of    schemas.Copy
	split string
	// writing is a semaphore of one for writers of the checkpoint. It is held while the records are read.
	writing chan struct{}

	mu sync.Mutex
	// owed is the number of permits that are not counted yet. If it is negative, permits were counted and then given
	// back: the next ones in this slot are counted already. Guarded by mu, as are the others.
	owed      int64
	owedSince time.Time // the first of them
	slot      int64     // the bucket in which owed was changed last
}

// New returns a Brake of the kind of the Ledger.
func New(d Deps) (*Brake, error) {
	if d.Ledger == nil || d.CatchUp == nil || d.Publisher == nil || d.Now == nil || d.Live == nil ||
		d.History == nil || d.Limits == nil || d.Park == nil {
		return nil, errors.New("brake: a dependency is missing")
	}
	return &Brake{deps: d, spaces: map[schemas.Copy]*braked{}}, nil
}

// maxConflicts bounds how often a checkpoint is written again because another process has written one.
const maxConflicts = 10

func (b *Brake) space(of schemas.Copy) *braked {
	of = of.WithoutItem()
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.spaces[of]
	if s == nil {
		s = &braked{of: of, split: schemas.Key(of.Account, of.Store, of.Space), writing: make(chan struct{}, 1)}
		b.spaces[of] = s
	}
	return s
}

// A Permit allows one delete, or one rewrite. It counts for a space and for its store.
type Permit struct {
	b    *Brake
	of   []*braked
	slot int64 // the bucket in which it was taken
}

// Take takes a permit to delete, or replace, a copy. If there is none, reached says which limit is reached.
func (b *Brake) Take(ctx context.Context, of schemas.Copy) (p *Permit, reached string, err error) {
	p = &Permit{b: b, slot: b.slot()}
	for _, s := range b.limited(of) {
		l, err := b.take(ctx, s)
		if err != nil || l != withinLimits {
			p.GiveBack()
			return nil, b.Kind().name(l), err
		}
		p.of = append(p.of, s)
	}
	return p, "", nil
}

// GiveBack returns a permit for a delete, or a rewrite, that was certainly not done. If its bucket is over, it counts
// all the same. A nil permit is none.
func (p *Permit) GiveBack() {
	if p == nil {
		return
	}
	for _, s := range p.of {
		s.mu.Lock()
		if now := p.b.slot(); now == p.slot {
			s.turn(now)
			s.owed--
		}
		s.mu.Unlock()
	}
}

// turn forgets what was given back in an earlier bucket than that of now. The caller holds s.mu.
func (s *braked) turn(now int64) {
	if s.owed < 0 && s.slot != now {
		s.owed = 0
	}
	s.slot = now
}

func (b *Brake) slot() int64 { return start(b.deps.Now(), slotSeconds) }

// limited returns what has limits for a copy: its space, and its store unless all of the space may go.
func (b *Brake) limited(of schemas.Copy) []*braked {
	all := []*braked{b.space(of)}
	if b.deps.Limits(of.Account, of.Space).MaxShare < 1 {
		all = append(all, b.space(schemas.Copy{Account: of.Account, Store: of.Store}))
	}
	return all
}

// Kind returns what the brake limits.
func (b *Brake) Kind() Kind { return b.deps.Ledger.kind }

func (b *Brake) take(ctx context.Context, s *braked) (reached limit, err error) {
	if b.takeAhead(s) {
		return withinLimits, nil
	}
	release, err := b.write(ctx, s)
	if err != nil {
		return "", err
	}
	defer release()
	if b.takeAhead(s) {
		return withinLimits, nil
	}
	return b.count(ctx, s, true)
}

// decide returns how many permits are left in s, of which owed are not in its tally, and the limit that is reached.
func (b *Brake) decide(s *braked, t *tally, now time.Time, owed int64) (int64, limit) {
	u := t.usage(now)
	u.hour, u.month, u.store = u.hour+owed, u.month+owed, s.of.Space == ""
	return brake(u, b.deps.Limits(s.of.Account, s.of.Space))
}

// Reached returns the limit that would stop a delete, or a rewrite, of a copy now; empty if none would. It counts
// nothing. A space without a checkpoint is within the limits: it is counted before its first delete.
func (b *Brake) Reached(of schemas.Copy) string {
	for _, s := range b.limited(of) {
		held, ok := b.deps.Ledger.get(s.split)
		s.mu.Lock()
		owed := s.owed
		s.mu.Unlock()
		if !ok {
			continue
		}
		if _, reached := b.decide(s, held, b.deps.Now(), owed); reached != withinLimits {
			return b.Kind().name(reached)
		}
	}
	return ""
}

var errConflict = retry.Unavailable(errors.New("write a checkpoint of the brake: other processes write them too"))

// write waits until no other task writes the checkpoint of s.
func (b *Brake) write(ctx context.Context, s *braked) (release func(), err error) {
	release = func() { <-s.writing }
	select {
	case s.writing <- struct{}{}:
		return release, nil
	default:
	}
	acquired := false
	err = b.deps.Park(ctx, func(ctx context.Context) error {
		select {
		case s.writing <- struct{}{}:
			acquired = true
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		if acquired {
			release()
		}
		return nil, fmt.Errorf("wait for the brake of %s: %w", s.of, err)
	}
	return release, nil
}

// change passes a copy of the tally of s, and the time, to next, and writes what next makes of it, if next says so. If
// another process has written one meanwhile, it does so again, in any case: the last record of the topic is then one
// that is ignored, and compaction would keep it. If the tally seems to be old, it first writes it as it is, which tells
// the time. The caller holds s.writing.
func (b *Brake) change(ctx context.Context, s *braked, next func(*tally, time.Time) (write bool, err error)) error {
	lost, asked := false, false
	for range maxConflicts {
		t, err := b.load(ctx, s)
		if err != nil {
			return err
		}
		asks := !asked && b.isBehind(t)
		if !asks {
			if write, err := next(t, t.now()); err != nil || !write && !lost {
				return err
			}
		}
		accepted, err := b.publish(ctx, s, t)
		if err != nil || accepted && !asks {
			return err
		}
		lost, asked = !accepted, asked || accepted
	}
	return errConflict
}

// isBehind reports whether a tally may be too old to know the time by it.
func (b *Brake) isBehind(t *tally) bool { return b.deps.Now().Sub(t.now()) > slotSeconds*time.Second }

// load returns a copy of the tally of s that may be changed. Without a checkpoint, it counts from the records.
func (b *Brake) load(ctx context.Context, s *braked) (*tally, error) {
	if held, ok := b.deps.Ledger.get(s.split); ok {
		return held.next(), nil
	}
	if err := b.deps.CatchUp(ctx); err != nil {
		return nil, retry.Unavailable(fmt.Errorf("read the checkpoint of the brake for %s: %w", s.of, err))
	}
	if held, ok := b.deps.Ledger.get(s.split); ok {
		return held.next(), nil
	}
	now := b.deps.Now()
	h, err := b.deps.History(ctx, s.of, now.Add(-monthSeconds*time.Second))
	if err != nil {
		return nil, retry.Unavailable(fmt.Errorf("count the %s of %s, which has no checkpoint: %w", b.Kind(), s.of, err))
	}
	// Larger than the number of any lost checkpoint: there are fewer than one per millisecond.
	t := &tally{Seq: now.UnixMilli(), Counted: true, Live: h.Live, LiveAt: now.Unix()}
	gone := int64(1) // by each of the executed
	if b.Kind() != Deletes {
		gone = 0 // a copy that was replaced or repaired is still live
	}
	for _, e := range h.Executed {
		t.Live += gone * e.Count // of the whole month, first
	}
	for _, e := range h.Executed { // each day has the live copies of when it began
		t.add(e.At, e.Count)
		t.Live -= gone * e.Count
	}
	t.date(now, now, now)
	t.Live = h.Live + b.gone(t, now)
	return t, nil
}

// gone returns how many copies that were live when the window of the hour began are not any more.
func (b *Brake) gone(t *tally, now time.Time) int64 {
	if b.Kind() != Deletes {
		return 0
	}
	return t.usage(now).hour
}

// publish writes a tally, and reports whether it was accepted.
func (b *Brake) publish(ctx context.Context, s *braked, t *tally) (bool, error) {
	t.Seq++
	cursor, err := json.Marshal(t)
	if err != nil {
		return false, retry.Permanent(fmt.Errorf("write a checkpoint of the brake: %w", err))
	}
	c := &pb.Checkpoint{
		Id: schemas.NewID(), Sweep: b.Kind().sweep(), Split: s.split, Cursor: cursor,
		Time: timestamppb.New(b.deps.Now()),
	}
	accepted, err := b.deps.Ledger.writes(c.GetId(), func() error {
		if err := b.deps.Publisher.Publish(ctx, schemas.Message{Topic: schemas.Checkpoints, Body: c}); err != nil {
			return err
		}
		return b.deps.CatchUp(ctx)
	})
	if err != nil {
		return false, retry.Unavailable(fmt.Errorf("write a checkpoint of the brake for %s: %w", s.of, err))
	}
	return accepted, nil
}
