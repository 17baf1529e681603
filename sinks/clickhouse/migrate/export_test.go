package migrate

import (
	"strings"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// ClusterDDL returns the statements of every migration on a cluster.
func ClusterDDL(cluster, database string) ([]Step, error) {
	all, err := migrations.All()
	if err != nil {
		return nil, err
	}
	form := newClusterDDL(cluster, database)
	var steps []Step
	for _, m := range all {
		statements, err := form.statements(m)
		if err != nil {
			return nil, err
		}
		for i := range statements {
			statements[i] = strings.TrimSpace(strings.ReplaceAll(statements[i], "{db}", clickhouse.QuoteName(database)))
		}
		steps = append(steps, Step{Name: m.String(), Statements: statements})
	}
	return steps, nil
}

// LastClusterDDL returns what the last of some statements becomes on a cluster.
func LastClusterDDL(cluster, database string, statements []string) (last []string, err error) {
	form := newClusterDDL(cluster, database)
	for i, s := range statements {
		if last, err = form.statements(migrations.Migration{Number: uint32(i + 1), Name: "x", Statement: s}); err != nil {
			return nil, err
		}
	}
	return last, nil
}
