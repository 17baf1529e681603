package fixity

import (
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// vanish removes the space and its items without a Change.
func (w *world) vanish() {
	if _, err := w.mem.Stat(w.t.Context(), at.Space, at.Item); err == nil {
		w.delete()
	}
	must(w.t, w.mem.DeleteSpace(w.t.Context(), at.Space))
}

func (w *world) hasIncident(want string) {
	w.t.Helper()
	if w.incident != want {
		w.t.Errorf("incident of the space is %q, want %q", w.incident, want)
	}
}

// An expected space that is absent is unknown until an administrator declares it gone: there is one incident of the
// space, and nothing is concluded of its copies. Then it is absent.
func TestExpectedSpaceIsAbsent(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.vanish()
		next := task(w.record)
		for range 6 {
			o := w.handle(next)
			w.is(o, 12, pb.Verdict_VERDICT_UNKNOWN, false)
			if r := o.result; r.GetDetail() != detailNoSpace || r.GetContent().GetState() != stUnknown ||
				r.GetStored().GetState() != stUnknown {
				t.Errorf("detail %q, C %v, S %v", r.GetDetail(), r.GetContent(), r.GetStored())
			}
			w.hasIncident("open")
			time.Sleep(time.Until(o.due))
			next = o.again
		}
		w.space = pb.RecordState_RECORD_STATE_NONE
		w.is(w.handle(next), 8, pb.Verdict_VERDICT_UNDECIDED, false)
		w.hasIncident("closed")
		w.is(w.last(next), 8, pb.Verdict_VERDICT_MISSING, true)
	})
}

func TestAbsentSpace(t *testing.T) {
	const live, none, unknown = pb.RecordState_RECORD_STATE_LIVE, pb.RecordState_RECORD_STATE_NONE,
		pb.RecordState_RECORD_STATE_UNSPECIFIED
	tests := map[string]struct {
		prepare  func(*world)
		space    pb.RecordState
		row      int32
		incident string
	}{
		"expected":                              {func(*world) {}, live, 12, "open"},
		"expected, though this copy is deleted": {(*world).bury, live, 12, "open"},
		"expected, and this copy on no record":  {func(w *world) { w.record = nothing() }, live, 12, "open"},
		"expected, and the bytes are not read":  {func(w *world) { w.settings.NeverRead = true }, live, 12, "open"},
		"not known whether it is expected":      {func(*world) {}, unknown, 12, ""},
		"not known, with an incident":           {func(w *world) { w.incident = "open" }, unknown, 12, "open"},
		"records do not answer": {func(w *world) {
			w.incident = "open"
			w.fresh = func() ([]*pb.CopyRecord, error) { return nil, errors.New("has not caught up") }
		}, live, 12, "open"},
		"store without its marker": {func(w *world) { w.mem.Mark("9") }, live, 12, ""},
		"deleted by a client":      {(*world).bury, none, 11, ""},
		"said to be gone":          {func(w *world) { w.incident = "open" }, none, 8, "closed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.vanish()
				w.space = tt.space
				tt.prepare(w)
				if row := w.handle(task(nil)).result.GetRow(); row != tt.row {
					t.Errorf("got row %d, want %d", row, tt.row)
				}
				w.hasIncident(tt.incident)
			})
		})
	}
}

// A check that finds the space closes the incident, and no other does.
func TestSpaceComesBack(t *testing.T) {
	tests := map[string]struct {
		prepare  func(*world)
		incident string
	}{
		"with the item":          {func(*world) {}, "closed"},
		"with the item, corrupt": {func(w *world) { w.mem.Corrupt(at.Space, at.Item, []byte(rot)) }, "closed"},
		"without the item":       {func(w *world) { w.mem.Lose(at.Space, at.Item) }, "closed"},
		"in another store's place": {func(w *world) {
			w.mem.Lose(at.Space, at.Item)
			w.mem.Mark("9")
		}, "open"},
		"in a store that is unavailable": {func(w *world) { w.store.Script(storagetest.Fault{Method: "Stat"}) }, "open"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.incident = "open"
				tt.prepare(w)
				w.handle(task(w.record))
				w.hasIncident(tt.incident)
			})
		})
	}
}

// A space that disappears, or appears, while the records are read is observed again.
func TestSpaceGoesWhileRecordsAreRead(t *testing.T) {
	tests := map[string]struct {
		before, meanwhile func(*world)
		row               int32
		incident          string
	}{
		"goes":  {func(w *world) { w.mem.Lose(at.Space, at.Item) }, (*world).vanish, 12, "open"},
		"comes": {(*world).vanish, func(w *world) { w.create(); w.put(good); w.record = w.now() }, 1, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				tt.before(w)
				w.space = map[string]pb.RecordState{"goes": pb.RecordState_RECORD_STATE_LIVE,
					"comes": pb.RecordState_RECORD_STATE_NONE}[name]
				w.fresh = func() ([]*pb.CopyRecord, error) {
					if w.asked == 1 {
						tt.meanwhile(w)
					}
					return []*pb.CopyRecord{w.record}, nil
				}
				if row := w.handle(task(nil)).result.GetRow(); row != tt.row {
					t.Errorf("got row %d, want %d", row, tt.row)
				}
				w.hasIncident(tt.incident)
			})
		})
	}
}

// The incident is published before the result is returned. If that fails there is no result, and the task is handled
// again.
func TestIncidentOfSpaceIsNotPublished(t *testing.T) {
	for name, done := range map[string]bool{"failed": false, "done but reported as failed": true} {
		for _, change := range []string{"open", "closed"} {
			t.Run(change+", "+name, func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					if change == "open" {
						w.vanish()
					} else {
						w.incident = "open"
					}
					unavailable := errors.New("no leader")
					w.publish = func() (bool, error) { return done, unavailable }
					got, err := w.checker().Handle(t.Context(), &schemas.Delivery{Body: task(w.record), Attempt: 1})
					if !errors.Is(err, unavailable) || got != nil {
						t.Errorf("got %v, %v, want only the error", got, err)
					}
					w.publish = nil
					w.handle(task(w.record))
					w.hasIncident(change)
					w.handle(task(w.record)) // the result was lost
					w.hasIncident(change)
				})
			})
		}
	}
}
