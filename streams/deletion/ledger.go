package deletion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// BrakeSweep is the sweep of the brake's checkpoints. Their split is the key of account, destination and space.
const BrakeSweep = "brake"

// A Ledger holds the newest checkpoint of the brake for each space at a destination, as the topic checkpoints has them.
// It is safe for concurrent use.
type Ledger struct {
	mu     sync.RWMutex
	latest map[string]entry // by split; guarded by mu
}

// An entry is an accepted checkpoint.
type entry struct {
	id    string
	tally *tally // never changed
}

// NewLedger returns a Ledger without checkpoints. Apply adds those of the topic.
func NewLedger() *Ledger { return &Ledger{latest: map[string]entry{}} }

// Apply applies a record of the topic checkpoints, in the order of the topic; nil is a tombstone. It ignores those of
// other sweeps. A checkpoint that is not newer than the accepted one is ignored too, so of two that were made from the
// same one only the first counts. The error is permanent: the checkpoint cannot be read, and is as good as lost.
func (l *Ledger) Apply(key []byte, c *pb.Checkpoint) error {
	split, ours := splitOf(string(key))
	if !ours {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c == nil {
		delete(l.latest, split)
		return nil
	}
	t, err := decodeTally(c)
	if err != nil {
		delete(l.latest, split)
		return retry.Permanent(err)
	}
	if held, ok := l.latest[split]; !ok || t.supersedes(held.tally) {
		l.latest[split] = entry{c.GetId(), t}
	}
	return nil
}

// countedLead is how much larger than that of an earlier checkpoint, in milliseconds, the number of a counted tally is
// that supersedes it. A smaller lead means that two processes counted at the same time.
const countedLead = 10 * 60 * 1000

// supersedes reports whether t counts after a checkpoint with the tally held. A counted tally lacks what is in other
// checkpoints, so it does only if they were lost.
func (t *tally) supersedes(held *tally) bool {
	if t.Counted {
		return t.Seq > held.Seq+countedLead
	}
	return t.Seq > held.Seq
}

// Unreadable forgets the checkpoint of a record that cannot be decoded.
func (l *Ledger) Unreadable(key []byte) {
	if split, ours := splitOf(string(key)); ours {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.latest, split)
	}
}

// splitOf returns the escaped split of the key of a checkpoint of the brake.
func splitOf(key string) (string, bool) { return strings.CutPrefix(key, schemas.Key(BrakeSweep)+"/") }

func (l *Ledger) get(split string) (entry, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	e, ok := l.latest[schemas.Key(split)]
	return e, ok
}

// History is what the records have of a space at a destination.
type History struct {
	Live    int64 // live copies
	Deletes []Executed
}

// Executed are deletes that were executed without a list in the five minutes that begin at At.
type Executed struct {
	At    time.Time
	Count int64
}

// BrakeDeps are the dependencies of a Brake. All are required.
type BrakeDeps struct {
	Ledger *Ledger
	// CatchUp returns when the Ledger has all checkpoints that the topic has at the time of the call.
	CatchUp   func(context.Context) error
	Publisher schemas.Publisher
	// Live counts the live copies of a space at a destination. The answer includes everything that was published before
	// the call.
	Live func(ctx context.Context, space schemas.Copy) (int64, error)
	// History reads the deletes since a time too, as Live reads the copies.
	History func(ctx context.Context, space schemas.Copy, since time.Time) (History, error)
	// Limits returns the limits of a space.
	Limits func(account, space string) Limits
	// Closed reports whether the incident of a list was closed. One that was never opened is not closed.
	Closed func(space schemas.Copy, list string) bool
	// OnHeld opens the incident of a list, if it is not open. It is called for each delete before its result is published.
	OnHeld func(ctx context.Context, space schemas.Copy, list, cause string) error
	// Park runs a wait during which the task needs no worker; see kafka.Park.
	Park func(context.Context, func(context.Context) error) error
}

// A Brake limits the deletes of copies. It counts them in checkpoints, ahead: it reserves a block of deletes, and does
// none before its checkpoint is acknowledged and was read again. If another process has written meanwhile, it decides
// anew from that checkpoint. So no delete is uncounted, whoever owns the destination; what a process has reserved and
// not used when it dies counts as used. It is safe for concurrent use.
type Brake struct {
	deps BrakeDeps
	now  func() time.Time

	mu     sync.Mutex
	spaces map[schemas.Copy]*braked // guarded by mu
}

