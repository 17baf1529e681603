package read

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// Limits of a Due.
const (
	dueKeys    = 50_000           // keys of a selection
	dueMinimum = 8                // pages of a selection, at least, if many rounds take turns
	dueMemory  = 400_000          // keys that are kept, some 40 MB
	dueAge     = 30 * time.Minute // after which a selection is not used any more
)

// A Due selects the copies that are due for a check. Since a selection reads the keys and versions of a whole space, it
// serves many pages. It is safe for concurrent use.
type Due struct {
	db *clickhouse.DB

	mu      sync.Mutex // guards what follows
	recent  []*dueSelection
	queries int // selections so far
}

// NewDue returns a Due.
func NewDue(db *clickhouse.DB) *Due { return &Due{db: db} }

// A dueSelection has the first keys after a cursor, in order.
type dueSelection struct {
	query schemas.DueQuery // without Limit
	keys  []dueKey
	all   bool // there are no more
	made  time.Time
}

type dueKey struct {
	Item string `ch:"item"`
	Good int64  `ch:"good"` // the last pass, shifted
}

func (k dueKey) compare(other dueKey) int {
	if k.Good != other.Good {
		return int(min(max(k.Good-other.Good, -1), 1))
	}
	return strings.Compare(k.Item, other.Item)
}

// Due returns due copies with their record: first the copies that never passed, then by their last pass, oldest first.
// It also returns the cursor of the next page. If it returns fewer copies than q.Limit there are no more. A copy may
// have been checked or deleted since its selection, up to half an hour ago.
func (d *Due) Due(ctx context.Context, q schemas.DueQuery) ([]schemas.KnownCopy, schemas.DueCursor, error) {
	keys, err := d.keys(ctx, q)
	if err != nil || len(keys) == 0 {
		return nil, q.After, err
	}
	copies := make([]schemas.Copy, len(keys))
	for i, k := range keys {
		copies[i] = schemas.Copy{Account: q.Account, Store: q.Store, Space: q.Space, Item: k.Item}
	}
	records, err := Records(ctx, d.db, copies)
	if err != nil {
		return nil, q.After, err
	}
	known := make([]schemas.KnownCopy, len(keys))
	for i, c := range copies {
		known[i] = schemas.KnownCopy{Copy: c, Record: records[i]}
	}
	last := keys[len(keys)-1]
	return known, schemas.DueCursor{LastPass: unshiftTime(last.Good), Item: last.Item}, nil
}

// keys returns the keys of a page, from a recent selection if there is one.
func (d *Due) keys(ctx context.Context, q schemas.DueQuery) ([]dueKey, error) {
	n := limit(q.Limit)
	q.Limit = 0
	d.mu.Lock()
	d.recent = slices.DeleteFunc(d.recent, func(s *dueSelection) bool { return time.Since(s.made) > dueAge })
	for i, s := range d.recent {
		if page, more, ok := s.page(q, n); ok {
			if !more {
				d.recent = slices.Delete(d.recent, i, i+1)
			}
			d.mu.Unlock()
			return page, nil
		}
	}
	size := max(min(dueKeys, d.left()/8), dueMinimum*n)
	if d.left() < size {
		size = n // it is not kept, so that those of others stay
	}
	d.queries++
	d.mu.Unlock()
	s := &dueSelection{query: q, made: time.Now()}
	var err error
	if s.keys, err = selectDue(ctx, d.db, q, size); err != nil {
		return nil, err
	}
	s.all = len(s.keys) < size
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recent = slices.DeleteFunc(d.recent, func(other *dueSelection) bool { return other.serves(q) })
	if len(s.keys) > n && len(s.keys) <= d.left() { // others follow
		d.recent = append(d.recent, s)
	}
	return s.keys[:min(n, len(s.keys))], nil
}

// left returns how many more keys may be kept. The caller holds mu.
func (d *Due) left() int {
	n := dueMemory
	for _, s := range d.recent {
		n -= len(s.keys)
	}
	return n
}

// serves reports whether the selection is of the same query, with any cursor.
func (s *dueSelection) serves(q schemas.DueQuery) bool {
	q.After = s.query.After
	return s.query == q
}

// page returns the next n keys after q.After, and whether others follow; false if the selection does not have them.
func (s *dueSelection) page(q schemas.DueQuery, n int) (page []dueKey, more, ok bool) {
	if !s.serves(q) || q.After == s.query.After {
		return nil, false, false // the first page is always read anew
	}
	i, found := slices.BinarySearchFunc(s.keys, dueKey{q.After.Item, shifted(q.After.LastPass)}, dueKey.compare)
	rest := s.keys[min(i+1, len(s.keys)):]
	if !found || len(rest) < n && !s.all {
		return nil, false, false
	}
	return rest[:min(n, len(rest))], len(rest) > n, true
}

// checkedCopies selects the copies of a space, which takes the parameters account, store, space and prefix of items:
// since when they have their content, when they were checked last, and when they passed last (good), all shifted.
func checkedCopies(asserted bool) string {
	return "SELECT item, live, effective, toInt64(bitShiftRight(written, 83)) AS since," +
		" toInt64(bitShiftRight(attempted_ver, 83)) AS attempted, " + lastPass(asserted) + " AS good FROM (" + copySummary +
		"account = ? AND store = ? AND space = ? AND startsWith(item, ?) GROUP BY account, store, space, item)"
}

// lastPass is when a copy of copySummary passed last, shifted. With asserted a pass counts that rests on what the store
// asserts.
func lastPass(asserted bool) string {
	if !asserted {
		return "effective"
	}
	return "greatest(effective, if(bitShiftRight(asserted_ver, 83) > bitShiftRight(written, 83)," +
		" toInt64(bitShiftRight(asserted_ver, 83)), 0))"
}

// selectDue returns the first n keys of the copies that are due.
func selectDue(ctx context.Context, db *clickhouse.DB, q schemas.DueQuery, n int) ([]dueKey, error) {
	statement := "SELECT item, good FROM (" + checkedCopies(q.Asserted) + ") WHERE live"
	args := []any{q.Account, q.Store, q.Space, q.Prefix}
	if !q.PassedBefore.IsZero() {
		statement += " AND good < ?"
		args = append(args, shifted(q.PassedBefore))
	}
	if !q.AttemptedBefore.IsZero() {
		// An attempt in the future is that of a clock that was ahead.
		statement += " AND (attempted <= greatest(good, since) OR attempted < ? OR attempted > ?)"
		args = append(args, shifted(q.AttemptedBefore), shifted(time.Now().Add(clockLag)))
	}
	if q.After != (schemas.DueCursor{}) {
		statement += " AND (good, item) > (?, ?)"
		args = append(args, shifted(q.After.LastPass), q.After.Item)
	}
	return clickhouse.Query[dueKey](ctx, db, "read the copies due for a check",
		statement+" ORDER BY good, item LIMIT ?"+aggregateInOrder, append(args, n)...)
}
