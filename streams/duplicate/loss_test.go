package duplicate

import (
	"errors"
	"testing"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

var chain = policy.Rules{Revision: 1, Deletes: policy.Propagate, Since: hour(-1000),
	Pairs: []policy.Pair{{Source: "1", Destination: "2"}, {Source: "2", Destination: "3"}}}

// tail decides about store 3, in a chain from 1 to 2 to 3, after a Change of store 2.
func tail(change *pb.Change) Decision {
	c := command(change)
	c.SourceStore, c.DestinationStore = "2", "3"
	s := Observation{Command: c, Rules: chain, Source: Side{Presence: Absent}, Destination: there("d3", a, 6)}
	to := row(live, "d3", a, 6)
	to.SourceTime = stamp(5) // of the content of store 2
	s.records(&pb.Record{State: tomb, Time: change.GetTime(), Origin: change.GetOrigin()}, to)
	return Decide(s)
}

// In a chain, a copy that was lost at 1 and 2 is deleted at 3 only if a client deleted, at 1, the content that 2 held.
func TestLossIsNoDelete(t *testing.T) {
	tests := map[string]struct {
		origin  pb.Origin // of the delete at 1
		deleted int
		held    int // the time of the content at 2
		result  string
		last    Row // decided about 3
	}{
		"a client's delete":                {pb.Origin_ORIGIN_CLIENT, 7, 5, "gone", "C7"},
		"a delete that was carried":        {pb.Origin_ORIGIN_DUPLICATION, 7, 5, "gone", "C7"},
		"a sweep misses it":                {pb.Origin_ORIGIN_SWEEP, 7, 5, "gone-unexplained", ""},
		"a check misses it":                {pb.Origin_ORIGIN_FIXITY, 7, 5, "gone-unexplained", ""},
		"a client wrote to 2 since":        {pb.Origin_ORIGIN_CLIENT, 4, 5, "gone-unexplained", ""},
		"a sweep misses it, 2 was younger": {pb.Origin_ORIGIN_SWEEP, 4, 5, "gone-unexplained", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			change := &pb.Change{Id: "x", Op: pb.Op_OP_DELETE, Account: "acme", Store: "1", Space: "photos", Item: "a.jpg",
				Time: stamp(tt.deleted), Origin: tt.origin}
			c := command(change)
			sides := &Sides{Command: c, Copy: at("2")}
			s := Observation{Command: c, Rules: chain, Source: Side{Presence: Absent},
				Destination: Side{Presence: Absent, AbsentAt: hour(8)}}
			s.records(&pb.Record{State: tomb, Time: stamp(tt.deleted), Origin: tt.origin}, row(live, "d2", a, tt.held))
			d := Decide(s)
			if d.Row != "C8" || d.Result != tt.result || d.Announce != (tt.last != "") {
				t.Fatalf("about 2: %+v", d)
			}
			if !d.Announce {
				return
			}
			if last := tail(sides.DeleteChange(s, d)); last.Row != tt.last || last.NeedsApproval {
				t.Errorf("about 3: %+v", last)
			}
		})
	}
}

// A copy whose loss is not explained stays on record, for a check or an operator, however often the command runs.
func TestLostCopyStaysOnRecord(t *testing.T) {
	w := newWorld(t)
	w.mustRun(command(w.added("1", "hello")))
	w.remove("2")
	found := record.Delete(at("1"), w.remove("1"))
	found.Origin = pb.Origin_ORIGIN_SWEEP // no client reported it
	w.journal.add(record.Seal(found))
	c := command(found)
	for range 2 {
		w.mustRun(c).ends("C8", "gone-unexplained", nothing, 0, 0)
	}
	if r := w.journal.rows[at("2")]; r.GetState() != live {
		t.Errorf("on record: %v", r)
	}
	c.Approved = "eve" // she confirms the delete
	c.IfAbsent = false
	w.mustRun(c).ends("C8", "gone", nothing, 1, 0)
	w.mustRun(c).ends("C8", "gone", nothing, 0, 0)
}

