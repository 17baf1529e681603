package sweep

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// ErrPaused reports that a round stopped because of a pause. It resumes later.
var ErrPaused = errors.New("the sweep is paused, or its account is inactive: " +
	"see 'millrace pause list' and 'millrace account list'")

// ErrNotNow reports that a round stopped because the time for it is over. It goes on later: this is no failure, and not
// logged.
var ErrNotNow = errors.New("the sweep is not to work now")

var (
	errLost    = errors.New("another process owns the split now, or has begun a later round of it")
	errStalled = errors.New("the page makes no progress")
)

// A Kind returns the splits of one kind of sweep that exist now. The start of their rounds is set by the Sweeper.
type Kind func(context.Context) ([]Split, error)

// SweeperConfig holds the settings of a Sweeper. Zero values take the defaults in brackets.
type SweeperConfig struct {
	Config
	Workers int           // pages at work at once [4]
	Look    time.Duration // the interval at which Run checks which rounds are due [1 min]
	// Stall is how long a page may run without a call of retry.Alive before it is cancelled [10 min].
	Stall time.Duration
	// Held is the number of items that pages may hold in memory while they wait [100,000].
	Held int64
}

func (c SweeperConfig) defaults() SweeperConfig {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.Look, time.Minute)
	set(&c.Stall, 10*time.Minute)
	if c.Workers == 0 {
		c.Workers = 4
	}
	if c.Held == 0 {
		c.Held = 100_000
	}
	return c
}

// SweeperDeps are the dependencies of a Sweeper. All but Owns, Skipped, LastEnd, Looking and Metrics are required.
type SweeperDeps struct {
	Publisher schemas.Publisher
	// Checkpoint returns the newest checkpoint of a split; nil if there is none. CatchUp returns when it knows those that
	// were published before the call.
	Checkpoint func(sweep, split string) *pb.Checkpoint
	CatchUp    func(context.Context) error
	// Owns reports whether this process runs the rounds of a split; nil: it runs all. If ownership moves during a page,
	// the page is published twice at most.
	Owns func(sweep, split string) bool
	// Skipped returns why an operator has ended a round; "": it goes on. nil: none is skipped.
	Skipped func(round string) (reason string)
	// LastEnd returns when a round of a split ended last according to the records; the zero time: none is on record. It is
	// called for splits without a checkpoint, to log that one was lost. nil: not called.
	LastEnd func(ctx context.Context, sweep, split string) (time.Time, error)
	// Looking is called with 1 when Run begins to look for due rounds or to work on a page, and with -1 when that ends;
	// nil: not called. In between, retry.Alive reports progress.
	Looking func(delta int)
	Metrics *Metrics // nil: nothing is counted
	Log     *slog.Logger
}

// A Sweeper runs the rounds of many splits: periodically those that are due, or once those of a request. Splits of an
// account take turns, page by page, and so do accounts, so that none waits for the end of a large one.
type Sweeper struct {
	config SweeperConfig
	deps   SweeperDeps
	runner *runner
	held   *semaphore.Weighted

	mu     sync.Mutex // guards the fields below
	active map[string]bool
	failed map[string]failure
}

// A failure says how often the rounds of a split have failed in a row, and when the next attempt is due.
type failure struct {
	times int
	next  time.Time
}

// NewSweeper returns a Sweeper.
func NewSweeper(c SweeperConfig, d SweeperDeps) (*Sweeper, error) {
	c = c.defaults()
	if d.Checkpoint == nil || d.CatchUp == nil {
		return nil, errors.New("sweep: the checkpoints are missing")
	}
	s := &Sweeper{config: c, held: semaphore.NewWeighted(c.Held), active: map[string]bool{}, failed: map[string]failure{}}
	var err error
	if s.runner, err = newRunner(c, d.Publisher, d.Log, s.yieldSlot); err != nil {
		return nil, err
	}
	s.runner.metrics = d.Metrics
	if d.Looking == nil {
		d.Looking = func(int) { /* not asked for */ }
	}
	if d.Owns == nil {
		d.Owns = func(string, string) bool { return true }
	}
	if d.Skipped == nil {
		d.Skipped = func(string) string { return "" }
	}
	s.deps = d
	return s, nil
}