// braked is the part of a space's state that is not in its checkpoint.
type braked struct {
	of    schemas.Copy
	split string
	// writing is a semaphore of one for writers of the checkpoint. It is held while the records are read.
	writing chan struct{}
	// holding is held shared while a delete is put on a list, until its result is published, and exclusively to close a
	// list: a closed list gets no further deletes.
	holding sync.RWMutex

	mu   sync.Mutex
	left int64 // reserved and not used; guarded by mu
	at   int64 // the bucket in which left is counted; guarded by mu
}

// NewBrake returns a Brake.
func NewBrake(d BrakeDeps) (*Brake, error) {
	if d.Ledger == nil || d.CatchUp == nil || d.Publisher == nil || d.Live == nil || d.History == nil ||
		d.Limits == nil || d.Closed == nil || d.OnHeld == nil || d.Park == nil {
		return nil, errors.New("brake: a dependency is missing")
	}
	return &Brake{deps: d, now: time.Now, spaces: map[schemas.Copy]*braked{}}, nil
}

// maxConflicts bounds how often a checkpoint is written again because another process has written one.
const maxConflicts = 10

// block returns how many deletes are reserved at a time: few beside the limit, so that a kill costs little of it, and
// enough that a destination with a high limit takes hundreds of deletes a second.
func (l Limits) block(left int64) int64 { return max(1, min(left, l.MaxCount/20, 500)) }

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

// take takes a permit to delete a copy. Without one, reached is the limit that is reached.
func (b *Brake) take(ctx context.Context, of schemas.Copy) (reached limit, err error) {
	s := b.space(of)
	if reached, ok := b.takeReserved(s); ok {
		return reached, nil
	}
	release, err := b.write(ctx, s)
	if err != nil {
		return "", err
	}
	defer release()
	if reached, ok := b.takeReserved(s); ok {
		return reached, nil
	}
	limits := b.deps.Limits(of.Account, of.Space)
	err = b.change(ctx, s, func(t *tally, now time.Time) (int64, bool, error) {
		s.mu.Lock()
		left, at := s.left, s.at
		s.mu.Unlock()
		if left > 0 { // its bucket is over
			t.giveBack(at, left)
		}
		if t.liveIsOld(now) {
			live, err := b.deps.Live(ctx, s.of)
			if err != nil {
				return 0, false, retry.Unavailable(fmt.Errorf("count the copies of %s: %w", s.of, err))
			}
			now = b.now()
			t.setLive(live, now)
		}
		t.prune(now)
		var allowed int64
		if allowed, reached = brake(t.usage(b.openList(s.of, t, ReasonBrake) != ""), limits); allowed == 0 {
			return 0, false, nil
		}
		s.mu.Lock()
		s.left = 0 // if the checkpoint is written and that is not known, it must not be given back twice
		s.mu.Unlock()
		n := limits.block(allowed)
		t.add(now, n)
		return n, true, nil
	})
	return reached, err
}

