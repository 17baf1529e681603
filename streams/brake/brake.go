// Package brake limits how many copies of a space at a destination are deleted, or replaced with other content, without
// a person's approval. What is beyond the limits waits on a list, which a person approves as a whole.
//
// Counts and open lists are checkpoints, one for each space at a destination, which all processes read and change by
// compare-and-set. A process counts there before it permits anything, so no permit is uncounted, however many processes
// there are and whenever they die; while Brake.Run runs it counts within a second. Without a checkpoint nothing is
// permitted until it was counted from the records.
package brake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// History is what the records have of a space at a destination.
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
	// Live counts the live copies of a space at a destination. The answer includes everything that was published before
	// the call.
	Live func(ctx context.Context, space schemas.Copy) (int64, error)
	// History reads the deletes, or the rewrites, since a time too, as Live reads the copies.
	History func(ctx context.Context, space schemas.Copy, since time.Time) (History, error)
	// Limits returns the limits of a space.
	Limits func(account, space string) Limits
	// Closed reports whether the incident of a list was closed. One that was never opened is not closed.
	Closed func(space schemas.Copy, list string) bool
	// Refused returns the lists of a space whose refusal is being carried out: the sources are being brought back from
	// these copies.
	Refused func(space schemas.Copy) []string
	// OnHeld opens the incident of a list, if it is not open. It is called for each delete, or rewrite, before its result
	// is published.
	OnHeld func(ctx context.Context, space schemas.Copy, list, cause string) error
	// Park runs a wait during which the task needs no worker; see kafka.Park.
	Park func(context.Context, func(context.Context) error) error
}

// A Brake permits deletes, or rewrites, of copies. It counts them in checkpoints: it reserves a block of permits, and
// gives none before its checkpoint is acknowledged and was read again; see Run for permits ahead of that. If another
// process has written meanwhile, it decides anew from that checkpoint. What a process has reserved and not used when it
// dies counts as used. It is safe for concurrent use.
type Brake struct {
	deps Deps
	now  func() time.Time

	counts atomic.Bool // Run counts what is owed
	mu     sync.Mutex
	spaces map[schemas.Copy]*braked // guarded by mu
}

// braked is the part of a space's state that is not in its checkpoint.
type braked struct {
	of    schemas.Copy
	split string
	// writing is a semaphore of one for writers of the checkpoint. It is held while the records are read.
	writing chan struct{}
	// holding is held shared while something is put on a list, until its result is published, and exclusively to close a
	// list: a closed list gets nothing further from this process.
	holding sync.RWMutex

	mu   sync.Mutex
	left int64 // reserved and not used; guarded by mu
	at   int64 // the bucket in which left is counted; guarded by mu
	// See Brake.Run. Guarded by mu.
	owed      int64     // permits that are not counted yet
	owedSince time.Time // the first of them
	used      int64     // permits since the last count
}

// New returns a Brake of the kind of the Ledger.
func New(d Deps) (*Brake, error) {
	if d.Ledger == nil || d.CatchUp == nil || d.Publisher == nil || d.Live == nil || d.History == nil ||
		d.Limits == nil || d.Closed == nil || d.Refused == nil || d.OnHeld == nil || d.Park == nil {
		return nil, errors.New("brake: a dependency is missing")
	}
	return &Brake{deps: d, now: time.Now, spaces: map[schemas.Copy]*braked{}}, nil
}

// maxConflicts bounds how often a checkpoint is written again because another process has written one.
const maxConflicts = 10

// block returns how many of the deletes that are left are reserved at a time in a space with some live copies: few
// beside the limits, so that a kill costs little of them, and enough that a destination with high limits takes hundreds
// of deletes a second.
func (l Limits) block(live, left int64) int64 {
	return max(1, min(left, min(l.MaxCount, l.share(live))/20, 500))
}

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

