package read

import (
	"context"
	"slices"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// EachLive calls each for every live copy of one space in one store, ordered by the bytes of the item ids. It stops
// at the first error of each, and returns it.
func EachLive(ctx context.Context, db *clickhouse.DB, of schemas.Copy, each func(schemas.KnownCopy) error) error {
	q := manifestQuery{Account: of.Account, Store: of.Store, Space: of.Space, After: of.Item, Limit: 10_000}
	for {
		page, err := manifestPage(ctx, db, q)
		if err != nil {
			return err
		}
		for _, k := range page {
			if err := each(k); err != nil {
				return err
			}
		}
		if len(page) < q.Limit {
			return nil
		}
		q.After = page[len(page)-1].Item
	}
}

// Records returns the stored record of each copy, in the order of copies. Unlike Reader.Fresh, it does not wait for
// records that are still in Kafka, and does not report which content the properties belong to. Use it for display,
// not for decisions.
func Records(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	return recordsOf(ctx, db, copies, auditRecords)
}

// ManifestRecords is Records without the audit records.
func ManifestRecords(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	none := func(context.Context, *clickhouse.DB, []schemas.Copy) (map[schemas.Copy]*pb.Record, error) {
		return nil, nil
	}
	return recordsOf(ctx, db, copies, none)
}

// recordsAtOnce is the number of copies in one query of their records.
const recordsAtOnce = 10_000

func recordsOf(
	ctx context.Context, db *clickhouse.DB, copies []schemas.Copy, audit auditQuery,
) ([]*pb.CopyRecord, error) {
	known := map[schemas.Copy]*pb.CopyRecord{}
	for part := range slices.Chunk(copies, recordsAtOnce) {
		if _, err := readRecords(ctx, db, part, audit, known); err != nil {
			return nil, err
		}
	}
	records := make([]*pb.CopyRecord, len(copies))
	for i, c := range copies {
		records[i] = known[c]
	}
	return records, nil
}

// HasFinalCheck reports whether a round over a space has a final check of a copy in it.
func HasFinalCheck(ctx context.Context, db *clickhouse.DB, space schemas.Copy) (bool, error) {
	n, err := db.Count(ctx, "look for the checks of rounds",
		"SELECT count() AS n FROM (SELECT 1 FROM {db}.bit_log WHERE account = ? AND store = ? AND space = ?"+
			" AND round != '' AND cause = round AND final LIMIT 1)", space.Account, space.Store, space.Space)
	return n > 0, err
}
