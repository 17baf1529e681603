package clickhouse

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	ch "github.com/ClickHouse/clickhouse-go/v2"
)

// A shape is how a cluster is laid out, as the server that is asked knows it.
type clusterLayout struct {
	Shards   uint64 `ch:"shards"`
	Replicas uint64 `ch:"replicas"` // of the shard that has most
	Fewest   uint64 `ch:"fewest"`   // of the shard that has fewest
}

// clusterShape asks for the layout of the cluster. One that the server does not know is an error.
func (db *DB) readLayout(ctx context.Context) (clusterLayout, error) {
	rows, err := queryOn[clusterLayout](ctx, db.conn, "read the layout of the cluster",
		"SELECT count() AS shards, toUInt64(max(n)) AS replicas, toUInt64(min(n)) AS fewest"+
			" FROM (SELECT count() AS n FROM system.clusters WHERE cluster = ? GROUP BY shard_num)", db.cfg.Cluster)
	if err != nil {
		return clusterLayout{}, err
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
			return clusterLayout{}, err
		}
		return clusterLayout{}, fmt.Errorf("%w: the server knows no cluster %q; those it knows: %s", ErrCluster, db.cfg.Cluster, joinOrNone(names))
	}
	db.cached.Store(&cachedLayout{rows[0], time.Now()})
	return rows[0], nil
}

// A shapeAt is a shape and when it was asked for.
type cachedLayout struct {
	clusterLayout
	readAt time.Time
}

// shapeAge is for how long a shape is known: replicas are added and removed while processes run.
const layoutMaxAge = time.Minute

// knownShape is clusterShape, asked for once a minute.
func (db *DB) layout(ctx context.Context) (clusterLayout, error) {
	if known := db.cached.Load(); known != nil && time.Since(known.readAt) < layoutMaxAge {
		return known.clusterLayout, nil
	}
	return db.readLayout(ctx)
}

// A Shard is one of a cluster, and its replicas as host:port, in the order in which they are asked.
type Shard struct {
	Number   uint32   `ch:"shard" json:"number"`
	Replicas []string `ch:"replicas" json:"replicas"`
}

// Replicated returns the shards of the cluster that have several replicas. A question is answered by one of them, the first
// that is there, so what the others have is not known.
func (db *DB) Replicated(ctx context.Context) ([]Shard, error) {
	if db.cfg.Cluster == "" {
		return nil, nil
	}
	return queryOn[Shard](ctx, db.conn, "list the replicas of the cluster", "SELECT shard_num AS shard,"+
		" arrayMap(r -> r.2, arraySort(groupArray((replica_num, concat(host_name, ':', toString(port)))))) AS replicas"+
		" FROM system.clusters WHERE cluster = ? GROUP BY shard HAVING count() > 1 ORDER BY shard", db.cfg.Cluster)
}

// shards returns the number of shards, which is fixed: 1 without a cluster.
func (db *DB) shards(ctx context.Context) (int, error) {
	if db.cfg.Cluster == "" {
		return 1, nil
	}
	now, err := db.layout(ctx)
	return int(now.Shards), err
}

func joinOrNone(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// onCluster are the settings of whatever is asked of a cluster: a question with topic and
// partition goes to their one shard, and what is read comes from the replica that
// is also written to, for as long as there is one. Shards merge their answers. An INSERT of a SELECT passes
// through the server that is asked, which spreads the rows: a shard by itself keeps those of its own log.
// A statement ON CLUSTER is done when every server has done it.
func (c Config) onCluster() ch.Settings {
	if c.Cluster == "" {
		return nil
	}
	return ch.Settings{
		"optimize_skip_unused_shards":                        1,
		"load_balancing":                                     "in_order",
		"prefer_localhost_replica":                           0,
		"use_hedged_requests":                                0, // or another replica answers if the first takes 50 ms
		"fallback_to_stale_replicas_for_distributed_queries": 0,
		"max_replica_delay_for_distributed_queries":          300, // seconds; 0: a stale replica is not noticed
		"distributed_group_by_no_merge":                      0,
		"parallel_distributed_insert_select":                 0,
		"distributed_ddl_output_mode":                        "throw",
		"distributed_ddl_task_timeout":                       180, // seconds; 0: nothing is waited for
	}
}

// insertsOnCluster are the settings of an insert: it is answered when the rows are on
// their shard, on as many replicas as are asked for, and not when the server has put them by.
func (db *DB) insertsOnCluster(ctx context.Context) ([]proto.Setting, error) {
	if db.cfg.Cluster == "" {
		return nil, nil
	}
	quorum, err := db.quorum(ctx)
	if err != nil {
		return nil, err
	}
	return []proto.Setting{
		{Key: "distributed_foreground_insert", Value: "1"},
		{Key: "insert_distributed_sync", Value: "1"}, // as older servers call it
		{Key: "load_balancing", Value: "in_order"},
		{Key: "prefer_localhost_replica", Value: "0"},
		{Key: "insert_quorum", Value: quorum},
		{Key: "insert_quorum_timeout", Value: "60000"},
		{Key: "insert_quorum_parallel", Value: "1"}, // or an insert that missed its quorum keeps all others out
	}, nil
}

// quorum is how many replicas must have a row before its insert is answered, as the server's setting says it.
func (db *DB) quorum(ctx context.Context) (string, error) {
	switch {
	case db.cfg.Cluster == "":
		return "1", nil
	case db.cfg.InsertQuorum != "all":
		return db.cfg.InsertQuorum, nil
	}
	now, err := db.layout(ctx)
	if err == nil {
		err = db.checkEvenReplicas(now)
	}
	return strconv.FormatUint(now.Replicas, 10), err
}

// even returns an error if the quorum is all and not the same number of replicas in each shard: an insert says one number
// for all of them.
func (db *DB) checkEvenReplicas(now clusterLayout) error {
	if db.cfg.InsertQuorum != "all" || now.Fewest == now.Replicas {
		return nil
	}
	return fmt.Errorf("%w: a shard of the cluster %s has %d and another one %d, and with clickhouse.insert_quorum all each insert asks "+
		"for one number: give all shards as many, or set it to auto or to a number", ErrReplicas, db.cfg.Cluster, now.Fewest, now.Replicas)
}

// quorate returns the offset of a partition below which the rows that a table has are on as many replicas as they must be:
// those of inserts that were answered. Of one that was not, because its replicas were too few or too slow or its process
// died, the rows may be on the replica that is asked, and on no other.
func (db *DB) quorumOffset(ctx context.Context, table string, of source) (uint64, error) {
	quorum, err := db.quorum(ctx)
	if err != nil || quorum == "1" {
		return math.MaxUint64, err
	}
	if !slices.Contains(positionTables(), table) {
		return 0, nil
	}
	at, err := db.positions(ctx, db.conn, []string{table})
	return uint64(at[positionKey{table, of.topic, of.incarnation, of.partition}]), err
}
