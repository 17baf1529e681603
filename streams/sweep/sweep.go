// Package sweep holds the resumable loops that find what events missed: each turns a
// cursor into a page of messages and the next cursor, and a Runner does the rest.
//
// A round that is interrupted goes on where its checkpoint stands; at most one page is
// then published twice, with the same ids. A page's messages are acknowledged before
// its checkpoint is saved. An error is never taken for the end of a page or a round.
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

// A Publisher sends messages and returns when all of them are acknowledged.
type Publisher interface {
	Publish(ctx context.Context, messages ...schemas.Message) error
}

// A Round is one complete pass over one morsel.
type Round struct {
	// ID is a function of the sweep, the morsel and Started.
	ID      string
	Started time.Time
	// Baseline: the round is the first one ever of what it goes over. A round that is resumed stays what it was.
	Baseline bool
}

// A Page is what a sweep found between two cursors.
type Page struct {
	Messages []schemas.Message
	// Counts says what was found, by what the sweep counts.
	Counts map[string]int64
	// Next is where the next page begins; it is not used where the page is the Last.
	Next []byte
	Last bool
}

// A Sweep returns the page that begins at cursor; nil is the beginning. The same
// round and cursor give messages with the same ids.
type Sweep func(ctx context.Context, round Round, cursor []byte) (Page, error)

// A Morsel is what one Run goes over.
type Morsel struct {
	// Sweep and Name key the checkpoint: which sweep, and over what.
	Sweep, Name string
	Pages       Sweep
	// Start is when a new round begins. It names the round.
	Start time.Time
	// Baseline is that of a new round.
	Baseline bool
	// Checkpoint is the newest of the morsel; nil where there is none. A round that
	// it leaves unfinished goes on, instead of a new one.
	Checkpoint *pb.Checkpoint
}

// A Summary is what a round came to, all of its runs together.
type Summary struct {
	Round
	Finished time.Time
	Emitted  int64
	Counts   map[string]int64
}

// Config is how a Runner paces itself. What is zero is taken from Defaults.
type Config struct {
	// MaxBacklog is the lag, in records, above which nothing is emitted until it has
	// fallen below half of it.
	MaxBacklog int64
	// Poll is how long to wait between two looks at a lag that is too high.
	Poll time.Duration
	// Pause is how long to wait between two pages.
	Pause time.Duration
	// Retry is for pages, publishes and looks at the lag.
	Retry retry.Policy
}

// Defaults returns the values of the specification.
func Defaults() Config {
	return Config{
		MaxBacklog: 10_000, Poll: time.Second,
		Retry: retry.Policy{Attempts: 5, Wait: 200 * time.Millisecond, MaxWait: 5 * time.Second},
	}
}

