package clickhouse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/schemas"
)

// A ManifestCheck is how the state is compared with the logs.
type ManifestCheck struct {
	// Told is called with the progress of each step; may be nil.
	Told func(step string, done, total int64)

	maxDiffer int // copies that differ are named before the comparison stops
}

// A ManifestProof is what comparing the state with one made from the logs came to.
type ManifestProof struct {
	Copies int64 `json:"copies"` // compared
	// Retold are copies of which the state knows another telling of a change than the log, which
	// keeps the one that says most. That is no finding.
	Retold  int64            `json:"retold"`
	Differ  []CopyDifference `json:"differ,omitempty"`
	Stopped bool             `json:"stopped,omitempty"` // as many as may be named were found before the end
}

// A CopyDifference names one copy whose state is not what the logs make of it.
type CopyDifference struct {
	Account string             `json:"account"`
	Store   string             `json:"store"`
	Space   string             `json:"space"`
	Item    string             `json:"item"`
	Columns []ColumnDifference `json:"columns"`
}

// Copy returns which copy it is.
func (d CopyDifference) Copy() schemas.Copy {
	return schemas.Copy{Account: d.Account, Store: d.Store, Space: d.Space, Item: d.Item}
}

// A ColumnDifference is one column, or part of one, as the state has it and as the logs say.
type ColumnDifference struct {
	Column string `json:"column"`
	State  string `json:"state"`
	Logs   string `json:"logs"`
}

// CheckManifest makes the state of every copy once more, from audit log and bit log, in a table that
// it drops again, and compares it with what the state's view says. It reads both in the order of
// copies, and holds no more than what differs.
func (db *DB) CheckManifest(ctx context.Context, c ManifestCheck) (_ *ManifestProof, err error) {
	if c.maxDiffer == 0 {
		c.maxDiffer = 100_000
	}
	if c.Told == nil {
		c.Told = func(string, int64, int64) {}
	}
	table, drop, err := db.rebuild(ctx, c.Told)
	if drop != nil {
		defer func() { err = errors.Join(err, drop()) }()
	}
	if err != nil {
		return nil, err
	}
	rebuilt, err := mergedState(table)
	if err != nil {
		return nil, err
	}
	total, err := db.count(ctx, "count copies", "SELECT count() AS n FROM {db}.copy_state")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, longQuery)
	defer cancel()
	m := &manifestComparison{ManifestCheck: c, db: db, rebuilt: rebuilt, result: new(ManifestProof), total: total}
	if err := m.run(ctx); err != nil {
		return nil, translate(fmt.Errorf("compare the state with the logs: %w", err))
	}
	c.Told(compareStep, max(total, 1), max(total, 1))
	return m.result, nil
}

type manifestComparison struct {
	ManifestCheck
	db      *DB
	rebuilt string // what to select from
	result  *ManifestProof
	total   int64
	differ  []schemas.Copy // not yet looked at closely
}

const (
	compareStep = "compare copies"
	detailPage  = 500
)

// run walks both states side by side.
func (m *manifestComparison) run(ctx context.Context) error {
	state, err := m.openCursor(ctx, "{db}.copy_merged")
	if err != nil {
		return err
	}
	defer state.close()
	logs, err := m.openCursor(ctx, m.rebuilt)
	if err != nil {
		return err
	}
	defer logs.close()
	for !state.ended || !logs.ended {
		order := compareCursors(state, logs)
		at, same := state.copy, order == 0 && state.sum == logs.sum
		if order > 0 {
			at = logs.copy
		}
		m.result.Copies++
		if !same {
			m.differ = append(m.differ, at)
		}
		if m.result.Copies%10_000 == 0 {
			m.Told(compareStep, min(m.result.Copies, m.total-1), max(m.total, 1))
		}
		if len(m.differ) >= detailPage {
			if err := m.inspect(ctx); err != nil || m.result.Stopped {
				return err
			}
		}
		if order <= 0 {
			if err := state.next(); err != nil {
				return err
			}
		}
		if order >= 0 {
			if err := logs.next(); err != nil {
				return err
			}
		}
	}
	return m.inspect(ctx)
}

// compareCopies orders two walks by the copies they stand at; one that has ended is behind all.
func compareCursors(a, b *copyCursor) int {
	switch {
	case a.ended:
		return 1
	case b.ended:
		return -1
	}
	return cmp.Or(strings.Compare(a.copy.Account, b.copy.Account), strings.Compare(a.copy.Store, b.copy.Store),
		strings.Compare(a.copy.Space, b.copy.Space), strings.Compare(a.copy.Item, b.copy.Item))
}

