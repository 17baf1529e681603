package fixity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func TestJudgeMetadata(t *testing.T) {
	const (
		live      = pb.RecordState_RECORD_STATE_LIVE
		open      = pb.Metadata_METADATA_UNSPECIFIED
		intact    = pb.Metadata_METADATA_INTACT
		damaged   = pb.Metadata_METADATA_DAMAGED
		none      = pb.RecordState_RECORD_STATE_NONE
		tombstone = pb.RecordState_RECORD_STATE_TOMBSTONE
	)
	kept, lost := sums(good), `media type "image/jpeg"`
	typed := &pb.Record{State: live, MediaType: "image/jpeg", Version: "v1", Digests: kept}
	named := proto.CloneOf(typed)
	named.Properties = map[string]string{"b": "2", "a\n": "1"}
	many := &pb.Record{State: live, Properties: map[string]string{}, Digests: sums(good)}
	of := func(version string, digests digest.Set) *pb.Record {
		r := proto.CloneOf(typed)
		r.PropertiesOf = &pb.Content{Version: version, Digests: digests}
		return r
	}
	gone, claimed := proto.CloneOf(typed), proto.CloneOf(typed)
	gone.State = tombstone
	claimed.PropertiesClaimed = true
	for i := range 25 {
		many.Properties[fmt.Sprintf("%02d%s", i, strings.Repeat("n", 100))] = ""
	}
	reported := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"b": "2", "a\n": "1"}}
	other := storage.Properties{MediaType: "image/png", User: map[string]string{"b": "3", "c": ""}}
	const altered = `altered: media type "image/jpeg"; 3 properties: "a\n", "b", "c"`
	hash, userHash := schemas.PropertiesHash(reported.MediaType, reported.User), schemas.PropertiesHash("", reported.User)
	later := proto.CloneOf(named)
	later.Time = timestamppb.New(time.Unix(1, 0))
	e := func(o storage.Properties, m *pb.Record, sets ...func(*metadataEvidence)) metadataEvidence {
		e := metadataEvidence{digests: kept, record: m, object: storage.Object{
			Version: "v1", Properties: o, Modified: time.Unix(2, 0)}}
		for _, set := range sets {
			set(&e)
		}
		return e
	}
	folds := func(e *metadataEvidence) { e.foldCase = true }
	external := func(e *metadataEvidence) { e.external = true }
	carries := func(hash int64) func(*metadataEvidence) {
		return func(e *metadataEvidence) { e.carried = hash }
	}
	reread := func(version string, digests digest.Set) *pb.Record {
		r := proto.CloneOf(named)
		r.Version, r.Digests = version, digests
		return r
	}
	upper := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"B": "2", "A\n": "1"}}
	untyped := &pb.Record{State: live, Properties: named.GetProperties(), Version: "v1"}
	ofOther := proto.CloneOf(named)
	ofOther.PropertiesOf = &pb.Content{Version: "v0", Digests: kept}
	for name, tt := range map[string]struct {
		metadataEvidence
		want   pb.Metadata
		detail string
	}{
		"the same":                             {e(reported, named), intact, ""},
		"others":                               {e(other, named), damaged, altered},
		"others, and no record was read":       {e(other, nil, carries(hash)), open, ""},
		"others, and the task carries no hash": {e(other, nil), open, ""},
		"some, and none are on record":         {e(other, nil, carries(schemas.PropertiesHash("", nil))), intact, ""},
		"the same as the task carries":         {e(reported, nil, carries(hash)), intact, ""},
		"the task carries no media type":       {e(reported, nil, carries(userHash)), intact, ""},
		"others, and the task is outdated":     {e(reported, named, carries(1)), intact, ""},
		"none": {e(storage.Properties{}, named), damaged,
			"altered: " + lost + `; 2 properties: "a\n", "b"`},
		"others, of another content":            {e(other, reread("v0", sums(rot))), intact, ""},
		"others, of the content in an object":   {e(other, reread("v0", kept)), damaged, altered},
		"others, of an unknown content":         {e(other, reread("", nil)), open, ""},
		"others, than those of a former object": {e(other, ofOther), open, ""},
		"others, and none on record":            {e(other, &pb.Record{State: live}), intact, ""},
		"others, under a tombstone":             {e(other, gone), intact, ""},
		"others, than a claim":                  {e(other, claimed), intact, ""},
		"names in another case": {e(upper, named), damaged,
			`altered: 4 properties: "A\n", "B", "a\n", "b"`},
		"names in another case, which do not count": {e(upper, named, folds), intact, ""},
		"a media type where none is on record":      {e(reported, untyped), intact, ""},
		"set by another program":                    {e(other, later, external), open, ""},
		"set by another program, not as expected":   {e(other, later), damaged, altered},
	} {
		t.Run("the store reports "+name, func(t *testing.T) {
			if got, detail := judgeMetadata(tt.metadataEvidence); got != tt.want || detail != tt.detail {
				t.Errorf("got %v %q, want %v %q", got, detail, tt.want, tt.detail)
			}
		})
	}
	for name, tt := range map[string]struct {
		unknown bool
		digests digest.Set
		record  *pb.Record
		want    pb.Metadata
		detail  string
	}{
		"the store reports them":                         {false, kept, typed, intact, ""},
		"the store reports them, and no record was read": {false, kept, nil, open, ""},
		"unknown, and the manifest did not answer":       {true, kept, &pb.Record{}, open, ""},
		"unknown, and no record was read":                {true, kept, nil, open, ""},
		"unknown, and not on record":                     {true, kept, &pb.Record{State: none}, intact, ""},
		"unknown, and on record without any":             {true, kept, &pb.Record{State: live}, intact, ""},
		"unknown, and on record as deleted":              {true, kept, gone, intact, ""},
		"unknown, and a media type is on record":         {true, kept, typed, damaged, lost},
		"unknown, and properties are on record": {true, kept, named, damaged,
			lost + `; 2 properties: "a\n", "b"`},
		"unknown, and many long properties are on record":   {true, kept, many, damaged, "25 properties: " + longNames()},
		"on record of this version, and the bytes rot":      {true, sums(rot), typed, damaged, lost},
		"on record of this version, which was not read":     {true, nil, typed, damaged, lost},
		"on record of these bytes in another version":       {true, kept, of("v0", kept), damaged, lost},
		"on record of other bytes":                          {true, kept, of("v0", sums(rot)), intact, ""},
		"on record of other bytes, and these were not read": {true, nil, of("v0", sums(rot)), open, ""},
		"on record of bytes that are on no record":          {true, kept, of("", nil), open, ""},
		"on record as claimed by a listing":                 {true, kept, claimed, intact, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := storage.Object{Version: "v1", PropertiesUnknown: tt.unknown}
			if !tt.unknown {
				o.Properties = record.Properties(tt.record)
			}
			got, detail := judgeMetadata(metadataEvidence{object: o, digests: tt.digests, record: tt.record})
			if got != tt.want || detail != tt.detail {
				t.Errorf("got %v %q, want %v %q", got, detail, tt.want, tt.detail)
			}
		})
	}
}

