package migrate

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// columnChange matches changes of columns, which the Distributed table needs, too.
var columnChange = regexp.MustCompile(`^(?:ADD|MODIFY|DROP) COLUMN `)

// The sharding keys. Rows of a log stay together by partition, so that one shard knows which of them are stored.
// Rows of the state stay together by copy, so that one shard can merge them.
const (
	byPartition = "cityHash64(topic, part)"
	byCopy      = "cityHash64(account, store, space, item)"
)

// A clusterDDL converts migrations, in their order, to the statements for a cluster. NAME_local is a table on every
// server, replicated within its shard, and NAME is the Distributed table over it. A view is created as NAME_local,
// and NAME queries it on every shard, so that conditions and grouping are evaluated next to the rows.
type clusterDDL struct {
	cluster, database string
	shardingKeys      map[string]string // by table or view
}

func newClusterDDL(cluster, database string) *clusterDDL {
	return &clusterDDL{cluster, database, map[string]string{}}
}

// statements returns the statements of a migration on the cluster. Each can be run again.
func (f *clusterDDL) statements(m migrations.Migration) ([]string, error) {
	s, err := parse(m)
	if err != nil {
		return nil, err
	}
	switch s.verb {
	case makeTable:
		return f.table(m, s)
	case makeView:
		return f.view(m, s)
	case makeMaterializedView:
		by, err := f.shardingKey(m, s)
		if err != nil {
			return nil, err
		}
		if f.shardingKeys[s.target] != by {
			return nil, fmt.Errorf("migration %s: %s has another sharding key than the table that fills it", m, s.target)
		}
		return []string{fmt.Sprintf("CREATE MATERIALIZED VIEW IF NOT EXISTS {db}.%s_local%s TO {db}.%s_local AS%s",
			s.name, f.onCluster(), s.target, f.localNames(s.body))}, nil
	case alter:
		all := []string{fmt.Sprintf("ALTER TABLE {db}.%s_local%s %s", s.name, f.onCluster(), s.body)}
		if columnChange.MatchString(s.body) {
			all = append(all, fmt.Sprintf("ALTER TABLE {db}.%s%s %s", s.name, f.onCluster(), withoutStorage(s.body)))
		}
		return all, nil
	case drop:
		return []string{
			fmt.Sprintf("DROP TABLE IF EXISTS {db}.%s%s SYNC", s.name, f.onCluster()),
			fmt.Sprintf("DROP TABLE IF EXISTS {db}.%s_local%s SYNC", s.name, f.onCluster()),
		}, nil
	}
	return nil, fmt.Errorf("migration %s has no form for a cluster", m)
}

func (f *clusterDDL) table(m migrations.Migration, s statement) ([]string, error) {
	var by string
	switch c := s.columns; {
	case c["topic"] && c["part"] && c["off"]:
		by = byPartition
	case c["account"] && c["store"] && c["space"] && c["item"]:
		by = byCopy
	default:
		return nil, fmt.Errorf("migration %s: table %s has neither topic, part and off, nor account, store, space and item: "+
			"it has no sharding key", m, s.name)
	}
	engine := s.engine
	if strings.HasSuffix(engine, "MergeTree") {
		args := []string{clickhouse.QuoteText("/clickhouse/tables/{shard}/" + f.database + "/" + s.name),
			clickhouse.QuoteText("{replica}")}
		if s.args != "" {
			args = append(args, s.args)
		}
		engine = "Replicated" + engine + "(" + strings.Join(args, ", ") + ")"
	}
	f.shardingKeys[s.name] = by
	return []string{
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS {db}.%s_local%s (%s\n) ENGINE = %s%s",
			s.name, f.onCluster(), s.body, engine, s.rest),
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS {db}.%[1]s%[2]s AS {db}.%[1]s_local\nENGINE = %[3]s",
			s.name, f.onCluster(), f.distributed(s.name, by)),
	}, nil
}

func (f *clusterDDL) view(m migrations.Migration, s statement) ([]string, error) {
	by, err := f.shardingKey(m, s)
	if err != nil {
		return nil, err
	}
	f.shardingKeys[s.name] = by
	return []string{
		fmt.Sprintf("CREATE OR REPLACE VIEW {db}.%s_local%s AS%s", s.name, f.onCluster(), f.localNames(s.body)),
		fmt.Sprintf("CREATE OR REPLACE TABLE {db}.%[1]s%[2]s AS {db}.%[1]s_local\nENGINE = %[3]s",
			s.name, f.onCluster(), f.distributed(s.name, "")),
	}, nil
}

// shardingKey returns the sharding key of all tables that a query reads. If they had different ones, no shard could
// answer alone.
func (f *clusterDDL) shardingKey(m migrations.Migration, s statement) (by string, err error) {
	for _, r := range reference.FindAllStringSubmatch(s.body, -1) {
		switch of := f.shardingKeys[r[1]]; {
		case of == "":
			return "", fmt.Errorf("migration %s reads %s, which no earlier migration creates", m, r[1])
		case by != "" && of != by:
			return "", fmt.Errorf("migration %s reads tables with different sharding keys", m)
		default:
			by = of
		}
	}
	if by == "" {
		return "", fmt.Errorf("migration %s reads no table", m)
	}
	return by, nil
}

func (f *clusterDDL) onCluster() string { return " ON CLUSTER " + clickhouse.QuoteName(f.cluster) }

func (f *clusterDDL) localNames(body string) string {
	return reference.ReplaceAllString(body, "{db}.${1}_local")
}

func (f *clusterDDL) distributed(name, by string) string {
	if by != "" {
		by = ", " + by
	}
	return fmt.Sprintf("Distributed(%s, %s, %s%s)",
		clickhouse.QuoteText(f.cluster), clickhouse.QuoteText(f.database), clickhouse.QuoteText(name+"_local"), by)
}

// withoutStorage removes from an ALTER the parts that only a MergeTree table can have.
func withoutStorage(body string) string {
	return newSortingKey.ReplaceAllString(codec.ReplaceAllString(body, ""), "")
}

var codec = regexp.MustCompile(` CODEC\((?:[^()]|\([^()]*\))*\)`)
