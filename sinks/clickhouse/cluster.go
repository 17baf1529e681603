package clickhouse

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/ClickHouse/ch-go/proto"
	ch "github.com/ClickHouse/clickhouse-go/v2"
)

// A shape is how a cluster is laid out, as the server that is asked knows it.
type shape struct {
	Shards   uint64 `ch:"shards"`
	Replicas uint64 `ch:"replicas"` // of the shard that has most
}

// clusterShape asks for the layout of the cluster. One that the server does not know is an error.
func (db *DB) clusterShape(ctx context.Context) (shape, error) {
	rows, err := queryOn[shape](ctx, db.conn, "read the layout of the cluster",
		"SELECT uniqExact(shard_num) AS shards, toUInt64(max(replica_num)) AS replicas FROM system.clusters WHERE cluster = ?", db.cfg.Cluster)
	if err != nil {
		return shape{}, err
	}
	if len(rows) != 1 || rows[0].Shards == 0 {
		known, err := queryOn[struct {
			Name string `ch:"cluster"`
		}](ctx, db.conn, "list the clusters", "SELECT DISTINCT cluster FROM system.clusters ORDER BY cluster")
		names := make([]string, len(known))
		for i, k := range known {
			names[i] = k.Name
		}
		if err != nil {
			return shape{}, err
		}
		return shape{}, fmt.Errorf("%w: the server knows no cluster %q; those it knows: %s", ErrCluster, db.cfg.Cluster, orNothing(names))
	}
	db.replicas.Store(int32(rows[0].Replicas))
	db.shardCount.Store(int32(rows[0].Shards))
	return rows[0], nil
}

// shards returns the number of shards, which is fixed: 1 without a cluster.
func (db *DB) shards(ctx context.Context) (int, error) {
	if db.cfg.Cluster == "" {
		return 1, nil
	}
	if db.shardCount.Load() == 0 {
		if _, err := db.clusterShape(ctx); err != nil {
			return 0, err
		}
	}
	return int(db.shardCount.Load()), nil
}

func orNothing(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// onCluster are the settings of whatever is asked of a cluster: a question with topic and
// partition goes to their one shard, and what is read comes from the replica that
// is also written to, for as long as there is one.
func (c Config) onCluster() ch.Settings {
	if c.Cluster == "" {
		return nil
	}
	return ch.Settings{
		"optimize_skip_unused_shards":                        1,
		"load_balancing":                                     "in_order",
		"prefer_localhost_replica":                           0,
		"fallback_to_stale_replicas_for_distributed_queries": 0,
	}
}

// insertsOnCluster are the settings of an insert: it is answered when the rows are on
// their shard, on as many replicas as are asked for, and not when the server has put them by.
func (db *DB) insertsOnCluster(ctx context.Context) ([]proto.Setting, error) {
	if db.cfg.Cluster == "" {
		return nil, nil
	}
	quorum := db.cfg.InsertQuorum
	if quorum == "all" {
		if db.replicas.Load() == 0 {
			if _, err := db.clusterShape(ctx); err != nil {
				return nil, err
			}
		}
		quorum = strconv.Itoa(int(db.replicas.Load()))
	}
	return []proto.Setting{
		{Key: "distributed_foreground_insert", Value: "1"},
		{Key: "insert_distributed_sync", Value: "1"}, // as older servers call it
		{Key: "load_balancing", Value: "in_order"},
		{Key: "prefer_localhost_replica", Value: "0"},
		{Key: "insert_quorum", Value: quorum},
		{Key: "insert_quorum_timeout", Value: "60000"},
	}, nil
}
