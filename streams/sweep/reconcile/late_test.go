package reconcile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
)

// A journal has what a sweeper publishes.
type journal struct {
	last     *pb.Checkpoint
	findings []schemas.Message
}

// Publish implements schemas.Publisher.
func (j *journal) Publish(_ context.Context, messages ...schemas.Message) error {
	for _, m := range messages {
		switch b := m.Body.(type) {
		case *pb.Checkpoint:
			j.last = b
		case *pb.Job:
		default:
			j.findings = append(j.findings, m)
		}
	}
	return nil
}

// run runs a round of a sweeper until its end or an error.
func (j *journal) run(t *testing.T, pages sweep.Sweep) ([]sweep.Result, error) {
	t.Helper()
	s, err := sweep.NewSweeper(
		sweep.SweeperConfig{Config: sweep.Config{Retry: retry.Policy{Attempts: 3, Wait: time.Second}}},
		sweep.SweeperDeps{Publisher: j, Log: slog.New(slog.DiscardHandler),
			CatchUp:    func(context.Context) error { return nil },
			Checkpoint: func(string, string) *pb.Checkpoint { return j.last }})
	if err != nil {
		t.Fatal(err)
	}
	return s.Rounds(t.Context(), []sweep.Split{{Sweep: Name, Name: "acme/1/photos", Account: "acme", Pages: pages,
		Start: time.Now(), Lag: func(context.Context) (int64, error) { return 0, nil }}})
}

// A lateStore lists in another way after an item.
type lateStore struct {
	storage.Store
	after string
	list  func(listing iter.Seq2[storage.Object, error]) iter.Seq2[storage.Object, error] // nil: as the store does
	asked []string
}

// List implements storage.Store.
func (s *lateStore) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	s.asked = append(s.asked, after)
	listing := s.Store.List(ctx, space, after)
	if after == s.after && s.list != nil {
		return s.list(listing)
	}
	return listing
}

// items yields items, and then an error.
func items(err error, ids ...string) func(iter.Seq2[storage.Object, error]) iter.Seq2[storage.Object, error] {
	return func(iter.Seq2[storage.Object, error]) iter.Seq2[storage.Object, error] {
		return func(yield func(storage.Object, error) bool) {
			for _, id := range ids {
				if !yield(storage.Object{Item: id, Size: 5, Version: "v"}, nil) {
					return
				}
			}
			yield(storage.Object{}, err)
		}
	}
}

// A listing that fails in page 500 fails the round there. Nothing that it has not listed is missing, and the round goes
// on with that page.
func TestListingFailsInALatePage(t *testing.T) {
	const pages, size = 510, 3
	at := func(i int) string { return fmt.Sprintf("i%04d", i) }
	first := 499 * size // of page 500
	away := errors.New("away")
	for name, tt := range map[string]struct {
		list func(iter.Seq2[storage.Object, error]) iter.Seq2[storage.Object, error]
		want error
	}{
		"at once":        {items(away), away},
		"after an entry": {items(away, at(first)), away},
		"repeats":        {items(away, at(first), at(first)), storage.ErrListing},
		"goes backwards": {items(away, at(first+1), at(first)), storage.ErrListing},
		"begins again":   {items(away, at(0), at(1), at(2), at(3)), storage.ErrListing},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.fill(pages * size)
				w.mem.Lose("photos", at(first+1))
				w.put(at(first)+"x", "new")
				d := w.deps()
				store := &lateStore{Store: w.mem, after: at(first - 1), list: tt.list}
				d.Store = store
				sweeps, err := New(w.config, d)
				w.must(err)
				j := &journal{}
				if _, err := j.run(t, sweeps); !errors.Is(err, tt.want) {
					t.Fatalf("got %v", err)
				}
				if at, err := decode(j.last.GetCursor()); err != nil || at.After != store.after || at.Lacking != 0 ||
					j.last.GetFinished() != nil || len(j.findings) > 0 || w.opened > 0 {
					t.Errorf("the checkpoint is %v, %v; %d findings, %d incidents", at, err, len(j.findings), w.opened)
				}
				store.list, store.asked = nil, nil
				results, err := j.run(t, sweeps)
				w.must(err)
				n := results[0].Counts
				if n["equal"] != pages*size-1 || n["missing"] != 1 || n["adopted"] != 1 || len(j.findings) != 1 {
					t.Errorf("counted %v, %d findings", n, len(j.findings))
				}
				if store.asked[0] != store.after {
					t.Errorf("the round goes on after %q", store.asked[0])
				}
			})
		})
	}
}

// A listing without an end fills one page after the other, of the same size.
func TestEndlessListing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.config.AppearsWhole = true
		name := func(n int) string { return fmt.Sprintf("%09d", n) }
		d := w.deps()
		d.Store = endless{w.mem, name}
		pages, err := New(w.config, d)
		w.must(err)
		cursor := []byte(nil)
		round := sweep.Round{ID: schemas.ID("r"), Started: time.Now()}
		for n := range 500 {
			p, err := pages(t.Context(), round, cursor)
			w.must(err)
			at, err := decode(p.Next)
			w.must(err)
			if cursor = p.Next; p.Last || at.After != name(3*n+3) || len(p.Messages) != 3 || len(cursor) > 100 {
				t.Fatalf("page %d: %d messages, next %s", n, len(p.Messages), cursor)
			}
		}
	})
}

// endless lists items without an end.
type endless struct {
	storage.Store
	name func(n int) string
}

// List implements storage.Store.
func (s endless) List(_ context.Context, _, after string) iter.Seq2[storage.Object, error] {
	first := 0
	_, _ = fmt.Sscanf(after, "%d", &first)
	return func(yield func(storage.Object, error) bool) {
		for n := first + 1; yield(storage.Object{Item: s.name(n), Size: 1, Version: "v", Modified: time.Now()}, nil); n++ {
		}
	}
}

// Stat implements storage.Store.
func (s endless) Stat(_ context.Context, _, item string) (storage.Object, error) {
	return storage.Object{Item: item, Size: 1, Version: "v", Modified: time.Now()}, nil
}

// A space that goes while it is listed concludes nothing of what it lacks, also if that is little.
func TestSpaceGoesInALatePage(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.config.Page = 100
		w.fill(210)
		w.mem.Lose("photos", "i0205")
		w.expects() // the first look at its absence
		gone := &lateStore{Store: w.store, after: "i0199", list: items(storage.ErrNoSpace)}
		d := w.deps()
		d.Store = gone
		pages, err := New(w.config, d)
		w.must(err)
		j := &journal{}
		j.last = &pb.Checkpoint{Sweep: Name, Split: "acme/1/photos", Round: "before", Cursor: w.previous,
			Started: timestamppb.New(time.Now()), Finished: timestamppb.New(time.Now())}
		time.Sleep(time.Second)
		results, err := j.run(t, pages)
		w.must(err)
		if n := results[0].Counts; len(j.findings) > 0 || n["inconclusive"] != 10 ||
			!strings.Contains(w.incident, "the space is absent") {
			t.Errorf("counted %v, %d findings, incident %q", n, len(j.findings), w.incident)
		}
	})
}
