package read

import (
	"context"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A DryRun is the result of a command that only decided.
type DryRun struct {
	Row     string `ch:"decision" json:"row"`
	WouldBe string `ch:"would_be" json:"would_be"` // the result that the command would have had
	Detail  string `ch:"detail" json:"detail,omitempty"`
	Error   string `ch:"error" json:"error,omitempty"` // of a dead letter
}

// DryRunResults returns the results of the dry run of a command, and of the delete that it ordered, oldest first.
func DryRunResults(ctx context.Context, db *clickhouse.DB, item schemas.Copy, command string) ([]DryRun, error) {
	return clickhouse.Query[DryRun](ctx, db, "read the results of a dry run",
		"SELECT decision::String AS decision, would_be::String AS would_be, detail, error FROM {db}.duplication_log_v"+
			" WHERE account = ? AND space = ? AND item = ? AND would_be != '' AND (command = ? OR cause = ?)"+
			" ORDER BY ts, id", item.Account, item.Space, item.Item, command, command)
}
