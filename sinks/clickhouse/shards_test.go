package clickhouse_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
	"github.com/millrace/millrace/streams/retry"
)

// An engineCluster is a cluster of two embedded engines. They cannot forward statements to other servers and have no
// Keeper, so each is migrated by itself, and nothing is replicated.
type engineCluster struct {
	engines [2]*embedded.Server
	cluster [2]*clickhouse.DB // Distributed tables, through either server
	alone   [2]*clickhouse.DB // the local tables of each server
}

func newShards(t *testing.T) *engineCluster {
	return newEngines(t, "</shard><shard><internal_replication>true</internal_replication>")
}

// newReplicas returns a cluster of one shard. Its replicas do not replicate: a row is only where it was inserted.
func newReplicas(t *testing.T) *engineCluster { return newEngines(t, "") }

// partialProfile has settings with which a cluster returns results without unavailable shards, unmerged results, or
// results of a stale replica, or reports that a statement has run although it has not.
const partialProfile = "<skip_unavailable_shards>1</skip_unavailable_shards>" +
	"<distributed_group_by_no_merge>1</distributed_group_by_no_merge>" +
	"<max_replica_delay_for_distributed_queries>0</max_replica_delay_for_distributed_queries>" +
	"<distributed_ddl_output_mode>never_throw</distributed_ddl_output_mode>" +
	"<distributed_ddl_task_timeout>0</distributed_ddl_task_timeout>"

// newEngines starts two engines of a cluster. between is the XML between them in its configuration.
func newEngines(t *testing.T, between string) *engineCluster {
	t.Helper()
	var ports [2]net.Listener
	var replicas [2]string
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		ports[i] = l
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		replicas[i] = "<replica><host>127.0.0.1</host><port>" + port + "</port></replica>"
	}
	p := &engineCluster{}
	for i, l := range ports {
		s := clickhousetest.Start(t, embedded.Config{
			Settings: "<remote_servers><main><shard><internal_replication>true</internal_replication>" +
				replicas[0] + between + replicas[1] + "</shard></main></remote_servers>",
			Users: "<clickhouse><profiles><default>" + partialProfile + "</default></profiles><quotas><default/></quotas>" +
				"<users><default><password></password><networks><ip>::/0</ip></networks><profile>default</profile>" +
				"<quota>default</quota></default></users></clickhouse>",
		})
		go clickhousetest.Relay(l, s.Addr(), new(atomic.Bool), func(string, func()) bool { return true })
		p.engines[i] = s
		for name, into := range map[string]**clickhouse.DB{"main": &p.cluster[i], "": &p.alone[i]} {
			db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{s.Addr()}, Cluster: name}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			*into = db
		}
		plan, err := migrate.NewPlan(t.Context(), p.cluster[i], false)
		if err != nil {
			t.Fatal(err)
		}
		if err := applyHere(t.Context(), p.cluster[i], plan); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// histories returns the records of 6 partitions: changes, checks and an incident in each.
func histories() [][]*schemas.Delivery {
	var all [][]*schemas.Delivery
	for part := range int32(6) {
		var of []schemas.Body
		var checks []schemas.Body
		for i := range 20 {
			c := clickhousetest.Change(fmt.Sprintf("p%02d/%02d", part, i), time.Duration(i)*time.Hour)
			if i == 7 {
				c.Properties = map[string]string{"by": "me"}
			}
			of = append(of, c)
			checks = append(checks, clickhousetest.Result(c, time.Duration(i+1)*time.Hour))
		}
		lost := clickhousetest.Change(fmt.Sprintf("p%02d/07", part), 30*time.Hour)
		lost.MediaType, lost.PropertiesUnknown = "", true
		of = append(of, lost)
		pending := clickhousetest.Result(clickhousetest.Change(fmt.Sprintf("p%02d/00", part), 0), 40*time.Hour)
		pending.Verdict, pending.Row, pending.Finding, pending.Final, pending.Next = pb.Verdict_VERDICT_UNDECIDED, 8,
			"content-missing", false, clickhousetest.At(64*time.Hour)
		checks = append(checks, pending)
		incident := &pb.Incident{Id: schemas.ID("incident", fmt.Sprint(part)), Account: "acme", Store: "1", Space: "photos",
			Item: fmt.Sprintf("p%02d/00", part),
			Kind: "x", State: pb.IncidentState_INCIDENT_STATE_OPEN, Opened: clickhousetest.At(0),
			Updated: clickhousetest.At(0), StepCount: 1,
			Steps: []*pb.IncidentStep{{Time: clickhousetest.At(0), Action: "opened"}}}
		for topic, bodies := range map[schemas.Topic][]schemas.Body{schemas.Changes: of, schemas.FixityResults: checks,
			schemas.Incidents: {incident}} {
			batch := clickhousetest.Deliver(topic, 0, bodies...)
			for _, d := range batch {
				d.Partition = part
			}
			all = append(all, batch)
		}
	}
	return all
}

