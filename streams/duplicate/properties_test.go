package duplicate

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// Stores that were restored without properties change no properties in other stores or on record, however often their
// items are observed.
func TestRestoredWithoutProperties(t *testing.T) {
	for name, lost := range map[string][]string{"source": {"1"}, "destination": {"2"}, "both": {"1", "2"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := command(w.added("1", "hello"))
			w.mustRun(c)
			for _, store := range lost {
				w.mem[store].Strip("photos", "a.jpg")
			}
			w.faulty["2"] = storagetest.NewFaulty(w.mem["2"]) // resets the count of calls
			for _, c := range []*pb.DuplicationCommand{c, c, manual(), manual()} {
				got := w.mustRun(c)
				if r := got.result; r.GetDecision() != "C2u" || r.GetResult() != "properties-unknown" ||
					r.GetOutcome() != handedOn {
					t.Errorf("got %v", r)
				}
				var checked []string
				for _, task := range got.tasks[schemas.FixityHigh] {
					if task.GetReason() == pb.FixityReason_FIXITY_REASON_SUSPECT {
						checked = append(checked, task.GetStore())
					}
				}
				if !reflect.DeepEqual(checked, lost) {
					t.Errorf("checks of stores %q, want %q", checked, lost)
				}
				for _, change := range got.changes {
					if !change.GetPropertiesUnknown() || change.GetOp() == pb.Op_OP_SET_PROPERTIES {
						t.Errorf("change of properties: %v", change)
					}
				}
			}
			w.untouched("1")
			w.untouched("2")
			for _, store := range []string{"1", "2"} {
				if r := w.journal.rows[at(store)]; r.GetMediaType() != "image/jpeg" || r.GetProperties()["by"] != "me" {
					t.Errorf("on record of store %s: %v", store, r)
				}
			}
		})
	}
}

// A copy of a source that has lost its properties gets those on record. If there are none, its Change says unknown, not
// none. A second execution, after a loss or a fault, ends alike.
func TestCopyOfLostProperties(t *testing.T) {
	image := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	lostAnswer := storagetest.Fault{Method: "Put", Applied: true}
	ran := func(w *world, c *pb.DuplicationCommand) did { return w.mustRun(c) }
	for name, tt := range map[string]struct {
		onRecord bool
		run      func(*world, *pb.DuplicationCommand) did
		row      string
	}{
		"on record":                                     {true, ran, "C5"},
		"not on one":                                    {false, ran, "C5"},
		"killed before it published, on record":         {true, killed, "C2u"},
		"killed before it published, not on one":        {false, killed, "C2"},
		"put failed":                                    {true, fails(storagetest.Fault{Method: "Put"}), "C5"},
		"put done, and said to have failed":             {true, fails(lostAnswer), "C2u"},
		"not on one, put done, and said to have failed": {false, fails(lostAnswer), "C2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put("1", "hello")
			if tt.onRecord {
				o, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
				w.must(err)
				w.reported(record.Content(at("1"), o))
			}
			w.mem["1"].Strip("photos", "a.jpg")
			from, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			c := w.reported(record.Content(at("1"), from))
			if c.GetPropertiesUnknown() != true {
				t.Fatalf("the Change of the source: %v", c)
			}
			got := tt.run(w, command(c))
			if row := got.result.GetDecision(); row != tt.row {
				t.Errorf("row %s, want %s", row, tt.row)
			}
			var change *pb.Change
			for _, c := range got.changes {
				if c.GetStore() == "2" {
					change = c
				}
			}
			to, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			want := storage.Properties{}
			if tt.onRecord {
				want = image
			}
			announced := storage.Properties{MediaType: change.GetMediaType(), User: change.GetProperties()}
			if !reflect.DeepEqual(to.Properties, want) || !reflect.DeepEqual(announced, want) ||
				change.GetPropertiesUnknown() == tt.onRecord {
				t.Errorf("the copy has %+v, want %+v; its Change is %v", to.Properties, want, change)
			}
			w.untouched("1")
			w.holds("2", "hello")
			if sets := w.faulty["2"].Count("SetProperties"); sets > 0 {
				t.Errorf("properties were set %d times", sets)
			}
		})
	}
}

// killed executes a command, loses its messages, and executes it again.
func killed(w *world, c *pb.DuplicationCommand) did {
	w.t.Helper()
	_, err := w.crash(c, 0)
	w.must(err)
	return w.mustRun(c)
}

// fails executes a command while the destination has a fault, and executes it again.
func fails(f storagetest.Fault) func(*world, *pb.DuplicationCommand) did {
	return func(w *world, c *pb.DuplicationCommand) did {
		w.t.Helper()
		w.faulty["2"].Script(f)
		if _, err := w.run(c, 0); err == nil {
			w.t.Fatal("no error")
		}
		return w.mustRun(c)
	}
}

