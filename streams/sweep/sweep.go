// Package sweep implements resumable loops that find work that events missed. A Sweep is a function from a cursor to a
// page of messages and the next cursor. A Runner publishes the pages, saves checkpoints and limits the rate.
//
// An interrupted round continues from its checkpoint. The messages of a page are acknowledged before its checkpoint is
// saved, so that at most one page is published twice, with the same ids. An error never ends a page or a round as if it
// were complete. A Sweeper runs the rounds of the fixity sweep.
package sweep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A Round is one complete pass over one split.
type Round struct {
	// ID is a hash of the sweep, the split and Started.
	ID      string
	Started time.Time
	// Baseline reports that the round is the first one of its split. It does not change when a round is resumed.
	Baseline bool
}

// A Page is the result of a sweep between two cursors.
type Page struct {
	Messages []schemas.Message
	// Counts are the numbers of findings. The sweep defines the keys.
	Counts map[string]int64
	// Next is the cursor of the next page. It is not used if Last is set.
	Next []byte
	Last bool
}

// A Sweep returns the page that begins at cursor; nil is the beginning. For the same round and cursor it must return
// messages with the same ids.
type Sweep func(ctx context.Context, round Round, cursor []byte) (Page, error)

// A Split is the part of the input that one Run processes.
type Split struct {
	// Sweep and Name are the names of the sweep and of the split. They are the key of the checkpoint.
	Sweep, Name string
	Pages       Sweep
	// Start is the start time of a new round. It identifies the round.
	Start time.Time
	// Baseline is Round.Baseline of a new round.
	Baseline bool
	// Checkpoint is the newest checkpoint of the split; nil if there is none. If its round is unfinished, Run continues
	// that round and does not begin a new one.
	Checkpoint *pb.Checkpoint
}

// A Result is the result of a round, including all its runs.
type Result struct {
	Round
	Finished time.Time
	Emitted  int64
	Counts   map[string]int64
}

// Config holds the settings of a Runner. Zero values are replaced by those of Defaults.
type Config struct {
	// MaxBacklog is the consumer lag, in records, above which the Runner stops publishing until the lag has fallen to
	// half of it.
	MaxBacklog int64
	// Poll is the interval of reading a lag that is too high.
	Poll time.Duration
	// Pause is the wait between two pages.
	Pause time.Duration
	// Retry is the policy for reading pages, publishing and reading the lag.
	Retry retry.Policy
}

// Defaults returns the default settings.
func Defaults() Config {
	return Config{
		MaxBacklog: 10_000, Poll: time.Second,
		Retry: retry.Policy{Attempts: 5, Wait: 200 * time.Millisecond, MaxWait: 5 * time.Second},
	}
}

// Deps are the dependencies of a Runner. All are required.
type Deps struct {
	Publisher schemas.Publisher
	// Lag returns the number of unread records in the topics that sweeps publish to.
	Lag func(context.Context) (int64, error)
	Log *slog.Logger
}

// A Runner runs rounds. It is safe for concurrent use.
type Runner struct {
	config Config
	deps   Deps
}

// New returns a Runner.
func New(c Config, d Deps) (*Runner, error) {
	switch {
	case c.MaxBacklog < 0 || c.Poll < 0 || c.Pause < 0:
		return nil, errors.New("sweep: max backlog, poll or pause is negative")
	case d.Publisher == nil || d.Lag == nil || d.Log == nil:
		return nil, errors.New("sweep: publisher, lag or log are missing")
	}
	values := Defaults()
	if c.MaxBacklog == 0 {
		c.MaxBacklog = values.MaxBacklog
	}
	if c.Poll == 0 {
		c.Poll = values.Poll
	}
	if c.Retry == (retry.Policy{}) {
		c.Retry = values.Retry
	}
	return &Runner{config: c, deps: d}, nil
}

// Run runs the round of a split to its end and returns its result. After an error, the next Run continues from the
// newest checkpoint.
func (r *Runner) Run(ctx context.Context, m Split) (Result, error) {
	if m.Sweep == "" || m.Name == "" || m.Pages == nil || m.Start.IsZero() {
		return Result{}, errors.New("sweep: split has no sweep, name, pages or start")
	}
	run := newRun(r, m)
	log := r.deps.Log.With("sweep", m.Sweep, "split", m.Name, "round", run.summary.ID)
	log.Info("begin round", "resumed", run.resumed)
	err := run.pages(ctx)
	if err == nil {
		err = run.end(ctx, nil)
	} else if ctx.Err() == nil {
		err = errors.Join(err, run.end(ctx, err))
	}
	if err != nil {
		return run.summary, fmt.Errorf("sweep %s over %s: %w", m.Sweep, m.Name, err)
	}
	log.Info("end round", "emitted", run.summary.Emitted)
	return run.summary, nil
}

// A run is the state of one Run.
type run struct {
	*Runner
	split   Split
	cursor  []byte
	summary Result
	resumed bool
}

func newRun(r *Runner, m Split) *run {
	n := &run{Runner: r, split: m}
	n.summary.Counts = map[string]int64{}
	if c := m.Checkpoint; c != nil && c.GetFinished() == nil && c.GetSweep() == m.Sweep && c.GetSplit() == m.Name {
		n.resumed = true
		n.cursor = c.GetCursor()
		n.summary = resultOf(c)
		return n
	}
	start := m.Start.UTC()
	id := schemas.ID("round", m.Sweep, m.Name, start.Format(time.RFC3339Nano))
	n.summary.Round = Round{ID: id, Started: start, Baseline: m.Baseline}
	return n
}

