package clickhouse

import (
	"fmt"
	"regexp"
	"strings"
)

// onColumns finds the changes of columns, which the table in front of the shards takes part in.
var columnChange = regexp.MustCompile(`^(?:ADD|MODIFY|DROP) COLUMN `)

// What rows of a table are spread by. Those of a log stay together by partition, so that what has
// landed of one is known by one shard; those of a state by copy, so that it is merged there.
const (
	byPartition = "cityHash64(topic, part)"
	byCopy      = "cityHash64(account, store, space, item)"
)

// A clusterForm turns migrations, taken in their order, into what they are on a cluster:
// NAME_local on every server, replicated within its shard, and NAME, which stands for all
// shards. A view is made where the rows are, and NAME asks it there: so its conditions and
// its grouping are worked out beside the rows.
type clusterDDL struct {
	cluster, database string
	shardingKeys      map[string]string // by what a table or view is spread
}

func newClusterDDL(cluster, database string) *clusterDDL {
	return &clusterDDL{cluster, database, map[string]string{}}
}

// statements returns what a migration is on the cluster. Each may be run again.
func (f *clusterDDL) statements(m migration) ([]string, error) {
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
			return nil, fmt.Errorf("migration %s: %s is spread otherwise than what feeds it", m, s.target)
		}
		return []string{fmt.Sprintf("CREATE MATERIALIZED VIEW IF NOT EXISTS {db}.%s_local%s TO {db}.%s_local AS%s", s.name, f.onCluster(), s.target, f.localNames(s.body))}, nil
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

func (f *clusterDDL) table(m migration, s statement) ([]string, error) {
	var by string
	switch c := s.columns; {
	case c["topic"] && c["part"] && c["off"]:
		by = byPartition
	case c["account"] && c["store"] && c["space"] && c["item"]:
		by = byCopy
	default:
		return nil, fmt.Errorf("migration %s: table %s has neither topic, part and off, nor account, store, space and item: its rows cannot be spread", m, s.name)
	}
	engine := s.engine
	if strings.HasSuffix(engine, "MergeTree") {
		args := []string{quoteText("/clickhouse/tables/{shard}/" + f.database + "/" + s.name), quoteText("{replica}")}
		if s.args != "" {
			args = append(args, s.args)
		}
		engine = "Replicated" + engine + "(" + strings.Join(args, ", ") + ")"
	}
	f.shardingKeys[s.name] = by
	return []string{
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS {db}.%s_local%s (%s\n) ENGINE = %s%s", s.name, f.onCluster(), s.body, engine, s.rest),
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS {db}.%[1]s%[2]s AS {db}.%[1]s_local\nENGINE = %[3]s", s.name, f.onCluster(), f.distributed(s.name, by)),
	}, nil
}

func (f *clusterDDL) view(m migration, s statement) ([]string, error) {
	by, err := f.shardingKey(m, s)
	if err != nil {
		return nil, err
	}
	f.shardingKeys[s.name] = by
	return []string{
		fmt.Sprintf("CREATE OR REPLACE VIEW {db}.%s_local%s AS%s", s.name, f.onCluster(), f.localNames(s.body)),
		fmt.Sprintf("CREATE OR REPLACE TABLE {db}.%[1]s%[2]s AS {db}.%[1]s_local\nENGINE = %[3]s", s.name, f.onCluster(), f.distributed(s.name, "")),
	}, nil
}

// sources returns by what all that a question asks is spread. Were it not one and the same,
// no shard could answer alone.
func (f *clusterDDL) shardingKey(m migration, s statement) (by string, err error) {
	for _, r := range reference.FindAllStringSubmatch(s.body, -1) {
		switch of := f.shardingKeys[r[1]]; {
		case of == "":
			return "", fmt.Errorf("migration %s asks %s, which no migration before it makes", m, r[1])
		case by != "" && of != by:
			return "", fmt.Errorf("migration %s asks tables that are spread in different ways", m)
		default:
			by = of
		}
	}
	if by == "" {
		return "", fmt.Errorf("migration %s asks no table", m)
	}
	return by, nil
}

func (f *clusterDDL) onCluster() string { return " ON CLUSTER " + quoteName(f.cluster) }

func (f *clusterDDL) localNames(body string) string {
	return reference.ReplaceAllString(body, "{db}.${1}_local")
}

func (f *clusterDDL) distributed(name, by string) string {
	if by != "" {
		by = ", " + by
	}
	return fmt.Sprintf("Distributed(%s, %s, %s%s)", quoteText(f.cluster), quoteText(f.database), quoteText(name+"_local"), by)
}

// withoutStorage leaves out of a change of columns what only a table that keeps rows can have.
func withoutStorage(body string) string {
	return newSortingKey.ReplaceAllString(codec.ReplaceAllString(body, ""), "")
}

var codec = regexp.MustCompile(` CODEC\((?:[^()]|\([^()]*\))*\)`)

func quoteText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
