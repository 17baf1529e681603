package sweep

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A harness holds the records of some copies and the published messages.
type harness struct {
	t       *testing.T
	mu      sync.Mutex // guards the fields below, from Due on, while a sweeper runs
	copies  map[schemas.Copy]*pb.CopyRecord
	queries []schemas.DueQuery
	due     error // of Due
	passing bool  // each copy passes a check after Due has selected it and before Due reads its record

	published [][]schemas.Message
	// publish, where it is set, decides about the nth call, from 1: an error, and whether
	// the messages are published all the same.
	publish func(n int) (bool, error)
	calls   int

	baseline bool      // of a new round
	begun    time.Time // of a new round; zero: start
	missing  int64     // checks without a result
	pending  int64     // checks with results, none of which is final
	last     time.Time // of the newest result
	handled  func() bool
	behind   int // how often the records of the copies lack checks
	counted  []RoundQuery
	results  error // of Results

	lags []int64 // answers of Lag, the last one for ever
	lag  error
}

func newHarness(t *testing.T) *harness {
	return &harness{t: t, copies: map[schemas.Copy]*pb.CopyRecord{}, lags: []int64{0}}
}

// add records a copy with its last pass ago before start; 0 means that it never passed.
func (w *harness) add(space, item string, ago time.Duration) schemas.Copy {
	c := schemas.Copy{Account: "acme", Store: "2", Space: space, Item: item}
	r := &pb.Record{
		State: pb.RecordState_RECORD_STATE_LIVE, Digests: map[string]string{"md5": "aa"}, Size: 5,
		Provenance: pb.Provenance_PROVENANCE_VERIFIED, Version: "v1", Time: timestamppb.New(start.Add(-time.Hour)),
	}
	known := &pb.CopyRecord{Manifest: r, Audit: r}
	if ago != 0 {
		known.LastPass = timestamppb.New(start.Add(-ago))
	}
	w.copies[c] = known
	return c
}

func order(a, b schemas.DueCursor) int {
	return cmp.Or(a.LastPass.Compare(b.LastPass), cmp.Compare(a.Item, b.Item))
}

func (w *harness) Due(
	_ context.Context, q schemas.DueQuery,
) (out []schemas.DueCopy, end schemas.DueCursor, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queries = append(w.queries, q)
	if w.due != nil {
		return nil, end, w.due
	}
	type row struct {
		at schemas.DueCursor
		schemas.DueCopy
	}
	var rows []row
	for c, r := range w.copies {
		at := schemas.DueCursor{Item: c.Item}
		if r.GetLastPass() != nil {
			at.LastPass = r.GetLastPass().AsTime()
		}
		if c.Account == q.Account && c.Store == q.Store && c.Space == q.Space &&
			at.LastPass.Before(q.PassedBefore) && (q.After == schemas.DueCursor{} || order(at, q.After) > 0) {
			rows = append(rows, row{at, schemas.DueCopy{KnownCopy: schemas.KnownCopy{Copy: c, Record: r},
				Retried: r.GetLastAttempt().AsTime().After(r.GetLastPass().AsTime())}})
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return order(a.at, b.at) })
	for _, r := range rows[:min(len(rows), q.Limit)] {
		if w.passing {
			r.Record = proto.CloneOf(r.Record)
			r.Record.LastPass = timestamppb.New(start)
		}
		out, end = append(out, r.DueCopy), r.at
	}
	return out, end, nil
}

func (w *harness) Publish(_ context.Context, messages ...schemas.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	done, err := true, error(nil)
	if w.publish != nil {
		done, err = w.publish(w.calls)
	}
	if done {
		w.published = append(w.published, messages)
	}
	return err
}

func (w *harness) Lag(context.Context) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.lags[0]
	if len(w.lags) > 1 {
		w.lags = w.lags[1:]
	}
	return n, w.lag
}

