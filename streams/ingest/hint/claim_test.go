package hint

import (
	"errors"
	"slices"
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
// is on record is not published again.
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
		"another version is on record": {add, "a", "loader", onRecord(other), nil, nil, rowOther, "http/loader"},
		"its tombstone is on record":   {add, "a", "loader", gone, nil, nil, rowOther, "http/loader"},
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
