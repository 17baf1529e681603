package read

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/version"
)

// readSpace returns the record of a space: the manifest is LIVE if the space is expected, otherwise NONE. A space is
// expected if it has a live copy. If a client has deleted the space, or an operator has declared it gone, and it was
// not created again since, only a copy that is newer than that counts. The audit record is LIVE, with the time and
// origin of the last Change, or TOMBSTONE if the space was deleted since it was last created or set.
func readSpace(ctx context.Context, db *clickhouse.DB, of schemas.Copy, gone time.Time) (*pb.CopyRecord, error) {
	rows, err := clickhouse.Query[spaceChanges](ctx, db, "read the changes of a space",
		"WITH toUnixTimestamp64Milli(at) AS ms, op = 'delete_space' AS gone,"+
			" gone AND origin IN ('client', 'duplication') AS fact,"+
			" op IN ('create_space', 'set_space_properties', 'set_acl') AS lives"+
			" SELECT maxIf(ms, op = 'create_space') AS created, maxIf(ms, lives) AS lived, maxIf(ms, fact) AS deleted,"+
			" maxIf(ms, gone) AS inferred, argMaxIf(origin::String, at, lives) AS lived_by,"+
			" argMaxIf(origin::String, at, fact) AS deleted_by, argMaxIf(origin::String, at, gone) AS inferred_by"+
			" FROM (SELECT op, origin, "+reportsAt+" AS at FROM {db}.audit_log"+
			" WHERE account = ? AND space = ? AND item = '' AND store = ?)",
		of.Account, of.Space, of.Store)
	if err != nil {
		return nil, err
	}
	var after int64
	r := &pb.CopyRecord{Manifest: noRecord(), Audit: noRecord()}
	for _, f := range rows {
		r.Audit = f.record()
		last := f.Deleted
		if !gone.IsZero() {
			last = max(last, gone.UnixMilli())
		}
		if last > f.Created {
			after = last + version.Shift
		}
	}
	n, err := db.Count(ctx, "look for a live copy in a space",
		"SELECT count() AS n FROM (SELECT max(content.ver) AS written, max(deleted.ver) AS gone FROM {db}.copy_state"+
			" WHERE account = ? AND store = ? AND space = ? GROUP BY account, store, space, item"+
			" HAVING written > gone AND toInt64(bitShiftRight(written, 83)) > ? LIMIT 1)"+aggregateInOrder,
		of.Account, of.Store, of.Space, after)
	if err != nil {
		return nil, err
	}
	if n > 0 {
		r.Manifest.State = pb.RecordState_RECORD_STATE_LIVE
	}
	return r, nil
}

// spaceChanges are the times, in Unix milliseconds, and origins of the last Changes of a space. A delete that a sweep
// or an import inferred is only used if there is no other one.
type spaceChanges struct {
	Created    int64  `ch:"created"`
	Lived      int64  `ch:"lived"` // it was created, or its properties or ACL were set
	Deleted    int64  `ch:"deleted"`
	Inferred   int64  `ch:"inferred"`
	LivedBy    string `ch:"lived_by"`
	DeletedBy  string `ch:"deleted_by"`
	InferredBy string `ch:"inferred_by"`
}

func (c spaceChanges) record() *pb.Record {
	const live, tombstone = pb.RecordState_RECORD_STATE_LIVE, pb.RecordState_RECORD_STATE_TOMBSTONE
	at := func(state pb.RecordState, ms int64, by string) *pb.Record {
		return &pb.Record{State: state, Time: timestamppb.New(time.UnixMilli(ms)), Origin: originOf(by)}
	}
	switch {
	case c.Lived == 0 && c.Inferred == 0:
		return noRecord()
	case c.Deleted > c.Lived:
		return at(tombstone, c.Deleted, c.DeletedBy)
	case c.Inferred > c.Lived:
		return at(tombstone, c.Inferred, c.InferredBy)
	}
	return at(live, c.Lived, c.LivedBy)
}
