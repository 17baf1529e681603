package duplicate

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// copiedFrom makes the destination a copy of the source's content of an hour, with bytes b, made in that hour.
func (s *Observation) copiedFrom(h int) {
	s.Destination = there("d1", b, h)
	s.Destination.Object.Original = storage.Original{Modified: hour(h), Version: "v0"}
}

// copyOf makes a row that of a copy of the source's content of hour 1.
func copyOf(r *pb.Record) *pb.Record {
	r.SourceTime, r.SourceVersion, r.Origin = stamp(1), "v0", pb.Origin_ORIGIN_DUPLICATION
	return r
}

// ahead dates the source's object 98 hours later than its Change takes effect.
func (s *Observation) ahead() {
	s.Source.Object.Modified, s.Command.ChangeTime, s.Command.Effective = hour(100), stamp(100), stamp(2)
}

func by(o pb.Origin, r *pb.Record) *pb.Record {
	r.Origin = o
	return r
}

// olderCases are those in which the records are read, or not, to tell older content from newer.
func olderCases() map[string]decisionCase {
	const client, repaired = pb.Origin_ORIGIN_CLIENT, pb.Origin_ORIGIN_REPAIR
	read := Decision{Row: "C9", action: actReadRecords}
	unknown := Decision{Row: "C9", action: actFail}
	older := Decision{Row: "C4o", action: actWait, Result: "copy-differs", CheckSource: true}
	written := Decision{Row: "C4o", action: actWait, Result: "copy-differs"}
	over := Decision{Row: "C4", action: actCopy, Result: "copied", Expected: md5of(a)}
	absent := Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}
	back := Decision{Row: "C4r", Result: "resurrected", CheckSource: true}
	source := func() *pb.Record { return by(client, row(live, "v1", a, 2)) }
	newer := func() *pb.Record { return by(client, row(live, "v2", b, 3)) }
	return map[string]decisionCase{
		"C4: a recent change, over a copy of older content": {func(s *Observation) { s.copiedFrom(1) }, over},
		"C9: over a copy of content of the same time": {func(s *Observation) {
			s.copiedFrom(2)
			s.Destination.Object.Modified = hour(1)
		}, read},
		"C9: over a copy of content with an older date, which was made since the change": {func(s *Observation) {
			s.copiedFrom(1)
			s.Destination.Object.Modified = hour(3)
		}, read},
		"C9: so it was, in the same second": {func(s *Observation) {
			s.copiedFrom(1)
			s.Destination.Object.Modified = hour(2)
			s.Command.ChangeTime = timestamppb.New(hour(2).Add(900 * time.Millisecond))
		}, read},
		"C9: over a copy that was made since the change, which is dated ahead": {func(s *Observation) {
			s.copiedFrom(1)
			s.ahead()
			s.Destination.Object.Modified = hour(3)
		}, read},
		"C9: over a copy of later content":                {func(s *Observation) { s.copiedFrom(3) }, read},
		"C9: over content that is not known to be a copy": {func(s *Observation) { s.copied("d1", b) }, read},
		"C9: a change that is not recent, over a copy": {func(s *Observation) {
			s.old = true
			s.copiedFrom(1)
		}, read},
		"C9: a change that is not recent": {func(s *Observation) { s.old = true }, read},
		"C9: a sweep's command that is not recent": {func(s *Observation) {
			s.old = true
			s.bySweep(source(), row(none, "", "", 0))
		}, read},
		"C9: it is not known whether the source has older content": {func(s *Observation) {
			s.old, s.recordsState = true, recordsFailed
		}, unknown},
		"C9: it is not known who wrote the destination": {func(s *Observation) {
			s.copied("d1", b)
			s.recordsState = recordsFailed
		}, unknown},

		"C5: not recent, and the newest on record": {func(s *Observation) {
			s.old = true
			s.records(source(), row(none, "", "", 0))
		}, absent},
		"C4: not recent, and the newest on record": {func(s *Observation) {
			s.old = true
			s.copiedFrom(1)
			s.records(source(), copyOf(row(live, "d1", b, 3)))
		}, over},
		"C4: put back with an old date, over a copy of later content": {func(s *Observation) {
			s.copiedFrom(5)
			s.records(source(), copyOf(row(live, "d1", b, 6)))
		}, over},
		"C4: the record of the source has nothing to differ in": {func(s *Observation) {
			s.old = true
			s.copiedFrom(1)
			s.records(unsized(row(live, "", "", 2)), copyOf(row(live, "d1", b, 3)))
		}, over},
		"C4o: the newest record of the source is another content": {func(s *Observation) {
			s.old = true
			s.copiedFrom(3)
			s.records(newer(), copyOf(row(live, "d1", b, 3)))
		}, older},
		"C4o: so it is, and the destination is absent": {func(s *Observation) {
			s.old = true
			s.records(newer(), row(none, "", "", 0))
		}, older},
		"C4o: so it is, and the destination is on no record": {func(s *Observation) {
			s.copied("d1", b)
			s.records(newer(), row(none, "", "", 0))
		}, older},
		"C4o: so it is, under a hold": {func(s *Observation) {
			s.Hold = &policy.Hold{Reason: "a lawsuit"}
			s.copiedFrom(3)
			s.records(newer(), copyOf(row(live, "d1", b, 3)))
		}, older},
		"C4o: a client has set properties of content that is not on record": {func(s *Observation) {
			s.setCause(pb.Op_OP_SET_PROPERTIES, "v1", a, 2)
			s.records(newer(), row(none, "", "", 0))
		}, older},

		"C4o: only a check says that the source's object is newer than the one that was copied": {func(s *Observation) {
			s.copiedFrom(3)
			s.records(by(pb.Origin_ORIGIN_FIXITY, row(live, "v1", a, 4)), copyOf(row(live, "d1", b, 3)))
		}, written},
		"C4: so says a check, and the one that was copied has an older date": {func(s *Observation) {
			s.copiedFrom(1)
			s.records(by(pb.Origin_ORIGIN_FIXITY, row(live, "v1", a, 4)), copyOf(row(live, "d1", b, 3)))
		}, over},

		"C4o: a client has written the destination": {func(s *Observation) {
			s.copied("d1", b)
			s.records(source(), by(client, row(live, "d1", b, 3)))
		}, written},
		"C4o: a client has written the destination, and a sweep compares them": {func(s *Observation) {
			s.bySweep(source(), by(client, row(live, "d1", b, 3)))
			s.copied("d1", b)
		}, written},
		"C4o: a client has written the destination, and the source is dated ahead": {func(s *Observation) {
			s.ahead()
			s.copied("d1", b)
			from := source()
			from.Reported = stamp(100)
			s.records(from, by(client, row(live, "d1", b, 3)))
		}, written},
		"C4o: a restore order has written the destination": {func(s *Observation) {
			s.copied("d1", b)
			s.records(source(), by(repaired, row(live, "d1", b, 3)))
		}, written},
		"C4: a client has written the destination before": {func(s *Observation) {
			s.Destination = there("d1", b, 1)
			s.records(source(), by(client, row(live, "d1", b, 1)))
		}, over},
		"C4: the destination is a copy that was repaired": {func(s *Observation) {
			s.copied("d1", b)
			s.records(source(), by(repaired, copyOf(row(live, "d1", b, 3))))
		}, over},
		"C4: the destination is a copy of unknown content": {func(s *Observation) {
			s.copied("d1", b)
			s.records(source(), by(pb.Origin_ORIGIN_DUPLICATION, row(live, "d1", b, 3)))
		}, over},
		"C4: a client had written the destination, which has other content by now": {func(s *Observation) {
			s.copied("d2", b)
			s.records(source(), by(client, row(live, "d1", a, 3)))
		}, over},
		"C4: a client has written the destination, and the rewrite was approved": {func(s *Observation) {
			s.Command.Approved, s.Command.List = "me", "rewrites-1"
			s.copied("d1", b)
			s.Command.Effect = s.effect(RowContentDiffers)
			s.records(newer(), by(client, row(live, "d1", b, 3)))
		}, over},

		"C9: a client's change that is not recent, over a tombstone": {func(s *Observation) {
			s.old = true
			s.copied("d1", a)
			s.Destination.Object.Original = record.Original(s.Source.Object)
		}, read},
		"C4r: a client's change, under a younger tombstone": {func(s *Observation) {
			s.records(row(tomb, "v1", a, 4), row(none, "", "", 0))
		}, back},
		"C4r: a client's change that is dated ahead, under a younger tombstone": {func(s *Observation) {
			s.ahead()
			s.records(row(tomb, "v1", a, 4), row(none, "", "", 0))
		}, back},
		"C5: a client's change, under a tombstone, and the same bytes were put again": {func(s *Observation) {
			s.Source = there("v2", a, 5)
			s.records(row(tomb, "v1", a, 4), row(none, "", "", 0))
		}, absent},
		"C5: a client's change, under an older tombstone": {func(s *Observation) {
			s.records(row(tomb, "v0", b, 1), row(none, "", "", 0))
		}, absent},
	}
}

