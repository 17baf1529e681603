package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// WithBatch returns the ReaderConfig with the limits of a batch; 0: the default.
func (c ReaderConfig) WithBatch(copies int, linger time.Duration) ReaderConfig {
	c.maxBatch, c.linger = copies, linger
	return c
}

// Queries returns the number of selections that d has made.
func (d *Due) Queries() int { return d.queries }

// A ManifestQuery selects a page of EachLive.
type ManifestQuery = manifestQuery

// Manifest returns one page of EachLive.
func Manifest(ctx context.Context, db *clickhouse.DB, q ManifestQuery) ([]schemas.KnownCopy, error) {
	return manifestPage(ctx, db, q)
}

// FreshRecords reads the same as a fresh read, without waiting.
func FreshRecords(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy) ([]schemas.KnownCopy, error) {
	known := map[schemas.Copy]*pb.CopyRecord{}
	states, err := readRecords(ctx, db, copies, newestEvidence, known)
	if err == nil {
		err = describeProperties(ctx, db, states, known)
	}
	all := make([]schemas.KnownCopy, len(copies))
	for i, c := range copies {
		all[i] = schemas.KnownCopy{Copy: c, Record: known[c]}
	}
	return all, err
}

// EachItemInBlocks is EachItem with blocks of at most so many rows.
func EachItemInBlocks(
	ctx context.Context, db *clickhouse.DB, account string, rows int, each func(string, string, []StoredCopy) error,
) error {
	return eachItem(ctx, db, itemQuery{account, rows}, each)
}

// IsRetryDue reports whether a copy is due by its newest check. It has its content since a time, and passed last at
// good; zero: never.
func IsRetryDue(
	ctx context.Context, db *clickhouse.DB, q schemas.DueQuery, since, good, attempted time.Time,
) (bool, error) {
	again, args := retryDue(q)
	type row struct {
		Due bool `ch:"due"`
	}
	rows, err := clickhouse.Query[row](ctx, db, "ask whether a copy is due", "SELECT toBool("+again+") AS due FROM ("+
		"SELECT toInt64(?) AS since, toInt64(?) AS good, toInt64(?) AS attempted)",
		append(args, shifted(since), shifted(good), shifted(attempted))...)
	return err == nil && rows[0].Due, err
}
