package sweep

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// FixitySweep is the name of the periodic fixity sweep.
	FixitySweep = "fixity"
	// demandSweep is the name of fixity rounds that an operator requests.
	demandSweep = "fixity.demand"
	// fixityPage is the default number of copies per page.
	fixityPage = 1000

	// roundInterval is the time between the starts of two rounds over a store, and lookInterval the interval at which Run
	// checks whether rounds are due.
	roundInterval = time.Hour
	lookInterval  = 5 * time.Minute
)

// ErrPaused reports that a round stopped because of a pause. It resumes later.
var ErrPaused = errors.New("the sweep is paused: see 'millrace pause list'")

// A Request selects the copies of a fixity round.
type Request struct {
	Account, Store string
	Space          string // empty: all
	// Begun identifies the round. A round with the same time resumes where it stopped.
	Begun time.Time
	// All checks every copy regardless of its last pass. Such rounds have a checkpoint of their own, beside the periodic
	// ones, and resume only with the same Begun.
	All bool
	// Period is the minimum age, at Begun, of the last pass of a copy that is due; 0: any age.
	Period time.Duration
	// OnRequested is called with the number of checks after each publication; nil: not called.
	OnRequested func(n int64)
}

// Checkpoints holds the newest checkpoint of every split of every sweep, by the key of its record.
type Checkpoints map[string]*pb.Checkpoint

// of returns the checkpoint of a sweep over the split of c; nil if it never ran.
func (k Checkpoints) of(sweep string, c FixityConfig) *pb.Checkpoint {
	return k[schemas.Key(sweep, c.Split())]
}

// SweeperConfig holds the settings of a Sweeper.
type SweeperConfig struct {
	// Large is the smallest size in bytes of items of class large; 0 means that none are.
	Large int64
	// Page is the number of copies per page; 0: 1000.
	Page int
}

// SweeperDeps are the dependencies of a Sweeper. All but Looking are required.
type SweeperDeps struct {
	Due       Due
	Publisher schemas.Publisher
	// Lag returns the number of unread records in the topics of fixity tasks.
	Lag func(context.Context) (int64, error)
	// Checkpoints reads the topic checkpoints to its end.
	Checkpoints func(context.Context) (Checkpoints, error)
	// Checked reports whether a round has checked copies of a store, or of one space of it.
	Checked func(ctx context.Context, account, store, space string) (bool, error)
	// Paused reports whether the fixity sweep is paused for a store.
	Paused func(account, store string) bool
	// Looking is called with 1 when Run begins to look for due rounds, and to run them, and with -1 when it waits for the
	// next look; nil: not called. In between, retry.Alive reports progress.
	Looking func(delta int)
	Log     *slog.Logger
}

// A Sweeper runs the rounds of the fixity sweep: on request, and periodically over all stores.
type Sweeper struct {
	config SweeperConfig
	deps   SweeperDeps
}

// NewSweeper returns a Sweeper.
func NewSweeper(c SweeperConfig, d SweeperDeps) *Sweeper {
	if c.Page == 0 {
		c.Page = fixityPage
	}
	if d.Looking == nil {
		d.Looking = func(int) { /* nobody asks */ }
	}
	return &Sweeper{c, d}
}

// Run runs a round over each of stores, in turn, if the last one started an hour ago or did not finish, until ctx is
// done. It sets Begun itself. A receive from changed means that a pause may have ended.
func (s *Sweeper) Run(ctx context.Context, stores []Request, changed <-chan struct{}) error {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for ctx.Err() == nil {
		s.deps.Looking(1)
		s.look(ctx, stores)
		s.deps.Looking(-1)
		select {
		case <-ctx.Done():
		case <-look.C:
		case <-changed:
		}
	}
	return nil
}

// look runs the rounds that are due. The next look resumes those that stopped. It reads the checkpoints once, and again
// after each round, because others may have swept the next stores meanwhile.
func (s *Sweeper) look(ctx context.Context, stores []Request) {
	var known Checkpoints
	for _, r := range stores {
		if known == nil {
			var err error
			if known, err = s.deps.Checkpoints(ctx); err != nil {
				if ctx.Err() == nil {
					s.deps.Log.Error("run sweep", "err", err)
				}
				return
			}
			retry.Alive(ctx)
		}
		r.Begun = time.Now().UTC().Truncate(time.Millisecond)
		last := known.of(FixitySweep, FixityConfig{Account: r.Account, Store: r.Store, Space: r.Space})
		if last.GetFinished() != nil && r.Begun.Sub(last.GetStarted().AsTime()) < roundInterval {
			continue
		}
		_, err := s.sweep(ctx, r, known)
		known = nil
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, ErrPaused):
			s.deps.Log.Info("pause sweep", "account", r.Account, "store", r.Store)
		default:
			s.deps.Log.Error("run sweep", "account", r.Account, "store", r.Store, "err", err)
		}
	}
}