func TestDecideOlder(t *testing.T) {
	for name, tt := range olderCases() {
		t.Run(name, func(t *testing.T) {
			if got := Decide(observation(tt.observe)); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// snapshot makes store 1 what it was when it held only the first content: its disk is restored, with the marker and the
// modification times.
func (w *world) snapshot(text string) {
	w.t.Helper()
	s, err := mem.New(mem.Config{ID: "1", Now: func() time.Time { return hour(9) }})
	w.must(err)
	s.Mark("1")
	w.must(s.CreateSpace(w.t.Context(), storage.Space{Name: "photos", Properties: map[string]string{"k": "v"}}))
	w.mem["1"], w.faulty["1"] = s, storagetest.NewFaulty(s)
	w.put("1", text)
}

// addedAt is added for store 1, with the time of an hour.
func (w *world) addedAt(h int, text string) *pb.Change {
	w.t.Helper()
	w.put("1", text)
	w.mem["1"].Date("photos", "a.jpg", hour(h))
	o, err := w.mem["1"].Stat(w.t.Context(), "photos", "a.jpg")
	w.must(err)
	return w.reported(record.Content(at("1"), o))
}

// What was changed since a snapshot of the source is not overwritten in the copies when the snapshot is back, whichever
// command names its content: they are the only good ones. Killed after any decision, the next execution decides alike.
func TestSourceFromASnapshot(t *testing.T) {
	for name, tt := range map[string]struct {
		hour   int // by the executor's clock
		date   int // of the new content
		before func(*mem.Store)
		holds  string
	}{
		"the old command is delivered again":                 {20, 10, func(*mem.Store) {}, "new"},
		"within the hour":                                    {9, 10, func(*mem.Store) {}, "new"},
		"within the hour, and the new one has an older date": {9, 1, func(*mem.Store) {}, "new"},
		"the copy does not say of what it is one": {9, 10, func(s *mem.Store) {
			s.Rewrite("photos", "a.jpg", []byte("new"))
		}, "new"},
		"the copy is lost": {20, 10, func(s *mem.Store) { s.Lose("photos", "a.jpg") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := command(w.added("1", "old"))
			w.mustRun(first)
			w.put("1", "new")
			w.mem["1"].Date("photos", "a.jpg", hour(tt.date))
			o, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			newer := record.Content(at("1"), o)
			record.At(newer, o, hour(10)) // as its event says
			w.mustRun(command(w.reported(newer))).ends("C4", "copied", done, 1, 1)
			w.snapshot("old")
			tt.before(w.mem["2"])
			w.now = hour(tt.hour)
			for waits := range intervals {
				if _, err := w.run(first, waits); retry.ClassOf(err) != retry.ClassWait {
					t.Errorf("after %d waits: %v", waits, err)
				}
			}
			for range 2 { // killed before its result was published
				got, err := w.crash(first, len(intervals))
				w.must(err)
				got.ends("C4o", "copy-differs", handedOn, 0, 1)
				if got.tasks[schemas.FixityHigh][0].GetStore() != "1" {
					t.Errorf("checked is %v", got.tasks)
				}
			}
			w.holds("2", tt.holds)
			w.journal.err = errors.New("ClickHouse is away")
			if _, err := w.run(first, 0); retry.ClassOf(err) != retry.ClassUnavailable {
				t.Errorf("without the records: %v", err)
			}
			w.holds("2", tt.holds)
		})
	}
}

// An operator accepts what a restored source holds: it is the newest on record then, and is copied.
func TestAcceptedSnapshot(t *testing.T) {
	w := newWorld(t)
	first := command(w.added("1", "old"))
	w.mustRun(first)
	w.mustRun(command(w.added("1", "new")))
	w.snapshot("old")
	w.now = hour(20)
	o, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	accepted := record.Content(at("1"), o)
	accepted.Time, accepted.Origin, accepted.Approved = stamp(19), pb.Origin_ORIGIN_FIXITY, "me"
	w.journal.add(record.Seal(accepted))
	w.mustRun(command(accepted)).ends("C4", "copied", done, 1, 1)
	w.holds("2", "old")
	w.mustRun(first).ends("C2", "in-sync", nothing, 0, 0)
}

// What was deleted since the snapshot does not come back in the copies.
func TestDeletedItemFromASnapshot(t *testing.T) {
	w := newWorld(t)
	first := command(w.added("1", "old"))
	w.mustRun(first)
	w.mustRun(command(w.gone("1"))).ends("C7", "deletion-ordered", handedOn, 0, 0)
	gone := record.Delete(at("2"), w.remove("2")) // as the deleter does
	gone.Origin = pb.Origin_ORIGIN_DUPLICATION
	w.journal.add(record.Seal(gone))
	w.snapshot("old")
	w.now = hour(20)
	for range 2 {
		w.mustRun(first).ends("C4r", "resurrected", handedOn, 0, 1)
	}
	w.holds("2", "")
}

// Store 2 was the source for a while, and a client wrote to it. Then the pair is 1 to 2 again, before the content was
// copied to 1.
func TestNewerContentAtTheDestination(t *testing.T) {
	for name, c := range map[string]func(*pb.Change) *pb.DuplicationCommand{
		"a sweep": func(*pb.Change) *pb.DuplicationCommand { return swept() }, "the old command": command,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := w.added("1", "old")
			w.mustRun(command(first))
			w.added("2", "newer")
			got, err := w.run(c(first), len(intervals))
			w.must(err)
			got.ends("C4o", "copy-differs", nothing, 0, 0)
			w.holds("2", "newer")
			w.mustRun(command(w.addedAt(12, "newest"))).ends("C4", "copied", done, 1, 1)
			w.holds("2", "newest")
		})
	}
}

// An operator restores the copies of a store that is read-only: what is found in the source afterwards, and was there
// before, does not undo it. A later write of a client is copied.
func TestRestoredCopyOutlivesItsSource(t *testing.T) {
	w, change := newRestoreWorld(t)
	bad := w.added("1", "XXXXX")
	for _, to := range []string{"2", "3"} {
		c := command(bad)
		c.DestinationStore = to
		w.mustRun(c).ends("C4", "copied", done, 1, 1)
	}
	now, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	o := order(change)
	o.SourceStore, o.DestinationStore = "3", "2"
	o.Restore.Replaces, o.Restore.List = record.Identity(now), ""
	w.proven = []digest.Set{change.GetDigests()}
	kept := w.mem["2"].AllKept()
	if len(kept) != 1 || string(kept[0].Bytes) != "hello" {
		t.Fatalf("kept: %v", kept)
	}
	o.Restore.Sources = []*pb.RestoreSource{{Store: "2", Kept: kept[0].ID}}
	got, follow := w.restored(o)
	got.ends("C0r", "restored", done, 1, 1)
	if len(follow) != 0 || got.changes[0].GetSourceTime() != nil {
		t.Fatalf("commands %v, change %v", follow, got.changes[0])
	}
	for name, c := range map[string]*pb.DuplicationCommand{"the command": command(bad), "a sweep": swept()} {
		got, err := w.run(c, len(intervals))
		w.must(err)
		if got.result.GetDecision() != "C4o" || got.result.GetResult() != "copy-differs" {
			t.Errorf("%s: %v", name, got.result)
		}
		w.holds("2", "hello")
	}
	// The source's content is deleted with a date before the order's.
	gone := w.reported(record.Delete(at("1"), w.remove("1")))
	w.mustRun(command(gone)).ends("C7d", "kept-newer", nothing, 0, 0)
	w.holds("2", "hello")
	w.mustRun(command(w.addedAt(12, "later"))).ends("C4", "copied", done, 1, 1)
	w.holds("2", "later")
}

// The source goes back to each of its contents, or to a deleted one, and all commands are delivered again, in any
// order: the copy never becomes older.
func TestCommandsOverASourceThatGoesBack(t *testing.T) {
	texts := []string{"0", "1", "2", "3"}
	for back, text := range texts {
		for last := range texts { // what was copied before
			for order := range 24 {
				w := newWorld(t)
				var commands []*pb.DuplicationCommand
				for i, text := range texts {
					c := command(w.addedAt(i+1, text))
					if commands = append(commands, c); i == last {
						w.mustRun(c)
					}
				}
				if last == 3 && order%2 == 1 { // deleted, and not carried out yet
					gone := record.Delete(at("1"), w.remove("1"))
					gone.Time = stamp(6)
					w.reported(gone)
				}
				w.put("1", text)
				w.mem["1"].Date("photos", "a.jpg", hour(back+1))
				w.now = hour(20)
				for n, rest := order, slices.Clone(commands); len(rest) > 0; n /= 4 {
					i := n % len(rest)
					if _, err := w.run(rest[i], len(intervals)); err != nil {
						t.Fatal(err)
					}
					rest = slices.Delete(rest, i, i+1)
				}
				want := texts[last]
				if back == 3 && !(last == 3 && order%2 == 1) {
					want = "3"
				}
				w.holds("2", want)
			}
		}
	}
}