// An unobserved DELETE of a copy is dated by the clock of its store, and not after the observation: a copy that is made
// later is on record as live, whichever way the clocks differ.
func TestTimeOfAnUnobservedDelete(t *testing.T) {
	for name, tt := range map[string]struct{ deleted, want time.Time }{
		"the source's clock is ahead":  {hour(12), hour(10).Add(time.Millisecond)}, // of the observation
		"the source's clock is behind": {hour(9).Add(time.Minute), hour(10)},       // of the copy's content
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t) // the destination's clock is at hour 10
			w.mustRun(command(w.added("1", "hello")))
			w.remove("2")
			w.remove("1")
			gone := w.reported(&pb.Change{Op: pb.Op_OP_DELETE, Account: "acme", Store: "1", Space: "photos", Item: "a.jpg",
				Time: ms(tt.deleted)})
			// A fault, an execution whose messages are lost, and one that publishes the same Change.
			w.faulty["2"].Script(storagetest.Fault{Method: "Stat"})
			if _, err := w.run(command(gone), 0); err == nil {
				t.Fatal("no error")
			}
			first, err := w.crash(command(gone), 0)
			w.must(err)
			got := w.mustRun(command(gone))
			got.ends("C8", "gone", nothing, 1, 0)
			if got.changes[0].GetId() != first.changes[0].GetId() {
				t.Errorf("the second execution publishes %v, the first %v", got.changes[0], first.changes[0])
			}
			if at := got.changes[0].GetTime().AsTime(); !at.Equal(tt.want) {
				t.Errorf("dated %v, want %v", at, tt.want)
			}
			back := w.put("1", "hello")
			w.mem["1"].Date("photos", "a.jpg", hour(13))
			back.Modified = hour(13)
			c := command(w.reported(record.Content(at("1"), back)))
			w.mustRun(c).ends("C5", "copied", done, 1, 1)
			w.holds("2", "hello")
			if r := w.journal.rows[at("2")]; r.GetState() != live {
				t.Errorf("the copy is there, and on record is %v", r)
			}
		})
	}
}

// The DELETE of a content of unknown size has an unknown size.
func TestDeleteOfAnUnknownSize(t *testing.T) {
	c := command(&pb.Change{Id: "x", Op: pb.Op_OP_DELETE, Store: "1", Time: stamp(4)})
	s := Observation{Command: c}
	s.records(row(tomb, "", "", 4), unsized(row(live, "", a, 2)))
	if got := (&Sides{Command: c, Copy: at("2")}).DeleteChange(s, Decision{Deleted: hour(4)}); !got.GetSizeUnknown() ||
		got.GetSize() != 0 {
		t.Errorf("got %v", got)
	}
}

// An item that is back under its tombstone is not copied, but checked. A client's change of content is copied all the
// same.
func TestResurrected(t *testing.T) {
	w := newWorld(t)
	change := w.added("1", "hello")
	from, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	w.gone("1")
	w.put("1", "hello")
	w.mem["1"].Date("photos", "a.jpg", from.Modified) // restored from an old disk
	for range 2 {
		got := w.mustRun(manual())
		got.ends("C4r", "resurrected", handedOn, 0, 1)
		for _, tasks := range got.tasks {
			if tasks[0].GetStore() != "1" || tasks[0].GetReason() != pb.FixityReason_FIXITY_REASON_SUSPECT {
				t.Errorf("task: %v", tasks[0])
			}
		}
		w.holds("2", "")
	}
	w.mustRun(command(change)).ends("C5", "copied", done, 1, 1)
	w.mustRun(manual()).ends("C4r", "resurrected", handedOn, 0, 1)
	w.untouched("1")
}

// If the records were lost and a check recorded rotten bytes, a copy of the same version with other bytes prevents the
// copy. Without such a copy, nothing is decided before the records are read.
func TestRotIsNotCopiedIfRecordsWereLost(t *testing.T) {
	w := newWorld(t)
	w.put("1", "hello")
	w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello")) // its store reports no digests
	w.mustRun(manual()).ends("C5", "copied", done, 2, 1)
	w.mem["1"].Corrupt("photos", "a.jpg", []byte("hellO"))
	clear(w.journal.rows)
	o, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	sum, err := readDigests(t.Context(), w.mem["1"], at("1"), "", nil)
	w.must(err)
	o.Digests = sum
	taken := record.Content(at("1"), o)
	taken.Origin, taken.Approved = pb.Origin_ORIGIN_FIXITY, "checker"
	w.journal.add(record.Seal(taken))
	c := command(taken)
	for range 2 {
		w.mustRun(c).ends("C4s", "source-suspect", handedOn, 0, 2)
		w.holds("2", "hello")
	}
	w.put("2", "hello")
	w.journal.err = errors.New("the tables hold less than was committed")
	if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("records unknown: got %v", err)
	}
	w.holds("2", "hello")
}

