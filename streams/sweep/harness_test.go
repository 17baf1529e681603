package sweep

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
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
	copies  map[schemas.Copy]*pb.CopyRecord
	queries []schemas.DueQuery
	due     error // of Due
	passing bool  // each copy passes a check after Due has selected it and before Due reads its record

	published [][]schemas.Message
	// publish, where it is set, decides about the nth call, from 1: an error, and whether
	// the messages are published all the same.
	publish func(n int) (bool, error)
	calls   int

	baseline bool // of a new round

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
	return cmp.Or(a.LastPass.Compare(b.LastPass), cmp.Compare(a.Space, b.Space), cmp.Compare(a.Item, b.Item))
}

func (w *harness) Due(
	_ context.Context, q schemas.DueQuery,
) (out []schemas.KnownCopy, end schemas.DueCursor, err error) {
	w.queries = append(w.queries, q)
	if w.due != nil {
		return nil, end, w.due
	}
	type row struct {
		at schemas.DueCursor
		schemas.KnownCopy
	}
	var rows []row
	for c, r := range w.copies {
		at := schemas.DueCursor{Space: c.Space, Item: c.Item}
		if r.GetLastPass() != nil {
			at.LastPass = r.GetLastPass().AsTime()
		}
		if c.Account == q.Account && c.Store == q.Store && (q.Space == "" || q.Space == c.Space) &&
			at.LastPass.Before(q.PassedBefore) && (q.After == schemas.DueCursor{} || order(at, q.After) > 0) {
			rows = append(rows, row{at, schemas.KnownCopy{Copy: c, Record: r}})
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return order(a.at, b.at) })
	for _, r := range rows[:min(len(rows), q.Limit)] {
		if w.passing {
			r.Record = proto.CloneOf(r.Record)
			r.Record.LastPass = timestamppb.New(start)
		}
		out, end = append(out, r.KnownCopy), r.at
	}
	return out, end, nil
}

func (w *harness) Publish(_ context.Context, messages ...schemas.Message) error {
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
		out = append(out, t.GetSpace()+"/"+t.GetItem())
	}
	return out
}

func (w *harness) config() FixityConfig {
	return FixityConfig{Account: "acme", Store: "2", Period: 24 * time.Hour, Page: 2, Large: 100}
}

// rounds runs a round of a split from a checkpoint.
func (w *harness) rounds(ctx context.Context, m Split, from *pb.Checkpoint) (Result, error) {
	w.t.Helper()
	s, err := NewSweeper(SweeperConfig{Config: Config{Retry: retry.Policy{Attempts: 3, Wait: time.Millisecond}}},
		SweeperDeps{Publisher: w, Log: slog.New(slog.DiscardHandler), CatchUp: func(context.Context) error { return nil },
			Checkpoint: func(string, string) *pb.Checkpoint { return from }})
	if err != nil {
		w.t.Fatal(err)
	}
	m.Lag, m.Start = w.Lag, start
	m.FirstRound = func(context.Context, func(string, string) *pb.Checkpoint) (bool, error) { return w.baseline, nil }
	results, err := s.Rounds(ctx, []Split{m})
	if len(results) == 0 {
		return Result{}, err
	}
	return results[0], err
}

func (w *harness) run(c FixityConfig, from *pb.Checkpoint) (Result, error) {
	w.t.Helper()
	pages, err := Fixity(w, c)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.rounds(w.t.Context(), Split{Sweep: "fixity", Name: c.Split(), Pages: pages}, from)
}

// fill records seven copies; five of them are due.
func (w *harness) fill() {
	w.add("photos", "b", 0)
	w.add("photos", "a", 48*time.Hour)
	w.add("papers", "z", 48*time.Hour)
	w.add("papers", "y", 0)
	w.add("papers", "x", 72*time.Hour)
	w.add("papers", "young", time.Hour)
	w.add("papers", "at the bound", 24*time.Hour)
}

var inOrder = []string{"papers/y", "photos/b", "papers/x", "papers/z", "photos/a"}