// Nothing is decided about a copy that has lost its properties while its record cannot be read.
func TestLostPropertiesWithoutRecords(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	w.mem["1"].Strip("photos", "a.jpg")
	w.journal.err = errors.New("unavailable")
	if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	w.untouched("2")
}

// A repair from a copy that has lost its properties sets those on record.
func TestRepairFromACopyThatLostItsProperties(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	w.mustRun(c)
	w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
	w.mem["1"].Strip("photos", "a.jpg")
	got := w.mustRun(w.repair(c.GetDigests()))
	if got.result.GetResult() != "repaired" {
		t.Fatalf("got %v", got.result)
	}
	to, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	want := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	if !reflect.DeepEqual(to.Properties, want) || to.PropertiesUnknown {
		t.Errorf("the copy has %+v", to)
	}
	w.holds("2", "hello")
}

// Properties that a client sets at the source reach a destination that has lost its own.
func TestSetPropertiesIfTheDestinationLostIts(t *testing.T) {
	w := newWorld(t)
	w.mustRun(command(w.added("1", "hello")))
	w.mem["2"].Strip("photos", "a.jpg")
	set := storage.Properties{MediaType: "image/png"}
	o, err := w.mem["1"].SetProperties(t.Context(), "photos", "a.jpg", set, storage.Condition{})
	w.must(err)
	c := record.Content(at("1"), o)
	c.Op, c.Time = pb.Op_OP_SET_PROPERTIES, stamp(11)
	w.mustRun(command(w.reported(c))).ends("C3", "properties-set", done, 2, 0)
	to, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	if !reflect.DeepEqual(to.Properties, set) || to.PropertiesUnknown {
		t.Errorf("the copy has %+v", to)
	}
}

// overwritten makes another program store bytes at the source, with unknown properties, at an hour.
func (w *world) overwritten(text string, h int) *pb.Change {
	w.t.Helper()
	w.put("1", text)
	w.mem["1"].Strip("photos", "a.jpg")
	o, err := w.mem["1"].Stat(w.t.Context(), "photos", "a.jpg")
	w.must(err)
	c := record.Content(at("1"), o)
	c.Time = stamp(h)
	return w.reported(c)
}

// propertiesOf returns the properties of the destination's item.
func (w *world) propertiesOf(store string) storage.Properties {
	w.t.Helper()
	o, err := w.mem[store].Stat(w.t.Context(), "photos", "a.jpg")
	w.must(err)
	if o.PropertiesUnknown {
		w.t.Errorf("the properties in store %s are unknown", store)
	}
	return o.Properties
}

// executions are the ways in which a command ends: at once, or at the second try after its messages were lost, its
// write failed, or its write was done and reported as failed.
func executions() map[string]func(*world, *pb.DuplicationCommand) did {
	return map[string]func(*world, *pb.DuplicationCommand) did{
		"at once":           func(w *world, c *pb.DuplicationCommand) did { return w.mustRun(c) },
		"killed":            killed,
		"put failed":        fails(storagetest.Fault{Method: "Put"}),
		"put done, unheard": fails(storagetest.Fault{Method: "Put", Applied: true}),
	}
}

// Properties on record do not belong to other bytes in the item's place: a copy gets none of them, its Change says that
// they are unknown, and no check is requested. The same bytes in another version have lost theirs.
func TestPropertiesOfAContentThatWasReplaced(t *testing.T) {
	image := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	for how, run := range executions() {
		t.Run("other bytes, "+how, func(t *testing.T) {
			w := newWorld(t)
			w.mustRun(command(w.added("1", "hello")))
			got := run(w, command(w.overwritten("other", 11)))
			w.holds("2", "other")
			if p := w.propertiesOf("2"); !reflect.DeepEqual(p, storage.Properties{}) {
				t.Errorf("the copy has %+v", p)
			}
			for _, c := range got.changes {
				if c.GetStore() == "2" && !c.GetPropertiesUnknown() {
					t.Errorf("the Change of the copy: %v", c)
				}
			}
			for _, task := range got.tasks[schemas.FixityHigh] {
				if task.GetStore() == "1" {
					t.Errorf("a check of the source: %v", task)
				}
			}
			w.mustRun(manual())
			if p := w.propertiesOf("2"); !reflect.DeepEqual(p, storage.Properties{}) {
				t.Errorf("after another execution the copy has %+v", p)
			}
		})
		t.Run("other bytes, after a delete that the copy was kept from, "+how, func(t *testing.T) {
			w := newWorld(t)
			w.mustRun(command(w.added("1", "hello")))
			w.reported(record.Delete(at("1"), w.remove("1")))
			c := w.overwritten("other", 11)
			w.journal.rows[at("1")].PropertiesOf = &pb.Content{} // the deleted content had some
			run(w, command(c))
			w.holds("2", "other")
			if p := w.propertiesOf("2"); !reflect.DeepEqual(p, storage.Properties{}) {
				t.Errorf("the copy has %+v", p)
			}
		})
		t.Run("the same bytes, and the copy is gone, "+how, func(t *testing.T) {
			w := newWorld(t)
			w.mustRun(command(w.added("1", "hello")))
			w.mem["2"].Lose("photos", "a.jpg")
			c := w.overwritten("hello", 11)
			c.Digests, c.Provenance = nil, pb.Provenance_PROVENANCE_UNSPECIFIED
			run(w, command(c))
			w.holds("2", "hello")
			if p := w.propertiesOf("2"); !reflect.DeepEqual(p, image) {
				t.Errorf("the copy has %+v", p)
			}
		})
	}
}

