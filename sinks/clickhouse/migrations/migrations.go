// Package migrations holds the schema of the ClickHouse tables as numbered statements.
//
// One statement per file, applied in the order of the numbers, forward only; each may
// be run again without harm. A file that was ever applied is never edited.
package migrations

import "embed"

// Files are the statements: NNNN_name.sql.
//
//go:embed *.sql
var Files embed.FS