func longNames() string {
	var b strings.Builder
	for i := range 20 {
		fmt.Fprintf(&b, "%q, ", fmt.Sprintf("%02d%s", i, strings.Repeat("n", 38)))
	}
	return b.String() + "..."
}

// recordProperties records properties of the copy. The task carries none, as all tasks.
func (w *world) recordProperties() *pb.FixityTask {
	w.record = w.now()
	t := task(w.record)
	w.record = w.now()
	w.record.Manifest.MediaType, w.record.Manifest.Properties = "image/jpeg", map[string]string{"by": "me"}
	return t
}

// strip removes the properties from the store and keeps the version on record, which for a file is its modification
// time.
func (w *world) strip() {
	w.mem.Strip(at.Space, at.Item)
	o, err := w.mem.Stat(w.t.Context(), at.Space, at.Item)
	must(w.t, err)
	w.object.Version = o.Version
}

// recordPropertiesOf is recordProperties for properties that were reported of another content.
func (w *world) recordPropertiesOf(c *pb.Content) *pb.FixityTask {
	t := w.recordProperties()
	w.record.Manifest.PropertiesOf = c
	return t
}

// A check reports properties that the store has lost, in each row. It reports nothing while the manifest is unknown. A
// copy without properties on record has lost none.
func TestMetadata(t *testing.T) {
	const detail = `media type "image/jpeg"; 1 properties: "by"`
	for name, tt := range map[string]struct {
		prepare func(*world) *pb.FixityTask
		row     int32
		want    pb.Metadata
		asked   int
	}{
		"reported": {func(w *world) *pb.FixityTask { return w.recordProperties() }, 1, pb.Metadata_METADATA_INTACT, 0},
		"lost": {func(w *world) *pb.FixityTask {
			w.mem.Strip(at.Space, at.Item)
			return w.recordProperties()
		}, 1, pb.Metadata_METADATA_DAMAGED, 1},
		"lost, and the bytes are rotten": {func(w *world) *pb.FixityTask {
			w.strip()
			w.mem.Corrupt(at.Space, at.Item, []byte(rot))
			return w.recordProperties()
		}, 13, pb.Metadata_METADATA_DAMAGED, 4},
		"lost, and the bytes are not read": {func(w *world) *pb.FixityTask {
			w.strip()
			w.settings.NeverRead = true
			return w.recordProperties()
		}, 15, pb.Metadata_METADATA_DAMAGED, 1},
		"lost, of the same bytes in another version": {func(w *world) *pb.FixityTask {
			w.mem.Strip(at.Space, at.Item)
			return w.recordPropertiesOf(&pb.Content{Version: "before", Digests: sums(good)})
		}, 1, pb.Metadata_METADATA_DAMAGED, 1},
		"on record of other bytes": {func(w *world) *pb.FixityTask {
			w.mem.Strip(at.Space, at.Item)
			return w.recordPropertiesOf(&pb.Content{Version: "before", Digests: sums(rot)})
		}, 1, pb.Metadata_METADATA_INTACT, 1},
		"on record of another version, and the bytes are not read": {func(w *world) *pb.FixityTask {
			w.mem.Strip(at.Space, at.Item)
			w.settings.NeverRead = true
			return w.recordPropertiesOf(&pb.Content{Version: "before", Digests: sums(good)})
		}, 15, pb.Metadata_METADATA_UNSPECIFIED, 1},
		"claimed by a listing": {func(w *world) *pb.FixityTask {
			w.mem.Strip(at.Space, at.Item)
			t := w.recordProperties()
			w.record.Manifest.PropertiesClaimed = true
			return t
		}, 1, pb.Metadata_METADATA_INTACT, 1},
		"unknown, and none on record": {func(w *world) *pb.FixityTask {
			w.mem.Strip(at.Space, at.Item)
			return task(w.record)
		}, 1, pb.Metadata_METADATA_INTACT, 1},
		"unknown, and on no record": {func(w *world) *pb.FixityTask {
			w.mem.Strip(at.Space, at.Item)
			w.record = nothing()
			return task(nil)
		}, 9, pb.Metadata_METADATA_INTACT, 4},
		"absent": {func(w *world) *pb.FixityTask {
			t := w.recordProperties()
			w.mem.Lose(at.Space, at.Item)
			return t
		}, 8, pb.Metadata_METADATA_UNSPECIFIED, 4},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				o := w.last(tt.prepare(w))
				r := o.result
				if r.GetRow() != tt.row || r.GetMetadata() != tt.want || w.asked != tt.asked {
					t.Errorf("got row %d, %v, %d reads of records; want %d, %v, %d", r.GetRow(), r.GetMetadata(), w.asked, tt.row,
						tt.want, tt.asked)
				}
				if damaged := tt.want == pb.Metadata_METADATA_DAMAGED; damaged != (r.GetMetadataDetail() == detail) {
					t.Errorf("detail %q", r.GetMetadataDetail())
				}
				if c := o.change; c != nil && !c.GetPropertiesUnknown() {
					t.Errorf("the correction empties the properties: %v", c)
				}
			})
		})
	}
}

