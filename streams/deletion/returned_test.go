package deletion

import (
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func TestDecideReturned(t *testing.T) {
	o := storage.Object{Item: "a.jpg", Version: "v1", Modified: hour(2), Size: 5}
	for name, tt := range map[string]struct {
		edit   func(*returned)
		result string
	}{
		"as it was seen": {func(*returned) {}, "deleted"},
		"an older row of the audit log": {func(s *returned) {
			s.record.Audit.Time = stamp(3)
		}, "deleted"},
		"gone": {func(s *returned) { s.copy = duplicate.Side{Presence: duplicate.Absent} }, "repair-moot"},
		"put by a client, reported": {func(s *returned) {
			s.record.Manifest = &pb.Record{State: live, Time: stamp(5)}
		}, "repair-moot"},
		"not on record": {func(s *returned) { s.record.Manifest = &pb.Record{State: none} }, "repair-moot"},
		"put again by a client, with the same version": {func(s *returned) {
			s.copy.Object.Modified = hour(5)
		}, "repair-moot"},
		"a later write in the audit log that the order knows": {func(s *returned) {
			s.record.Audit, s.order.Deleted = &pb.Record{State: live, Time: stamp(5)}, stamp(5)
		}, "repair-moot"},
		"put by a client": {func(s *returned) { s.copy.Object.Version = "v2" }, "repair-moot"},
		"deleted again":   {func(s *returned) { s.record.Manifest.Time = stamp(5) }, "repair-moot"},
		"a later write in the audit log": {func(s *returned) {
			s.record.Audit = &pb.Record{State: live, Time: stamp(5)}
		}, "repair-moot"},
		"it is newer than its delete by the clock that is ahead": {func(s *returned) {
			s.record.Manifest.Disputed, s.record.Manifest.Version = true, "v1"
		}, "repair-moot"},
		"older content, and the newest is newer than its delete by the clock that is ahead": {func(s *returned) {
			s.record.Manifest.Disputed, s.record.Manifest.Version = true, "v2"
		}, "deleted"},
		"no object was seen": {func(s *returned) { s.order.Destination = nil }, "repair-moot"},
		"under a hold":       {func(s *returned) { s.hold = &policy.Hold{Reason: "a lawsuit"} }, "held"},
		"read-only":          {func(s *returned) { s.readOnly = true }, "repair-refused"},
	} {
		t.Run(name, func(t *testing.T) {
			tombstone := &pb.Record{State: tomb, Time: stamp(4)}
			s := returned{
				order:  &pb.DeletionCommand{Destination: record.Identity(o), Deleted: stamp(4)},
				copy:   duplicate.Side{Presence: duplicate.Present, Object: o},
				record: &pb.CopyRecord{Manifest: tombstone, Audit: proto.CloneOf(tombstone)},
			}
			tt.edit(&s)
			e, ok := s.decide()
			if e.row != "C0d" || e.result != tt.result || ok != (tt.result == "deleted") || ok != (e.detail == "") {
				t.Errorf("got %+v, %t, want %s", e, ok, tt.result)
			}
		})
	}
}

// returnedOrder makes the copy one that is present under its tombstone, and returns the order to delete it.
func (w *world) returnedOrder() *pb.DeletionCommand {
	w.rows["2"] = &pb.Record{State: tomb, Time: stamp(4), Origin: pb.Origin_ORIGIN_CLIENT}
	return &pb.DeletionCommand{
		Id: "repair", Account: "acme", Space: "photos", Item: "a.jpg", DestinationStore: "2", Cause: "i1",
		Deleted: stamp(4), Destination: record.Identity(w.seen), Time: stamp(6), Approved: "eve", Why: "it was deleted",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_REPAIR, Incident: "acme/2/photos/a.jpg/resurrected",
	}
}

func TestDeleteReturned(t *testing.T) {
	w := newWorld(t)
	c := w.returnedOrder()
	changes, r, err := w.run(c)
	w.must(err)
	w.present(false)
	if kept := w.mem["2"].AllKept(); len(kept) != 1 || string(kept[0].Bytes) != "hello" {
		t.Errorf("kept: %v", kept)
	}
	want := &pb.Change{
		Op: pb.Op_OP_DELETE, Account: "acme", Store: "2", Space: "photos", Item: "a.jpg", Version: w.seen.Version,
		Etag: w.seen.ETag, Size: 5, Digests: w.seen.Digests, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Origin: pb.Origin_ORIGIN_REPAIR, Cause: "repair", Agent: "deleter", Approved: "eve",
		Evidence: map[string]string{"incident": c.GetIncident(), "why": "it was deleted"},
	}
	if len(changes) != 1 {
		t.Fatalf("changes: %v", changes)
	}
	want.Time = changes[0].GetTime()
	if record.Seal(want); !proto.Equal(changes[0], want) || changes[0].GetTime().AsTime().Before(w.seen.Modified) {
		t.Errorf("change:\ngot  %v\nwant %v", changes[0], want)
	}
	wantResult := &pb.DuplicationResult{
		Id: r.GetId(), Command: "repair", Account: "acme", Space: "photos", Item: "a.jpg", DestinationStore: "2",
		Decision: "C0d", Result: "deleted", Outcome: done, Digests: w.seen.Digests, Started: r.GetStarted(),
		Finished: r.GetFinished(), Attempt: 2, ChangeTime: stamp(4), Incident: c.GetIncident(), Worker: "w", Host: "h",
		Software: "s", Reason: c.GetReason(),
	}
	if !proto.Equal(r, wantResult) {
		t.Errorf("result:\ngot  %v\nwant %v", r, wantResult)
	}
	changes, r, err = w.run(c) // twice
	w.must(err)
	if r.GetResult() != "repair-moot" || len(changes) > 0 {
		t.Errorf("again: %v, %v", r, changes)
	}
}

// Whatever a client does right before the delete, its bytes stay.
func TestDeleteReturnedBesideAClient(t *testing.T) {
	for name, method := range map[string]string{"before the look": "Stat", "before the delete": "Delete"} {
		for _, what := range []string{"put", "delete"} {
			t.Run(what+" "+name, func(t *testing.T) {
				w := newWorld(t)
				c := w.returnedOrder()
				var once sync.Once // both sides are looked at, at the same time
				w.on("2", method, func() {
					once.Do(func() {
						if what == "put" {
							w.put("2", "mine")
							return
						}
						_, err := w.mem["2"].Delete(t.Context(), "photos", "a.jpg", storage.DeleteOptions{})
						w.must(err)
					})
				})
				changes, r, err := w.run(c)
				w.must(err)
				w.present(what == "put")
				if r.GetResult() != "repair-moot" || len(changes) > 0 {
					t.Errorf("got %v, %v", r, changes)
				}
			})
		}
	}
}

func TestDeleteReturnedUnderFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		fault   func(*world)
		class   retry.Class
		present bool
		then    string // the result of the next execution
	}{
		"the records do not answer": {func(w *world) { w.err = errors.New("no answer") }, retry.ClassUnavailable, true, ""},
		"the manifest is unknown":   {func(w *world) { w.rows["2"] = new(pb.Record) }, retry.ClassUnavailable, true, ""},
		"the store is away": {func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Stat", Times: 2})
		}, retry.Transient, true, "deleted"},
		"failed": {func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Delete"})
		}, retry.Transient, true, "deleted"},
		"done, and said to have failed": {func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Delete", Applied: true})
		}, retry.Transient, false, "repair-moot"},
		"a refused list needs the copies": {func(w *world) {
			w.decide(listOfKind(held.Limit, 1), held.ActionRefuse)
		}, retry.ClassUnavailable, true, ""},
		"the brake cannot count": {func(w *world) {
			w.topic.Unknown = errors.New("no answer")
		}, retry.ClassUnavailable, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.returnedOrder()
			tt.fault(w)
			if _, _, err := w.run(c); err == nil || retry.ClassOf(err) != tt.class {
				t.Fatalf("got %v, want class %v", err, tt.class)
			}
			w.present(tt.present)
			if tt.then == "" {
				return
			}
			if _, r, err := w.run(c); err != nil || r.GetResult() != tt.then {
				t.Errorf("then %v, %v, want %s", r, err, tt.then)
			}
			w.present(false)
		})
	}
}

// The brake counts the delete. Beyond its limits nothing is deleted, and the order is put on no list.
func TestDeleteReturnedAndTheBrake(t *testing.T) {
	w := newWorld(t)
	w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1}
	c := w.returnedOrder()
	_, r, err := w.run(c)
	w.must(err)
	if r.GetResult() != "deleted" {
		t.Fatalf("got %v", r)
	}
	w.seen = w.put("2", "hello")
	next := w.returnedOrder()
	next.Id = "repair 2"
	changes, r, err := w.run(next)
	w.must(err)
	if r.GetResult() != "repair-refused" || r.GetDetail() == "" || len(changes) > 0 || len(w.lists.Held) > 0 {
		t.Errorf("got %v, %v, lists %v", r, changes, w.lists.Held)
	}
	w.present(true)
}

func TestDeleteReturnedOfAnUnknownStore(t *testing.T) {
	w := newWorld(t)
	c := w.returnedOrder()
	c.DestinationStore, c.Deleted = "7", timestamppb.New(time.Time{})
	if _, _, err := w.run(c); !retry.IsPermanent(err) {
		t.Errorf("got %v, want a permanent error", err)
	}
}