// An item that was adopted in the middle of a chain 0 → 1 → 2 is copied no further, by a sweep either.
func TestAdoptedInTheMiddleOfAChain(t *testing.T) {
	w := newWorld(t)
	w.rules.Pairs = []policy.Pair{{Source: "0", Destination: "1"}, pair}
	c := record.Content(at("1"), w.put("1", "planted"))
	c.Origin = pb.Origin_ORIGIN_SWEEP
	w.journal.add(record.Seal(c))
	command := swept()
	command.IfAbsent = true
	w.mustRun(command).ends("C7c", "orphan", nothing, 0, 0)
	if o, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg"); !errors.Is(err, storage.ErrNotFound) &&
		!errors.Is(err, storage.ErrNoSpace) {
		t.Errorf("store 2 has %v, %v", o, err)
	}
}

// A sweep overwrites nothing that another program wrote to a destination, whether that is on record by now or not.
func TestReplacedAtTheDestination(t *testing.T) {
	for name, found := range map[string]bool{"found by a sweep": true, "not found yet": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.mustRun(command(w.added("1", "hello")))
			c := record.Content(at("2"), w.put("2", "written by another program"))
			c.Op, c.Origin, c.Time = pb.Op_OP_UPDATE, pb.Origin_ORIGIN_SWEEP, stamp(11)
			if found {
				w.journal.add(record.Seal(c))
			}
			got, err := w.run(swept(), len(intervals))
			w.must(err)
			if found {
				got.ends("C4", "copy-differs", nothing, 0, 0)
			} else {
				got.ends("C4d", "destination-suspect", handedOn, 0, 1)
			}
			w.holds("2", "written by another program")
		})
	}
}

// A client that sets properties of an item that another program has replaced does not report its content, so the copy
// is not overwritten.
func TestPropertiesOfContentThatNoClientReported(t *testing.T) {
	for name, found := range map[string]bool{"found by a sweep": true, "not found yet": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.mustRun(command(w.added("1", "hello")))
			c := record.Content(at("1"), w.put("1", "encrypted by a worm"))
			c.Op, c.Origin, c.Time = pb.Op_OP_UPDATE, pb.Origin_ORIGIN_SWEEP, stamp(11)
			if found {
				w.journal.add(record.Seal(c))
			}
			o, err := w.mem["1"].SetProperties(t.Context(), "photos", "a.jpg", storage.Properties{MediaType: "text/plain"},
				storage.Condition{})
			w.must(err)
			set := record.Content(at("1"), o)
			set.Op, set.Time = pb.Op_OP_SET_PROPERTIES, stamp(12)
			got, err := w.run(command(w.reported(set)), len(intervals))
			w.must(err)
			got.ends("C4", "copy-differs", nothing, 0, 0)
			w.holds("2", "hello")
		})
	}
}

// A client's delete that is reported late, under the tombstone of a sweep that had found it, is a fact.
func TestDeleteIsReportedAfterASweepFoundIt(t *testing.T) {
	prepare := func(t *testing.T) (*world, *pb.DuplicationCommand) {
		w := newWorld(t)
		w.mustRun(command(w.added("1", "hello")))
		late := record.Delete(at("1"), w.remove("1"))
		late.Time = stamp(11)
		guess := record.Delete(at("1"), storage.Deleted{})
		guess.Time, guess.Origin = stamp(12), pb.Origin_ORIGIN_SWEEP
		w.journal.add(record.Seal(guess))
		return w, command(w.reported(late))
	}
	t.Run("the copy is there", func(t *testing.T) {
		w, c := prepare(t)
		got := w.mustRun(c)
		got.ends("C7", "deletion-ordered", handedOn, 0, 0)
		if len(got.orders) != 1 || got.orders[0].GetNeedsApproval() || !got.orders[0].GetDeleted().AsTime().Equal(hour(11)) {
			t.Errorf("orders: %v", got.orders)
		}
	})
	t.Run("the copy is gone", func(t *testing.T) {
		w, c := prepare(t)
		w.remove("2")
		w.mustRun(c).ends("C8", "gone", nothing, 1, 0)
	})
}
