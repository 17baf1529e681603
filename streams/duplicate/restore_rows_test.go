package duplicate

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// A restoreCase is a row of the table for restore orders.
type restoreCase struct {
	edit func(*restoreObservation)
	want Decision
}

// deletedAt returns an observation of a deleted item, whose content a is proven and present in the first source.
func deletedAt(edit func(*restoreObservation)) restoreObservation {
	s := restoreObservation{
		Order: &pb.RestoreOrder{Digests: md5of(a), Deleted: stamp(4), Sources: []*pb.RestoreSource{{Store: "2"}}},
		There: Side{Presence: Absent, Record: &pb.CopyRecord{Manifest: row(tomb, "v1", a, 4)}}, recordsState: recordsRead,
		Proven: md5of(a), proofState: recordsRead, Source: there("d1", a, 3),
	}
	edit(&s)
	return s
}

// overwritten makes an observation one of an item that was replaced by b.
func (s *restoreObservation) overwritten() {
	s.There = there("v2", b, 5)
	s.There.Record = &pb.CopyRecord{Manifest: row(live, "v2", b, 5)}
	s.Order.Deleted, s.Order.Replaces = nil, record.Identity(s.There.Object)
}

func restoreCases() map[string]restoreCase {
	d := func(edit func(*Decision)) Decision {
		d := Decision{Row: RowRestore}
		edit(&d)
		return d
	}
	ends := func(result, detail string) Decision {
		return d(func(d *Decision) { d.Result, d.Detail = result, detail })
	}
	does := func(a action) Decision { return d(func(d *Decision) { d.action = a }) }
	restored := d(func(d *Decision) { d.action, d.Result, d.Expected = actCopy, ResultRestored, md5of(a) })
	return map[string]restoreCase{
		"deleted":     {func(*restoreObservation) {}, restored},
		"overwritten": {func(s *restoreObservation) { s.overwritten() }, restored},
		"lost": {func(s *restoreObservation) {
			s.Order.Deleted, s.There.Record = nil, &pb.CopyRecord{Manifest: row(live, "v1", a, 2)}
		}, restored},
		"the store does not answer": {func(s *restoreObservation) { s.There = Side{} }, does(actFail)},
		"the digests of what is there are unknown": {func(s *restoreObservation) {
			s.overwritten()
			s.There.Object.Digests = nil
		},
			d(func(d *Decision) { d.action, d.ReadDestination = actReadBytes, true })},
		"back already": {func(s *restoreObservation) {
			s.There = there("v1", a, 2)
			s.There.Record = &pb.CopyRecord{Manifest: row(live, "v1", a, 2)}
		},
			ends(ResultAlreadyRestored, "")},
		"back already, and not on record": {func(s *restoreObservation) {
			r := s.There.Record
			s.There = there("v3", a, 6)
			s.There.Record = r
		},
			d(func(d *Decision) { d.Result, d.Announce = ResultAlreadyRestored, true })},
		"back already, by a repair": {func(s *restoreObservation) {
			s.There = there("v1", a, 2)
			s.There.Record = &pb.CopyRecord{Manifest: row(live, "v1", a, 2)}
			s.There.Record.Manifest.Origin = pb.Origin_ORIGIN_REPAIR
		},
			d(func(d *Decision) { d.Result, d.Announce = ResultAlreadyRestored, true })},
		"back already, records unread": {func(s *restoreObservation) {
			s.There = there("v1", a, 2)
			s.recordsState = recordsUnread
		},
			does(actReadRecords)},
		"repair is off": {func(s *restoreObservation) {
			s.Refused = "repair is off"
		}, ends(ResultRestoreRefused, "repair is off")},
		"put again": {func(s *restoreObservation) {
			s.There = there("v2", b, 5)
		}, ends(ResultRestoreMoot, "the item is there again, with other content")},
		"replaced again": {func(s *restoreObservation) {
			s.overwritten()
			s.There.Object.Version = "v3"
		}, ends(ResultRestoreMoot, "the content that was to be replaced has changed")},
		"removed instead": {func(s *restoreObservation) {
			s.overwritten()
			s.There = Side{Presence: Absent}
		}, ends(ResultRestoreMoot, "the content that was to be replaced is not there any more")},
		"deleted again": {func(s *restoreObservation) { s.There.Record.Manifest.Time = stamp(5) },
			ends(ResultRestoreMoot, "the item was deleted again after the decision")},
		"deleted in the same millisecond": {func(s *restoreObservation) {
			s.There.Record.Manifest.Time = timestamppb.New(hour(4).Add(time.Microsecond))
		}, restored},
		"put again and lost": {func(s *restoreObservation) {
			s.There.Record = &pb.CopyRecord{Manifest: row(live, "v2", b, 5)}
		},
			ends(ResultRestoreMoot, "the item is not on record as deleted any more")},
		"lost and deleted": {func(s *restoreObservation) { s.Order.Deleted = nil },
			ends(ResultRestoreMoot, "the item was deleted after the decision")},
		"under a hold": {func(s *restoreObservation) { s.overwritten(); s.Hold = &policy.Hold{Reason: "a lawsuit"} },
			ends(ResultHeld, `hold of prefix "" without end: a lawsuit`)},
		"deleted under a hold": {func(s *restoreObservation) { s.Hold = &policy.Hold{} }, restored},
		"records unread": {func(s *restoreObservation) {
			s.recordsState = recordsUnread
		}, does(actReadRecords)},
		"records unknown":       {func(s *restoreObservation) { s.recordsState = recordsFailed }, does(actFail)},
		"the record is unknown": {func(s *restoreObservation) { s.There.Record = nil }, does(actFail)},
		"proof unread": {func(s *restoreObservation) {
			s.proofState, s.Proven = recordsUnread, nil
		}, does(actReadProof)},
		"proof unknown": {func(s *restoreObservation) {
			s.proofState, s.Proven = recordsFailed, nil
		}, does(actFail)},
		"only claimed": {func(s *restoreObservation) {
			s.Proven = nil
		}, ends(ResultRestoreUnproven, "no check or copy has read bytes with these digests")},
		"by digests that are unknown": {func(s *restoreObservation) {
			s.Order.Digests = digest.Set{"x": "00"}
			s.Proven = s.Order.Digests
		}, ends(ResultRestoreUnproven, "no check or copy has read bytes with these digests")},
		"no source was looked at": {func(s *restoreObservation) { s.Source = Side{} }, does(actNextSource)},
		"the source is absent": {func(s *restoreObservation) {
			s.Source = Side{Presence: Absent}
		}, does(actNextSource)},
		"the source has other bytes": {func(s *restoreObservation) {
			s.Source = there("d1", b, 3)
		}, d(func(d *Decision) { d.action, d.CheckSource = actNextSource, true })},
		"the source has no digests": {func(s *restoreObservation) { s.Source.Object.Digests = nil }, restored},
		"no source is left": {func(s *restoreObservation) {
			s.Exhausted, s.Source, s.Failures = true, Side{}, []string{"x", "y"}
		}, ends(ResultRestoreFailed, "x; y")},
		"a source that is left is away": {func(s *restoreObservation) {
			s.Exhausted, s.Away, s.Source = true, true, Side{}
		}, does(actFail)},
	}
}