// Deps are what a Runner works with.
type Deps struct {
	Publisher Publisher
	// Lag returns how many records of the topics that sweeps emit to wait unread.
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

// Run runs the morsel's round to its end and returns what it came to. After an error
// the round goes on from the newest checkpoint.
func (r *Runner) Run(ctx context.Context, m Morsel) (Summary, error) {
	if m.Sweep == "" || m.Name == "" || m.Pages == nil || m.Start.IsZero() {
		return Summary{}, errors.New("sweep: morsel has no sweep, name, pages or start")
	}
	run := newRun(r, m)
	log := r.deps.Log.With("sweep", m.Sweep, "morsel", m.Name, "round", run.summary.ID)
	log.Info("round begins", "resumed", run.resumed)
	err := run.pages(ctx)
	if err == nil {
		err = run.end(ctx, nil)
	} else if ctx.Err() == nil {
		err = errors.Join(err, run.end(ctx, err))
	}
	if err != nil {
		return run.summary, fmt.Errorf("sweep %s over %s: %w", m.Sweep, m.Name, err)
	}
	log.Info("round ended", "emitted", run.summary.Emitted)
	return run.summary, nil
}

// A run is one Run.
type run struct {
	*Runner
	morsel  Morsel
	cursor  []byte
	summary Summary
	resumed bool
}

func newRun(r *Runner, m Morsel) *run {
	n := &run{Runner: r, morsel: m}
	n.summary.Counts = map[string]int64{}
	if c := m.Checkpoint; c != nil && c.GetFinished() == nil && c.GetSweep() == m.Sweep && c.GetMorsel() == m.Name {
		n.resumed = true
		n.cursor = c.GetCursor()
		n.summary.Round = Round{ID: c.GetRound(), Started: c.GetStarted().AsTime(), Baseline: c.GetBaseline()}
		maps.Copy(n.summary.Counts, c.GetCounts())
		n.summary.Emitted = total(c.GetCounts())
		return n
	}
	start := m.Start.UTC()
	id := schemas.ID("round", m.Sweep, m.Name, start.Format(time.RFC3339Nano))
	n.summary.Round = Round{ID: id, Started: start, Baseline: m.Baseline}
	return n
}

// pages goes from page to page.
func (r *run) pages(ctx context.Context) error {
	if !r.resumed {
		if err := r.publish(ctx, r.checkpoint()); err != nil { // so that a crash now begins no other round
			return err
		}
	}
	for first := true; ; first = false {
		if !first {
			if err := retry.Sleep(ctx, r.config.Pause); err != nil {
				return err
			}
		}
		if err := r.room(ctx); err != nil {
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
			return errors.New("page does not advance")
		}
		r.cursor = page.Next
		if err := r.publish(ctx, r.checkpoint()); err != nil {
			return err
		}
	}
}

func (r *run) page(ctx context.Context) (Page, error) {
	var page Page
	_, err := r.config.Retry.Do(ctx, func() (err error) {
		page, err = r.morsel.Pages(ctx, r.summary.Round, r.cursor)
		return err
	}, r.again("page"))
	if err != nil {
		return Page{}, fmt.Errorf("read a page: %w", err)
	}
	return page, nil
}

func (r *run) publish(ctx context.Context, messages ...schemas.Message) error {
	_, err := r.config.Retry.Do(ctx, func() error {
		return r.deps.Publisher.Publish(ctx, messages...)
	}, r.again("publish"))
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

func (r *run) again(what string) func(int, time.Duration, error) {
	return func(attempt int, wait time.Duration, err error) {
		r.deps.Log.Warn("sweep tries again", "sweep", r.morsel.Sweep, "morsel", r.morsel.Name,
			"what", what, "attempt", attempt, "wait", wait, "err", err)
	}
}

// room waits until the backlog lets more be emitted. A lag that cannot be read is no room.
func (r *run) room(ctx context.Context) error {
	for bound := r.config.MaxBacklog; ; bound = r.config.MaxBacklog / 2 {
		var lag int64
		_, err := r.config.Retry.Do(ctx, func() (err error) {
			lag, err = r.deps.Lag(ctx)
			return err
		}, r.again("lag"))
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

// checkpoint is where the round stands.
func (r *run) checkpoint() schemas.Message {
	return schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{
		Id:    schemas.ID("checkpoint", r.morsel.Sweep, r.morsel.Name, r.summary.ID, string(r.cursor)),
		Sweep: r.morsel.Sweep, Morsel: r.morsel.Name, Round: r.summary.ID, Cursor: r.cursor,
		Started: timestamppb.New(r.summary.Started), Counts: maps.Clone(r.summary.Counts), Time: timestamppb.Now(),
		Baseline: r.summary.Baseline,
	}}
}

// end puts on record that the run is over, and the round too where failure is nil.
func (r *run) end(ctx context.Context, failure error) error {
	now := timestamppb.Now()
	name := r.morsel.Sweep + "/" + r.morsel.Name
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
	c.Id, c.Finished = schemas.ID("checkpoint", r.morsel.Sweep, r.morsel.Name, r.summary.ID, "end"), now
	return r.publish(ctx, schemas.Message{Topic: schemas.Jobs, Body: job}, last)
}

func total(counts map[string]int64) (n int64) {
	for _, c := range counts {
		n += c
	}
	return n
}