// of returns the published messages of one kind.
func of[B schemas.Body](w *harness) (out []B) {
	for _, call := range w.published {
		for _, m := range call {
			if b, ok := m.Body.(B); ok {
				out = append(out, b)
			}
		}
	}
	return out
}

func items(tasks []*pb.FixityTask) (out []string) {
	for _, t := range tasks {
		out = append(out, t.GetItem())
	}
	return out
}

// Progress implements Results: all tasks that were published, but the missing and the pending ones, have passed.
func (w *harness) Progress(context.Context, RoundQuery) (Progress, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := map[string]bool{}
	for _, task := range of[*pb.FixityTask](w) {
		ids[task.GetId()] = true
	}
	return Progress{int64(len(ids)) - w.missing - w.pending, w.pending, w.last}, w.results
}

// Counts implements Results.
func (w *harness) Counts(ctx context.Context, q RoundQuery) (RoundCounts, bool, error) {
	if w.behind > 0 {
		w.behind--
		return RoundCounts{}, false, w.results
	}
	w.counted = append(w.counted, q)
	p, err := w.Progress(ctx, q)
	live := int64(len(w.copies))
	return RoundCounts{p, live, map[string]int64{"pass": p.Final, "live": live}}, true, err
}

// End implements Queue.
func (w *harness) End(context.Context) (Offsets, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Offsets{schemas.FixityLow: {0: int64(len(of[*pb.FixityTask](w)))}}, w.results
}

// Handled implements Queue.
func (w *harness) Handled(_ context.Context, at Offsets) (bool, error) {
	if n := at[schemas.FixityLow][0]; n == 0 {
		w.t.Errorf("asked for the offsets %v", at)
	}
	return w.handled == nil || w.handled(), w.results
}

// A roundConfig is what a fixity round is made of.
type roundConfig struct {
	FixityRounds
	Request
}

func (w *harness) config() roundConfig {
	return roundConfig{
		FixityRounds{Due: w, Lag: w.Lag, LagHigh: w.Lag, Results: w, Queue: w, Now: time.Now, Page: 2, Large: 100,
			Checked: func(context.Context, schemas.Copy) (bool, error) { return false, nil }},
		Request{Account: "acme", Store: "2", Space: "photos", Begun: start, Period: 24 * time.Hour},
	}
}

// rounds runs a round of a split from a checkpoint.
func (w *harness) rounds(ctx context.Context, m Split, from *pb.Checkpoint) (Result, error) {
	w.t.Helper()
	s, err := NewSweeper(SweeperConfig{Config: Config{Retry: retry.Policy{Attempts: 3, Wait: time.Millisecond}}},
		SweeperDeps{Publisher: w, Log: slog.New(slog.DiscardHandler), CatchUp: func(context.Context) error { return nil },
			Checkpoint: func(string, string) *pb.Checkpoint { return from }})
	must(w.t, err)
	m.Lag, m.Start = w.Lag, cmp.Or(w.begun, start)
	m.FirstRound = func(context.Context, func(string, string) *pb.Checkpoint) (bool, error) { return w.baseline, nil }
	results, err := s.Rounds(ctx, []Split{m})
	if len(results) == 0 {
		return Result{}, err
	}
	return results[0], err
}

func (w *harness) run(c roundConfig, from *pb.Checkpoint) (Result, error) {
	w.t.Helper()
	m, err := c.Split(c.Request)
	must(w.t, err)
	return w.rounds(w.t.Context(), m, from)
}

// fill records seven copies of a space, and one of another; five of the seven are due.
func (w *harness) fill() {
	w.add("photos", "b", 0)
	w.add("photos", "z", 48*time.Hour)
	w.add("photos", "p", 48*time.Hour)
	w.add("photos", "a", 0)
	w.add("photos", "x", 72*time.Hour)
	w.add("photos", "young", time.Hour)
	w.add("photos", "at the bound", 24*time.Hour)
	w.add("papers", "b", 0)
}

var inOrder = []string{"a", "b", "x", "p", "z"}