// takeReserved takes a permit from the reservation of the present bucket. It reports whether that or an open list of
// the brake decides.
func (b *Brake) takeReserved(s *braked) (limit, bool) {
	e, ok := b.deps.Ledger.get(s.split)
	if !ok {
		return "", false
	}
	if b.openList(s.of, e.tally, ReasonBrake) != "" {
		return listOpen, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 || s.at != slot(b.now()) {
		return "", false
	}
	s.left--
	return withinLimits, true
}

// giveBack returns a permit for a delete that was not done.
func (b *Brake) giveBack(of schemas.Copy) {
	s := b.space(of)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == slot(b.now()) {
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

// hold puts a delete on the open list for a reason, or on a new one. It calls publish with the list, which publishes
// the result; the list is not closed before publish has returned.
func (b *Brake) hold(
	ctx context.Context, of schemas.Copy, why held, publish func(ctx context.Context, list string) error,
) error {
	s := b.space(of)
	for range maxConflicts {
		list, err := b.listFor(ctx, s, why.reason)
		if err != nil {
			return err
		}
		on, err := b.holdOn(ctx, s, list, why, publish)
		if on || err != nil {
			return err
		}
	}
	return errConflict
}

// held is why a delete is held: the reason of its list, and the cause in words.
type held struct {
	reason Reason
	cause  string
}

// holdOn puts a delete on a list, if that is still open.
func (b *Brake) holdOn(
	ctx context.Context, s *braked, list string, why held, publish func(ctx context.Context, list string) error,
) (bool, error) {
	s.holding.RLock()
	defer s.holding.RUnlock()
	e, ok := b.deps.Ledger.get(s.split)
	if !ok || b.openList(s.of, e.tally, why.reason) != list {
		return false, nil
	}
	if err := b.deps.OnHeld(ctx, s.of, list, why.cause); err != nil {
		return true, fmt.Errorf("report that deletes of %s wait for approval: %w", s.of, err)
	}
	return true, publish(ctx, list)
}

// listFor returns the open list for a reason. It opens one if there is none.
func (b *Brake) listFor(ctx context.Context, s *braked, r Reason) (string, error) {
	if e, ok := b.deps.Ledger.get(s.split); ok {
		if list := b.openList(s.of, e.tally, r); list != "" {
			return list, nil
		}
	}
	release, err := b.write(ctx, s)
	if err != nil {
		return "", err
	}
	defer release()
	var list string
	err = b.change(ctx, s, func(t *tally, _ time.Time) (int64, bool, error) {
		if list = b.openList(s.of, t, r); list != "" {
			return 0, false, nil
		}
		list = newList(r)
		if t.Lists == nil {
			t.Lists = map[Reason]string{}
		}
		t.Lists[r] = list
		return 0, true, nil
	})
	return list, err
}

// newList returns a name for a list. It is short, because people type it.
func newList(r Reason) string { return string(r) + "-" + schemas.NewID()[:12] }

// close closes a list: deletes after that are put on another one.
func (b *Brake) close(ctx context.Context, of schemas.Copy, list string) error {
	s := b.space(of)
	release, err := b.write(ctx, s)
	if err != nil {
		return err
	}
	defer release()
	s.holding.Lock()
	defer s.holding.Unlock()
	return b.change(ctx, s, func(t *tally, _ time.Time) (int64, bool, error) {
		r := ReasonOf(list)
		if t.Lists[r] != list {
			return 0, false, nil
		}
		delete(t.Lists, r)
		return 0, true, nil
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

// change passes a copy of the tally of s to next, and writes what next makes of it, if next says so. reserved is the
// number of permits that are counted in it, of which the caller gets one. The caller holds s.writing.
func (b *Brake) change(
	ctx context.Context, s *braked, next func(*tally, time.Time) (reserved int64, write bool, err error),
) error {
	for range maxConflicts {
		t, err := b.load(ctx, s)
		if err != nil {
			return err
		}
		reserved, write, err := next(t, b.now())
		if err != nil || !write {
			return err
		}
		written, err := b.publish(ctx, s, t)
		if err != nil {
			return err
		}
		if !written {
			continue
		}
		if reserved > 0 {
			s.mu.Lock()
			s.left, s.at = reserved-1, t.lastSlot()
			s.mu.Unlock()
		}
		return nil
	}
	return errConflict
}

// lastSlot returns the start of the newest bucket of the hour.
func (t *tally) lastSlot() int64 { return t.Hour[len(t.Hour)-1].Start }

// load returns a copy of the tally of s that may be changed. Without a checkpoint, it counts from the records.
func (b *Brake) load(ctx context.Context, s *braked) (*tally, error) {
	if e, ok := b.deps.Ledger.get(s.split); ok {
		return e.tally.next(), nil
	}
	if err := b.deps.CatchUp(ctx); err != nil {
		return nil, retry.Unavailable(fmt.Errorf("read the checkpoint of the brake for %s: %w", s.of, err))
	}
	if e, ok := b.deps.Ledger.get(s.split); ok {
		return e.tally.next(), nil
	}
	s.mu.Lock()
	s.left = 0 // it is in no checkpoint
	s.mu.Unlock()
	now := b.now()
	h, err := b.deps.History(ctx, s.of, now.Add(-monthSeconds*time.Second))
	if err != nil {
		return nil, retry.Unavailable(fmt.Errorf("count the deletes of %s, which has no checkpoint: %w", s.of, err))
	}
	// Larger than the number of any lost checkpoint: there are fewer than one per millisecond.
	t := &tally{Seq: now.UnixMilli(), Counted: true, Live: h.Live, LiveAt: now.Unix()}
	for _, e := range h.Deletes {
		t.Live += e.Count // of the whole month, first
	}
	for _, e := range h.Deletes { // each day has the live copies of when it began
		t.add(e.At, e.Count)
		t.Live -= e.Count
	}
	t.setLive(h.Live, now)
	return t, nil
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
		Id: schemas.NewID(), Sweep: BrakeSweep, Split: s.split, Cursor: cursor, Time: timestamppb.New(b.now()),
	}
	err = b.deps.Publisher.Publish(ctx, schemas.Message{Topic: schemas.Checkpoints, Body: c})
	if err == nil {
		err = b.deps.CatchUp(ctx)
	}
	if err != nil {
		return false, retry.Unavailable(fmt.Errorf("write a checkpoint of the brake for %s: %w", s.of, err))
	}
	e, ok := b.deps.Ledger.get(s.split)
	return ok && e.id == c.GetId(), nil
}