// Run runs the rounds that are due, until ctx is done. A receive from changed means that others may be due now, as
// after a pause or a change of a policy.
func (s *Sweeper) Run(ctx context.Context, kinds []Kind, changed <-chan struct{}) error {
	due, looks := make(chan []*active), sync.WaitGroup{}
	defer looks.Wait()
	looks.Go(func() {
		ticker := time.NewTicker(s.config.Look)
		defer ticker.Stop()
		for ctx.Err() == nil {
			s.deps.Looking(1)
			found := s.look(ctx, kinds)
			s.deps.Looking(-1)
			select {
			case <-ctx.Done():
				return
			case due <- found:
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			case <-changed:
			}
		}
	})
	newEngine(s).run(ctx, due)
	return nil
}

// Rounds runs one round of each split to its end. It returns the results of those that have ended, or wait and are
// detached, and the errors of the others.
func (s *Sweeper) Rounds(ctx context.Context, splits []Split) (results []Result, err error) {
	if err := s.deps.CatchUp(ctx); err != nil {
		return nil, err
	}
	var started []*active
	results = make([]Result, len(splits))
	for i, m := range splits {
		started = append(started, &active{split: m, ended: func(r Result, e error) {
			if results[i] = r; e != nil {
				results[i].ID = ""
			}
			err = errors.Join(err, e)
		}})
	}
	due := make(chan []*active, 1)
	due <- started
	close(due)
	newEngine(s).run(ctx, due)
	all := results[:0]
	for _, r := range results {
		if r.ID != "" {
			all = append(all, r)
		}
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	return all, err
}

// look returns the splits whose rounds are due or unfinished, and not at work.
func (s *Sweeper) look(ctx context.Context, kinds []Kind) (found []*active) {
	began := time.Now()
	if err := s.deps.CatchUp(ctx); err != nil {
		if ctx.Err() == nil {
			s.deps.Log.Error("read the checkpoints of sweeps", "err", err)
		}
		return nil
	}
	retry.Alive(ctx)
	// CatchUp reads the clock. Looks are a minute apart, and so are rounds, however long that took.
	now := s.runner.config.Now().Add(-time.Since(began)).UTC().Truncate(time.Millisecond)
	for _, kind := range kinds {
		splits, err := kind(ctx)
		if err != nil && ctx.Err() == nil {
			s.deps.Log.Error("list what sweeps compare", "err", err)
		}
		retry.Alive(ctx)
		for _, m := range splits {
			if m.Start = now; s.isDue(ctx, m) {
				found = append(found, s.activate(ctx, m))
			}
		}
	}
	return found
}

// isDue reports whether a round of a split is to begin, or to go on, in this process.
func (s *Sweeper) isDue(ctx context.Context, m Split) bool {
	key := schemas.Key(m.Sweep, m.Name)
	s.mu.Lock()
	skip := s.active[key] || m.Start.Before(s.failed[key].next)
	s.mu.Unlock()
	if skip || !s.deps.Owns(m.Sweep, m.Name) {
		return false
	}
	last := s.deps.Checkpoint(m.Sweep, m.Name)
	if last == nil || last.GetFinished() != nil {
		if !m.Due(last, m.Start) {
			return false
		}
	}
	return s.mayBegin(ctx, m) == nil
}

// mayBegin returns why no page of a split may be worked on now; nil for a round that is skipped, or whose next page is
// quiet.
func (s *Sweeper) mayBegin(ctx context.Context, m Split) error {
	last := s.deps.Checkpoint(m.Sweep, m.Name)
	if last != nil && last.GetFinished() == nil && (m.isQuiet(last.GetCursor()) || s.skips(m, last.GetRound()) != "") {
		return nil
	}
	return m.blocked(ctx)
}

// skips returns why a round of a split is skipped; "" if it is not.
func (s *Sweeper) skips(m Split, round string) string { return cmp.Or(m.Skip, s.deps.Skipped(round)) }

// activate returns the active split of m. Its next round is found by a later look.
func (s *Sweeper) activate(ctx context.Context, m Split) *active {
	key := schemas.Key(m.Sweep, m.Name)
	s.mu.Lock()
	s.active[key] = true
	s.mu.Unlock()
	a := &active{split: m}
	a.ended = func(_ Result, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.active, key)
		log := s.deps.Log.With("sweep", m.Sweep, "split", m.Name)
		if a.run != nil {
			log = a.run.log // with the id of the round
		}
		switch {
		case err == nil:
			delete(s.failed, key)
		case ctx.Err() != nil, errors.Is(err, errLost), errors.Is(err, ErrNotNow):
		case errors.Is(err, ErrPaused):
			log.Info("pause sweep")
		default:
			f := s.failed[key]
			if a.run != nil && a.run.pages > 0 { // it has made progress since the last failure
				f.times = 0
			}
			wait := failureWait.Backoff(f.times)
			f.times++
			f.next = s.runner.config.Now().Add(wait)
			s.failed[key] = f
			log.Error("run sweep", "err", err, "failures", f.times, "retry_after", wait)
		}
	}
	return a
}

