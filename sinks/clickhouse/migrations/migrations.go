// Package migrations holds the schema of the ClickHouse tables as numbered statements.
//
// Each file has one statement. They are applied in the order of their numbers, forward only, and each can be run
// again without harm. A file must not be edited after it was applied anywhere.
package migrations

import "embed"

// Files are the statements, named NNNN_name.sql.
//
//go:embed *.sql
var Files embed.FS
