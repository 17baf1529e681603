package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/version"
)

// readSpace returns the record of a space: the manifest is LIVE if the space is expected, otherwise NONE. A space is
// expected if it has a live copy. If a client has deleted the space, or an operator has declared it gone, and it was
// not created again since, only a copy that is newer than that counts.
func readSpace(ctx context.Context, db *clickhouse.DB, of schemas.Copy, gone time.Time) (*pb.CopyRecord, error) {
	type facts struct {
		Created int64 `ch:"created"`
		Deleted int64 `ch:"deleted"`
	}
	rows, err := clickhouse.Query[facts](ctx, db, "read the changes of a space",
		"SELECT maxIf(toUnixTimestamp64Milli(ts), op = 'create_space') AS created,"+
			" maxIf(toUnixTimestamp64Milli(ts), op = 'delete_space' AND origin IN ('client', 'duplication')) AS deleted"+
			" FROM {db}.audit_log WHERE account = ? AND space = ? AND item = '' AND store = ?",
		of.Account, of.Space, of.Store)
	if err != nil {
		return nil, err
	}
	var after int64
	for _, f := range rows {
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
	r := &pb.CopyRecord{Manifest: noRecord(), Audit: noRecord()}
	if n > 0 {
		r.Manifest.State = pb.RecordState_RECORD_STATE_LIVE
	}
	return r, nil
}
