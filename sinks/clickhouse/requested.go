package clickhouse

import (
	"context"
	"fmt"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/ext"

	"github.com/millrace/millrace/schemas"
)

// RequestedCopies is SQL that selects the rows of the copies that WithCopies sends. The condition on item alone is
// redundant: it rejects most rows by one column, which halves the time of a query.
const RequestedCopies = `item IN (SELECT item FROM copies)
  AND (account, store, space, item) IN (SELECT account, store, space, item FROM copies)`

// WithCopies attaches the copies to the query as the external table copies, each with a time if until is given. In
// the statement itself, their ids could exceed its maximal length.
func WithCopies(ctx context.Context, copies []schemas.Copy, until ...int64) (context.Context, error) {
	columns := []func(*ext.Table) error{ext.Column("account", "String"), ext.Column("store", "String"),
		ext.Column("space", "String"), ext.Column("item", "String")}
	if len(until) > 0 {
		columns = append(columns, ext.Column("until", "Int64"))
	}
	t, err := ext.NewTable("copies", columns...)
	if err != nil {
		return nil, fmt.Errorf("make a table of copies: %w", err)
	}
	for i, c := range copies {
		row := []any{c.Account, c.Store, c.Space, c.Item}
		if len(until) > 0 {
			row = append(row, until[i])
		}
		if err := t.Append(row...); err != nil {
			return nil, fmt.Errorf("make a table of copies: %w", err)
		}
	}
	return ch.Context(ctx, ch.WithExternalTable(t)), nil
}
