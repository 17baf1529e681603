package duplicate

import (
	"errors"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// lose removes a space with its items from a store, and makes it expected.
func (w *world) lose(store string) {
	if _, err := w.mem[store].Stat(w.t.Context(), "photos", "a.jpg"); err == nil {
		w.remove(store)
	}
	w.must(w.mem[store].DeleteSpace(w.t.Context(), "photos"))
	w.expect(store, pb.RecordState_RECORD_STATE_LIVE)
}

func (w *world) expect(store string, state pb.RecordState) {
	of := at(store)
	of.Item = ""
	w.journal.rows[of] = &pb.Record{State: state}
}

// An expected space that is absent is unknown: nothing is written, deleted or concluded by any command, and no attempt
// is used up. When it is no longer expected, it is absent.
func TestExpectedSpaceIsAbsent(t *testing.T) {
	tests := map[string]struct {
		store   string
		command func(*world) *pb.DuplicationCommand
		row     string // when the space is not expected any more
	}{
		"destination, item added": {"2", func(w *world) *pb.DuplicationCommand {
			return command(w.added("1", "hello"))
		}, "C5"},
		"destination, item deleted": {"2", func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "hello")))
			return command(w.gone("1"))
		}, "C8"},
		"destination, repair": {"2", func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "hello")))
			c := w.repair(w.journal.rows[at("2")].GetDigests())
			c.Repair.Failed = nil // it was absent
			return c
		}, "C0"},
		"destination, space": {"2", func(*world) *pb.DuplicationCommand { c := manual(); c.Item = ""; return c }, "S1"},
		"source, item deleted": {"1", func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "hello")))
			return command(w.gone("1"))
		}, "C7"},
		"source, space": {"1", func(*world) *pb.DuplicationCommand { c := manual(); c.Item = ""; return c }, "S2"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := tt.command(w)
			w.lose(tt.store)
			before := w.faulty["2"].Count("Put")
			unknown := func(why string) {
				t.Helper()
				if got, err := w.crash(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
					t.Errorf("%s: got %v, %v, want an error of class unavailable", why, got.result, err)
				}
				if _, err := w.mem[tt.store].StatSpace(t.Context(), "photos"); !errors.Is(err, storage.ErrNoSpace) {
					t.Errorf("%s: the space was made anew (%v)", why, err)
				}
			}
			unknown("expected")
			w.expect(tt.store, pb.RecordState_RECORD_STATE_UNSPECIFIED)
			unknown("not known whether it is")
			w.expect(tt.store, pb.RecordState_RECORD_STATE_LIVE)
			w.journal.err = errors.New("has not caught up")
			unknown("records do not answer")
			if n := w.faulty["2"].Count("Put"); n != before {
				t.Errorf("%d items were written", n-before)
			}
			w.journal.err = nil
			w.expect(tt.store, pb.RecordState_RECORD_STATE_NONE)
			if row := w.mustRun(c).result.GetDecision(); row != tt.row {
				t.Errorf("when it is not expected: row %s, want %s", row, tt.row)
			}
		})
	}
}

// A space that another command creates while the records are read is present, although the records still expect it.
func TestSpaceIsCreatedWhileRecordsAreRead(t *testing.T) {
	for name, tt := range map[string]struct {
		whole bool  // the command is of the space
		err   error // of the records
		row   string
	}{
		"an item":                     {false, nil, "C5"},
		"an item, records are silent": {false, errors.New("has not caught up"), "C5"},
		"the space":                   {true, nil, "S1b"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := command(w.added("1", "hello"))
			if tt.whole {
				c.Item = ""
			}
			w.lose("2")
			w.journal.err = tt.err
			w.journal.meanwhile = func() {
				w.must(w.mem["2"].CreateSpace(t.Context(), storage.Space{Name: "photos"}))
				w.journal.meanwhile, w.journal.err = nil, nil
			}
			if row := w.mustRun(c).result.GetDecision(); row != tt.row {
				t.Errorf("row %s, want %s", row, tt.row)
			}
		})
	}
}
