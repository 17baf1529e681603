package read

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/ext"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A ChangePartition is a partition of the topic changes, or of a topic of this name that was deleted.
type ChangePartition struct {
	Incarnation uint32 `json:"incarnation"`
	Partition   int32  `json:"partition"`
}

// A ChangeRange is a range of offsets of a partition: From is included, To is not.
type ChangeRange struct {
	Partition ChangePartition
	From, To  int64
}

// An ExportQuery selects the changes with a report in a range, without those that have one before Exported.
type ExportQuery struct {
	Account string // empty: all
	Range   ChangeRange
	// Exported are the first offsets that are not exported, by partition.
	Exported map[ChangePartition]int64
}

// ChangesToExport returns changes, ordered by time, account, space, item, store and id. A change that was reported
// several times is that of the view audit_log_v.
func ChangesToExport(ctx context.Context, db *clickhouse.DB, q ExportQuery) ([]*pb.Change, error) {
	keys, err := exportKeys(ctx, db, q)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	wanted := map[string]bool{}
	table, err := ext.NewTable("keys", ext.Column("account", "String"), ext.Column("space", "String"),
		ext.Column("item", "String"), ext.Column("store", "String"), ext.Column("millis", "Int64"))
	if err != nil {
		return nil, fmt.Errorf("make a table of keys: %w", err)
	}
	first, last := keys[0].Time, keys[0].Time
	for _, k := range keys {
		wanted[hex.EncodeToString([]byte(k.ID))] = true
		if k.Time.Before(first) {
			first = k.Time
		}
		if k.Time.After(last) {
			last = k.Time
		}
		if err := table.Append(k.Account, k.Space, k.Item, k.Store, k.Time.UnixMilli()); err != nil {
			return nil, fmt.Errorf("make a table of keys: %w", err)
		}
	}
	rows, err := clickhouse.Query[changeRow](ch.Context(ctx, ch.WithExternalTable(table)), db, "read changes to export",
		"SELECT "+changeFields+" FROM {db}.audit_log_v WHERE ts BETWEEN "+milliParam+" AND "+milliParam+
			" AND (account, space, item, store, ts) IN (SELECT account, space, item, store,"+
			" fromUnixTimestamp64Milli(millis, 'UTC') FROM keys)"+
			" ORDER BY ts, account, space, item, store, id SETTINGS optimize_use_projections = 0",
		first.UnixMilli(), last.UnixMilli())
	if err != nil {
		return nil, err
	}
	changes := make([]*pb.Change, 0, len(keys))
	for i := range rows {
		if wanted[rows[i].ID] { // others are of the same millisecond
			changes = append(changes, rows[i].change())
		}
	}
	return changes, nil
}

// An exportKey identifies a change in the audit log.
type exportKey struct {
	copyKey
	Time time.Time `ch:"ts"`
	ID   string    `ch:"id"`
}

func exportKeys(ctx context.Context, db *clickhouse.DB, q ExportQuery) ([]exportKey, error) {
	table, err := ext.NewTable("exported", ext.Column("inc", "UInt32"), ext.Column("part", "UInt16"),
		ext.Column("next", "UInt64"))
	if err != nil {
		return nil, fmt.Errorf("make a table of positions: %w", err)
	}
	for p, next := range q.Exported {
		if err := table.Append(p.Incarnation, uint16(p.Partition), uint64(next)); err != nil {
			return nil, fmt.Errorf("make a table of positions: %w", err)
		}
	}
	const key = "account, space, item, store, ts, id"
	return clickhouse.Query[exportKey](ch.Context(ctx, ch.WithExternalTable(table)), db, "find changes to export",
		"SELECT "+key+" FROM (SELECT "+key+", topic, inc, part, off FROM {db}.audit_log WHERE ("+key+") GLOBAL IN (SELECT "+
			key+" FROM {db}.audit_log WHERE topic = ? AND inc = ? AND part = ? AND off >= ? AND off < ? AND account != ''"+
			" AND (? = '' OR account = ?))) AS r LEFT JOIN exported AS e ON r.inc = e.inc AND r.part = e.part"+
			" GROUP BY "+key+" HAVING countIf(off < next) = 0 ORDER BY "+key,
		string(schemas.Changes), q.Range.Partition.Incarnation, uint16(q.Range.Partition.Partition), uint64(q.Range.From),
		uint64(q.Range.To), q.Account, q.Account)
}

// ChangePartitions returns the partitions of the topic changes, of all its incarnations, of which the audit log has
// records, in the order of their first records, with the first offset that it has not handled.
func ChangePartitions(ctx context.Context, db *clickhouse.DB) ([]ChangeRange, error) {
	at, err := clickhouse.ReadPositions(ctx, db, db.Reader(), []string{"audit_log"})
	if err != nil {
		return nil, err
	}
	type row struct {
		Inc   uint32 `ch:"inc"`
		Part  uint16 `ch:"part"`
		First uint64 `ch:"first_offset"`
	}
	rows, err := clickhouse.Query[row](ctx, db, "read the first offsets of changes",
		"SELECT inc, part, min(off) AS first_offset FROM {db}.audit_log WHERE account != '' AND topic = ?"+
			" GROUP BY inc, part ORDER BY min(ingested), inc, part", string(schemas.Changes))
	if err != nil {
		return nil, err
	}
	var all []ChangeRange
	for _, r := range rows {
		p := ChangePartition{Incarnation: r.Inc, Partition: int32(r.Part)}
		to := at[clickhouse.PositionKey{Table: "audit_log", Topic: schemas.Changes, Incarnation: r.Inc,
			Partition: int32(r.Part)}]
		all = append(all, ChangeRange{p, int64(r.First), to})
	}
	return slices.DeleteFunc(all, func(r ChangeRange) bool { return r.To <= r.From }), nil
}
