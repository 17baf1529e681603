package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A RoundCheckQuery selects the results of a round over one space in one store.
type RoundCheckQuery struct {
	Space    schemas.Copy // without an item
	Round    string
	Started  time.Time // of the round
	Findings bool      // only those of copies that have not passed, or whose metadata are damaged
	After    string    // the last item of the page before
	Limit    int       // default 1,000
}

// A RoundCheck is the newest final result of a round for a copy, or its newest one if none is final: its check is
// repeated, as when the store does not answer.
type RoundCheck struct {
	Item           string
	Started        time.Time
	StoreKind      string
	Verdict        string
	Final          bool
	Row            uint8
	Finding        string
	Level          uint8 // of the evidence
	Metadata       string
	MetadataDetail string
	Bytes          int64 // that were read
	Detail         string
	// Content, Stored and Manifest are the digests of the bytes, of the store's report and of the manifest.
	Content, Stored, Manifest map[string]string
}

// The bits of the column digest.places.
const (
	placeContent = 1 << iota
	placeStored
	placeManifest
)

// RoundChecks returns results of a round, ordered by item. A page with fewer than Limit results is the last one.
func RoundChecks(ctx context.Context, db *clickhouse.DB, q RoundCheckQuery) ([]RoundCheck, error) {
	type row struct {
		Item           string    `ch:"item"`
		Started        time.Time `ch:"ts"`
		StoreKind      string    `ch:"kind"`
		Verdict        string    `ch:"judged"`
		Final          bool      `ch:"final"`
		Row            uint8     `ch:"row"`
		Finding        string    `ch:"found"`
		Level          uint8     `ch:"level"`
		Metadata       string    `ch:"meta"`
		MetadataDetail string    `ch:"metadata_detail"`
		Bytes          int64     `ch:"bytes_read"`
		Detail         string    `ch:"detail"`
		Algorithms     []string  `ch:"algorithms"`
		Values         []string  `ch:"digests"`
		Places         []uint8   `ch:"places"`
	}
	of := SpaceRound{Space: q.Space, Round: q.Round, Since: q.Started}
	where, args := of.checks()
	args = append(args, q.After)
	// The table is faster than its view. Rows that were stored twice are of one item.
	statement := "SELECT item, ts, store_kind::String AS kind, verdict::String AS judged, final, row," +
		" finding::String AS found, level, metadata::String AS meta, metadata_detail, bytes_read, detail," +
		" `digest.algorithm`::Array(String) AS algorithms, arrayMap(v -> lower(hex(v)), `digest.value`) AS digests," +
		" `digest.places` AS places FROM {db}.bit_log WHERE " + where + " AND item > ?" +
		" ORDER BY item, final DESC, ts DESC, id DESC LIMIT 1 BY item"
	if q.Findings {
		statement = "SELECT * FROM (" + statement + ")" +
			" WHERE NOT final OR judged NOT IN ('pass', 'skipped', 'moot') OR meta = 'damaged' ORDER BY item"
	}
	rows, err := clickhouse.Query[row](ctx, db, "read the checks of a round", statement+" LIMIT ?",
		append(args, limit(q.Limit))...)
	all := make([]RoundCheck, len(rows))
	for i, r := range rows {
		all[i] = RoundCheck{Item: r.Item, Started: r.Started, StoreKind: r.StoreKind, Verdict: r.Verdict, Final: r.Final,
			Row: r.Row, Finding: r.Finding, Level: r.Level, Metadata: r.Metadata, MetadataDetail: r.MetadataDetail,
			Bytes: r.Bytes, Detail: r.Detail, Content: map[string]string{}, Stored: map[string]string{},
			Manifest: map[string]string{}}
		for n, algorithm := range r.Algorithms {
			for place, set := range map[uint8]map[string]string{
				placeContent: all[i].Content, placeStored: all[i].Stored, placeManifest: all[i].Manifest,
			} {
				if r.Places[n]&place != 0 {
					set[algorithm] = r.Values[n]
				}
			}
		}
	}
	return all, err
}

// An OverdueCopy is a live copy without a pass since some time.
type OverdueCopy struct {
	Item     string
	LastPass time.Time // of its content; zero: it has not passed
}

// Overdue returns the copies of a space that a query selects, those without a pass first, then by their last pass.
func Overdue(ctx context.Context, db *clickhouse.DB, q schemas.DueQuery) ([]OverdueCopy, error) {
	keys, err := selectDue(ctx, db, q, limit(q.Limit))
	all := make([]OverdueCopy, len(keys))
	for i, k := range keys {
		all[i] = OverdueCopy{k.Item, unshiftTime(k.Good)}
	}
	return all, err
}

// A SpaceRate is how many checks of a space in a store have had a final result since some time.
type SpaceRate struct {
	Store  string `ch:"in_store"`
	Space  string `ch:"space"`
	Checks uint64 `ch:"checks"`
	Read   uint64 `ch:"bytes_read_by"` // those that have read bytes
}

// SpaceRates counts the checks of an account that began since a time, ordered by store and space.
func SpaceRates(ctx context.Context, db *clickhouse.DB, account string, since time.Time) ([]SpaceRate, error) {
	return clickhouse.Query[SpaceRate](ctx, db, "count the checks of spaces",
		"SELECT store::String AS in_store, space, count() AS checks, countIf(level = 4) AS bytes_read_by"+
			" FROM {db}.bit_log_v WHERE account = ? AND ts >= "+milliParam+" AND final AND verdict != 'skipped'"+
			" GROUP BY in_store, space ORDER BY in_store, space", account, since.UnixMilli())
}
