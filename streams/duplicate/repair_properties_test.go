package duplicate

import (
	"errors"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// altered makes the destination report other properties, as the failed check has found them.
func altered(then func(*Observation)) func(*Observation) {
	return func(s *Observation) {
		s.Destination.Object.PropertiesUnknown, s.Destination.Object.Properties.MediaType = false, "image/png"
		s.Command.Repair.Failed.PropertiesHash = schemas.PropertiesHash("image/png", nil)
		then(s)
	}
}

// repairPropertiesCases are about the copy d1 of the bytes a, which its store reports without digests and properties.
func repairPropertiesCases() map[string]decisionCase {
	moot := Decision{Row: "C0p", Result: "repair-moot", CheckDestination: true}
	repaired := Decision{Row: "C0p", action: actRepairProperties, Result: "properties-set"}
	manifest := func(r *pb.Record) func(*Observation) {
		return func(s *Observation) { s.Destination.Record = &pb.CopyRecord{Manifest: r, Audit: r} }
	}
	return map[string]decisionCase{
		"lost":                         {func(*Observation) {}, repaired},
		"on record of another version": {manifest(typed(row(live, "d0", a, 3))), repaired},
		"under a hold":                 {func(s *Observation) { s.Hold = &policy.Hold{Reason: "a lawsuit"} }, repaired},
		"outside of any policy":        {func(s *Observation) { s.Rules = policy.Rules{} }, moot},
		"records unread": {func(s *Observation) {
			s.recordsState, s.Destination.Record = recordsUnread, nil
		}, Decision{Row: "C0p", action: actReadRecords}},
		"records unknown": {func(s *Observation) {
			s.recordsState, s.Destination.Record = recordsFailed, nil
		}, Decision{Row: "C0p", action: actFail}},
		"manifest unknown": {manifest(nil), Decision{Row: "C0p", action: actFail}},
		"copy unknown": {func(s *Observation) { s.Destination.Presence = Unknown },
			Decision{Row: "C0p", action: actFail}},
		"gone":                  {func(s *Observation) { s.Destination.Presence = Absent }, moot},
		"another object":        {func(s *Observation) { s.Destination.Object.Version = "d2" }, moot},
		"no object":             {func(s *Observation) { s.Command.Repair.Failed = nil }, moot},
		"known again":           {func(s *Observation) { s.Destination.Object.PropertiesUnknown = false }, moot},
		"not on record":         {manifest(row(none, "", "", 0)), moot},
		"none on record":        {manifest(row(live, "d1", a, 3)), moot},
		"only claimed":          {manifest(claimed(typed(row(live, "d1", a, 3)))), moot},
		"deleted":               {manifest(typed(row(tomb, "d1", a, 4))), moot},
		"of another content":    {manifest(of(typed(row(live, "d1", a, 3)), "d0", md5of(b))), moot},
		"of an unknown content": {manifest(of(typed(row(live, "d1", a, 3)), "d0", nil)), moot},
		"other bytes on record": {manifest(typed(row(live, "d2", b, 4))), moot},
		"altered":               {altered(func(*Observation) {}), repaired},
		"altered again":         {altered(func(s *Observation) { s.Destination.Object.Properties.MediaType = "c" }), moot},
		"altered, and now lost": {altered(func(s *Observation) { s.Destination.lose() }), moot},
		"altered, and on record so": {altered(func(s *Observation) {
			s.Destination.Record.Manifest.MediaType, s.Destination.Record.Manifest.Properties = "image/png", nil
		}), moot},
		"altered, and on record of another content": {altered(func(s *Observation) {
			s.records(row(none, "", "", 0), of(typed(row(live, "d1", a, 3)), "d0", md5of(b)))
		}), moot},
		"altered, and only claimed": {altered(func(s *Observation) {
			s.records(row(none, "", "", 0), claimed(typed(row(live, "d1", a, 3))))
		}), moot},
		"altered, and put again by another program": {altered(func(s *Observation) {
			s.records(row(none, "", "", 0), typed(row(live, "d1", a, 3)))
			s.Destination.Object.Version, s.Destination.Object.Digests = "d2", md5of(a)
		}), moot},
		"altered, none on record, and put again by another program": {altered(func(s *Observation) {
			s.records(row(none, "", "", 0), row(live, "d1", a, 3))
			s.Destination.Object.Version, s.Destination.Object.Digests = "d2", md5of(a)
		}), moot},
		"put again with those on record, which nobody has reported": {altered(func(s *Observation) {
			s.records(row(none, "", "", 0), typed(row(live, "d1", a, 3)))
			s.Destination.Object.Version, s.Destination.Object.Digests = "d2", md5of(a)
			s.Destination.Object.Properties = record.Properties(s.Destination.Record.GetManifest())
		}), Decision{Row: "C0p", Result: "repair-moot", Announce: true}},
		"altered, and records unread": {altered(func(s *Observation) {
			s.recordsState, s.Destination.Record = recordsUnread, nil
		}), Decision{Row: "C0p", action: actReadRecords}},
	}
}

// lostOrder makes an observation one of an order to set the properties of the destination.
func (s *Observation) lostOrder() {
	s.Destination = there("d1", "", 3)
	s.Destination.lose()
	s.Source = s.Destination
	s.Command.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
	s.Command.SourceStore = s.Command.GetDestinationStore()
	s.Command.Repair = &pb.RepairOrder{Incident: "i", Digests: md5of(a), Properties: true,
		Failed: record.Identity(s.Destination.Object)}
	s.records(typed(row(live, "d1", a, 3)), typed(row(live, "d1", a, 3)))
}

func TestDecideRepairsOfProperties(t *testing.T) {
	for name, tt := range repairPropertiesCases() {
		t.Run("C0p: "+name, func(t *testing.T) {
			got := Decide(observation(func(s *Observation) { s.lostOrder(); tt.observe(s) }))
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// prepareLost copies an item, makes store 2 lose its properties, and returns the order to set them again.
func prepareLost(t *testing.T) (*world, *pb.DuplicationCommand) {
	w := newWorld(t)
	change := w.added("1", "hello")
	w.mustRun(command(change))
	w.mem["2"].Strip("photos", "a.jpg")
	w.faulty["2"] = storagetest.NewFaulty(w.mem["2"]) // resets the count of calls
	c := w.repair(change.GetDigests())
	c.SourceStore, c.Time, c.Repair.Properties = "2", change.GetTime(), true
	return w, c
}

// hasProperties checks the properties that a store reports.
func (w *world) hasProperties(store string, want storage.Properties) {
	w.t.Helper()
	o, err := w.mem[store].Stat(w.t.Context(), "photos", "a.jpg")
	w.must(err)
	if !reflect.DeepEqual(o.Properties, want) {
		w.t.Errorf("store %s has %+v, want %+v", store, o.Properties, want)
	}
}

func TestRepairOfProperties(t *testing.T) {
	image := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	newer := storage.Properties{MediaType: "image/png", User: map[string]string{"by": "you"}}
	lost := storage.Properties{}
	set := func(w *world, p storage.Properties) {
		_, err := w.mem["2"].SetProperties(w.t.Context(), "photos", "a.jpg", p, storage.Condition{})
		w.must(err)
	}
	for name, tt := range map[string]struct {
		prepare func(*world)
		result  string
		changes int
		has     storage.Properties
	}{
		"lost":                   {func(*world) {}, "properties-set", 1, image},
		"set by a client before": {func(w *world) { set(w, newer) }, "repair-moot", 0, newer},
		"set by a client while the records are read": {func(w *world) {
			w.journal.meanwhile = func() { set(w, newer) }
		}, "repair-moot", 0, newer},
		"written by a client right before": {func(w *world) {
			w.once("2", "SetProperties", func() { w.put("2", "mine") })
		}, "repair-moot", 0, image},
		"the store cannot": {func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "SetProperties", Times: -1, Err: storage.ErrUnsupported})
		}, "properties-unsupported", 0, lost},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := prepareLost(t)
			tt.prepare(w)
			got := w.mustRun(c)
			outcome := map[string]pb.Outcome{"properties-set": done, "repair-moot": handedOn}[tt.result]
			tasks := 1
			if outcome == 0 {
				outcome, tasks = nothing, 0
			}
			got.ends("C0p", tt.result, outcome, tt.changes, tasks)
			for _, task := range got.tasks[schemas.FixityHigh] {
				if task.GetReason() != pb.FixityReason_FIXITY_REASON_REPAIR || task.GetStore() != "2" ||
					task.GetCause() != c.GetId() {
					t.Errorf("task: %v", task)
				}
			}
			w.hasProperties("2", tt.has)
			if w.faulty["2"].Count("Put") > 0 || w.faulty["2"].Count("Open") > 0 {
				t.Errorf("bytes were read or written: %v", w.faulty["2"].Calls())
			}
			if tt.changes == 0 {
				return
			}
			o, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			want := record.Content(at("2"), o)
			want.Op, want.Origin, want.Cause, want.Agent = pb.Op_OP_SET_PROPERTIES, pb.Origin_ORIGIN_REPAIR, c.GetId(), "copier"
			if want = record.Seal(want); !proto.Equal(got.changes[0], want) {
				t.Errorf("got  %v\nwant %v", got.changes[0], want)
			}
			if r := got.result; r.GetIncident() != "incident" {
				t.Errorf("result: %v", r)
			}
			w.mustRun(c).ends("C0p", "repair-moot", handedOn, 0, 1) // twice
			w.hasProperties("2", image)
		})
	}
}

