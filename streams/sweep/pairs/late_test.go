package pairs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
)

// A journal has what a sweeper publishes.
type journal struct {
	last     *pb.Checkpoint
	commands []*pb.DuplicationCommand
}

// Publish implements schemas.Publisher.
func (j *journal) Publish(_ context.Context, messages ...schemas.Message) error {
	for _, m := range messages {
		switch b := m.Body.(type) {
		case *pb.Checkpoint:
			j.last = b
		case *pb.DuplicationCommand:
			j.commands = append(j.commands, b)
		}
	}
	return nil
}

// run runs a round of a sweeper until its end or an error.
func (j *journal) run(t *testing.T, pages sweep.Sweep) ([]sweep.Result, error) {
	t.Helper()
	s, err := sweep.NewSweeper(
		sweep.SweeperConfig{Config: sweep.Config{Retry: retry.Policy{Attempts: 3, Wait: time.Millisecond}}},
		sweep.SweeperDeps{Publisher: j, Log: slog.New(slog.DiscardHandler),
			CatchUp:    func(context.Context) error { return nil },
			Checkpoint: func(string, string) *pb.Checkpoint { return j.last }})
	if err != nil {
		t.Fatal(err)
	}
	return s.Rounds(t.Context(), []sweep.Split{{Sweep: "duplication", Name: "acme/photos/1/2", Account: "acme",
		Pages: pages, Start: when, Lag: func(context.Context) (int64, error) { return 0, nil }}})
}

// A listing that fails in page 500 fails the round there. Nothing that it has not listed counts as absent, and the
// round goes on with that page.
func TestListingFailsInALatePage(t *testing.T) {
	const pages, size = 510, 3
	at := func(i int) string { return fmt.Sprintf("i%04d", i) }
	first := 499 * size // of page 500
	away := errors.New("away")
	for name, tt := range map[string]struct {
		listed []string
		want   error
	}{
		"at once":        {nil, away},
		"after an entry": {[]string{at(first)}, away},
		"repeats":        {[]string{at(first), at(first)}, storage.ErrListing},
		"goes backwards": {[]string{at(first + 1), at(first)}, storage.ErrListing},
		"begins again":   {[]string{at(0), at(1), at(2), at(3)}, storage.ErrListing},
	} {
		for _, side := range []string{"source", "destination"} {
			t.Run(side+" "+name, func(t *testing.T) {
				w := newHarness(t)
				w.config.MaxEntries = size
				for i := range pages * size {
					w.source.has(at(i))
					w.destination.has(at(i))
				}
				failing := w.source
				if side == "destination" {
					failing = w.destination
				}
				healthy, asked := *failing, []string(nil)
				failing.listing = func(after string) iter.Seq2[storage.Object, error] {
					if asked = append(asked, after); after != at(first-1) {
						return healthy.List(t.Context(), "photos", after)
					}
					return func(yield func(storage.Object, error) bool) {
						for _, id := range tt.listed {
							if !yield(*object(func(o *storage.Object) { o.Item = id }), nil) {
								return
							}
						}
						yield(storage.Object{}, away)
					}
				}
				j := &journal{}
				if _, err := j.run(t, w.sweep()); !errors.Is(err, tt.want) {
					t.Fatalf("got %v", err)
				}
				if c := j.last; string(c.GetCursor()) != at(first-1) || c.GetCounts()["equal"] != int64(first) ||
					c.GetFinished() != nil || len(j.commands) > 0 {
					t.Errorf("the checkpoint is %v, with %d commands", c, len(j.commands))
				}
				failing.listing, asked = nil, nil
				results, err := j.run(t, w.sweep())
				if err != nil || results[0].Counts["equal"] != pages*size || len(j.commands) > 0 {
					t.Errorf("got %v, %v with %d commands", results, err, len(j.commands))
				}
			})
		}
	}
}

// Of a store that lost 5, 50 or 100 % of a space, or all of it, no command may delete or overwrite anything, whichever
// side it is: the listing is no proof. The copier looks at each item.
func TestTooMuchIsMissing(t *testing.T) {
	const items = 1000
	for _, side := range []string{"source", "destination"} {
		for name, lost := range map[string]int{"5 %": 50, "50 %": 500, "100 %": items, "the space": -1} {
			t.Run(side+" lost "+name, func(t *testing.T) {
				w := newHarness(t)
				at, other := w.source, w.destination
				if side == "destination" {
					at, other = other, at
				}
				if at.noSpace = lost < 0; at.noSpace {
					lost = items
				}
				for i := range items {
					id := fmt.Sprintf("i%04d", i)
					if other.has(id); i >= lost {
						at.has(id)
					}
					r := &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Version: "v1", Size: 7}
					for _, store := range []string{"1", "2"} {
						w.records[copyOf(store, id)] = &pb.CopyRecord{Manifest: r, Audit: r}
					}
				}
				j := &journal{}
				results, err := j.run(t, w.sweep())
				if err != nil {
					t.Fatal(err)
				}
				finding := map[string]string{"source": "extra", "destination": "missing"}[side]
				if n := results[0].Counts; n[finding] != int64(lost) || n["equal"] != int64(items-lost) {
					t.Errorf("counted %v", n)
				}
				for _, c := range j.commands {
					// What the destination lacks is copied, which overwrites nothing.
					if !c.GetIfAbsent() && (side == "source" || c.GetItem() == "") {
						t.Fatalf("command %v", c)
					}
				}
				if n := len(j.commands); n < lost || n > lost+1 {
					t.Errorf("%d commands", n)
				}
			})
		}
	}
}