// If neither the source's store nor its record has properties, the destination keeps its own.
func TestCopyKeepsPropertiesOfTheDestination(t *testing.T) {
	own := storage.Properties{MediaType: "text/plain", User: map[string]string{"shelf": "7"}}
	for how, run := range executions() {
		for name, claimed := range map[string]bool{"none on record, ": false, "claimed by a listing, ": true} {
			t.Run(name+how, func(t *testing.T) {
				w := newWorld(t)
				w.mustRun(command(w.overwritten("hello", 9)))
				o, err := w.mem["2"].SetProperties(t.Context(), "photos", "a.jpg", own, storage.Condition{})
				w.must(err)
				set := record.Content(at("2"), o)
				set.Op = pb.Op_OP_SET_PROPERTIES
				w.reported(set)
				c := w.overwritten("other", 11)
				if r := w.journal.rows[at("1")]; claimed {
					r.MediaType, r.PropertiesClaimed = "image/jpeg", true
				}
				run(w, command(c))
				w.holds("2", "other")
				w.mustRun(manual())
				p, r := w.propertiesOf("2"), record.Properties(w.journal.rows[at("2")])
				if !reflect.DeepEqual(p, own) || !reflect.DeepEqual(r, own) {
					t.Errorf("the copy has %+v, on record are %+v", p, r)
				}
			})
		}
	}
}

// A repair from a copy without known properties keeps those of the repaired copy, also if its bytes are absent.
func TestRepairKeepsPropertiesOfTheDestination(t *testing.T) {
	image := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	for how, run := range executions() {
		for name, damage := range map[string]func(*world){
			"rotten, ": func(w *world) { w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO")) },
			"gone, ":   func(w *world) { w.mem["2"].Lose("photos", "a.jpg") },
		} {
			t.Run(name+how, func(t *testing.T) {
				w := newWorld(t)
				c := w.added("1", "hello")
				w.mustRun(command(c))
				w.mem["1"].Strip("photos", "a.jpg")
				w.journal.rows[at("1")].MediaType, w.journal.rows[at("1")].Properties = "", nil
				damage(w)
				run(w, w.repair(c.GetDigests()))
				w.holds("2", "hello")
				if p := w.propertiesOf("2"); !reflect.DeepEqual(p, image) {
					t.Errorf("the copy has %+v", p)
				}
			})
		}
	}
}

// The check that follows a copy whose properties are unknown does not take them for none.
func TestUnknownPropertiesAreNotNone(t *testing.T) {
	known := recordOf(&pb.Change{PropertiesUnknown: true, Version: "v"})
	if h := schemas.WithoutProperties(known).GetPropertiesHash(); h != schemas.UnknownProperties {
		t.Errorf("the task has the hash %x", h)
	}
}

// Another program may have written a file that is later than its record, with its properties. The date of one that is
// ahead of the clock does not say so.
func TestPropertiesOfAFileOfAnotherProgram(t *testing.T) {
	for name, tt := range map[string]struct {
		date     time.Time
		decision string
	}{
		"later than its record": {hour(9), "C3"}, "ahead of the clock": {time.Unix(1<<32-1, 0), "C2u"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s, err := mem.New(mem.Config{ID: "1"}) // of the machine's clock
			w.must(err)
			s.Mark("1")
			w.must(s.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
			w.mem["1"], w.faulty["1"], w.now = s, storagetest.NewFaulty(s), hour(10)
			w.executor.observer.external = func(schemas.Copy, time.Time) bool { return true }
			w.mustRun(command(w.addedAt(1, "hello")))
			s.Date("photos", "a.jpg", tt.date)
			w.alter("1")
			if got := w.mustRun(manual()).result.GetDecision(); got != tt.decision {
				t.Errorf("decided %s, want %s", got, tt.decision)
			}
		})
	}
}

// A repair takes the properties on record if those of the good copy were altered.
func TestRepairDoesNotCarryAlteredProperties(t *testing.T) {
	w := newWorld(t)
	change := w.added("1", "hello")
	w.mustRun(command(change))
	want, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	w.alter("1")
	w.mem["2"].Corrupt("photos", "a.jpg", []byte("jelly"))
	got := w.mustRun(w.repair(change.GetDigests()))
	got.ends("C0", "repaired", done, 1, 1)
	w.hasProperties("2", want.Properties)
	if c := got.changes[0]; c.GetMediaType() != want.Properties.MediaType {
		t.Errorf("on record is now %v", c)
	}
}
