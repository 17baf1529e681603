package duplicate

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// slow records take so long to read that the stores change meanwhile.
type slow struct {
	*journal
	meanwhile func()
}

func (r *slow) Fresh(ctx context.Context, c []schemas.Copy) ([]*pb.CopyRecord, error) {
	records, err := r.journal.Fresh(ctx, c)
	if f := r.meanwhile; f != nil {
		r.meanwhile = nil
		f()
	}
	return records, err
}

// slowly calls f while records are read for the first time.
func (w *world) slowly(f func()) {
	w.t.Helper()
	var err error
	w.executor, err = New(Config{Now: w.time, WaitIntervals: intervals, MissingIntervals: missing}, w, w,
		&slow{w.journal, f})
	w.must(err)
}

// A decision from records uses an observation that began after the records were read.
func TestStoresAreObservedAfterTheRecords(t *testing.T) {
	tests := map[string]struct {
		meanwhile   func(*world)
		row, result string
		outcome     pb.Outcome
		changes     int
		tasks       int
		held        string // content of the destination
	}{
		"nothing":              {func(*world) {}, "C2", "in-sync", nothing, 0, 0, "hello"},
		"the copy is deleted":  {func(w *world) { w.remove("2") }, "C5", "copied", done, 1, 1, "hello"},
		"the copy is lost":     {func(w *world) { w.mem["2"].Lose("photos", "a.jpg") }, "C5", "copied", done, 1, 1, "hello"},
		"the copy is replaced": {func(w *world) { w.put("2", "other") }, "C4", "copied", done, 1, 1, "hello"},
		// The event at the source was not on record yet: its own command follows.
		"the source is replaced": {func(w *world) { w.added("1", "world") }, "C4w", "", 0, 0, 0, "hello"},
		"the source is deleted":  {func(w *world) { w.gone("1") }, "C6", "", 0, 0, 0, "hello"},
		"both are put back the same": {func(w *world) {
			w.added("2", "hello")
			w.added("1", "hello")
		}, "C2", "in-sync", nothing, 1, 1, "hello"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := command(w.added("1", "hello"))
			w.mustRun(c)
			w.slowly(func() { tt.meanwhile(w) })
			got, err := w.run(c, 0)
			if tt.result == "" {
				if retry.ClassOf(err) != retry.ClassWait {
					t.Errorf("got %v", err)
				}
				return
			}
			w.must(err)
			got.ends(tt.row, tt.result, tt.outcome, tt.changes, tt.tasks)
			w.holds("2", tt.held)
			w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
			w.untouched("1")
		})
	}
}

// If the observation after the reading of records fails, the one before it decides nothing.
func TestSecondObservationFails(t *testing.T) {
	for _, store := range []string{"1", "2"} {
		t.Run(store, func(t *testing.T) {
			w := newWorld(t)
			c := command(w.added("1", "hello"))
			w.mustRun(c)
			w.slowly(func() {
				w.remove("2")
				w.faulty[store].Script(storagetest.Fault{Method: "Stat", Err: retry.Unavailable(errors.New("unavailable"))})
			})
			if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
				t.Errorf("got %v", err)
			}
			w.mustRun(c).ends("C5", "copied", done, 1, 1)
		})
	}
}

// An absence in the second observation is confirmed like any other: by the marker read after it.
func TestSecondObservationReadsTheMarker(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	w.mustRun(c)
	w.slowly(func() { w.remove("2"); w.mem["2"].Mark("") })
	if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
}

// A source is deleted and put back with the same bytes while its copy is deleted. In the end it has its copy, wherever
// the executor is killed.
func TestPutBackWhileTheCopyIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.mustRun(command(w.added("1", "hello")))
	w.gone("1")
	c := command(w.added("1", "hello"))
	w.slowly(func() { w.gone("2") }) // the delete of the copy was decided before
	if _, err := w.crash(c, 0); err != nil {
		t.Fatal(err)
	}
	w.holds("2", "hello")
	w.mustRun(c).ends("C2", "in-sync", nothing, 1, 1) // its Change was lost
	if r := w.journal.rows[at("2")]; r.GetState() != live {
		t.Errorf("on record: %v", r)
	}
	w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
}