func TestRepairOfPropertiesUnderFaults(t *testing.T) {
	image := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	for name, tt := range map[string]struct {
		fault  storagetest.Fault
		has    storage.Properties
		result string // of the next execution
	}{
		"failed":                        {storagetest.Fault{Method: "SetProperties"}, storage.Properties{}, "properties-set"},
		"done, and said to have failed": {storagetest.Fault{Method: "SetProperties", Applied: true}, image, "repair-moot"},
		"away": {storagetest.Fault{Method: "Stat", Times: 2}, storage.Properties{},
			"properties-set"},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := prepareLost(t)
			w.faulty["2"].Script(tt.fault)
			if _, err := w.run(c, 0); err == nil {
				t.Fatal("no error")
			}
			w.hasProperties("2", tt.has)
			if got := w.mustRun(c); got.result.GetResult() != tt.result {
				t.Errorf("then %v, want %s", got.result, tt.result)
			}
			w.hasProperties("2", image)
		})
	}
	w, c := prepareLost(t)
	w.journal.err = errors.New("no answer")
	if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("records unknown: %v", err)
	}
	w.hasProperties("2", storage.Properties{})
}

// A store that cannot set properties gets the same bytes again.
func TestRepairOfPropertiesByTheBytes(t *testing.T) {
	image := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	png := storage.Properties{MediaType: "image/png"}
	for name, tt := range map[string]struct {
		prepare func(*world)
		fault   storagetest.Fault
		result  string
		outcome pb.Outcome
		changes int
		tasks   int
		has     storage.Properties
	}{
		"altered": {func(*world) {}, storagetest.Fault{}, "properties-set", done, 1, 1, image},
		"the bytes rot too": {func(w *world) {
			w.mem["2"].Corrupt("photos", "a.jpg", []byte("jelly"))
		}, storagetest.Fault{}, "repair-moot", handedOn, 0, 1, png},
		"another program puts the bytes again meanwhile": {func(w *world) {
			w.once("2", "Put", func() { w.put("2", "hello") })
		}, storagetest.Fault{}, "repair-moot", nothing, 1, 1, image}, // its put is not on record either
		"the bytes are archived": {func(*world) {}, storagetest.Fault{Method: "Open", Times: -1, Err: storage.ErrUnsupported},
			"properties-unsupported", nothing, 0, 0, png},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := prepareAltered(t)
			tt.prepare(w)
			if tt.fault.Method != "" {
				w.faulty["2"].Script(tt.fault)
			}
			got := w.mustRun(c)
			got.ends("C0p", tt.result, tt.outcome, tt.changes, tt.tasks)
			w.hasProperties("2", tt.has)
			if tt.result != "properties-set" {
				return
			}
			o, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			want := record.Content(at("2"), o)
			want.Op, want.Origin, want.Cause, want.Agent = pb.Op_OP_UPDATE, pb.Origin_ORIGIN_REPAIR, c.GetId(), "copier"
			if want = record.Seal(want); !proto.Equal(got.changes[0], want) {
				t.Errorf("got  %v\nwant %v", got.changes[0], want)
			}
			w.mustRun(c).ends("C0p", "repair-moot", handedOn, 0, 1) // twice
		})
	}
}

