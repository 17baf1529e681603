package read_test

import (
	"context"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A space is expected if it has a live copy that is newer than the last delete by a client and the last declaration
// by an operator, unless the space was created again since.
func TestExpectedSpace(t *testing.T) {
	t.Parallel()
	type event struct {
		op     pb.Op
		item   string
		hour   int
		origin pb.Origin
	}
	const client, sweep = pb.Origin_ORIGIN_CLIENT, pb.Origin_ORIGIN_SWEEP
	add := func(item string, hour int) event { return event{pb.Op_OP_ADD, item, hour, client} }
	remove := func(item string, hour int) event { return event{pb.Op_OP_DELETE, item, hour, client} }
	create := func(hour int) event { return event{pb.Op_OP_CREATE_SPACE, "", hour, client} }
	drop := func(hour int, by pb.Origin) event { return event{pb.Op_OP_DELETE_SPACE, "", hour, by} }
	tests := map[string]struct {
		events []event
		gone   int // hour at which it is declared gone; 0: never
		want   bool
	}{
		"never heard of":      {nil, 0, false},
		"empty":               {[]event{create(1)}, 0, false},
		"with a copy":         {[]event{add("a", 1)}, 0, true},
		"with deleted copies": {[]event{add("a", 1), add("b", 1), remove("a", 2), remove("b", 3)}, 0, false},
		"with one copy left":  {[]event{add("a", 1), add("b", 1), remove("a", 2)}, 0, true},
		"deleted by a client": {[]event{create(1), add("a", 2), drop(3, client)}, 0, false},
		"deleted by the deleter": {[]event{create(1), add("a", 2), drop(3, pb.Origin_ORIGIN_DUPLICATION)},
			0, false},
		"deleted, as a sweep guesses":          {[]event{create(1), add("a", 2), drop(3, sweep)}, 0, true},
		"deleted, and written to since":        {[]event{add("a", 1), drop(2, client), add("b", 3)}, 0, true},
		"deleted, and created since":           {[]event{add("a", 1), drop(2, client), create(3)}, 0, true},
		"declared gone":                        {[]event{create(1), add("a", 2)}, 3, false},
		"declared gone in the moment it wrote": {[]event{add("a", 3)}, 3, false},
		"declared gone, and written to since":  {[]event{add("a", 1), add("b", 4)}, 3, true},
		"declared gone, and created since":     {[]event{add("a", 1), create(4)}, 3, true},
		"deleted after it was declared gone":   {[]event{add("a", 1), create(4), drop(5, client)}, 3, false},
		"declared gone after it was deleted":   {[]event{add("a", 1), drop(2, client), create(3), add("b", 4)}, 5, false},
	}
	const live, tombstone = pb.RecordState_RECORD_STATE_LIVE, pb.RecordState_RECORD_STATE_TOMBSTONE
	auditOf := map[string]pb.RecordState{"never heard of": pb.RecordState_RECORD_STATE_NONE, "empty": live,
		"deleted by a client": tombstone, "deleted by the deleter": tombstone, "deleted, as a sweep guesses": tombstone,
		"deleted, and created since": live}
	db := clickhousetest.Open(t)
	gone := map[string]time.Time{}
	var bodies []schemas.Body
	for name, tt := range tests {
		for _, e := range tt.events {
			c := clickhousetest.Change(e.item, time.Duration(e.hour)*time.Hour)
			c.Op, c.Space, c.Origin = e.op, name, e.origin
			if e.op != pb.Op_OP_ADD {
				c.Digests, c.Version, c.Size = nil, "", 0
			}
			c.Id = schemas.ChangeID(c)
			elsewhere := clickhousetest.Change(e.item, 100*time.Hour) // in another store, so it must not count
			elsewhere.Space, elsewhere.Store = name, "9"
			elsewhere.Id = schemas.ChangeID(elsewhere)
			bodies = append(bodies, c, elsewhere)
		}
		if tt.gone > 0 {
			gone[name] = clickhousetest.Epoch.Add(time.Duration(tt.gone) * time.Hour)
		}
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, bodies...)
	cfg := read.ReaderConfig{DeclaredGone: func(account, store, space string) time.Time {
		if account != "acme" || store != "1" {
			t.Errorf("asked about a space of %s/%s", account, store)
		}
		return gone[space]
	}}
	waits := 0 // one at a time
	r := clickhousetest.Reader(t, db, func(context.Context) error { waits++; return nil }, cfg)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := schemas.Copy{Account: "acme", Store: "1", Space: name}
			before := waits
			if _, err := r.Fresh(t.Context(), []schemas.Copy{c}); err != nil || waits != before+1 {
				t.Errorf("waited %d times (%v): only the manifest knows of spaces, and one look is enough", waits-before, err)
			}
			got, err := r.Fresh(t.Context(), []schemas.Copy{{Account: "acme", Store: "1", Space: name, Item: "a"}, c})
			must(t, err)
			if audit := got[1].GetAudit(); audit.GetState() != auditOf[name] && auditOf[name] != 0 ||
				name == "deleted, as a sweep guesses" && audit.GetOrigin() != sweep {
				t.Errorf("audit record: got %v, want state %v", audit, auditOf[name])
			}
			if is := got[1].GetManifest().GetState() == pb.RecordState_RECORD_STATE_LIVE; is != tt.want {
				t.Errorf("expected: %v, want %v", is, tt.want)
			}
		})
	}
}
