package read

import (
	"context"
	"fmt"
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
	Item           string    `ch:"item"`
	Started        time.Time `ch:"ts"`
	StoreKind      string    `ch:"store_kind"`
	Verdict        string    `ch:"verdict"`
	Final          bool      `ch:"final"`
	Row            uint8     `ch:"row"`
	Finding        string    `ch:"finding"`
	Level          uint8     `ch:"level"` // of the evidence
	Metadata       string    `ch:"metadata"`
	MetadataDetail string    `ch:"metadata_detail"`
	Bytes          int64     `ch:"bytes_read"` // that were read
	Detail         string    `ch:"detail"`
	// Content, Stored and Manifest are the digests of the bytes, of the store's report and of the manifest.
	Content  map[string]string `ch:"content"`
	Stored   map[string]string `ch:"stored"`
	Manifest map[string]string `ch:"manifest"`
}

// digestsAt is SQL for the digests of a check, in hex, at a place, which is a bit of the column digest.places.
func digestsAt(place int) string {
	at := fmt.Sprintf("(x, places) -> bitTest(places, %d)", place)
	return "mapFromArrays(arrayFilter(" + at + ", arrayMap(a -> a::String, `digest.algorithm`), `digest.places`)," +
		" arrayMap(d -> lower(hex(d)), arrayFilter(" + at + ", `digest.value`, `digest.places`)))"
}

// RoundChecks returns results of a round, ordered by item. A page with fewer than Limit results is the last one.
func RoundChecks(ctx context.Context, db *clickhouse.DB, q RoundCheckQuery) ([]RoundCheck, error) {
	of := SpaceRound{Space: q.Space, Round: q.Round, Since: q.Started}
	where, args := of.checks()
	args = append(args, q.After)
	// The table is faster than its view. Rows that were stored twice are of one item.
	statement := "SELECT item, ts, store_kind, verdict, final, row, finding, level, metadata, metadata_detail," +
		" bytes_read, detail, " + digestsAt(0) + " AS content, " + digestsAt(1) + " AS stored, " +
		digestsAt(2) + " AS manifest FROM {db}.bit_log WHERE " + where + " AND item > ?" +
		" ORDER BY item, final DESC, ts DESC, id DESC LIMIT 1 BY item"
	if q.Findings {
		statement = "SELECT * FROM (" + statement + ")" +
			" WHERE NOT final OR verdict NOT IN ('pass', 'skipped', 'moot') OR metadata = 'damaged' ORDER BY item"
	}
	return clickhouse.Query[RoundCheck](ctx, db, "read the checks of a round", statement+" LIMIT ?",
		append(args, limit(q.Limit))...)
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
