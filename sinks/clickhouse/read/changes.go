package read

import (
	"context"
	"fmt"
	"slices"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/ext"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A Span is a range of time: From is included, To is not. The zero time is no bound.
type Span struct{ From, To time.Time }

// A ChangeCursor is the end of a page of changes. The zero cursor is the start.
type ChangeCursor struct {
	Time               time.Time
	Space, Item, Store string
}

// A SpaceQuery selects the changes in one space, in all stores.
type SpaceQuery struct {
	Account, Space string
	Span           Span
	After          ChangeCursor
	Limit          int // default 1,000
}

// SpaceHistory returns the changes of a space and its items, oldest first, and the cursor of the next page. A page
// with fewer than Limit changes is the last one. A page may have more than Limit changes if one copy changed several
// times in the same millisecond.
func SpaceHistory(ctx context.Context, db *clickhouse.DB, q SpaceQuery) ([]*pb.Change, ChangeCursor, error) {
	return readHistory(ctx, db, historyQuery{
		op: "read the changes of a space", where: "account = ? AND space = ?", args: []any{q.Account, q.Space},
		order: "account, space, ts", span: q.Span, after: q.After, limit: limit(q.Limit),
	})
}

// A historyQuery selects changes in the order of a projection of the audit log.
type historyQuery struct {
	op, where string
	args      []any
	order     string // sorting key of the projection
	span      Span
	after     ChangeCursor
	limit     int
}

// readHistory finds the keys of a page in the projection, and then reads the rows of these keys from the table.
func readHistory(ctx context.Context, db *clickhouse.DB, h historyQuery) ([]*pb.Change, ChangeCursor, error) {
	first, last := h.span.millis(h.after.Time)
	var keys []changeKey
	// Many rows of one time may belong to earlier pages or to one change. Then read more of them.
	for n := h.limit; ; n *= 8 {
		end, err := h.pageEnd(ctx, db, first, last, n)
		if err != nil {
			return nil, h.after, err
		}
		if keys, err = readChangeKeys(ctx, db, h, first, end); err != nil {
			return nil, h.after, err
		}
		if len(keys) >= h.limit || end == last {
			break
		}
	}
	if len(keys) == 0 {
		return nil, h.after, nil
	}
	changes, err := changesAt(ctx, db, keys, h.where, h.args...)
	return changes, keys[len(keys)-1].cursor(), err
}

// pageEnd returns the time of the nth row in the order of the projection, or last if there are fewer rows.
func (h historyQuery) pageEnd(ctx context.Context, db *clickhouse.DB, first, last int64, n int) (int64, error) {
	type row struct {
		Time time.Time `ch:"ts"`
	}
	rows, err := clickhouse.Query[row](ctx, db, h.op, "SELECT ts FROM {db}.audit_log WHERE "+h.where+
		" AND ts BETWEEN "+milliParam+" AND "+milliParam+
		" ORDER BY "+h.order+" LIMIT 1 OFFSET ? SETTINGS max_block_size = 8192",
		slices.Concat(h.args, []any{first, last, n})...)
	if err != nil || len(rows) == 0 {
		return last, err
	}
	return rows[0].Time.UnixMilli(), nil
}

// readChangeKeys returns the keys after the cursor, up to the time end.
func readChangeKeys(ctx context.Context, db *clickhouse.DB, h historyQuery, first, end int64) ([]changeKey, error) {
	where, args := h.where+" AND ts BETWEEN "+milliParam+" AND "+milliParam, slices.Concat(h.args, []any{first, end})
	return clickhouse.Query[changeKey](ctx, db, h.op, "SELECT ts, space, item, store FROM {db}.audit_log WHERE "+where+
		" AND (ts, space, item, store) > ("+milliParam+", ?, ?, ?)"+
		" ORDER BY ts, space, item, store LIMIT 1 BY ts, space, item, store LIMIT ?",
		append(args, afterMillis(h.after.Time), h.after.Space, h.after.Item, h.after.Store, h.limit)...)
}

// milliParam is SQL for the time of a parameter in milliseconds.
const milliParam = "fromUnixTimestamp64Milli(?, 'UTC')"

// millis returns the first and the last millisecond of a span. A later after replaces the first.
func (s Span) millis(after time.Time) (first, last int64) {
	first, last = clickhouse.MinMillis, clickhouse.MaxMillis
	if !s.From.IsZero() {
		first = clampMillis(ceilMillis(s.From))
	}
	if !s.To.IsZero() {
		last = clampMillis(ceilMillis(s.To) - 1)
	}
	if !after.IsZero() {
		first = max(first, clampMillis(after.UnixMilli()))
	}
	return first, last
}

// ceilMillis returns t in milliseconds, rounded up.
func ceilMillis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%1e6 != 0 {
		ms++
	}
	return ms
}

// clampMillis limits a time to the range of the tables.
func clampMillis(ms int64) int64 { return min(max(ms, clickhouse.MinMillis), clickhouse.MaxMillis) }

