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

	most int // copies that differ are named before the comparison stops
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
	if c.most == 0 {
		c.most = 100_000
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
	rebuilt, err := merged(table)
	if err != nil {
		return nil, err
	}
	total, err := db.count(ctx, "count copies", "SELECT count() AS n FROM {db}.copy_state")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, longQuery)
	defer cancel()
	m := &manifestCheck{ManifestCheck: c, db: db, rebuilt: rebuilt, of: new(ManifestProof), total: total}
	if err := m.run(ctx); err != nil {
		return nil, translate(fmt.Errorf("compare the state with the logs: %w", err))
	}
	c.Told(compareStep, max(total, 1), max(total, 1))
	return m.of, nil
}

type manifestCheck struct {
	ManifestCheck
	db      *DB
	rebuilt string // what to select from
	of      *ManifestProof
	total   int64
	differ  []schemas.Copy // not yet looked at closely
}

const (
	compareStep = "compare copies"
	detailPage  = 500
)

// run walks both states side by side.
func (m *manifestCheck) run(ctx context.Context) error {
	state, err := m.open(ctx, "{db}.copy_merged")
	if err != nil {
		return err
	}
	defer state.close()
	logs, err := m.open(ctx, m.rebuilt)
	if err != nil {
		return err
	}
	defer logs.close()
	for !state.ended || !logs.ended {
		order := compareCopies(state, logs)
		at, same := state.at, order == 0 && state.sum == logs.sum
		if order > 0 {
			at = logs.at
		}
		m.of.Copies++
		if !same {
			m.differ = append(m.differ, at)
		}
		if m.of.Copies%10_000 == 0 {
			m.Told(compareStep, min(m.of.Copies, m.total-1), max(m.total, 1))
		}
		if len(m.differ) >= detailPage {
			if err := m.judge(ctx); err != nil || m.of.Stopped {
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
	return m.judge(ctx)
}

// compareCopies orders two walks by the copies they stand at; one that has ended is behind all.
func compareCopies(a, b *walk) int {
	switch {
	case a.ended:
		return 1
	case b.ended:
		return -1
	}
	return cmp.Or(strings.Compare(a.at.Account, b.at.Account), strings.Compare(a.at.Store, b.at.Store),
		strings.Compare(a.at.Space, b.at.Space), strings.Compare(a.at.Item, b.at.Item))
}

// A walk goes through one state in the order of its copies.
type walk struct {
	rows  driver.Rows
	close func()
	at    schemas.Copy
	sum   uint64 // of all that is compared
	ended bool
}

// open begins a walk. The state is merged in the order in which it lies, so that the server
// need not hold it; what it sorts once more are the keys with their sums, and it does that on disk where they are many.
func (m *manifestCheck) open(ctx context.Context, from string) (*walk, error) {
	ctx = ch.Context(ctx, ch.WithSettings(ch.Settings{"async_insert": 0, "optimize_aggregation_in_order": 1, "optimize_read_in_order": 1,
		"query_plan_execute_functions_after_sorting": 0, "max_bytes_before_external_sort": 256 << 20}))
	rows, leave, err := stream(ctx, m.db.conn, m.db.name("SELECT account, store, space, item, "+stateSum()+" FROM "+from+
		" ORDER BY account, store, space, item"))
	if err != nil {
		return nil, err
	}
	w := &walk{rows: rows, close: leave}
	if err := w.next(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *walk) next() error {
	if !w.rows.Next() {
		w.ended = true
		return w.rows.Err()
	}
	return w.rows.Scan(&w.at.Account, &w.at.Store, &w.at.Space, &w.at.Item, &w.sum)
}

// judge looks closely at the copies whose sums differ.
func (m *manifestCheck) judge(ctx context.Context) error {
	state, err := m.values(ctx, "{db}.copy_merged")
	if err != nil {
		return err
	}
	logs, err := m.values(ctx, m.rebuilt)
	if err != nil {
		return err
	}
	logged, err := m.logged(ctx)
	if err != nil {
		return err
	}
	for _, c := range m.differ {
		columns, retold := differences(state[c], logs[c], logged[c])
		if retold {
			m.of.Retold++
		}
		if len(columns) == 0 {
			continue
		}
		m.of.Differ = append(m.of.Differ, CopyDifference{c.Account, c.Store, c.Space, c.Item, columns})
		if len(m.of.Differ) >= m.most {
			m.of.Stopped = true
			break
		}
	}
	m.differ = m.differ[:0]
	return nil
}

// values returns what one state says of the copies in question.
func (m *manifestCheck) values(ctx context.Context, from string) (map[schemas.Copy][]string, error) {
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
			" WHERE "+asked)
	for _, r := range rows {
		all[schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item}] = r.Values
	}
	return all, err
}

// logged is what the log has of the changes of one copy.
type logged struct {
	Account string   `ch:"account"`
	Store   string   `ch:"store"`
	Space   string   `ch:"space"`
	Item    string   `ch:"item"`
	Times   []string `ch:"times"`   // of those of its content
	Changes []string `ch:"changes"` // time and id, of deletes too
}

// logged returns what the log has of the changes of the copies in question.
func (m *manifestCheck) logged(ctx context.Context) (map[schemas.Copy]logged, error) {
	all := map[schemas.Copy]logged{}
	if len(m.differ) == 0 {
		return all, nil
	}
	with, err := withCopies(ctx, m.differ)
	if err != nil {
		return nil, err
	}
	rows, err := query[logged](with, m.db, "read the changes of copies",
		"SELECT account, store, space, item, groupUniqArrayIf(toString(ts), "+writesContent+") AS times,"+
			" groupUniqArray(concat(toString(ts), ' ', lower(hex(id)))) AS changes FROM {db}.audit_log WHERE op IN ('add', 'update', 'copy', 'delete')"+
			" AND "+asked+" GROUP BY account, store, space, item")
	for _, r := range rows {
		all[schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item}] = r
	}
	return all, err
}