// A write that failed is tried again, and one that was done and reported to have failed is not.
func TestRepairOfPropertiesByTheBytesUnderFaults(t *testing.T) {
	image := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	for name, tt := range map[string]struct {
		fault  storagetest.Fault
		result string
	}{
		"failed":                        {storagetest.Fault{Method: "Put"}, "properties-set"},
		"done, and said to have failed": {storagetest.Fault{Method: "Put", Applied: true}, "repair-moot"},
		"the bytes do not answer":       {storagetest.Fault{Method: "Open"}, "properties-set"},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := prepareAltered(t)
			w.faulty["2"].Script(tt.fault)
			if _, err := w.run(c, 0); err == nil {
				t.Fatal("no error")
			}
			if got := w.mustRun(c); got.result.GetResult() != tt.result {
				t.Errorf("then %v, want %s", got.result, tt.result)
			}
			w.hasProperties("2", image)
			o, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			if r := w.journal.rows[at("2")]; r.GetVersion() != o.Version {
				t.Errorf("version %q is on record, the store has %q", r.GetVersion(), o.Version)
			}
		})
	}
}

// A media type that the record does not have is not removed.
func TestRepairOfPropertiesKeepsAMediaType(t *testing.T) {
	w, c := prepareAltered(t)
	w.journal.rows[at("2")].MediaType = ""
	w.mem["2"].Alter("photos", "a.jpg",
		storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "somebody"}})
	c.Repair.Failed.PropertiesHash = schemas.PropertiesHash("image/jpeg", map[string]string{"by": "somebody"})
	w.mustRun(c).ends("C0p", "properties-set", done, 1, 1)
	w.hasProperties("2", storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}})
}