// Two readings with different digests do not show that the properties belonged to other bytes.
func TestMetadataWithTwoReadings(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.mem.Strip(at.Space, at.Item)
		task := w.recordPropertiesOf(&pb.Content{Version: "before", Digests: sums(good)})
		w.store.Script(storagetest.Fault{Method: "Open", Flip: true})
		o := w.handle(task)
		if r := o.result; r.GetMetadata() != pb.Metadata_METADATA_UNSPECIFIED || r.GetRow() != 12 {
			t.Errorf("got %v", r)
		}
		time.Sleep(time.Until(o.due))
		if r := w.handle(o.again).result; r.GetMetadata() != pb.Metadata_METADATA_DAMAGED || r.GetRow() != 1 {
			t.Errorf("read again: got %v", r)
		}
	})
}

// While a place is unknown properties are not judged, and the row is decided by the bytes.
func TestMetadataUnknown(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		task := w.recordProperties()
		w.mem.Strip(at.Space, at.Item)
		w.fresh = func() ([]*pb.CopyRecord, error) { return nil, errors.New("unavailable") }
		if r := w.handle(task).result; r.GetMetadata() != pb.Metadata_METADATA_UNSPECIFIED || r.GetRow() != 1 ||
			!r.GetFinal() {
			t.Errorf("records unavailable: got %v", r)
		}
		w.fresh = nil
		w.store.Script(storagetest.Fault{Method: "Stat", Skip: 1, Err: errors.New("unavailable")})
		if r := w.handle(task).result; r.GetMetadata() != pb.Metadata_METADATA_UNSPECIFIED || r.GetRow() != 12 {
			t.Errorf("store unavailable: got %v", r)
		}
	})
}

// Properties that are set while the records are read were not lost.
func TestMetadataSetWhileRecordsAreRead(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		task := w.recordProperties()
		w.mem.Strip(at.Space, at.Item)
		w.fresh = func() ([]*pb.CopyRecord, error) {
			_, err := w.mem.SetProperties(context.Background(), at.Space, at.Item, storage.Properties{MediaType: "image/jpeg"},
				storage.Condition{})
			return []*pb.CopyRecord{w.record}, err
		}
		if r := w.handle(task).result; r.GetMetadata() != pb.Metadata_METADATA_INTACT || r.GetRow() != 1 {
			t.Errorf("got %v", r)
		}
	})
}
