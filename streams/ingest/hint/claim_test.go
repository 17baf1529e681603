package hint

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A claim says which copy to look at. What it says of the content, and that the copy is gone, is not believed, and what
// is on record is neither published again nor replaced.
func TestHandleClaims(t *testing.T) {
	w := newSite(t)
	o := w.put("a", "hello")
	onRecord := func(at storage.Object) *pb.Record {
		c := record.Seal(record.Content(schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "a"}, at))
		return &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Version: c.GetVersion(), Time: c.GetTime(),
			Size: c.GetSize(), Digests: map[string]string{"md5": "5d41402abc4b2a76b9719d911017c592"}}
	}
	other := o
	other.Version = "v0"
	gone := onRecord(o)
	gone.State = pb.RecordState_RECORD_STATE_TOMBSTONE
	down := retry.Unavailable(errors.New("away"))
	const add, remove = pb.Op_OP_ADD, pb.Op_OP_DELETE
	for name, tt := range map[string]struct {
		op          pb.Op
		item        string
		sender      string
		record      *pb.Record
		records, at error // the fault of the records, and of the store
		row         Row
		agent       string // of the Change; empty: there is none
	}{
		"add, on record":               {add, "a", "loader", onRecord(o), nil, nil, rowKnown, ""},
		"delete, on record":            {remove, "a", "loader", onRecord(o), nil, nil, rowKnown, ""},
		"properties, on record":        {pb.Op_OP_SET_PROPERTIES, "a", "loader", onRecord(o), nil, nil, rowKnown, ""},
		"another version is on record": {add, "a", "loader", onRecord(other), nil, nil, rowDifferent, ""},
		"its tombstone is on record":   {add, "a", "loader", gone, nil, nil, rowDifferent, ""},
		"nothing is on record":         {remove, "a", "loader", nil, nil, nil, rowOther, "http/loader"},
		"without tokens":               {add, "a", "", nil, nil, nil, rowOther, "http"},
		"delete of what is absent":     {remove, "gone", "loader", onRecord(o), nil, nil, rowAbsent, ""},
		"add of what is absent":        {add, "gone", "loader", nil, nil, nil, rowAbsent, ""},
		"the records are away":         {add, "a", "loader", nil, down, nil, "", ""},
		"the records are away, absent": {add, "gone", "loader", nil, down, nil, rowAbsent, ""},
		"the store is away":            {remove, "a", "loader", onRecord(o), nil, down, "", ""},
		"the store is away, gone":      {remove, "gone", "loader", onRecord(o), nil, down, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w.rows, w.record, w.away = nil, tt.record, tt.records
			if w.store.Heal(); tt.at != nil {
				w.store.Script(storagetest.Fault{Method: "Stat", Times: -1, Err: tt.at})
			}
			at := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: tt.item}
			when := time.UnixMilli(1_700_000_000_000)
			m := Claim(tt.sender, &pb.Change{Op: tt.op, Account: at.Account, Store: at.Store, Space: at.Space, Item: at.Item,
				Version: "v9", Size: 4, Digests: map[string]string{"md5": "00"}, User: "eve", Time: timestamppb.New(when)})
			d := &schemas.Delivery{Topic: m.Topic, Key: m.Key, Value: m.Value, Timestamp: when}
			if got, ok := w.h.Copy(d); !ok || got != at {
				t.Errorf("copy: got %v, %v", got, ok)
			}
			out, err := w.h.Handle(t.Context(), d)
			if waits := tt.row == ""; waits != (retry.ClassOf(err) == retry.ClassUnavailable) || !waits && err != nil {
				t.Fatalf("got %v, want that it is unavailable: %v", err, waits)
			}
			if tt.row != "" && !slices.Equal(w.rows, []Row{tt.row}) {
				t.Errorf("rows: got %v, want %v", w.rows, tt.row)
			}
			if tt.agent == "" {
				if len(out) > 0 {
					t.Errorf("got %v, want nothing", out)
				}
				return
			}
			want := record.Content(at, o)
			want.Origin, want.Agent = pb.Origin_ORIGIN_NOTIFICATION, tt.agent
			want.Evidence = map[string]string{"event": tt.op.String(), "event_version": "v9",
				"event_time": "2023-11-14T22:13:20Z"}
			if record.Seal(want); len(out) != 1 || !proto.Equal(out[0].Body.(*pb.Change), want) {
				t.Errorf("got %v, want %v", out, want)
			}
		})
	}
	if _, err := w.h.Handle(t.Context(), &schemas.Delivery{Topic: ClaimTopic("loader"), Value: []byte("{")}); err == nil ||
		!retry.IsPermanent(err) {
		t.Errorf("no claim: got %v", err)
	}
}

// A webhook about a copy that millrace writes takes no protection from it, either.
func TestHandleNotificationsThatAreClaims(t *testing.T) {
	w := newSite(t)
	w.claims = true
	o := w.put("a", "hello")
	w.record = &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Version: o.Version, Size: 5}
	for name, events := range map[string]string{
		"removed, and absent":            event("ObjectRemoved:Delete", "photos", "gone"),
		"a marker was made, and absent":  event("ObjectRemoved:DeleteMarkerCreated", "photos", "gone"),
		"created, and on record":         event("ObjectCreated:Put", "photos", "a"),
		"removed, present and on record": event("ObjectRemoved:Delete", "photos", "a"),
	} {
		if out, err := w.handle(t.Context(), events); err != nil || len(out) > 0 {
			t.Errorf("%s: got %v, %v, want nothing", name, out, err)
		}
	}
	w.record.Version = "v0"
	if out, err := w.handle(t.Context(), event("ObjectCreated:Put", "photos", "a")); err != nil || len(out) > 0 {
		t.Errorf("other content is on record: got %v, %v, want nothing", out, err)
	}
	w.record = nil
	if out, err := w.handle(t.Context(), event("ObjectCreated:Put", "photos", "a")); err != nil || len(out) != 1 {
		t.Errorf("not on record: got %v, %v, want a Change", out, err)
	}
}

// The event of an object that is dated long before it, as one of a long upload, does not take the digests of the
// content away from the record.
func TestHandleEventsOfOldDates(t *testing.T) {
	w := newSite(t)
	o := w.put("a", "hello")
	created := strings.Replace(event("ObjectCreated:CompleteMultipartUpload", "photos", "a"), "2026-05-04T10:00:00.5Z",
		o.Modified.Add(time.Hour).Format(time.RFC3339Nano), 1)
	for name, tt := range map[string]struct {
		record *pb.Record
		away   error
		want   int
	}{
		"on record":         {&pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Version: o.Version, Size: 5}, nil, 0},
		"another version":   {&pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Version: "v0", Size: 5}, nil, 1},
		"deleted on record": {&pb.Record{State: pb.RecordState_RECORD_STATE_TOMBSTONE, Version: o.Version}, nil, 1},
		"records are away":  {nil, retry.Unavailable(errors.New("away")), 0},
	} {
		w.record, w.away = tt.record, tt.away
		out, err := w.handle(t.Context(), created)
		if len(out) != tt.want || (err != nil) != (tt.away != nil) {
			t.Errorf("%s: got %v, %v, want %d Changes", name, out, err, tt.want)
		}
	}
}
