package read

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The audit record of a space is that of its last Change. A delete that was reported counts before one that was
// inferred.
func TestAuditRecordOfSpace(t *testing.T) {
	at := func(state pb.RecordState, ms int64, by pb.Origin) *pb.Record {
		return &pb.Record{State: state, Time: timestamppb.New(time.UnixMilli(ms)), Origin: by}
	}
	const live, tombstone = pb.RecordState_RECORD_STATE_LIVE, pb.RecordState_RECORD_STATE_TOMBSTONE
	const client, sweep = pb.Origin_ORIGIN_CLIENT, pb.Origin_ORIGIN_SWEEP
	for name, tt := range map[string]struct {
		changes spaceChanges
		want    *pb.Record
	}{
		"none":    {spaceChanges{}, &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}},
		"created": {spaceChanges{Created: 1, Lived: 1, LivedBy: "client"}, at(live, 1, client)},
		"deleted": {spaceChanges{Created: 1, Lived: 1, Deleted: 2, Inferred: 2, LivedBy: "client", DeletedBy: "client",
			InferredBy: "client"}, at(tombstone, 2, client)},
		"deleted in the millisecond of its creation": {spaceChanges{Lived: 2, Deleted: 2, Inferred: 2, LivedBy: "client",
			DeletedBy: "client"}, at(live, 2, client)},
		"created since": {spaceChanges{Lived: 3, Deleted: 2, Inferred: 2, LivedBy: "client"}, at(live, 3, client)},
		"deleted, and noticed by a sweep": {spaceChanges{Lived: 1, Deleted: 2, Inferred: 3, DeletedBy: "client",
			InferredBy: "sweep"}, at(tombstone, 2, client)},
		"only noticed by a sweep": {spaceChanges{Lived: 1, Inferred: 3, InferredBy: "sweep"}, at(tombstone, 3, sweep)},
		"deleted, created, and missed by a sweep": {spaceChanges{Lived: 3, Deleted: 2, Inferred: 4, DeletedBy: "client",
			InferredBy: "sweep"}, at(tombstone, 4, sweep)},
	} {
		if got := tt.changes.record(); !proto.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}