// Sweep runs one round to its end: it publishes a task for every copy that is due. If the sweep is paused, it starts no
// further page and returns ErrPaused.
func (s *Sweeper) Sweep(ctx context.Context, r Request) (Result, error) {
	known, err := s.deps.Checkpoints(ctx)
	if err != nil {
		return Result{}, err
	}
	return s.sweep(ctx, r, known)
}

func (s *Sweeper) sweep(ctx context.Context, r Request, known Checkpoints) (Result, error) {
	c := FixityConfig{Account: r.Account, Store: r.Store, Space: r.Space, Period: r.Period, Demand: r.All,
		Large: s.config.Large, Page: s.config.Page}
	name, other := FixitySweep, demandSweep
	if r.All {
		name, other, c.Period = demandSweep, FixitySweep, 0
	}
	last := known.of(name, c)
	same := last.GetStarted().AsTime().Equal(r.Begun)
	if last.GetFinished() != nil && same {
		return resultOf(last), nil
	}
	baseline, err := s.isBaseline(ctx, c, last, known.of(other, c))
	if err != nil {
		return Result{}, err
	}
	if r.All && !same {
		last = nil
	}
	pages, err := Fixity(s.deps.Due, c)
	if err != nil {
		return Result{}, err
	}
	return s.run(ctx, r, Split{Sweep: name, Name: c.Split(), Pages: pages, Start: r.Begun, Baseline: baseline,
		Checkpoint: last})
}

// isBaseline reports whether no round has checked these copies before: neither kind of rounds has a checkpoint, except
// an empty one, and no check of a round is recorded. So the loss of a checkpoint does not cause a second baseline.
func (s *Sweeper) isBaseline(ctx context.Context, c FixityConfig, last, other *pb.Checkpoint) (bool, error) {
	if !empty(last) || !empty(other) {
		return false, nil
	}
	checked, err := s.deps.Checked(ctx, c.Account, c.Store, c.Space)
	return !checked, err
}

// empty reports whether a checkpoint is nil or of a finished round without tasks. Such a round does not count as the
// first one.
func empty(c *pb.Checkpoint) bool {
	return c == nil || c.GetFinished() != nil && total(c.GetCounts()) == 0
}

// run runs m until its end or a pause.
func (s *Sweeper) run(ctx context.Context, r Request, m Split) (Result, error) {
	runner, err := New(Defaults(),
		Deps{Publisher: counter{s.deps.Publisher, r.OnRequested}, Lag: s.deps.Lag, Log: s.deps.Log})
	if err != nil {
		return Result{}, err
	}
	ctx, stop := context.WithCancelCause(ctx) // distinguishes a pause from a failure
	defer stop(nil)
	checkPause := func() error {
		if s.deps.Paused(r.Account, r.Store) {
			stop(ErrPaused)
		}
		return context.Cause(ctx)
	}
	if err := checkPause(); err != nil {
		return Result{}, err
	}
	pages := m.Pages
	m.Pages = func(ctx context.Context, round Round, cursor []byte) (Page, error) {
		if err := checkPause(); err != nil {
			return Page{}, err
		}
		return pages(ctx, round, cursor)
	}
	return runner.Run(ctx, m)
}

// A counter is a publisher that reports the number of tasks it has published.
type counter struct {
	schemas.Publisher
	onRequested func(n int64)
}

// Publish implements schemas.Publisher.
func (c counter) Publish(ctx context.Context, messages ...schemas.Message) error {
	if err := c.Publisher.Publish(ctx, messages...); err != nil {
		return err
	}
	var n int64
	for _, m := range messages {
		if m.Topic == schemas.FixityLow || m.Topic == schemas.FixityLarge {
			n++
		}
	}
	if n > 0 && c.onRequested != nil {
		c.onRequested(n)
	}
	return nil
}
