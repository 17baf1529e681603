package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A ManifestConfig holds the options of Manifest.
type ManifestConfig struct {
	// Progress is called with the progress of each step. It may be nil.
	Progress func(step string, done, total int64)

	maxDiffer int // the comparison stops after so many different copies
}

// A ManifestReport is the result of comparing the state with a state made from the logs.
type ManifestReport struct {
	Copies  int64            `json:"copies"` // compared
	Differ  []CopyDifference `json:"differ,omitempty"`
	Stopped bool             `json:"stopped,omitempty"` // the comparison stopped early, because too many copies differ
}

// A CopyDifference names a copy with a state that differs from the logs.
type CopyDifference struct {
	Account string             `json:"account"`
	Store   string             `json:"store"`
	Space   string             `json:"space"`
	Item    string             `json:"item"`
	Columns []ColumnDifference `json:"columns"`
}

// Copy returns the copy.
func (d CopyDifference) Copy() schemas.Copy {
	return schemas.Copy{Account: d.Account, Store: d.Store, Space: d.Space, Item: d.Item}
}

// A ColumnDifference is a column, or part of a column, with its value in the state and its value from the logs.
type ColumnDifference struct {
	Column string `json:"column"`
	State  string `json:"state"`
	Logs   string `json:"logs"`
}

// Manifest makes the state of every copy again from audit log and bit log, in a table that it drops afterwards,
// and compares it with the view of the state. The server groups both by copy, on disk if they are many, so memory is
// needed only for the differences.
func Manifest(ctx context.Context, db *clickhouse.DB, c ManifestConfig) (_ *ManifestReport, err error) {
	if c.maxDiffer == 0 {
		c.maxDiffer = 100_000
	}
	if c.Progress == nil {
		c.Progress = func(string, int64, int64) {}
	}
	table, drop, err := rebuildState(ctx, db, c.Progress)
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
	total, err := db.Count(ctx, "count copies", "SELECT count() AS n FROM {db}.copy_state")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, clickhouse.ScanTimeout)
	defer cancel()
	m := &manifestComparison{ManifestConfig: c, db: db, rebuilt: rebuilt, result: new(ManifestReport), total: total}
	if err := m.run(ctx); err != nil {
		return nil, clickhouse.Classify(fmt.Errorf("compare the state with the logs: %w", err))
	}
	slices.SortFunc(m.result.Differ, func(a, b CopyDifference) int { // the server pairs them in any order
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Store, b.Store), cmp.Compare(a.Space, b.Space),
			cmp.Compare(a.Item, b.Item))
	})
	c.Progress(compareStep, max(total, 1), max(total, 1))
	return m.result, nil
}

type manifestComparison struct {
	ManifestConfig
	db      *clickhouse.DB
	rebuilt string // the subquery of the rebuilt state
	result  *ManifestReport
	total   int64
	differ  []schemas.Copy // found by their sums, not yet inspected
}

const (
	compareStep = "compare copies"
	detailPage  = 500
)

// run reads, for each copy of either state, whether both have it with the same sum.
func (m *manifestComparison) run(ctx context.Context) error {
	// The server merges each state in the order of the table, so that it need not hold it in memory.
	ctx, sum := ch.Context(ctx, ch.WithSettings(ch.Settings{
		"async_insert": 0, "optimize_aggregation_in_order": 1, "max_bytes_before_external_group_by": groupMemory,
	})), "SELECT account, store, space, item, "+stateSum()+" AS sum FROM "
	rows, stop, err := clickhouse.Stream(ctx, m.db.Writer(), m.db.Name(
		"SELECT account, store, space, item, count() = 2 AND min(sum) = max(sum) FROM ("+
			sum+"{db}.copy_merged UNION ALL "+sum+m.rebuilt+") GROUP BY account, store, space, item"))
	if err != nil {
		return err
	}
	defer stop()
	for rows.Next() {
		var c schemas.Copy
		var same bool
		if err := rows.Scan(&c.Account, &c.Store, &c.Space, &c.Item, &same); err != nil {
			return err
		}
		if m.result.Copies++; m.result.Copies%10_000 == 0 {
			m.Progress(compareStep, min(m.result.Copies, m.total-1), max(m.total, 1))
		}
		if same {
			continue
		}
		if m.differ = append(m.differ, c); len(m.differ) >= detailPage {
			if err := m.inspect(ctx); err != nil || m.result.Stopped {
				return err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return m.inspect(ctx)
}

// inspect compares the values of the copies with different sums.
func (m *manifestComparison) inspect(ctx context.Context) error {
	state, err := m.values(ctx, "{db}.copy_merged")
	if err != nil {
		return err
	}
	logs, err := m.values(ctx, m.rebuilt)
	if err != nil {
		return err
	}
	for _, c := range m.differ {
		columns := diffCopy(state[c], logs[c])
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

// values returns the values of the copies to be inspected, from one state.
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
	with, err := clickhouse.WithCopies(ctx, m.differ)
	if err != nil {
		return nil, err
	}
	rows, err := clickhouse.Query[record](with, m.db, "read the state of copies",
		"SELECT account, store, space, item, ["+joinValues(func(v stateValue) string { return v.text })+"] AS values FROM "+
			from+" WHERE "+clickhouse.RequestedCopies)
	for _, r := range rows {
		all[schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item}] = r.Values
	}
	return all, err
}
