// Package sweep implements resumable loops that find work that events missed. A Sweep is a function from a cursor to a
// page of messages and the next cursor. A Sweeper publishes the pages, saves checkpoints and limits the rate.
//
// An interrupted round continues from its checkpoint. The messages of a page are acknowledged before its checkpoint is
// saved, so that at most one page is published twice, with the same ids. An error never ends a page or a round as if it
// were complete. The rounds of many splits run side by side, a page of each in turn.
package sweep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"golang.org/x/sync/semaphore"
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
	// Previous is Page.Next of the last page of the round before; nil if there is none.
	Previous []byte
}

// A Page is the result of a sweep between two cursors.
type Page struct {
	Messages []schemas.Message
	// Counts are the numbers of findings. The sweep defines the keys. The record of a failure has those of
	// the page that has failed.
	Counts map[string]int64
	// Emitted is the number of Messages that ask for work, or report a finding.
	Emitted int64
	// Next is the cursor of the next page. That of the last page is Round.Previous of the next round.
	Next []byte
	Last bool
	// Ended is called before a round ends with this page, which is the last one; nil: not called. The page itself may be
	// read before those in front of it are published.
	Ended func(context.Context) error
	// Wait says that the page depends on work that has not ended: it is asked for again after this time. Nothing else is
	// set then.
	Wait time.Duration
}

// A Sweep returns the page that begins at cursor; nil is the beginning. For the same round and cursor it must return
// messages with the same ids.
type Sweep func(ctx context.Context, round Round, cursor []byte) (Page, error)

// A Split is the part of the input of which one round is a complete pass.
type Split struct {
	// Sweep and Name are the names of the sweep and of the split. They are the key of the checkpoint.
	Sweep, Name string
	// Account is the account whose turn it is when a page of the split is at work.
	Account string
	Pages   Sweep
	// Lag returns the number of unread records in the topics that the sweep publishes to.
	Lag func(context.Context) (int64, error)
	// Start is the start time of a new round. It identifies the round.
	Start time.Time
	// Report returns the report of a round that has ended; nil, or one that returns nil: there is none.
	Report func(Result) *pb.Report

	// Due reports whether a new round is due at a time after the round of the last checkpoint, which has finished or is
	// nil. It is required for a Kind.
	Due func(last *pb.Checkpoint, now time.Time) bool
	// Next returns when the round after one is due that began at started; the zero time: never. A round that ends later
	// is logged. nil: none is.
	Next func(started time.Time) time.Time
	// Blocked returns why no page may be worked on now, ErrPaused for a pause and ErrNotNow if the time is over; nil: none
	// is ever blocked.
	Blocked func(context.Context) error
	// FirstRound sets Baseline of a new round, if it is not nil. checkpoint returns the newest checkpoint of a split.
	FirstRound func(ctx context.Context, checkpoint func(sweep, split string) *pb.Checkpoint) (bool, error)
	// Anew: an unfinished round with another start is not continued.
	Anew bool
	// Only is the id of the one round that is continued; if the newest checkpoint is of another, nothing is done. Empty:
	// any.
	Only string
	// Skip is why the round is ended instead of continued; empty: it is continued.
	Skip string
	// Carry returns what the next round gets of one that is skipped, or replaced (Anew), from its checkpoint; nil: what
	// the skipped one got.
	Carry func(*pb.Checkpoint) []byte
	// Quiet reports whether the page at a cursor publishes nothing. Such a page is not blocked, and needs no room in the
	// topics. nil: no page is quiet.
	Quiet func(cursor []byte) bool
	// Ahead: the next page is read while the messages of one are published. What a page finds does not depend on the
	// messages of the page before.
	Ahead bool
	// Detach: Sweeper.Rounds returns when the round only waits (Page.Wait). A later call, or another process, ends it.
	Detach bool
	// OnEmitted is called with the number of messages after each page; nil: not called.
	OnEmitted func(n int64)
}

// isQuiet reports whether the page at a cursor is quiet.
func (m *Split) isQuiet(cursor []byte) bool { return m.Quiet != nil && m.Quiet(cursor) }

func (m *Split) carry(c *pb.Checkpoint) []byte {
	if m.Carry == nil {
		return c.GetPrevious()
	}
	return m.Carry(c)
}

func (m *Split) blocked(ctx context.Context) error {
	if m.Blocked == nil {
		return nil
	}
	return m.Blocked(ctx)
}

