package reconcile

import (
	"testing"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

func hour(n int) time.Time { return time.Date(2026, 3, 1, n, 0, 0, 0, time.UTC) }

// One case for each row of the table, and its neighbours.
func TestDecide(t *testing.T) {
	a, b := digest.Set{"md5": "aa"}, digest.Set{"md5": "bb"}
	object := func(version string, at time.Time, size int64, d digest.Set) *storage.Object {
		return &storage.Object{Item: "i", Version: version, Modified: at, Size: size, Digests: d}
	}
	live := func(version string, at time.Time, size int64, d digest.Set) *Row {
		return &Row{Item: "i", Live: true, Version: version, Time: at, Size: size, Digests: d}
	}
	passed := func(r *Row, at time.Time) *Row { r.Passed = at; return r }
	tomb := &Row{Item: "i", Time: hour(2), Size: -1}
	inferred := &Row{Item: "i", Time: hour(2), Size: -1, Inferred: true}
	ofThis := &Row{Item: "i", Time: hour(2), Size: -1, Version: "v1"}
	late := object2099(object("v2", hour(2), 4, b))
	here := object("v1", hour(1), 3, a)
	for name, tt := range map[string]struct {
		look look
		want Action
	}{
		"neither":                         {look{}, Nothing},
		"absent, under a tombstone":       {look{row: tomb, before: true}, Nothing},
		"not on record":                   {look{object: here}, Adopt},
		"not on record, others write":     {look{object: here, external: true}, Adopt},
		"under a tombstone":               {look{object: here, row: tomb}, Resurrected},
		"newer than the tombstone":        {look{object: object("v1", hour(3), 3, a), row: tomb}, Resurrected},
		"under a tombstone, others write": {look{object: here, row: tomb, external: true}, Resurrected},
		"newer than the tombstone, others write": {look{object: object("v1", hour(4), 3, nil), row: ofV0(tomb),
			external: true}, Adopt},
		"newer than the tombstone by less than settle, others write": {look{object: object("v1", hour(3), 3, nil),
			row: ofV0(tomb), external: true}, Resurrected},
		"newer than the tombstone, of the deleted content, others write": {look{object: object("v1", hour(4), 3, a),
			row: ofThis, external: true}, Resurrected},
		"newer than a tombstone of a sweep":     {look{object: object("v1", hour(3), 3, a), row: inferred}, Adopt},
		"not newer than a tombstone of a sweep": {look{object: here, row: inferred}, Resurrected},
		"ahead, under a tombstone of a sweep":   {look{object: late, row: inferred}, Resurrected},
		"ahead, others write": {look{object: late, row: live("v1", hour(1), 3, a), external: true},
			Different},
		"absent, the first time": {look{row: live("v1", hour(1), 3, a)}, Missing},
		"absent again":           {look{row: live("v1", hour(1), 3, a), before: true}, CheckLost},
		"absent, others write":   {look{row: live("v1", hour(1), 3, a), external: true}, Missing},
		"absent again, others write": {look{row: live("v1", hour(1), 3, a), before: true, external: true},
			Deleted},
		"the version on record":              {look{object: here, row: live("v1", hour(1), 3, nil)}, Equal},
		"the version on record, size unsaid": {look{object: here, row: live("v1", hour(1), -1, nil)}, Equal},
		"the version, another size":          {look{object: here, row: live("v1", hour(1), 4, nil)}, Different},
		"another version":                    {look{object: here, row: live("v0", hour(1), 3, a)}, Different},
		"newer": {look{object: object("v2", hour(2), 4, b), row: live("v1", hour(1), 3, a)},
			Different},
		"newer, others write": {look{object: object("v2", hour(2), 4, b), row: live("v1", hour(1), 3, a),
			external: true}, Update},
		"other, not newer, others write": {look{object: object("v2", hour(1), 4, b), row: live("v1", hour(1), 3, a),
			external: true}, Different},
		"the digests on record":   {look{object: here, row: live("", hour(2), 3, a)}, Equal},
		"other digests":           {look{object: here, row: live("", hour(1), 3, b)}, Different},
		"only the size on record": {look{object: here, row: live("", hour(2), 3, nil)}, Equal},
		"another size":            {look{object: here, row: live("", hour(2), 4, nil)}, Different},
		"another version that passed since": {look{object: here, row: passed(live("v0", hour(0), 3, a), hour(2))},
			Equal},
		"another version, a pass before it": {look{object: here, row: passed(live("v0", hour(0), 3, a),
			hour(1))}, Different},
		"another size, a pass since": {look{object: here, row: passed(live("v0", hour(0), 4, a), hour(2))}, Different},
		"another version, a pass of the content before": {look{object: object("v1", hour(1), 3, a),
			row: passed(live("v0", hour(3), 3, a), hour(2))}, Different},
	} {
		t.Run(name, func(t *testing.T) {
			tt.look.now, tt.look.settle = hour(5), time.Hour
			if got := decide(tt.look); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func object2099(o *storage.Object) *storage.Object { o.Modified = hour(24 * 365 * 73); return o }

func ofV0(r *Row) *Row { c := *r; c.Version = "v0"; return &c }

func TestDescribesByETag(t *testing.T) {
	row := &Row{Live: true, ETag: "e", Size: -1}
	if !row.describes(&storage.Object{ETag: "e", Size: 3}) || row.describes(&storage.Object{ETag: "f", Size: 3}) {
		t.Error("the ETag does not decide")
	}
}
