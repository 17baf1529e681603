package clickhouse

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
)

// MatchedTables returns the tables that verification compares with each topic.
func MatchedTables() map[schemas.Topic][]string {
	tables := map[schemas.Topic][]string{}
	for topic, cs := range Matchers() {
		for _, c := range cs {
			tables[topic] = append(tables[topic], c.Table)
		}
	}
	return tables
}

// TopicTables returns the tables that a Sink stores each topic in.
func TopicTables() map[schemas.Topic][]string {
	tables := map[schemas.Topic][]string{}
	for topic, fs := range topicTables() {
		for _, f := range fs {
			tables[topic] = append(tables[topic], f.table)
		}
	}
	return tables
}

// RowBinarySQL returns SQL for the bytes that the sum of a row covers, by table.
func RowBinarySQL() map[string]string {
	tables := map[string]string{}
	for _, cs := range Matchers() {
		for _, c := range cs {
			tables[c.Table] = c.RowBinary
		}
	}
	return tables
}

// WithDialTimeout returns the Config with a timeout of one attempt to connect.
func (c Config) WithDialTimeout(d time.Duration) Config {
	c.dialTimeout = d
	return c
}

// StopAfterRow runs a query, reads one row, and stops reading.
func (db *DB) StopAfterRow(ctx context.Context, statement string) error {
	rows, leave, err := Stream(ctx, db.conn, statement)
	if err != nil {
		return err
	}
	defer leave()
	if !rows.Next() {
		return fmt.Errorf("no row: %w", rows.Err())
	}
	return nil
}
