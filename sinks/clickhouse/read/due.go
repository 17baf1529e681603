package read

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// Limits of a Due.
const (
	dueKeys    = 50_000           // keys of a selection
	dueMinimum = 8                // pages of a selection, at least, if many rounds take turns
	dueMemory  = 400_000          // keys that are kept, some 40 MB
	dueAge     = 30 * time.Minute // after which a selection is not used any more
	// dueAhead is the number of pages whose records are read at once, in the order of items, if there is room: those of
	// one page are anywhere in the space. dueRecords is the number of records that are kept, some 50 MB.
	dueAhead   = 50
	dueRecords = 50_000
)

// A Due selects the copies that are due for a check. Since a selection reads the keys and versions of a whole space, it
// serves many pages. It is safe for concurrent use.
type Due struct {
	// Guard runs each read of the tables, and returns an error if the tables may lack records; nil: each read counts.
	// Set it before the first call of Due. What a selection keeps for its next pages was read within it, so those pages
	// need no other guard.
	Guard func(ctx context.Context, read func() error) error

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
	// records are those of keys of the next pages, by item.
	records map[string]*pb.CopyRecord
}

type dueKey struct {
	Item    string `ch:"item"`
	Good    int64  `ch:"good"` // the last pass, shifted
	Retried bool   `ch:"retried"`
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
func (d *Due) Due(ctx context.Context, q schemas.DueQuery) ([]schemas.DueCopy, schemas.DueCursor, error) {
	q.PassedBefore, q.AttemptedBefore, q.Begun = instant(q.PassedBefore), instant(q.AttemptedBefore), instant(q.Begun)
	keys, ahead, err := d.keys(ctx, q)
	if err != nil || len(keys) == 0 {
		return nil, q.After, err
	}
	records, err := d.recordsOf(ctx, q, keys, ahead)
	if err != nil {
		return nil, q.After, err
	}
	due := make([]schemas.DueCopy, len(keys))
	for i, k := range keys {
		due[i] = schemas.DueCopy{Retried: k.Retried, KnownCopy: schemas.KnownCopy{Record: records[k.Item],
			Copy: schemas.Copy{Account: q.Account, Store: q.Store, Space: q.Space, Item: k.Item}}}
	}
	last := keys[len(keys)-1]
	return due, schemas.DueCursor{LastPass: unshiftTime(last.Good), Item: last.Item}, nil
}

// instant returns t in a form in which == compares instants.
func instant(t time.Time) time.Time { return t.UTC().Round(0) }

// recordsOf returns the records of the keys of a page, by item. It reads those of the next pages with them, if there is
// room.
func (d *Due) recordsOf(
	ctx context.Context, q schemas.DueQuery, keys, ahead []dueKey,
) (map[string]*pb.CopyRecord, error) {
	n := limit(q.Limit)
	q.Limit = 0
	d.mu.Lock()
	kept := 0
	var of *dueSelection
	for _, s := range d.recent {
		if kept += len(s.records); s.serves(q) {
			of = s
		}
	}
	found := map[string]*pb.CopyRecord{}
	for _, k := range keys {
		if of != nil && of.records[k.Item] != nil {
			found[k.Item] = of.records[k.Item]
			delete(of.records, k.Item)
		}
	}
	if len(keys) < n { // it is the last page
		d.recent = slices.DeleteFunc(d.recent, func(s *dueSelection) bool { return s == of })
	}
	d.mu.Unlock()
	if len(found) == len(keys) {
		return found, nil
	}
	if of == nil {
		ahead = nil
	}
	ahead = ahead[:min(len(ahead), max(0, dueRecords-kept))]
	var copies []schemas.Copy
	for _, k := range slices.Concat(keys, ahead) {
		copies = append(copies, schemas.Copy{Account: q.Account, Store: q.Store, Space: q.Space, Item: k.Item})
	}
	slices.SortFunc(copies, func(a, b schemas.Copy) int { return strings.Compare(a.Item, b.Item) })
	var records []*pb.CopyRecord
	err := d.guarded(ctx, func() (err error) {
		records, err = Records(ctx, d.db, copies)
		return err
	})
	if err != nil {
		return nil, err
	}
	all := make(map[string]*pb.CopyRecord, len(copies))
	for i, c := range copies {
		all[c.Item] = schemas.WithoutProperties(records[i])
	}
	for _, k := range keys {
		found[k.Item] = all[k.Item]
		delete(all, k.Item)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if of != nil && slices.Contains(d.recent, of) {
		of.records = all
	}
	return found, nil
}

// keys returns the keys of a page, from a recent selection if there is one, and those of the pages after it that the
// selection has.
func (d *Due) keys(ctx context.Context, q schemas.DueQuery) (page, ahead []dueKey, err error) {
	n := limit(q.Limit)
	q.Limit = 0
	d.mu.Lock()
	d.recent = slices.DeleteFunc(d.recent, func(s *dueSelection) bool { return time.Since(s.made) > dueAge })
	for _, s := range d.recent {
		page, ahead, ok := s.page(q, n)
		if !ok {
			continue
		}
		if len(page) == 0 {
			d.recent = slices.DeleteFunc(d.recent, func(other *dueSelection) bool { return other == s })
		}
		d.mu.Unlock()
		return page, ahead, nil
	}
	size := max(min(dueKeys, d.left()/8), dueMinimum*n)
	if d.left() < size {
		size = n // it is not kept, so that those of others stay
	}
	d.queries++
	d.mu.Unlock()
	s := &dueSelection{query: q, made: time.Now()}
	err = d.guarded(ctx, func() (err error) {
		s.keys, err = selectDue(ctx, d.db, q, size+1) // one more shows whether others follow
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	s.all = len(s.keys) <= size
	s.keys = s.keys[:min(len(s.keys), size)]
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recent = slices.DeleteFunc(d.recent, func(other *dueSelection) bool { return other.serves(q) })
	if len(s.keys) > n && len(s.keys) <= d.left() { // others follow
		d.recent = append(d.recent, s)
	}
	n = min(n, len(s.keys))
	return s.keys[:n], s.keys[n:min(len(s.keys), dueAhead*n)], nil
}

func (d *Due) guarded(ctx context.Context, read func() error) error {
	if d.Guard == nil {
		return read()
	}
	return d.Guard(ctx, read)
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

// page returns the next n keys after q.After, and those of the pages that follow; false if the selection does not have
// them.
func (s *dueSelection) page(q schemas.DueQuery, n int) (page, ahead []dueKey, ok bool) {
	if !s.serves(q) || q.After == s.query.After {
		return nil, nil, false // the first page is always read anew
	}
	after := dueKey{Item: q.After.Item, Good: shifted(q.After.LastPass)}
	i, found := slices.BinarySearchFunc(s.keys, after, dueKey.compare)
	rest := s.keys[min(i+1, len(s.keys)):]
	if !found || len(rest) < n && !s.all {
		return nil, nil, false
	}
	n = min(n, len(rest))
	return rest[:n], rest[n:min(len(rest), dueAhead*n)], true
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

// retried is the condition that the newest check of the content of a copy of checkedCopies has not passed.
const retried = "(attempted > greatest(good, since))"

// retryDue returns the condition that the newest check of a copy of checkedCopies has passed, or is old enough to be
// made again, with its arguments. The state of a copy does not have the number of its failures; the time for which it
// has been failing at its newest check doubles with each of them.
func retryDue(q schemas.DueQuery) (condition string, args []any) {
	condition, args = "attempted < ?", []any{shifted(q.AttemptedBefore)}
	if q.Period > 0 {
		condition += " AND (attempted < ? OR attempted - greatest(good + ?, since) <= ? - attempted)"
		args = append(args, shifted(q.PassedBefore), q.Period.Milliseconds(), shifted(q.Begun))
	}
	return "(NOT " + retried + " OR " + condition + ")", args
}

// selectDue returns the first n keys of the copies that are due.
func selectDue(ctx context.Context, db *clickhouse.DB, q schemas.DueQuery, n int) ([]dueKey, error) {
	statement := "SELECT item, good, toBool(" + retried + ") AS retried FROM (" +
		checkedCopies(q.Asserted) + ") WHERE live"
	args := []any{q.Account, q.Store, q.Space, q.Prefix}
	if !q.PassedBefore.IsZero() {
		statement += " AND good < ?"
		args = append(args, shifted(q.PassedBefore))
	}
	if !q.AttemptedBefore.IsZero() {
		again, times := retryDue(q)
		statement += " AND " + again
		args = append(args, times...)
	}
	if q.After != (schemas.DueCursor{}) {
		statement += " AND (good, item) > (?, ?)"
		args = append(args, shifted(q.After.LastPass), q.After.Item)
	}
	return clickhouse.Query[dueKey](ctx, db, "read the copies due for a check",
		statement+" ORDER BY good, item LIMIT ?"+aggregateInOrder, append(args, n)...)
}