func TestDecideRestore(t *testing.T) {
	for name, tt := range restoreCases() {
		t.Run(name, func(t *testing.T) {
			if got := decideRestore(deletedAt(tt.edit)); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// Over every combination: content is written only if it is proven, its source is present and does not differ, and the
// copy is as the order names it.
func TestDecideRestoreIsTotal(t *testing.T) {
	states := []recordsState{recordsUnread, recordsRead, recordsFailed}
	orders := []*pb.RestoreOrder{{Digests: md5of(a), Deleted: stamp(4)}, {Digests: md5of(a)},
		{Digests: md5of(a), Replaces: record.Identity(object("v2", b, 5))}, {Digests: digest.Set{"x": "00"}}}
	sides := []Side{{}, {Presence: Absent}, {Presence: 99}, there("v1", a, 2), there("v2", b, 5), there("v2", "", 5)}
	rows := []*pb.Record{nil, row(none, "", "", 0), row(live, "v2", b, 5), row(tomb, "v1", a, 4), row(tomb, "v1", a, 6)}
	results, n := map[string]bool{}, 0
	for _, order := range orders {
		for _, at := range sides {
			for _, r := range rows {
				for _, from := range sides {
					for _, fresh := range states {
						for _, proof := range states {
							for bits := range 1 << 5 {
								s := restoreObservation{Order: order, There: at, Source: from, recordsState: fresh, proofState: proof,
									Exhausted: bits&1 > 0, Away: bits&2 > 0}
								s.There.Record = &pb.CopyRecord{Manifest: r}
								if bits&4 > 0 {
									s.Proven = order.GetDigests()
								}
								if bits&8 > 0 {
									s.Hold = &policy.Hold{}
								}
								if bits&16 > 0 {
									s.Refused = "repair is off"
								}
								d := decideRestore(s)
								if fault := wrongRestore(s, d); fault != "" {
									t.Fatalf("%s\nobservation %+v\ndecision %+v", fault, s, d)
								}
								results[d.Result] = true
								n++
							}
						}
					}
				}
			}
		}
	}
	want := []string{"", "already-restored", "held", "restore-failed", "restore-moot", "restore-refused",
		"restore-unproven", "restored"}
	if got := slices.Sorted(maps.Keys(results)); !slices.Equal(got, want) || n < 50_000 {
		t.Errorf("results %q of %d combinations, want %q", got, n, want)
	}
}

// wrongRestore returns the fault of a decision, whatever it is.
func wrongRestore(s restoreObservation, d Decision) string {
	r := s.There.Record.GetManifest()
	ends := d.action == actNothing || d.action == actCopy
	switch {
	case d.Row != RowRestore || ends != (d.Result != ""):
		return "has another row, or no result"
	case ends && s.There.Presence != Present && s.There.Presence != Absent:
		return "decides on a copy that was not observed"
	case d.action != actCopy:
		return ""
	case s.Refused != "" || s.Hold != nil && s.There.Presence == Present:
		return "writes where it may not"
	case s.recordsState != recordsRead || s.proofState != recordsRead || len(s.Proven) == 0 || len(d.Expected) == 0:
		return "writes content that is not proven"
	case s.Exhausted || s.Source.Presence != Present || s.Source.Object.Digests.Compare(md5of(a)) == digest.Disagree:
		return "writes from a source that is not good"
	case s.There.Presence == Present && !record.Is(s.There.Object, s.Order.GetReplaces()):
		return "writes over another object"
	case s.There.Presence == Absent && s.Order.GetReplaces() != nil:
		return "writes an item that was removed"
	case s.There.Presence == Absent && isTombstone(r) && !r.GetTime().AsTime().Equal(s.Order.GetDeleted().AsTime()):
		return "undoes another delete"
	case s.There.Presence == Absent && s.Order.GetDeleted() != nil && !isTombstone(r):
		return "undoes a delete that is not on record"
	}
	return ""
}

// Properties come back with the content that they belong to.
func TestRestoredProperties(t *testing.T) {
	with := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	for name, tt := range map[string]struct {
		edit    func(*restoreObservation)
		want    storage.Properties
		unknown bool
	}{
		"of the source":       {func(s *restoreObservation) { s.Source.Object.Properties = with }, with, false},
		"the source has none": {func(*restoreObservation) {}, storage.Properties{}, false},
		"lost at the source, and on record": {func(s *restoreObservation) {
			s.Source.lose()
			s.Source.Record = &pb.CopyRecord{Manifest: typed(row(live, "d1", a, 3))}
		}, record.Properties(typed(row(live, "d1", a, 3))), false},
		"lost at the source, on record of other content": {func(s *restoreObservation) {
			s.Source.lose()
			s.There.Record = &pb.CopyRecord{Manifest: typed(row(live, "v2", b, 3))}
		}, storage.Properties{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, unknown := deletedAt(tt.edit).properties(md5of(a))
			if !reflect.DeepEqual(p, tt.want) || unknown != tt.unknown {
				t.Errorf("got %+v, unknown %t", p, unknown)
			}
		})
	}
}