// failureWait is the wait before the next attempt of a round that has failed.
var failureWait = retry.Policy{Wait: time.Minute, MaxWait: time.Hour}

type slotKey struct{}

// errNoRoom says that the pages that wait hold too many items. The page is read again later.
var errNoRoom = errors.New("the pages that wait hold too many items")

// noRoomWait is the wait before a page is read again for which there was no room.
const noRoomWait = 5 * time.Second

// Settle waits for d, during which the page of ctx holds n items in memory. Other pages work meanwhile. If the pages
// that wait hold too many items it returns an error at once, after which the page is read again later.
func (s *Sweeper) Settle(ctx context.Context, d time.Duration, n int) error {
	weight := max(1, min(int64(n), s.config.Held))
	if !s.held.TryAcquire(weight) {
		return retry.Unavailable(errNoRoom)
	}
	defer s.held.Release(weight)
	return s.yieldSlot(ctx, d)
}

// yieldSlot waits for d, and lets other pages work meanwhile.
func (s *Sweeper) yieldSlot(ctx context.Context, d time.Duration) error {
	if slot, ok := ctx.Value(slotKey{}).(*slot); ok {
		slot.release()
		defer slot.acquire()
	}
	const step = time.Minute
	for ; d > 0; d -= step {
		if err := retry.Sleep(ctx, min(d, step)); err != nil {
			return err
		}
		retry.Alive(ctx)
	}
	return nil
}

// begin begins or resumes the round of an active split.
func (s *Sweeper) begin(ctx context.Context, a *active) (done bool, err error) {
	m := a.split
	last := s.deps.Checkpoint(m.Sweep, m.Name)
	if m.Only != "" && last.GetRound() != m.Only {
		return true, nil
	}
	same := last.GetStarted().AsTime().Equal(m.Start) || m.Only != ""
	if last.GetFinished() != nil && same {
		a.result = resultOf(last)
		return true, nil
	}
	if m.Anew && !same && last != nil && last.GetFinished() == nil {
		last = &pb.Checkpoint{Finished: timestamppb.Now(), Cursor: m.carry(last)}
	}
	if err := s.reportLoss(ctx, m, last); err != nil {
		return false, err
	}
	baseline := false
	if m.FirstRound != nil && (last == nil || last.GetFinished() != nil) {
		if baseline, err = m.FirstRound(ctx, s.deps.Checkpoint); err != nil {
			return false, fmt.Errorf("find out whether it is the first round of %s: %w", m.Name, err)
		}
	}
	if a.run, err = s.runner.begin(m, last, baseline); err != nil {
		return false, err
	}
	a.run.base = a.base
	a.run.meanwhile = func(ctx context.Context) (ended bool, err error) {
		if err := s.deps.CatchUp(ctx); err != nil {
			return false, err
		}
		if !s.deps.Owns(m.Sweep, m.Name) {
			return false, errLost
		}
		return s.meanwhile(a)
	}
	return false, nil
}

