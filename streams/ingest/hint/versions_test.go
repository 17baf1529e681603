package hint

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A removal of a named version says nothing about the item, unless that version is what is on record: a rollback or an
// undelete then wins over the record. Each is handled twice, as after a kill.
func TestHandleVersions(t *testing.T) {
	const (
		removed = "ObjectRemoved:Delete"
		live    = pb.RecordState_RECORD_STATE_LIVE
		gone    = pb.RecordState_RECORD_STATE_TOMBSTONE
	)
	at := time.Date(2026, 5, 4, 10, 0, 0, 500e6, time.UTC) // of the event
	before := timestamppb.New(at.Add(-time.Minute))
	for name, tt := range map[string]struct {
		event   string
		version string // "shown": that of the object
		absent  bool
		known   *pb.Record
		row     Row
		op      pb.Op
		origin  pb.Origin
		time    time.Time // zero: that of the object
		asked   int
	}{
		"rolled back": {removed, "v2", false, &pb.Record{State: live, Version: "v2", Time: before}, rowUndone,
			pb.Op_OP_ADD, pb.Origin_ORIGIN_NOTIFICATION, at, 1},
		"rolled back, dated ahead": {removed, "v2", false, &pb.Record{State: live, Version: "v2",
			Time: timestamppb.New(at.Add(time.Hour))}, rowUndone, pb.Op_OP_ADD, pb.Origin_ORIGIN_NOTIFICATION,
			at.Add(time.Hour + time.Millisecond), 1},
		"undeleted": {removed, "m", false, &pb.Record{State: gone, Time: before}, rowUndone, pb.Op_OP_ADD,
			pb.Origin_ORIGIN_NOTIFICATION, at, 1},
		"an older version": {removed, "v1", false, &pb.Record{State: live, Version: "v2", Time: before}, rowStillPresent,
			pb.Op_OP_ADD, pb.Origin_ORIGIN_NOTIFICATION, time.Time{}, 1},
		"an older version, nothing on record": {removed, "v1", false, &pb.Record{State: pb.RecordState_RECORD_STATE_NONE},
			rowStillPresent, pb.Op_OP_ADD, pb.Origin_ORIGIN_NOTIFICATION, time.Time{}, 1},
		"the version that is shown": {removed, "shown", false, nil, rowStillPresent, pb.Op_OP_ADD,
			pb.Origin_ORIGIN_NOTIFICATION, time.Time{}, 0},
		"absent, live": {removed, "v1", true, &pb.Record{State: live, Version: "v1", Time: before}, rowVersionRemoved,
			pb.Op_OP_DELETE, pb.Origin_ORIGIN_SWEEP, at, 1},
		"absent, expired": {"LifecycleExpiration:Delete", "v1", true, &pb.Record{State: live, Time: before},
			rowVersionRemoved, pb.Op_OP_DELETE, pb.Origin_ORIGIN_SWEEP, at, 1},
		"absent, deleted": {removed, "v1", true, &pb.Record{State: gone, Time: before}, rowAbsent, 0, 0, time.Time{}, 1},
		"absent, a marker": {"ObjectRemoved:DeleteMarkerCreated", "m", true, nil, rowRemoved, pb.Op_OP_DELETE,
			pb.Origin_ORIGIN_NOTIFICATION, at, 0},
		"absent, no version": {removed, "", true, nil, rowRemoved, pb.Op_OP_DELETE, pb.Origin_ORIGIN_NOTIFICATION, at, 0},
		"absent, version null": {removed, "null", true, nil, rowRemoved, pb.Op_OP_DELETE, pb.Origin_ORIGIN_NOTIFICATION,
			at, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSite(t)
			o := w.put("a", "hello")
			w.mem.Date("photos", "a", at.Add(-time.Hour))
			if tt.absent {
				w.mem.Lose("photos", "a")
			}
			w.record = tt.known
			if tt.version == "shown" {
				tt.version = o.Version
			}
			e := strings.Replace(event(tt.event, "photos", "a"), `"sequencer"`, `"versionId":"`+tt.version+`","sequencer"`, 1)
			ids := map[string]bool{}
			for range 2 {
				w.asked = 0
				out, err := w.handle(t.Context(), e)
				if err != nil || w.rows[len(w.rows)-1] != tt.row || (len(out) > 0) != (tt.op != 0) || w.asked != tt.asked {
					t.Fatalf("got %v, %v, rows %q, asked %d times", out, err, w.rows, w.asked)
				}
				if len(out) == 0 {
					continue
				}
				c := out[0].Body.(*pb.Change)
				want := tt.time
				if want.IsZero() {
					want = at.Add(-time.Hour)
				}
				ids[c.GetId()] = true
				if c.GetOp() != tt.op || c.GetOrigin() != tt.origin || !c.GetTime().AsTime().Equal(want) || len(ids) != 1 {
					t.Errorf("got %v, want one of %v", c, want)
				}
			}
		})
	}
	t.Run("the records are away", func(t *testing.T) {
		w := newSite(t)
		w.away = retry.Unavailable(errors.New("no table answers"))
		e := strings.Replace(event(removed, "photos", "a"), `"sequencer"`, `"versionId":"v1","sequencer"`, 1)
		if out, err := w.handle(t.Context(), e); len(out) > 0 || retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("got %v, %v", out, err)
		}
	})
}
