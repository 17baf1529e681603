package read_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func TestSpaces(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	hour := func(h int) *time.Time {
		at := clickhousetest.Epoch.Add(time.Duration(h) * time.Hour).Truncate(time.Millisecond)
		return &at
	}
	var changes []schemas.Body
	add := func(store, space, item string, op pb.Op, h int) {
		c := clickhousetest.Change(item, time.Duration(h)*time.Hour)
		c.Op, c.Space, c.Store, c.Size = op, space, store, 100
		if item == "" {
			c.Digests, c.Version, c.Size = nil, "", 0
		}
		c.Id = schemas.ChangeID(c)
		changes = append(changes, c)
	}
	add("1", "photos", "", pb.Op_OP_CREATE_SPACE, 1)
	add("1", "photos", "a", pb.Op_OP_ADD, 2)
	add("1", "photos", "b", pb.Op_OP_ADD, 3)
	add("2", "photos", "b", pb.Op_OP_ADD, 4) // made with its first item
	add("1", "old", "", pb.Op_OP_CREATE_SPACE, 1)
	add("1", "old", "", pb.Op_OP_DELETE_SPACE, 5)
	batch := clickhousetest.Deliver(schemas.Changes, 0, changes...)
	for i, d := range batch { // they are recorded long after what they report
		d.Timestamp = *hour(100 + i)
	}
	for _, s := range []interface {
		Store(context.Context, []*schemas.Delivery) error
	}{clickhouse.NewSink(db), clickhouse.NewState(db)} {
		must(t, s.Store(t.Context(), batch))
	}
	action := func(store, do string, h int) schemas.Body {
		return &pb.AdminAction{Id: schemas.NewID(), Time: timestamppb.New(*hour(h)), Who: "ann", Action: do,
			Account: "acme", Store: store, Space: "photos"}
	}
	must(t, clickhouse.NewSink(db).Store(t.Context(), clickhousetest.Deliver(schemas.Admin, 0,
		action("1", "space-gone", 6), action("1", "space-back", 7), action("2", "space-gone", 8))))
	old := read.SpaceSummary{Space: "old", Store: "1", First: hour(104), Created: hour(1), Deleted: hour(5)}
	photos := []read.SpaceSummary{
		{Space: "photos", Store: "1", Items: 2, Bytes: 200, First: hour(100), Created: hour(1)},
		{Space: "photos", Store: "2", Items: 1, Bytes: 100, First: hour(103), Gone: hour(8)},
	}
	for space, want := range map[string][]read.SpaceSummary{
		"": append([]read.SpaceSummary{old}, photos...), "photos": photos, "none": {},
	} {
		got, err := read.Spaces(t.Context(), db, "acme", space)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, %v\nwant %+v", space, got, err, want)
		}
	}
}
