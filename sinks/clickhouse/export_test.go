package clickhouse

import (
	"context"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/schemas"
)

// TableColumns returns the columns that the sinks write: table to name to type.
func TableColumns() map[string]map[string]string {
	tables := map[string]map[string]string{"copy_state": {}}
	for _, fs := range feeds() {
		for _, f := range fs {
			tables[f.table] = f.types
		}
	}
	for _, c := range stateColumns() {
		tables["copy_state"][c.name] = c.typ
	}
	return tables
}

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

// ComparedParts returns what CheckManifest compares: column of copy_state to its parts.
func ComparedParts() map[string][]string {
	parts := map[string][]string{}
	for _, g := range stateGroups() {
		parts[g.name] = g.parts
	}
	return parts
}

// ClaimedTables returns the tables that a Proof compares each topic with, and FedTables those that
// a Sink fills.
func ClaimedTables() map[schemas.Topic][]string {
	tables := map[schemas.Topic][]string{}
	for topic, cs := range claims() {
		for _, c := range cs {
			tables[topic] = append(tables[topic], c.table)
		}
	}
	return tables
}

// FedTables returns the tables that each topic feeds.
func FedTables() map[schemas.Topic][]string {
	tables := map[schemas.Topic][]string{}
	for topic, fs := range feeds() {
		for _, f := range fs {
			tables[topic] = append(tables[topic], f.table)
		}
	}
	return tables
}