// store stores records in the logs and the state.
func store(t *testing.T, db *clickhouse.DB, all [][]*schemas.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	logs, state := clickhouse.NewSink(db), clickhouse.NewState(db)
	for _, batch := range all {
		if err := logs.Store(ctx, batch); err != nil {
			t.Fatal(err)
		}
		if batch[0].Topic != schemas.Incidents {
			if err := state.Store(ctx, batch); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// readModel returns all queries of the read model, with the arguments for histories.
func readModel() map[string]func(context.Context, *clickhouse.DB) (any, error) {
	type page struct {
		Copies []schemas.DueCopy
		Cursor schemas.DueCursor
	}
	due := func(ctx context.Context, db *clickhouse.DB, after schemas.DueCursor) (p page, err error) {
		p.Copies, p.Cursor, err = read.NewDue(db).Due(ctx,
			schemas.DueQuery{Account: "acme", Store: "1", Space: "photos", Limit: 33, After: after})
		return p, err
	}
	var copies []schemas.Copy
	for part := range 6 {
		copies = append(copies, schemas.Copy{Account: "acme", Store: "1", Space: "photos",
			Item: fmt.Sprintf("p%02d/07", part)})
	}
	copies = append(copies, schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "none"})
	round := read.SpaceRound{Space: schemas.Copy{Account: "acme", Store: "1", Space: "photos"}, Round: "round-1",
		Started: clickhousetest.Epoch.Add(time.Hour), PassedBefore: clickhousetest.Epoch.Add(time.Hour),
		AttemptedBefore: clickhousetest.Epoch.Add(time.Hour), Asserted: true}
	return map[string]func(context.Context, *clickhouse.DB) (any, error){
		"described": func(ctx context.Context, db *clickhouse.DB) (any, error) { return freshRecords(ctx, db, copies) },
		"manifest": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return liveCopies(ctx, db, schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "p03/10"})
		},
		"items": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			all := map[string][]read.StoredCopy{}
			err := read.EachItem(ctx, db, "acme", func(space, item string, copies []read.StoredCopy) error {
				all[space+"/"+item] = slices.Clone(copies)
				return nil
			})
			return all, err
		},
		"due": func(ctx context.Context, db *clickhouse.DB) (any, error) { return due(ctx, db, schemas.DueCursor{}) },
		"due, next page": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			first, err := due(ctx, db, schemas.DueCursor{})
			if err != nil {
				return nil, err
			}
			return due(ctx, db, first.Cursor)
		},
		"counts": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.CopyCounts(ctx, db, "acme")
		},
		"delays": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.CopyDelays(ctx, db, "acme")
		},
		"timeline": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.Timeline(ctx, db, "acme", "photos", "p05/00")
		},
		"incidents": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.OpenIncidents(ctx, db, "acme")
		},
		"pending": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.Pending(ctx, db, schemas.Copy{Account: "acme"}, clickhousetest.Epoch)
		},
		"final checks": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.CountFinal(ctx, db, "round-1")
		},
		"check counts": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.CheckCounts(ctx, db, "acme")
		},
		"records": func(ctx context.Context, db *clickhouse.DB) (any, error) { return read.Records(ctx, db, copies) },
		"progress of a round": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.SpaceRoundProgress(ctx, db, round)
		},
		"counts of a round": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.SpaceRoundCounts(ctx, db, round)
		},
		"failures of jobs": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.FailuresOfJobs(ctx, db, clickhousetest.Epoch)
		},
		"checks of a round": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.RoundChecks(ctx, db, read.RoundCheckQuery{Space: schemas.Copy{Account: "acme", Store: "1",
				Space: "photos"}, Round: "round-1", Started: clickhousetest.Epoch})
		},
		"overdue copies": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.Overdue(ctx, db, schemas.DueQuery{Account: "acme", Store: "1", Space: "photos", Prefix: "p0"})
		},
		"failures": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			totals, groups, err := read.Failures(ctx, db, read.FailureQuery{Account: "acme"})
			return []any{totals, groups}, err
		},
		"incidents by kind": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.CountIncidents(ctx, db, "acme")
		},
		"rates of spaces": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.SpaceRates(ctx, db, "acme", clickhousetest.Epoch)
		},
		"rates of checks": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.CheckRates(ctx, db, "acme", clickhousetest.Epoch)
		},
		"sizes of a space": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.SizesSince(ctx, db, "acme", "photos", clickhousetest.Epoch)
		},
		"space": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return freshRecords(ctx, db, []schemas.Copy{{Account: "acme", Store: "1", Space: "photos"}})
		},
		"gaps": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return clickhouse.Gaps(ctx, db, committedOf(5))
		},
	}
}