// Refused returns an error of class unavailable while an operator's refusal of a list of the space is being carried
// out, since the copies are the sources of the restores. What was ordered from such a list, whose name is then cause,
// is not stopped: it is about items that are not restored.
func (b *Brake) Refused(space schemas.Copy, cause string) error {
	for _, list := range b.deps.Refused(space) {
		if list != cause {
			return retry.UnavailableFor("refused list",
				fmt.Errorf("the copies are needed until the items of the refused list %s are restored", list))
		}
	}
	return nil
}

// Take takes a permit to delete, or replace, a copy. Without one, reached says which limit is reached; else it is
// empty.
func (b *Brake) Take(ctx context.Context, of schemas.Copy) (reached string, err error) {
	l, err := b.take(ctx, b.space(of))
	return b.name(l), err
}

// Kind returns what the brake limits.
func (b *Brake) Kind() Kind { return b.deps.Ledger.kind }

// Closed reports whether the incident of a list was closed.
func (b *Brake) Closed(space schemas.Copy, list string) bool { return b.deps.Closed(space, list) }

// Publish publishes messages, and returns when they are acknowledged.
func (b *Brake) Publish(ctx context.Context, m ...schemas.Message) error {
	return b.deps.Publisher.Publish(ctx, m...)
}

func (b *Brake) take(ctx context.Context, s *braked) (reached limit, err error) {
	if reached, ok := b.takeReserved(s); ok {
		return reached, nil
	}
	if b.takeAhead(s) {
		return withinLimits, nil
	}
	release, err := b.write(ctx, s)
	if err != nil {
		return "", err
	}
	defer release()
	if reached, ok := b.takeReserved(s); ok {
		return reached, nil
	}
	return b.reserve(ctx, s, 1, Limits.block)
}

// reserve counts a block of permits, of which the caller gets mine, and what is owed. It gives back what is left of the
// block before. Without a permit, reached is the limit that is reached. If mine is 0 the live copies are not counted
// again; if they had to be, there is no block. The caller holds s.writing.
func (b *Brake) reserve(
	ctx context.Context, s *braked, mine int64, block func(l Limits, live, allowed int64) int64,
) (reached limit, err error) {
	limits := b.deps.Limits(s.of.Account, s.of.Space)
	var (
		owed   int64 // and counted
		back   int64 // given back in a checkpoint that was not accepted
		n      int64 // in the new block
		bucket int64 // of the new block
	)
	err = b.change(ctx, s, func(t *tally, now time.Time) (bool, error) {
		s.mu.Lock()
		s.left += back
		left, at := s.left, s.at
		owed = s.owed
		s.mu.Unlock()
		if left > 0 {
			t.giveBack(at, left)
		}
		old := b.liveIsOld(t, now)
		if old && mine > 0 {
			live, err := b.deps.Live(ctx, s.of)
			if err != nil {
				return false, retry.Unavailable(fmt.Errorf("count the copies of %s: %w", s.of, err))
			}
			now, old = b.now(), false
			t.setLive(live, b.gone(t, now), now)
		}
		t.prune(now)
		t.add(now, owed)
		n, bucket = 0, slot(now)
		var allowed int64
		u := t.usage(now, b.openList(s.of, t, b.Kind().reason()) != "")
		if allowed, reached = brake(u, limits); allowed > 0 && !old {
			n = block(limits, u.hourLive, allowed)
		}
		if n+owed+left == 0 {
			return false, nil
		}
		s.mu.Lock()
		s.left, back = 0, left // if the checkpoint is written and that is not known, it must not be given back twice
		s.mu.Unlock()
		t.add(now, n)
		return true, nil
	})
	if err == nil {
		s.mu.Lock()
		s.owed, s.owedSince = max(0, s.owed-owed), b.now()
		if n > 0 {
			s.left, s.at = s.left+n-mine, bucket
		}
		s.mu.Unlock()
	}
	return reached, err
}