// A walk goes through one state in the order of its copies.
type copyCursor struct {
	rows  driver.Rows
	close func()
	copy  schemas.Copy
	sum   uint64 // of all that is compared
	ended bool
}

// open begins a walk. The state is merged in the order in which it lies, so that the server
// need not hold it; what it sorts once more are the keys with their sums, and it does that on disk where they are many.
func (m *manifestComparison) openCursor(ctx context.Context, from string) (*copyCursor, error) {
	ctx = ch.Context(ctx, ch.WithSettings(ch.Settings{"async_insert": 0, "optimize_aggregation_in_order": 1, "optimize_read_in_order": 1,
		"query_plan_execute_functions_after_sorting": 0, "max_bytes_before_external_sort": 256 << 20}))
	rows, leave, err := stream(ctx, m.db.conn, m.db.name("SELECT account, store, space, item, "+stateSum()+" FROM "+from+
		" ORDER BY account, store, space, item"))
	if err != nil {
		return nil, err
	}
	w := &copyCursor{rows: rows, close: leave}
	if err := w.next(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *copyCursor) next() error {
	if !w.rows.Next() {
		w.ended = true
		return w.rows.Err()
	}
	return w.rows.Scan(&w.copy.Account, &w.copy.Store, &w.copy.Space, &w.copy.Item, &w.sum)
}

// judge looks closely at the copies whose sums differ.
func (m *manifestComparison) inspect(ctx context.Context) error {
	state, err := m.values(ctx, "{db}.copy_merged")
	if err != nil {
		return err
	}
	logs, err := m.values(ctx, m.rebuilt)
	if err != nil {
		return err
	}
	logged, err := m.readLogged(ctx)
	if err != nil {
		return err
	}
	for _, c := range m.differ {
		columns, retold := diffCopy(state[c], logs[c], logged[c])
		if retold {
			m.result.Retold++
		}
		if len(columns) == 0 {
			continue
		}
		m.result.Differ = append(m.result.Differ, CopyDifference{c.Account, c.Store, c.Space, c.Item, columns})
		if len(m.result.Differ) >= m.maxDiffer {
			m.result.Stopped = true
			break
		}
	}
	m.differ = m.differ[:0]
	return nil
}

// values returns what one state says of the copies in question.
func (m *manifestComparison) values(ctx context.Context, from string) (map[schemas.Copy][]string, error) {
	type record struct {
		Account string   `ch:"account"`
		Store   string   `ch:"store"`
		Space   string   `ch:"space"`
		Item    string   `ch:"item"`
		Values  []string `ch:"values"`
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	all := map[schemas.Copy][]string{}
	if len(m.differ) == 0 {
		return all, nil
	}
	with, err := withCopies(ctx, m.differ)
	if err != nil {
		return nil, err
	}
	rows, err := query[record](with, m.db, "read the state of copies",
		"SELECT account, store, space, item, arrayConcat("+stateValues()+", "+stateVersions()+") AS values FROM "+from+
			" WHERE "+requestedCopies)
	for _, r := range rows {
		all[schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item}] = r.Values
	}
	return all, err
}

// logged is what the log has of the changes of one copy.
type loggedChanges struct {
	Account string   `ch:"account"`
	Store   string   `ch:"store"`
	Space   string   `ch:"space"`
	Item    string   `ch:"item"`
	Times   []string `ch:"times"`   // of those of its content
	Changes []string `ch:"changes"` // time and id, of deletes too
}

// logged returns what the log has of the changes of the copies in question.
func (m *manifestComparison) readLogged(ctx context.Context) (map[schemas.Copy]loggedChanges, error) {
	all := map[schemas.Copy]loggedChanges{}
	if len(m.differ) == 0 {
		return all, nil
	}
	with, err := withCopies(ctx, m.differ)
	if err != nil {
		return nil, err
	}
	rows, err := query[loggedChanges](with, m.db, "read the changes of copies",
		"SELECT account, store, space, item, groupUniqArrayIf(toString(ts), "+writesContent+") AS times,"+
			" groupUniqArray(concat(toString(ts), ' ', lower(hex(id)))) AS changes FROM {db}.audit_log WHERE op IN ('add', 'update', 'copy', 'delete')"+
			" AND "+requestedCopies+" GROUP BY account, store, space, item")
	for _, r := range rows {
		all[schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item}] = r
	}
	return all, err
}