// freshRecords returns the records of copies and spaces, of a fresh read that does not wait.
func freshRecords(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy) (_ []*pb.CopyRecord, err error) {
	ctx, stop := context.WithCancel(ctx)
	var g errgroup.Group
	defer func() {
		stop()
		err = errors.Join(err, g.Wait())
	}()
	r := read.NewReader(db, clickhousetest.MarkFunc(clickhousetest.Reached), read.ReaderConfig{})
	g.Go(func() error { return r.Run(ctx) })
	return r.Fresh(ctx, copies)
}

// liveCopies returns the live copies of a space in a store, after an item.
func liveCopies(ctx context.Context, db *clickhouse.DB, of schemas.Copy) (all []schemas.KnownCopy, err error) {
	err = read.EachLive(ctx, db, of, func(k schemas.KnownCopy) error {
		all = append(all, k)
		return nil
	})
	return all, err
}

// committedOf returns committed offsets of both groups in the 6 partitions of changes.
func committedOf(next int64) map[schemas.Role][]schemas.Progress {
	all := map[schemas.Role][]schemas.Progress{}
	for part := range int32(6) {
		p := schemas.Progress{Topic: schemas.Changes, Incarnation: 7, Partition: part, Next: next}
		all[schemas.RoleSink], all[schemas.RoleState] = append(all[schemas.RoleSink], p), append(all[schemas.RoleState], p)
	}
	return all
}

// reads returns the results of all queries of the read model as text.
func reads(t *testing.T, db *clickhouse.DB) string {
	t.Helper()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(readModel())) {
		if name == "gaps" {
			continue // the test moves the positions
		}
		fmt.Fprintf(&b, "%s: %s\n", name, answerTo(t, db, name))
	}
	views, err := clickhousetest.Views(t.Context(), db.Config().Addresses[0], db.Config().Database)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "views: %v\n", views)
	return b.String()
}

func answerTo(t *testing.T, db *clickhouse.DB, name string) string {
	t.Helper()
	answer, err := readModel()[name](t.Context(), db)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return asText(t, answer)
}