// takeReserved takes a permit from the reservation of the present bucket. It reports whether that or an open list of
// the brake decides.
func (b *Brake) takeReserved(s *braked) (limit, bool) {
	held, ok := b.deps.Ledger.get(s.split)
	if !ok {
		return "", false
	}
	if b.openList(s.of, held, b.Kind().reason()) != "" {
		return listOpen, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 || s.at != slot(b.now()) {
		return "", false
	}
	s.left--
	s.used++
	return withinLimits, true
}

// Reached returns the limit that would stop a delete, or a rewrite, of a copy now; empty if none would. It counts
// nothing. A space without a checkpoint is within the limits: it is counted before its first delete.
func (b *Brake) Reached(of schemas.Copy) string {
	s := b.space(of)
	held, ok := b.deps.Ledger.get(s.split)
	if !ok {
		return ""
	}
	now := b.now()
	u := held.usage(now, b.openList(s.of, held, b.Kind().reason()) != "")
	s.mu.Lock()
	if s.at == slot(now) { // reserved, counted, and not used
		u.hour, u.month = u.hour-s.left, u.month-s.left
	}
	s.mu.Unlock()
	_, reached := brake(u, b.deps.Limits(of.Account, of.Space))
	return b.name(reached)
}

// name returns a limit with the settings of the kind.
func (b *Brake) name(l limit) string { return strings.Replace(string(l), "%s", b.Kind().settings(), 1) }

// GiveBack returns a permit for a delete, or a rewrite, that was not done.
func (b *Brake) GiveBack(of schemas.Copy) {
	s := b.space(of)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.owed > 0:
		s.owed--
	case s.at == slot(b.now()):
		s.left++
	}
}

// openList returns the open list for a reason; "" if there is none.
func (b *Brake) openList(of schemas.Copy, t *tally, r Reason) string {
	if list := t.Lists[r]; list != "" && !b.deps.Closed(of, list) {
		return list
	}
	return ""
}

// Hold puts a delete, or a rewrite, on the open list for a reason, or on a new one. It calls publish with the list,
// which publishes the result; this process does not close the list before publish has returned. Many processes execute
// rewrites: if another one has closed the list meanwhile, publish is called again with the next list.
func (b *Brake) Hold(
	ctx context.Context, of schemas.Copy, why Held, publish func(ctx context.Context, list string) error,
) error {
	s := b.space(of)
	for range maxConflicts {
		list, err := b.listFor(ctx, s, why.Reason)
		if err != nil {
			return err
		}
		on, err := b.holdOn(ctx, s, list, why, publish)
		if on && err == nil && b.Kind() == Rewrites {
			on, err = b.stillOn(ctx, s, list)
		}
		if on || err != nil {
			return err
		}
	}
	return errConflict
}

// stillOn reports whether a list is still open. Another process may have closed it before the result was published, and
// have read the list without it.
func (b *Brake) stillOn(ctx context.Context, s *braked, list string) (bool, error) {
	if err := b.deps.CatchUp(ctx); err != nil {
		return false, retry.Unavailable(fmt.Errorf("read the lists of %s: %w", s.of, err))
	}
	held, ok := b.deps.Ledger.get(s.split)
	return ok && held.Lists[ReasonOf(list)] == list, nil
}

// Held is why a delete, or a rewrite, is held: the reason of its list, and the cause in words.
type Held struct {
	Reason Reason
	Cause  string
}

// holdOn puts a delete on a list, if that is still open.
func (b *Brake) holdOn(
	ctx context.Context, s *braked, list string, why Held, publish func(ctx context.Context, list string) error,
) (bool, error) {
	s.holding.RLock()
	defer s.holding.RUnlock()
	held, ok := b.deps.Ledger.get(s.split)
	if !ok || b.openList(s.of, held, why.Reason) != list {
		return false, nil
	}
	if err := b.deps.OnHeld(ctx, s.of, list, why.Cause); err != nil {
		return true, fmt.Errorf("report what of %s waits for approval: %w", s.of, err)
	}
	return true, publish(ctx, list)
}

