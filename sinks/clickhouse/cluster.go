package clickhouse

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	ch "github.com/ClickHouse/clickhouse-go/v2"
)

// A Layout counts the shards and replicas of the cluster, as the server knows it.
type Layout struct {
	Shards   uint64 `ch:"shards"`
	Replicas uint64 `ch:"replicas"` // of the shard with the most
	Fewest   uint64 `ch:"fewest"`   // of the shard with the fewest
}

// ReadLayout reads the layout of the cluster from the server. A cluster that the server does not know is ErrCluster.
func (db *DB) ReadLayout(ctx context.Context) (Layout, error) {
	rows, err := QueryOn[Layout](ctx, db.conn, "read the layout of the cluster",
		"SELECT count() AS shards, toUInt64(max(n)) AS replicas, toUInt64(min(n)) AS fewest"+
			" FROM (SELECT count() AS n FROM system.clusters WHERE cluster = ? GROUP BY shard_num)", db.cfg.Cluster)
	if err != nil {
		return Layout{}, err
	}
	if len(rows) != 1 || rows[0].Shards == 0 {
		known, err := QueryOn[struct {
			Name string `ch:"cluster"`
		}](ctx, db.conn, "list the clusters", "SELECT DISTINCT cluster FROM system.clusters ORDER BY cluster")
		names := make([]string, len(known))
		for i, k := range known {
			names[i] = k.Name
		}
		if err != nil {
			return Layout{}, err
		}
		return Layout{}, fmt.Errorf("%w: the server knows no cluster %q, only these: %s",
			ErrCluster, db.cfg.Cluster, joinOrNone(names))
	}
	db.cached.Store(&cachedLayout{rows[0], time.Now()})
	return rows[0], nil
}

// A cachedLayout is a layout and when it was read.
type cachedLayout struct {
	Layout
	readAt time.Time
}

// layoutMaxAge is how long a layout is cached. Replicas may be added and removed while processes run.
const layoutMaxAge = time.Minute

// layout returns the cached layout, or reads it again if it is too old.
func (db *DB) layout(ctx context.Context) (Layout, error) {
	if known := db.cached.Load(); known != nil && time.Since(known.readAt) < layoutMaxAge {
		return known.Layout, nil
	}
	return db.ReadLayout(ctx)
}

// A Shard is one shard of a cluster. Its replicas are host:port, in the order in which the server tries them.
type Shard struct {
	Number   uint32   `ch:"shard" json:"number"`
	Replicas []string `ch:"replicas" json:"replicas"`
}

// Replicated returns the shards that have several replicas. Only the first available replica of a shard answers a
// query, so the rows of its other replicas are unknown.
func (db *DB) Replicated(ctx context.Context) ([]Shard, error) {
	if db.cfg.Cluster == "" {
		return nil, nil
	}
	return QueryOn[Shard](ctx, db.conn, "list the replicas of the cluster", "SELECT shard_num AS shard,"+
		" arrayMap(r -> r.2, arraySort(groupArray((replica_num, concat(host_name, ':', toString(port)))))) AS replicas"+
		" FROM system.clusters WHERE cluster = ? GROUP BY shard HAVING count() > 1 ORDER BY shard", db.cfg.Cluster)
}

// Shards returns the number of shards, which never changes: 1 without a cluster.
func (db *DB) Shards(ctx context.Context) (int, error) {
	if db.cfg.Cluster == "" {
		return 1, nil
	}
	now, err := db.layout(ctx)
	return int(now.Shards), err
}

func joinOrNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// onCluster returns the settings of every statement on a cluster. A query with topic and partition goes to the one
// shard that has them. Reads prefer the replica that is also written to. Shards merge their results. INSERT ...
// SELECT runs through the initiating server, which distributes the rows; a shard by itself would keep the rows of
// its own log. A statement ON CLUSTER returns after every server has run it.
func (c Config) onCluster() ch.Settings {
	if c.Cluster == "" {
		return nil
	}
	return ch.Settings{
		"optimize_skip_unused_shards":                        1,
		"load_balancing":                                     "in_order",
		"prefer_localhost_replica":                           0,
		"use_hedged_requests":                                0, // otherwise another replica answers after 50 ms
		"fallback_to_stale_replicas_for_distributed_queries": 0,
		"max_replica_delay_for_distributed_queries":          300, // seconds; with 0, stale replicas are used
		"distributed_group_by_no_merge":                      0,
		"parallel_distributed_insert_select":                 0,
		"distributed_ddl_output_mode":                        "throw",
		"distributed_ddl_task_timeout":                       180, // seconds; with 0, the statement returns at once
	}
}

// ClusterSettings returns the settings of an insert on a cluster. It returns after the rows are on as many replicas
// of their shard as the quorum demands, not after the server has queued them.
func (db *DB) ClusterSettings(ctx context.Context) ([]proto.Setting, error) {
	if db.cfg.Cluster == "" {
		return nil, nil
	}
	quorum, err := db.Quorum(ctx)
	if err != nil {
		return nil, err
	}
	return []proto.Setting{
		{Key: "distributed_foreground_insert", Value: "1"},
		{Key: "insert_distributed_sync", Value: "1"}, // its name on older servers
		{Key: "load_balancing", Value: "in_order"},
		{Key: "prefer_localhost_replica", Value: "0"},
		{Key: "insert_quorum", Value: quorum},
		{Key: "insert_quorum_timeout", Value: "60000"},
		{Key: "insert_quorum_parallel", Value: "1"}, // otherwise an insert that missed its quorum blocks all others
	}, nil
}

// Quorum returns the server setting insert_quorum: the number of replicas that must have a row before its insert
// returns.
func (db *DB) Quorum(ctx context.Context) (string, error) {
	switch {
	case db.cfg.Cluster == "":
		return "1", nil
	case db.cfg.InsertQuorum != "all":
		return db.cfg.InsertQuorum, nil
	}
	now, err := db.layout(ctx)
	if err == nil {
		err = db.CheckReplicas(now)
	}
	return strconv.FormatUint(now.Replicas, 10), err
}

// CheckReplicas returns ErrReplicas if the quorum is all and shards differ in their number of replicas: an
// insert can send only one number.
func (db *DB) CheckReplicas(now Layout) error {
	if db.cfg.InsertQuorum != "all" || now.Fewest == now.Replicas {
		return nil
	}
	return fmt.Errorf("%w: a shard of the cluster %s has %d and another one %d, and with clickhouse.insert_quorum all "+
		"an insert can demand only one number: give every shard the same number of replicas, or set it to auto or to a "+
		"number", ErrReplicas, db.cfg.Cluster, now.Fewest, now.Replicas)
}