// pages processes pages until the last one.
func (r *run) pages(ctx context.Context) error {
	if !r.resumed {
		if err := r.publish(ctx, r.checkpoint()); err != nil { // so that this round continues after a crash
			return err
		}
	}
	for first := true; ; first = false {
		if !first {
			if err := retry.Sleep(ctx, r.config.Pause); err != nil {
				return err
			}
		}
		if err := r.waitForBacklog(ctx); err != nil {
			return err
		}
		page, err := r.page(ctx)
		if err != nil {
			return err
		}
		if len(page.Messages) > 0 {
			if err := r.publish(ctx, page.Messages...); err != nil {
				return err
			}
		}
		for k, n := range page.Counts {
			r.summary.Counts[k] += n
			r.summary.Emitted += n
		}
		if page.Last {
			return nil
		}
		if bytes.Equal(page.Next, r.cursor) {
			return errors.New("page does not advance the cursor")
		}
		r.cursor = page.Next
		if err := r.publish(ctx, r.checkpoint()); err != nil {
			return err
		}
	}
}

func (r *run) page(ctx context.Context) (Page, error) {
	var page Page
	err := r.try(ctx, "page", func() (err error) {
		page, err = r.split.Pages(ctx, r.summary.Round, r.cursor)
		return err
	})
	if err != nil {
		return Page{}, fmt.Errorf("read a page: %w", err)
	}
	return page, nil
}

func (r *run) publish(ctx context.Context, messages ...schemas.Message) error {
	err := r.try(ctx, "publish", func() error { return r.deps.Publisher.Publish(ctx, messages...) })
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// try calls do until it succeeds or the retries are used up. The end of each call is progress (retry.Alive).
func (r *run) try(ctx context.Context, what string, do func() error) error {
	_, err := r.config.Retry.Do(ctx, func() error {
		defer retry.Alive(ctx)
		return do()
	}, func(attempt int, wait time.Duration, err error) {
		r.deps.Log.Warn("retry sweep", "sweep", r.split.Sweep, "split", r.split.Name,
			"what", what, "attempt", attempt, "retry_after", wait, "err", err)
	})
	return err
}

// waitForBacklog waits until the lag is at most MaxBacklog. If it is higher, it waits until the lag is at most half of
// it.
func (r *run) waitForBacklog(ctx context.Context) error {
	for bound := r.config.MaxBacklog; ; bound = r.config.MaxBacklog / 2 {
		var lag int64
		err := r.try(ctx, "lag", func() (err error) {
			lag, err = r.deps.Lag(ctx)
			return err
		})
		if err != nil {
			return fmt.Errorf("read the lag: %w", err)
		}
		if lag <= bound {
			return nil
		}
		if err := retry.Sleep(ctx, r.config.Poll); err != nil {
			return err
		}
	}
}

// checkpoint returns the checkpoint message for the current cursor.
func (r *run) checkpoint() schemas.Message {
	return schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{
		Id:    schemas.ID("checkpoint", r.split.Sweep, r.split.Name, r.summary.ID, string(r.cursor)),
		Sweep: r.split.Sweep, Split: r.split.Name, Round: r.summary.ID, Cursor: r.cursor,
		Started: timestamppb.New(r.summary.Started), Counts: maps.Clone(r.summary.Counts), Time: timestamppb.Now(),
		Baseline: r.summary.Baseline,
	}}
}

// end publishes the end of the run and, if failure is nil, of the round.
func (r *run) end(ctx context.Context, failure error) error {
	now := timestamppb.Now()
	name := r.split.Sweep + "/" + r.split.Name
	job := &pb.Job{
		Id: schemas.ID("job", name, r.summary.ID, "done"), Name: name,
		Started: timestamppb.New(r.summary.Started), Finished: now, Counts: maps.Clone(r.summary.Counts),
	}
	if failure != nil {
		job.Id = schemas.ID("job", name, r.summary.ID, "failed", string(r.cursor))
		job.Error = failure.Error()
		return r.publish(ctx, schemas.Message{Topic: schemas.Jobs, Body: job})
	}
	r.summary.Finished = now.AsTime()
	last := r.checkpoint()
	c := last.Body.(*pb.Checkpoint)
	c.Id, c.Finished = schemas.ID("checkpoint", r.split.Sweep, r.split.Name, r.summary.ID, "end"), now
	return r.publish(ctx, schemas.Message{Topic: schemas.Jobs, Body: job}, last)
}

// resultOf returns the result until a checkpoint.
func resultOf(c *pb.Checkpoint) Result {
	r := Result{
		Round:   Round{ID: c.GetRound(), Started: c.GetStarted().AsTime(), Baseline: c.GetBaseline()},
		Emitted: total(c.GetCounts()), Counts: map[string]int64{},
	}
	maps.Copy(r.Counts, c.GetCounts())
	if c.GetFinished() != nil {
		r.Finished = c.GetFinished().AsTime()
	}
	return r
}

func total(counts map[string]int64) (n int64) {
	for _, c := range counts {
		n += c
	}
	return n
}