// A Result is the result of a round, including all its runs.
type Result struct {
	Round
	Split    string // its name
	Finished time.Time
	Emitted  int64
	Counts   map[string]int64
	Work     Work // of a dry run
}

// Config holds the settings of the rounds. Zero values are replaced by those of Defaults.
type Config struct {
	// MaxBacklog is the consumer lag, in records, above which a round stops publishing until the lag has fallen to
	// half of it. The rounds of a process exceed it by a tenth at most.
	MaxBacklog int64
	// Poll is the longest interval of reading a lag that is too high. It begins with a tenth of it.
	Poll time.Duration
	// Pause is the wait between two pages.
	Pause time.Duration
	// Now is Kafka's clock, which dates the records that rounds are compared with. nil: time.Now.
	Now func() time.Time
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

// A runner publishes the pages of rounds. It is safe for concurrent use.
type runner struct {
	config    Config
	publisher schemas.Publisher
	log       *slog.Logger
	metrics   *Metrics // nil: nothing is counted
	// emitting is held by the run that reads the lag and publishes, so that the next one reads a lag that includes it.
	emitting chan struct{}
	// wait waits, and lets other pages work meanwhile.
	wait func(context.Context, time.Duration) error
	// aheads bounds the pages that are read ahead.
	aheads *semaphore.Weighted
}

func newRunner(
	c SweeperConfig, publisher schemas.Publisher, log *slog.Logger, wait func(context.Context, time.Duration) error,
) (*runner, error) {
	switch {
	case c.MaxBacklog < 0 || c.Poll < 0 || c.Pause < 0:
		return nil, errors.New("sweep: max backlog, poll or pause is negative")
	case publisher == nil || log == nil:
		return nil, errors.New("sweep: publisher or log are missing")
	}
	values := Defaults()
	if c.MaxBacklog == 0 {
		c.MaxBacklog = values.MaxBacklog
	}
	if c.Poll == 0 {
		c.Poll = values.Poll
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Retry == (retry.Policy{}) {
		c.Retry = values.Retry
	}
	return &runner{config: c.Config, publisher: publisher, log: log, emitting: make(chan struct{}, 1), wait: wait,
		aheads: semaphore.NewWeighted(int64(c.Workers))}, nil
}

// A run is a round of a split that this process works on.
type run struct {
	*runner
	split   Split
	cursor  []byte
	from    []byte // the cursor at which the run began
	summary Result
	fresh   bool          // the round has no checkpoint
	seen    bool          // its checkpoint was the newest one
	pages   int           // how many were published in this run
	full    bool          // the lag was above its bound, and has not fallen to half of it
	room    int64         // how many messages the newest lag leaves room for
	poll    time.Duration // the wait before the lag is read again; 0: it was not too high
	// ahead is the next page if it is being read, and base what its context derives from: it may outlive this page.
	ahead *pageAhead
	base  context.Context
	// meanwhile reports whether another process has ended the round; the error says that it works on the round, or on a
	// later one.
	meanwhile func(context.Context) (ended bool, err error)
}

// begin continues the round of the newest checkpoint c of a split, or begins a new one if that has finished or c is
// nil.
func (r *runner) begin(m Split, c *pb.Checkpoint, baseline bool) (*run, error) {
	if m.Sweep == "" || m.Name == "" || m.Pages == nil || m.Lag == nil || m.Start.IsZero() {
		return nil, errors.New("sweep: split has no sweep, name, pages, lag or start")
	}
	own := *r
	n := &run{runner: &own, split: m}
	resumed := c != nil && c.GetFinished() == nil
	n.fresh, n.seen = !resumed, resumed
	if resumed {
		n.cursor, n.from, n.summary = c.GetCursor(), c.GetCursor(), resultOf(c)
	} else {
		start := m.Start.UTC()
		id := schemas.ID("round", m.Sweep, m.Name, start.Format(time.RFC3339Nano))
		n.summary.Split, n.summary.Counts = m.Name, map[string]int64{}
		n.summary.Round = Round{ID: id, Started: start, Baseline: baseline, Previous: c.GetCursor()}
	}
	n.log = r.log.With("sweep", m.Sweep, "split", m.Name, "round", n.summary.ID)
	n.log.Info("begin round", "started", n.summary.Started, "resumed", resumed)
	return n, nil
}

// step publishes the next page, and saves the checkpoint after it. done reports whether the round has ended, and wait
// is Page.Wait.
func (r *run) step(ctx context.Context) (done bool, wait time.Duration, err error) {
	if r.fresh {
		if err := r.publish(ctx, r.checkpoint()); err != nil { // so that this round continues after a crash
			return false, 0, err
		}
		r.fresh = false
	}
	page, err := r.page(ctx)
	if err != nil {
		r.count(page.Counts) // for the record of the failure
		return false, 0, err
	}
	if page.Wait > 0 {
		return false, page.Wait, nil
	}
	if !page.Last {
		r.readAhead(page.Next)
	}
	if err := r.emit(ctx, page.Messages); err != nil {
		return false, 0, err
	}
	r.count(page.Counts)
	r.summary.Emitted += page.Emitted
	if !page.Last && bytes.Equal(page.Next, r.cursor) {
		return false, 0, errors.New("page does not advance the cursor")
	}
	if r.cursor = page.Next; page.Last {
		if ended, err := r.meanwhile(ctx); ended || err != nil {
			return ended, 0, err
		}
		if page.Ended != nil {
			if err := page.Ended(ctx); err != nil {
				return false, 0, err
			}
		}
		return true, 0, r.end(ctx)
	}
	if err := r.publish(ctx, r.checkpoint()); err != nil {
		return false, 0, err
	}
	r.pages++
	return false, 0, nil
}

func (r *run) count(found map[string]int64) {
	for k, n := range found {
		r.summary.Counts[k] += n
	}
}

// failed reports that a run has failed with err, unless it was cancelled, and returns the error of the round.
func (r *run) failed(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		job := r.job("failed", string(r.cursor), r.config.Now().UTC().Format(time.RFC3339Nano))
		job.Error = err.Error()
		err = errors.Join(err, r.publish(ctx, schemas.Message{Topic: schemas.Jobs, Body: job}))
	}
	return fmt.Errorf("sweep %s over %s: %w", r.split.Sweep, r.split.Name, err)
}

func (r *run) page(ctx context.Context) (Page, error) {
	page, ok, err := r.takeAhead(ctx)
	if ok || err != nil {
		return page, err
	}
	err = r.try(ctx, "page", func() (err error) {
		page, err = r.split.Pages(ctx, r.summary.Round, r.cursor)
		return err
	})
	if err != nil {
		return Page{Counts: page.Counts}, fmt.Errorf("read a page: %w", err)
	}
	return page, nil
}

func (r *run) publish(ctx context.Context, messages ...schemas.Message) error {
	err := r.try(ctx, "publish", func() error { return r.publisher.Publish(ctx, messages...) })
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// emit publishes the messages of a page, as many at once as the bound of the lag leaves room for, and waits in between
// while the lag is too high.
func (r *run) emit(ctx context.Context, messages []schemas.Message) error {
	for len(messages) > 0 {
		n, err := r.emitSome(ctx, messages)
		if err != nil {
			return err
		}
		if messages = messages[n:]; n > 0 {
			continue
		}
		if err := r.wait(ctx, r.nextPoll()); err != nil {
			return err
		}
	}
	return nil
}

// nextPoll returns how long to wait before the lag is read again.
func (r *run) nextPoll() time.Duration {
	r.poll = min(max(2*r.poll, r.config.Poll/10), r.config.Poll)
	return r.poll
}

// emitSome publishes the first n of messages, none if the lag is too high.
func (r *run) emitSome(ctx context.Context, messages []schemas.Message) (n int, err error) {
	select {
	case r.emitting <- struct{}{}:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() { <-r.emitting }()
	if full, err := r.backlog(ctx); full || err != nil {
		return 0, err
	}
	n = int(min(r.room, int64(len(messages))))
	return n, r.publish(ctx, messages[:n]...)
}

// try calls do until it succeeds or the retries are used up. The end of each call is progress (retry.Alive).
func (r *run) try(ctx context.Context, what string, do func() error) error {
	_, err := r.config.Retry.Do(ctx, func() error {
		defer retry.Alive(ctx)
		return do()
	}, func(attempt int, wait time.Duration, err error) {
		r.log.Warn("retry sweep", "what", what, "attempt", attempt, "retry_after", wait, "err", err)
	})
	return err
}

// backlog reports whether the lag is too high: above MaxBacklog, or since then not at half of it.
func (r *run) backlog(ctx context.Context) (full bool, err error) {
	var lag int64
	err = r.try(ctx, "lag", func() (err error) {
		lag, err = r.split.Lag(ctx)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read the lag: %w", err)
	}
	bound := r.config.MaxBacklog
	if r.full {
		bound /= 2
	}
	if r.full = lag > bound; !r.full {
		r.poll = 0
	}
	r.room = max(1, r.config.MaxBacklog+r.config.MaxBacklog/10-lag)
	return r.full, nil
}

// checkpoint returns the checkpoint message for the current cursor.
func (r *run) checkpoint() schemas.Message {
	return schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{
		Id:    schemas.ID("checkpoint", r.split.Sweep, r.split.Name, r.summary.ID, string(r.cursor)),
		Sweep: r.split.Sweep, Split: r.split.Name, Round: r.summary.ID, Cursor: r.cursor,
		Started: timestamppb.New(r.summary.Started), Counts: maps.Clone(r.summary.Counts), Emitted: r.summary.Emitted,
		Time: timestamppb.New(r.config.Now()), Baseline: r.summary.Baseline, Previous: r.summary.Previous,
	}}
}

// end publishes the end of the round, with its report.
func (r *run) end(ctx context.Context) error {
	now := timestamppb.New(r.config.Now())
	r.summary.Finished = now.AsTime()
	job := r.job("done")
	job.Finished = now
	messages := append([]schemas.Message{{Topic: schemas.Jobs, Body: job}}, r.reports()...)
	if err := r.publish(ctx, messages...); err != nil {
		return err
	}
	if err := r.publishEnd(ctx, now); err != nil { // last: the reports of a round that has ended are published
		return err
	}
	r.log.Info("end round", "emitted", r.summary.Emitted, "counts", r.summary.Counts)
	if r.split.Next != nil {
		if next := r.split.Next(r.summary.Started); !next.IsZero() && next.Before(r.summary.Finished) {
			r.metrics.overran(r.split.Sweep)
			r.log.Warn("sweep overran its period", "finished", r.summary.Finished, "next", next)
		}
	}
	return nil
}

// reports returns the report of the round, which has ended; nil: it has none.
func (r *run) reports() []schemas.Message {
	if r.split.Report == nil {
		return nil
	}
	report := r.split.Report(r.summary)
	if report == nil {
		return nil
	}
	return []schemas.Message{{Topic: schemas.Reports, Body: report}}
}

// publishEnd publishes the last checkpoint of the round, alone.
func (r *run) publishEnd(ctx context.Context, at *timestamppb.Timestamp) error {
	last := r.checkpoint()
	c := last.Body.(*pb.Checkpoint)
	c.Id, c.Finished = schemas.ID("checkpoint", r.split.Sweep, r.split.Name, r.summary.ID, "end"), at
	return r.publish(ctx, last)
}

// skipped is the count of a job whose round was skipped.
const skipped = "skipped"

// skip ends the round without a report. The next one knows what this one knew of the round before.
func (r *run) skip(ctx context.Context, reason string) error {
	now := timestamppb.New(r.config.Now())
	job := r.job(skipped)
	job.Finished = now
	job.Counts[skipped] = 1
	if err := r.publish(ctx, schemas.Message{Topic: schemas.Jobs, Body: job}); err != nil {
		return err
	}
	r.cursor, r.summary.Finished = r.split.carry(r.checkpoint().Body.(*pb.Checkpoint)), now.AsTime()
	if err := r.publishEnd(ctx, now); err != nil {
		return err
	}
	r.log.Info("skip round", "reason", reason, "emitted", r.summary.Emitted)
	return nil
}

// job returns the record of the run, with an id that depends on how it ended.
func (r *run) job(end ...string) *pb.Job {
	name := r.split.Sweep + "/" + r.split.Name
	return &pb.Job{
		Id: schemas.ID(append([]string{"job", name, r.summary.ID}, end...)...), Name: name,
		Started: timestamppb.New(r.summary.Started), Finished: timestamppb.New(r.config.Now()),
		Counts: maps.Clone(r.summary.Counts),
	}
}

// resultOf returns the result until a checkpoint.
func resultOf(c *pb.Checkpoint) Result {
	r := Result{
		Round: Round{ID: c.GetRound(), Started: c.GetStarted().AsTime(), Baseline: c.GetBaseline(),
			Previous: c.GetPrevious()},
		Split: c.GetSplit(), Emitted: c.GetEmitted(), Counts: map[string]int64{},
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
