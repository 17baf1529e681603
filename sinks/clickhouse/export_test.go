package clickhouse

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// TableColumns returns the columns that the sinks write: type by table and column.
func TableColumns() map[string]map[string]string { return writtenTables() }

// ClusterDDL returns the statements of every migration on a cluster.
func ClusterDDL(cluster, database string) ([]Step, error) {
	all, err := readMigrations(migrations.Files)
	if err != nil {
		return nil, err
	}
	db := &DB{cfg: Config{Cluster: cluster, Database: database}}
	form := newClusterDDL(cluster, database)
	var steps []Step
	for _, m := range all {
		statements, err := form.statements(m)
		if err != nil {
			return nil, err
		}
		for i := range statements {
			statements[i] = strings.TrimSpace(db.Name(statements[i]))
		}
		steps = append(steps, Step{Name: m.String(), Statements: statements})
	}
	return steps, nil
}

// LastClusterDDL returns what the last of some statements becomes on a cluster.
func LastClusterDDL(cluster, database string, statements []string) (last []string, err error) {
	form := newClusterDDL(cluster, database)
	for i, s := range statements {
		if last, err = form.statements(migration{uint32(i + 1), "x", s}); err != nil {
			return nil, err
		}
	}
	return last, nil
}

// ApplyHere applies a plan for a cluster to one server only, replacing what the embedded engine lacks: it removes ON
// CLUSTER, and replicates nothing.
func (db *DB) ApplyHere(ctx context.Context, p Plan) error {
	here := func(statement string) error {
		statement = strings.ReplaceAll(statement, " ON CLUSTER "+QuoteName(db.cfg.Cluster), "")
		return db.conn.Exec(ctx, replicated.ReplaceAllString(statement, "$1("))
	}
	for _, statement := range p.Prepare {
		if err := here(statement); err != nil {
			return err
		}
	}
	for _, s := range p.Steps {
		for _, statement := range s.Statements {
			if err := here(statement); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		if err := recordMigration(ctx, db, s.migration); err != nil {
			return err
		}
	}
	return nil
}

var replicated = regexp.MustCompile(`Replicated(\w*MergeTree)\('[^']*', '[^']*'(?:, )?`)

// ReadMigrations reports whether files are valid migrations.
func ReadMigrations(files fs.FS) error {
	_, err := readMigrations(files)
	return err
}

// ComparedParts returns the parts that CheckManifest compares, by column of copy_state.
func ComparedParts() map[string][]string {
	parts := map[string][]string{}
	for _, g := range stateGroups() {
		parts[g.name] = g.parts
	}
	return parts
}

// MatchedTables returns the tables that a Verification compares with each topic.
func MatchedTables() map[schemas.Topic][]string {
	tables := map[schemas.Topic][]string{}
	for topic, cs := range rowMatchers() {
		for _, c := range cs {
			tables[topic] = append(tables[topic], c.table)
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
	for _, cs := range rowMatchers() {
		for _, c := range cs {
			tables[c.table] = c.rowBinary
		}
	}
	return tables
}

// WithDialTimeout returns the Config with a timeout of one attempt to connect.
func (c Config) WithDialTimeout(d time.Duration) Config {
	c.dialTimeout = d
	return c
}

// WithMaxDiffer returns the ManifestCheck that stops after most different copies.
func (c ManifestCheck) WithMaxDiffer(most int) ManifestCheck {
	c.maxDiffer = most
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

// CacheReplicas sets the cached layout to one shard of n replicas, read some time ago.
func (db *DB) CacheReplicas(n uint64, ago time.Duration) {
	db.cached.Store(&cachedLayout{Layout{Shards: 1, Replicas: n, Fewest: n}, time.Now().Add(-ago)})
}