// reportLoss logs that the checkpoint of a split was lost, if it has none and rounds of it are on record.
func (s *Sweeper) reportLoss(ctx context.Context, m Split, last *pb.Checkpoint) error {
	if last != nil || s.deps.LastEnd == nil {
		return nil
	}
	ended, err := s.deps.LastEnd(ctx, m.Sweep, m.Name)
	if err != nil {
		return fmt.Errorf("find out whether %s has lost its checkpoint: %w", m.Name, err)
	}
	if !ended.IsZero() {
		s.deps.Log.Warn("begin anew: the checkpoint is lost, and rounds are on record", "sweep", m.Sweep, "split", m.Name,
			"last_end", ended)
	}
	return nil
}

// meanwhile returns what has become of the round of an active split: ended reports that another process has ended it,
// and the error is errLost if a later round has begun.
func (s *Sweeper) meanwhile(a *active) (ended bool, err error) {
	last := s.deps.Checkpoint(a.split.Sweep, a.split.Name)
	own := last.GetRound() == a.run.summary.ID
	switch {
	case own && last.GetFinished() != nil:
		a.run.summary = resultOf(last)
		return true, nil
	case own:
		a.run.seen = true
	case a.run.seen:
		return false, errLost
	}
	return false, nil
}

// mayPublish returns why the next page of an active split must not be worked on, or how long it waits for room in the
// topics.
func (s *Sweeper) mayPublish(ctx context.Context, a *active) (wait time.Duration, err error) {
	if a.split.isQuiet(a.run.cursor) {
		return 0, nil
	}
	if err := a.split.blocked(ctx); err != nil {
		return 0, err
	}
	full, err := a.run.backlog(ctx)
	if full && err == nil {
		return a.run.nextPoll(), nil
	}
	return 0, err
}

// afterWait lets a split that has waited go on from the newest checkpoint of its round: another process, such as a
// command, may have continued the round meanwhile.
func (s *Sweeper) afterWait(ctx context.Context, a *active) error {
	if !a.waited {
		return nil
	}
	a.waited = false
	if err := s.deps.CatchUp(ctx); err != nil {
		return err
	}
	last := s.deps.Checkpoint(a.split.Sweep, a.split.Name)
	moved := !bytes.Equal(last.GetCursor(), a.run.cursor) && !bytes.Equal(last.GetCursor(), a.run.from)
	if last.GetRound() == a.run.summary.ID && last.GetFinished() == nil && moved {
		a.run.stopAhead()
		a.run = nil
	}
	return nil
}

// page works on the next page of an active split. wait is how long the split waits before the next page.
func (s *Sweeper) page(ctx context.Context, a *active) (done bool, wait time.Duration, err error) {
	if !s.deps.Owns(a.split.Sweep, a.split.Name) {
		return false, 0, errLost
	}
	if err := s.afterWait(ctx, a); err != nil {
		return false, 0, err
	}
	if a.run == nil {
		if err := s.mayBegin(ctx, a.split); err != nil {
			return false, 0, err
		}
		if done, err := s.begin(ctx, a); done || err != nil {
			return done, 0, err
		}
	} else if ended, err := s.meanwhile(a); ended || err != nil {
		return ended, 0, err
	}
	if reason := s.skips(a.split, a.run.summary.ID); reason != "" {
		return true, 0, a.run.skip(ctx, reason)
	}
	if wait, err := s.mayPublish(ctx, a); wait > 0 || err != nil {
		return false, wait, err
	}
	before := a.run.summary.Emitted
	done, wait, err = a.run.step(ctx)
	n := a.run.summary.Emitted - before
	s.deps.Metrics.published(a.split.Sweep, n)
	if n > 0 && a.split.OnEmitted != nil {
		a.split.OnEmitted(n)
	}
	switch {
	case errors.Is(err, errNoRoom):
		return false, noRoomWait, nil
	case err == nil && wait > 0:
		a.waited = true
		return a.split.Detach && a.split.isQuiet(a.run.cursor), wait, nil
	}
	return done, s.runner.config.Pause, err
}