// listFor returns the open list for a reason. It opens one if there is none.
func (b *Brake) listFor(ctx context.Context, s *braked, r Reason) (string, error) {
	if held, ok := b.deps.Ledger.get(s.split); ok {
		if list := b.openList(s.of, held, r); list != "" {
			return list, nil
		}
	}
	release, err := b.write(ctx, s)
	if err != nil {
		return "", err
	}
	defer release()
	var list string
	err = b.change(ctx, s, func(t *tally, _ time.Time) (bool, error) {
		if list = b.openList(s.of, t, r); list != "" {
			return false, nil
		}
		list = newList(r)
		if t.Lists == nil {
			t.Lists = map[Reason]string{}
		}
		t.Lists[r] = list
		return true, nil
	})
	return list, err
}

// newList returns a name for a list. It is short, because people type it.
func newList(r Reason) string { return string(r) + "-" + schemas.NewID()[:12] }

// Close closes a list: what is held after that is put on another one.
func (b *Brake) Close(ctx context.Context, of schemas.Copy, list string) error {
	s := b.space(of)
	release, err := b.write(ctx, s)
	if err != nil {
		return err
	}
	defer release()
	s.holding.Lock()
	defer s.holding.Unlock()
	return b.change(ctx, s, func(t *tally, _ time.Time) (bool, error) {
		r := ReasonOf(list)
		if t.Lists[r] != list {
			return false, nil
		}
		delete(t.Lists, r)
		return true, nil
	})
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

// change passes a copy of the tally of s to next, and writes what next makes of it, if next says so. If another process
// has written one meanwhile, it does so again. The caller holds s.writing.
func (b *Brake) change(ctx context.Context, s *braked, next func(*tally, time.Time) (write bool, err error)) error {
	for range maxConflicts {
		t, err := b.load(ctx, s)
		if err != nil {
			return err
		}
		write, err := next(t, b.now())
		if err != nil || !write {
			return err
		}
		if accepted, err := b.publish(ctx, s, t); err != nil || accepted {
			return err
		}
	}
	return errConflict
}

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
	s.mu.Lock()
	s.left = 0 // it is in no checkpoint
	s.mu.Unlock()
	now := b.now()
	h, err := b.deps.History(ctx, s.of, now.Add(-monthSeconds*time.Second))
	if err != nil {
		return nil, retry.Unavailable(fmt.Errorf("count the %s of %s, which has no checkpoint: %w", b.Kind(), s.of, err))
	}
	// Larger than the number of any lost checkpoint: there are fewer than one per millisecond.
	t := &tally{Seq: now.UnixMilli(), Counted: true, Live: h.Live, LiveAt: now.Unix()}
	gone := int64(1) // by each of the executed
	if b.Kind() == Rewrites {
		gone = 0 // a copy that was replaced is still live
	}
	for _, e := range h.Executed {
		t.Live += gone * e.Count // of the whole month, first
	}
	for _, e := range h.Executed { // each day has the live copies of when it began
		t.add(e.At, e.Count)
		t.Live -= gone * e.Count
	}
	t.setLive(h.Live, b.gone(t, now), now)
	return t, nil
}

// gone returns how many copies that were live when the window of the hour began are not any more. A copy that was
// replaced is still live.
func (b *Brake) gone(t *tally, now time.Time) int64 {
	if b.Kind() == Rewrites {
		return 0
	}
	return t.usage(now, false).hour
}

// publish writes a tally, and reports whether it counts.
func (b *Brake) publish(ctx context.Context, s *braked, t *tally) (bool, error) {
	t.Seq++
	t.prune(b.now())
	cursor, err := json.Marshal(t)
	if err != nil {
		return false, retry.Permanent(fmt.Errorf("write a checkpoint of the brake: %w", err))
	}
	c := &pb.Checkpoint{
		Id: schemas.NewID(), Sweep: b.Kind().sweep(), Split: s.split, Cursor: cursor, Time: timestamppb.New(b.now()),
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
