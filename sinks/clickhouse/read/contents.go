package read

import (
	"context"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A Content is one content that an item had in a store, by a Change or a check.
type Content struct {
	Store   string            `ch:"store"`
	Digests map[string]string `ch:"digests"`
	// Verified: millrace computed the digests from bytes. Those of checks always are.
	Verified bool `ch:"verified"`
}

// ContentsOf returns all contents with digests that the audit log has of an item, in whichever store, and those of the
// checks that read its bytes and passed. The store of the copy does not count.
func ContentsOf(ctx context.Context, db *clickhouse.DB, of schemas.Copy) (recorded, passed []Content, err error) {
	const ofItem = " WHERE account = ? AND space = ? AND item = ?"
	recorded, err = clickhouse.Query[Content](ctx, db, "read the contents of an item",
		"SELECT DISTINCT store::String AS store, digests, toBool(provenance = 'verified') AS verified FROM {db}.audit_log_v"+
			ofItem+" AND op IN ('add', 'update', 'copy') AND notEmpty(digests)", of.Account, of.Space, of.Item)
	if err != nil {
		return nil, nil, err
	}
	const ofContent = "(x, places) -> bitAnd(places, 1) > 0"
	passed, err = clickhouse.Query[Content](ctx, db, "read the checked contents of an item",
		"SELECT DISTINCT store::String AS store, true AS verified, mapFromArrays("+
			"arrayFilter("+ofContent+", arrayMap(a -> a::String, `digest.algorithm`), `digest.places`),"+
			" arrayFilter("+ofContent+", `digest.value`, `digest.places`)) AS digests FROM {db}.bit_log_v"+ofItem+
			" AND verdict = 'pass' AND notEmpty(digests)", of.Account, of.Space, of.Item)
	return recorded, passed, err
}