func asText(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestCluster(t *testing.T) {
	need.Integration(t) // starts two engines
	t.Parallel()
	p := newShards(t)
	all := histories()
	store(t, p.cluster[0], all)

	single := clickhousetest.Open(t)
	store(t, single, all)
	want := reads(t, single)
	pending, err := read.Pending(t.Context(), single, schemas.Copy{Account: "acme"}, clickhousetest.Epoch)
	if err != nil || len(pending) != 6 {
		t.Errorf("%d copies are pending, %v, want 6", len(pending), err)
	}
	for i, db := range p.cluster {
		if err := migrate.Check(t.Context(), db); err != nil {
			t.Errorf("Check through server %d: %v", i, err)
		}
		if err := migrate.CheckWrites(t.Context(), db); err != nil {
			t.Errorf("CheckWrites through server %d: %v", i, err)
		}
		if got := reads(t, db); got != want {
			t.Errorf("through server %d the answers are\n%s\nwant those of one server:\n%s", i, got, want)
		}
	}
	t.Run("settings", func(t *testing.T) {
		got, err := clickhousetest.Strings(t.Context(), p.cluster[0],
			"SELECT arrayJoin([toString(getSetting('max_replica_delay_for_distributed_queries')),"+
				" toString(getSetting('distributed_ddl_output_mode')), toString(getSetting('distributed_ddl_task_timeout'))])")
		if want := []string{"300", "throw", "180"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("the settings of a question are %v, %v, want %v", got, err, want)
		}
	})
	t.Run("spread", p.checkSharding)
	t.Run("proved", func(t *testing.T) { p.verify(t, all) })
	t.Run("replay", func(t *testing.T) {
		store(t, p.cluster[1], all)
		if got := reads(t, p.cluster[0]); got != want {
			t.Errorf("after a replay the answers are\n%s\nwant\n%s", got, want)
		}
		for _, table := range []string{"audit_log", "bit_log", "incidents"} {
			if got, want := clickhousetest.Count(t, p.cluster[0], table), clickhousetest.Count(t, single, table); got != want {
				t.Errorf("%s has %s rows, want %s: what had landed was inserted again", table, got, want)
			}
		}
	})
	t.Run("state of the logs", func(t *testing.T) {
		for _, shard := range p.alone {
			if err := shard.Exec(t.Context(), "TRUNCATE TABLE {db}.copy_state_local"); err != nil {
				t.Fatal(err)
			}
		}
		for _, batch := range all {
			if batch[0].Topic == schemas.Incidents {
				continue
			}
			if err := verify.FillState(t.Context(), p.cluster[0], clickhouse.Gap{Table: "copy_state", Topic: batch[0].Topic,
				Incarnation: batch[0].Incarnation, Partition: batch[0].Partition, To: 1000}); err != nil {
				t.Fatal(err)
			}
		}
		p.checkSharding(t)
		store(t, p.cluster[1], all) // the sink of the state continues
		if got := reads(t, p.cluster[0]); got != want {
			t.Errorf("with the state made of the logs the answers are\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("positions", func(t *testing.T) {
		all := committedOf(5)
		if gaps, err := clickhouse.Gaps(t.Context(), p.cluster[1], all); err != nil || len(gaps) != 12 {
			t.Errorf("before they are written: %v, %v, want 12 gaps", gaps, err)
		}
		if err := errors.Join(clickhouse.NewSink(p.cluster[0]).Mark(t.Context(), all[schemas.RoleSink]),
			clickhouse.NewState(p.cluster[0]).Mark(t.Context(), all[schemas.RoleState])); err != nil {
			t.Fatal(err)
		}
		if gaps, err := clickhouse.Gaps(t.Context(), p.cluster[1], all); err != nil || len(gaps) > 0 {
			t.Errorf("through the other server: %v, %v, want no gaps", gaps, err)
		}
		for i, shard := range p.alone {
			if err := shard.Exec(t.Context(),
				"ALTER TABLE {db}.copy_state_local DELETE WHERE account = '' SETTINGS mutations_sync = 2"); err != nil {
				t.Fatal(err)
			}
			gaps, err := clickhouse.Gaps(t.Context(), p.cluster[1], all)
			if err != nil || len(gaps) != 6 || gaps[0].Table != "copy_state" || gaps[0].From != 0 {
				t.Errorf("with shard %d of the state emptied: %v, %v, want 6 gaps from 0 on", i, gaps, err)
			}
			if err := clickhouse.NewState(p.cluster[0]).Mark(t.Context(), all[schemas.RoleState]); err != nil {
				t.Fatal(err)
			}
			if gaps, err := clickhouse.Gaps(t.Context(), p.cluster[1], all); err != nil || len(gaps) > 0 {
				t.Errorf("with shard %d of the state filled: %v, %v, want no gaps", i, gaps, err)
			}
		}
		if got := reads(t, p.cluster[0]); got != want {
			t.Errorf("with positions the answers are\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("altered on the shards", func(t *testing.T) {
		if err := p.alone[1].Exec(t.Context(), "ALTER TABLE {db}.job_log_local DROP COLUMN error"); err != nil {
			t.Fatal(err)
		}
		if err := migrate.Check(t.Context(), p.cluster[1]); err == nil ||
			!strings.Contains(err.Error(), "table job_log_local: column error is missing") {
			t.Errorf("Check = %v", err)
		}
	})
	t.Run("other shards", func(t *testing.T) {
		if err := p.alone[1].Exec(t.Context(),
			"INSERT INTO {db}.schema_migrations (version, name, cluster, shards, applied) SELECT 1, 'audit_log', 'main', 3,"+
				" now64(3) + 1"); err != nil {
			t.Fatal(err)
		}
		if err := migrate.Check(t.Context(), p.cluster[1]); err == nil ||
			!strings.Contains(err.Error(), "spread over 3 shards, and the cluster main has 2 now") {
			t.Errorf("Check = %v", err)
		}
	})
	t.Run("a shard is unavailable", func(t *testing.T) { p.oneShardUnavailable(t, all) })
}

// A row on the replica that answers may be on fewer replicas than the quorum. Only the position, which moves after
// an insert has returned, proves the quorum: rows above it are inserted again, and the views show them once.
func TestQuorumOffset(t *testing.T) {
	need.Integration(t) // starts two engines
	t.Parallel()
	p := newReplicas(t)
	batch := clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Changes(6)...)
	incident := clickhousetest.Deliver(schemas.Incidents, 0,
		&pb.Incident{Id: schemas.ID("incident"), Account: "acme", Store: "1", Space: "photos", Item: "a",
			Kind: "x", State: pb.IncidentState_INCIDENT_STATE_OPEN, Opened: clickhousetest.At(0),
			Updated: clickhousetest.At(0), StepCount: 1,
			Steps: []*pb.IncidentStep{{Time: clickhousetest.At(0), Action: "opened"}}})
	sink := func(batches ...[]*schemas.Delivery) *clickhouse.Sink {
		t.Helper()
		s := clickhouse.NewSink(p.cluster[0]) // a new process
		for _, b := range batches {
			if err := s.Store(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	rows := func(when, want string) {
		t.Helper()
		if got := clickhousetest.Count(t, p.alone[0], "audit_log_local WHERE account != ''"); got != want {
			t.Errorf("%s: the table has %s rows, want %s", when, got, want)
		}
	}
	for shards, of := range map[int]*clickhouse.DB{1: p.cluster[0], 0: p.alone[0]} {
		if got, err := of.Replicated(t.Context()); err != nil || len(got) != shards ||
			shards > 0 && len(got[0].Replicas) != 2 {
			t.Errorf("replicated are %v, %v, want %d shards of 2", got, err, shards)
		}
	}
	for ago, want := range map[time.Duration]string{0: "3", 2 * time.Minute: "2"} { // a replica was removed
		p.cluster[0].CacheReplicas(3, ago)
		if got, err := p.cluster[0].Quorum(t.Context()); err != nil || got != want {
			t.Errorf("the quorum is %s, %v, want %s", got, err, want)
		}
	}
	p.cluster[0].CacheReplicas(2, 0)
	sink(batch[:3], incident)
	rows("at first", "3")
	killed := sink(batch[:3], incident)
	rows("after a kill before the position was moved", "6")
	if got := clickhousetest.Count(t, p.alone[0], "incidents_local"); got != "2" {
		t.Errorf("a table without positions has %s rows, want 2", got)
	}
	done := schemas.Progress{Topic: schemas.Changes, Incarnation: 7, Partition: 3, Next: 3}
	if err := killed.Mark(t.Context(), []schemas.Progress{done}); err != nil {
		t.Fatal(err)
	}
	sink(batch[:3])
	rows("after a kill before the commit", "6")
	sink(batch[:5])
	rows("with more records than the position says", "8")
	sink(batch)
	rows("after a kill before the position was moved again", "11")
	if got := clickhousetest.Count(t, p.cluster[0], "audit_log_v"); got != "6" {
		t.Errorf("the view shows %s rows, want 6", got)
	}
}

// verify checks that the rows are as they were stored, on whichever shard they are.
func (p *engineCluster) verify(t *testing.T, all [][]*schemas.Delivery) {
	proof, err := verify.NewTopic(p.cluster[0], schemas.Changes, func(*schemas.Delivery) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	defer proof.Close()
	extent := schemas.OffsetRange{Incarnation: 7, Starts: map[int32]int64{}, Ends: map[int32]int64{}}
	for _, batch := range all {
		for _, d := range batch {
			if d.Topic != schemas.Changes {
				continue
			}
			extent.Starts[d.Partition], extent.Ends[d.Partition] = 0, max(extent.Ends[d.Partition], d.Offset+1)
			if err := proof.Add(d, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := proof.Compare(t.Context(),
		verify.Offsets{Compared: extent, Committed: extent.Ends, Progress: func(string, int64, int64) {},
			Now: func(context.Context) (schemas.OffsetRange, error) { return extent, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Findings() != 0 || got[0].Unhashed != 0 || got[0].Rows == 0 {
		t.Errorf("got %s", clickhousetest.Describe(got[0]))
	}
}

// checkSharding checks that each partition of a log, and each copy of the state, is on one shard.
func (p *engineCluster) checkSharding(t *testing.T) {
	for what, table := range map[string]string{
		"toString(part)": "audit_log_local", "toString(part) || ''": "bit_log_local",
		"account || store || space || item": "copy_state_local",
	} {
		var has [2][]string
		for i, db := range p.alone {
			var err error
			if has[i], err = clickhousetest.Strings(t.Context(), db, "SELECT DISTINCT "+what+" FROM {db}."+table); err != nil {
				t.Fatal(err)
			}
			if len(has[i]) == 0 {
				t.Errorf("shard %d has nothing of %s: it is not spread", i, table)
			}
		}
		for _, v := range has[0] {
			if slices.Contains(has[1], v) {
				t.Errorf("%s of %s is on both shards", v, table)
			}
		}
	}
}

// oneShardUnavailable checks that a partition needs only its own shard: partitions of the other shard are available.
func (p *engineCluster) oneShardUnavailable(t *testing.T, all [][]*schemas.Delivery) {
	lost, err := clickhousetest.Strings(t.Context(), p.alone[1],
		"SELECT DISTINCT toString(part) FROM {db}.audit_log_local")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.engines[1].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wrong := p.withoutShard(t.Context(), all, lost)
	if wrong == nil {
		return
	}
	// A reset connection between two queries kills libchdb 26.7, and an engine that ends resets its connections to
	// others.
	select {
	case <-p.engines[0].Done():
		need.Missing(t, need.Behaviour("an engine that outlives a reset connection"),
			fmt.Errorf("the engine that was to stay ended by itself: %v; %w", p.engines[0].Wait(t.Context()), wrong))
	case <-time.After(2 * time.Second):
		t.Error(wrong)
	}
}

// withoutShard returns an error if a query succeeds that needs the unavailable shard with the partitions in lost.
func (p *engineCluster) withoutShard(ctx context.Context, all [][]*schemas.Delivery, lost []string) error {
	rows := func() (string, error) {
		n, err := clickhousetest.Strings(ctx, p.alone[0], "SELECT toString(count()) FROM {db}.audit_log_local")
		return strings.Join(n, " "), err
	}
	before, err := rows()
	errs := []error{err}
	s := clickhouse.NewSink(p.cluster[0])
	for _, batch := range all {
		if batch[0].Topic != schemas.Changes {
			continue
		}
		err := s.Store(ctx, batch)
		switch unavailable := slices.Contains(lost, fmt.Sprint(batch[0].Partition)); {
		case unavailable && retry.ClassOf(err) != retry.ClassUnavailable:
			errs = append(errs, fmt.Errorf("store partition %d of the unavailable shard: %s, want class unavailable",
				batch[0].Partition, fmt.Sprint(err)))
		case !unavailable && err != nil:
			errs = append(errs, fmt.Errorf("store partition %d of the available shard: %w", batch[0].Partition, err))
		}
	}
	after, err := rows()
	if errs = append(errs, err); after != before {
		errs = append(errs, fmt.Errorf("the shard that is there has %s rows, had %s", after, before))
	}
	if _, err := liveCopies(ctx, p.cluster[0],
		schemas.Copy{Account: "acme", Store: "1", Space: "photos"}); err == nil {
		errs = append(errs, errors.New("a manifest without one of its shards is no error"))
	}
	return errors.Join(errs...)
}

// applyHere applies a plan for a cluster to one server only, replacing what the embedded engine lacks: it removes ON
// CLUSTER, and replicates nothing.
func applyHere(ctx context.Context, db *clickhouse.DB, p migrate.Plan) error {
	on := " ON CLUSTER " + clickhouse.QuoteName(db.Config().Cluster)
	here := func(statement string) error {
		return db.Exec(ctx, replicated.ReplaceAllString(strings.ReplaceAll(statement, on, ""), "$1("))
	}
	for _, statement := range p.Prepare {
		if err := here(statement); err != nil {
			return err
		}
	}
	all, err := migrations.All()
	if err != nil {
		return err
	}
	for i, s := range p.Steps {
		for _, statement := range s.Statements {
			if err := here(statement); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		layout, err := db.ReadLayout(ctx)
		if err != nil {
			return err
		}
		m := all[i]
		if err := db.Exec(ctx, "INSERT INTO {db}.schema_migrations (version, name, checksum, cluster, shards)"+
			" SELECT ?, ?, ?, ?, ?", m.Number, m.Name, m.Checksum(), db.Config().Cluster, layout.Shards); err != nil {
			return err
		}
	}
	return nil
}

var replicated = regexp.MustCompile(`Replicated(\w*MergeTree)\('[^']*', '[^']*'(?:, )?`)