// newWeakWorld is newWorld, and store 2 cannot set properties.
func newWeakWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	var err error
	w.mem["2"], err = mem.New(mem.Config{ID: "2", Weak: mem.Weak{Properties: true}})
	w.must(err)
	w.faulty["2"] = storagetest.NewFaulty(w.mem["2"])
	w.mem["2"].Mark("2")
	w.must(w.mem["2"].CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	return w
}

// prepareAltered copies an item to a store that cannot set properties, alters those of the copy, and returns the order
// to set them again.
func prepareAltered(t *testing.T) (*world, *pb.DuplicationCommand) {
	w := newWeakWorld(t)
	change := w.added("1", "hello")
	w.mustRun(command(change))
	w.mem["2"].Alter("photos", "a.jpg", storage.Properties{MediaType: "image/png"})
	w.faulty["2"] = storagetest.NewFaulty(w.mem["2"]) // resets the count of calls
	c := w.repair(change.GetDigests())
	c.SourceStore, c.Repair.Properties = "2", true
	c.Repair.Failed.PropertiesHash = schemas.PropertiesHash("image/png", nil)
	return w, c
}

// A repair gives a copy the properties on record, and nothing of an object by which another program has replaced it.
func TestRepairedProperties(t *testing.T) {
	of := func(mediaType string) *pb.CopyRecord {
		r := row(live, "d1", a, 3)
		r.MediaType, r.Properties = mediaType, map[string]string{"by": "me"}
		return &pb.CopyRecord{Manifest: r}
	}
	me := map[string]string{"by": "me"}
	for name, tt := range map[string]struct {
		version string
		record  *pb.CopyRecord
		sets    bool
		want    storage.Properties
	}{
		"the object on record": {"d1", of("image/jpeg"), false, storage.Properties{MediaType: "image/jpeg", User: me}},
		"the object on record, of an unknown media type": {"d1", of(""), false,
			storage.Properties{MediaType: "text/html", User: me}},
		"the object on record, whose properties a client may set": {"d1", of("image/jpeg"), true,
			storage.Properties{MediaType: "text/html", User: map[string]string{"by": "them"}}},
		"another object": {"d2", of("image/jpeg"), false, storage.Properties{MediaType: "image/jpeg", User: me}},
		"another object, of an unknown media type":          {"d2", of(""), false, storage.Properties{User: me}},
		"another object, whose properties a client may set": {"d2", of(""), true, storage.Properties{User: me}},
	} {
		t.Run(name, func(t *testing.T) {
			s := Side{Presence: Present, Record: tt.record, SetsProperties: tt.sets, Object: storage.Object{Version: tt.version,
				Properties: storage.Properties{MediaType: "text/html", User: map[string]string{"by": "them"}}}}
			if got, ok := s.repairedProperties(md5of(a), false); !ok || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, %v, want %+v", got, ok, tt.want)
			}
		})
	}
}
