package clickhouse

import (
	"context"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// TableColumns returns the columns that the sinks write: table to name to type.
func TableColumns() map[string]map[string]string { return writtenTables() }

// Exec runs a statement of a test; {db} is the database.
func (db *DB) Exec(ctx context.Context, statement string, args ...any) error {
	return db.exec(ctx, statement, args...)
}

// Strings returns the first column of a test's query, whose values are strings.
func (db *DB) Strings(ctx context.Context, statement string, args ...any) ([]string, error) {
	rows, err := db.conn.Query(ctx, db.name(statement), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// Config returns how the DB was opened.
func (db *DB) Config() Config { return db.cfg }

// Conn is the driver's own connection, and Name puts the database's name for {db}: for the
// benchmark's peer.
func (db *DB) Conn() driver.Conn { return db.conn }

// Name puts the database's name for {db}.
func (db *DB) Name(statement string) string { return db.name(statement) }