// afterMillis returns the time of a cursor in milliseconds. For a zero cursor it is the lowest possible time.
func afterMillis(t time.Time) int64 {
	if t.IsZero() {
		return clickhouse.MinMillis
	}
	return clampMillis(t.UnixMilli())
}

// A changeKey identifies the changes of one copy in one millisecond.
type changeKey struct {
	Time  time.Time `ch:"ts"`
	Space string    `ch:"space"`
	Item  string    `ch:"item"`
	Store string    `ch:"store"`
}

func (k changeKey) cursor() ChangeCursor { return ChangeCursor(k) }

// withChangeKeys attaches the keys to the query as the external table keys.
func withChangeKeys(ctx context.Context, keys []changeKey) (context.Context, error) {
	t, err := ext.NewTable("keys", ext.Column("millis", "Int64"), ext.Column("space", "String"),
		ext.Column("item", "String"), ext.Column("store", "String"))
	if err != nil {
		return nil, fmt.Errorf("make a table of keys: %w", err)
	}
	for _, k := range keys {
		if err := t.Append(k.Time.UnixMilli(), k.Space, k.Item, k.Store); err != nil {
			return nil, fmt.Errorf("make a table of keys: %w", err)
		}
	}
	return ch.Context(ctx, ch.WithExternalTable(t)), nil
}

// changesAt returns the changes of some keys, in their order.
func changesAt(
	ctx context.Context, db *clickhouse.DB, keys []changeKey, where string, args ...any,
) ([]*pb.Change, error) {
	ctx, err := withChangeKeys(ctx, keys)
	if err != nil {
		return nil, err
	}
	rows, err := clickhouse.Query[changeRow](ctx, db, "read changes",
		"SELECT "+changeFields+" FROM {db}.audit_log_v WHERE "+where+" AND ts BETWEEN "+milliParam+" AND "+milliParam+
			" AND (space, item, store, ts) IN (SELECT space, item, store, fromUnixTimestamp64Milli(millis, 'UTC') FROM keys)"+
			" ORDER BY ts, space, item, store, id SETTINGS optimize_use_projections = 0",
		append(args, keys[0].Time.UnixMilli(), keys[len(keys)-1].Time.UnixMilli())...)
	changes := make([]*pb.Change, len(rows))
	for i := range rows {
		changes[i] = rows[i].change()
	}
	return changes, err
}

const changeFields = `id, ts, ns, op, account, store, space, item, source_space, source_item,
  version, etag, size, digests, provenance,
  media_type, properties, properties_unknown, acl, sequence, user, agent, origin, cause, source_time, source_ns,
  source_version, approved, evidence`

type changeRow struct {
	ID            string            `ch:"id"`
	Time          time.Time         `ch:"ts"`
	Nanos         uint32            `ch:"ns"`
	Op            string            `ch:"op"`
	Account       string            `ch:"account"`
	Store         string            `ch:"store"`
	Space         string            `ch:"space"`
	Item          string            `ch:"item"`
	SourceSpace   string            `ch:"source_space"`
	SourceItem    string            `ch:"source_item"`
	Version       string            `ch:"version"`
	ETag          string            `ch:"etag"`
	Size          *int64            `ch:"size"`
	Digests       map[string]string `ch:"digests"`
	Provenance    string            `ch:"provenance"`
	MediaType     string            `ch:"media_type"`
	Properties    map[string]string `ch:"properties"`
	PropsUnknown  bool              `ch:"properties_unknown"`
	ACL           map[string]string `ch:"acl"`
	Sequence      string            `ch:"sequence"`
	User          string            `ch:"user"`
	Agent         string            `ch:"agent"`
	Origin        string            `ch:"origin"`
	Cause         string            `ch:"cause"`
	SourceTime    *time.Time        `ch:"source_time"`
	SourceNanos   uint32            `ch:"source_ns"`
	SourceVersion string            `ch:"source_version"`
	Approved      string            `ch:"approved"`
	Evidence      map[string]string `ch:"evidence"`
}

// change returns the row as a message.
func (r *changeRow) change() *pb.Change {
	size, unknown := reported(r.Size)
	return &pb.Change{
		Id: r.ID, Op: pb.Op(enumValue(pb.Op_value, "OP_", r.Op)),
		Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item,
		SourceSpace: r.SourceSpace, SourceItem: r.SourceItem,
		Version: r.Version, Etag: r.ETag, Size: size, SizeUnknown: unknown, Digests: r.Digests,
		Provenance: pb.Provenance(enumValue(pb.Provenance_value, "PROVENANCE_", r.Provenance)),
		MediaType:  r.MediaType, Properties: r.Properties, PropertiesUnknown: r.PropsUnknown, Acl: r.ACL,
		Time: nullTime(&r.Time, r.Nanos), Sequence: r.Sequence,
		User: r.User, Agent: r.Agent, Origin: originOf(r.Origin), Cause: r.Cause,
		SourceTime:    nullTime(r.SourceTime, r.SourceNanos),
		SourceVersion: r.SourceVersion, Approved: r.Approved, Evidence: r.Evidence,
	}
}
