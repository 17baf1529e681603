package read

import (
	"context"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A DecisionResult is the result of an operator's decision about a list; empty if it has none yet.
type DecisionResult struct {
	Result string `ch:"outcome_of_it"`
	Detail string `ch:"about"`
}

// ResultOfDecision returns the result of a decision about a list of a space. action is the id of the AdminAction.
func ResultOfDecision(
	ctx context.Context, db *clickhouse.DB, space schemas.Copy, action string,
) (DecisionResult, error) {
	rows, err := clickhouse.Query[DecisionResult](ctx, db, "read the result of a decision about a list",
		"SELECT result::String AS outcome_of_it, if(error != '', error, detail) AS about FROM {db}.duplication_log_v"+
			" WHERE account = ? AND space = ? AND item = '' AND destination_store = ? AND cause = ? ORDER BY ts LIMIT 1",
		space.Account, space.Space, space.Store, action)
	if err != nil || len(rows) == 0 {
		return DecisionResult{}, err
	}
	return rows[0], nil
}

// Back reports whether the source of an item is back after its list was refused.
func (d ListedDelete) Back() bool { return d.Result == "restored" || d.Result == "already-restored" }
