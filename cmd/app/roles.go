package app

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/deletion"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/plan"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/steward"
)

// Roles returns the roles that a process can run, in the order in which they handle a change. The
// role state is part of sink.
func Roles() []schemas.Role {
	return []schemas.Role{
		schemas.RoleIngester, schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleChecker,
		schemas.RoleSteward, schemas.RoleSweeper, schemas.RoleDelayer, schemas.RoleSink,
	}
}

// Retries in the handler, before a message goes to a delay lane.
var (
	inDecision = retry.Policy{
		Attempts: 5, Wait: 200 * time.Millisecond, MaxWait: 3 * time.Second, Elapsed: 8 * time.Second}
	inWork = retry.Policy{Attempts: 5, Wait: 500 * time.Millisecond, MaxWait: 15 * time.Second, Elapsed: time.Minute}
)

// role is the switch from a role's name to its parts.
func (a *App) role(role schemas.Role) ([]part, error) {
	switch role {
	case schemas.RoleIngester:
		return a.ingester()
	case schemas.RolePlanner:
		return a.planner()
	case schemas.RoleCopier:
		return a.copier()
	case schemas.RoleDeleter:
		return a.deleter()
	case schemas.RoleChecker:
		return a.checker()
	case schemas.RoleSteward:
		return a.steward()
	case schemas.RoleSweeper:
		return a.sweeper()
	case schemas.RoleDelayer:
		d, err := kafka.NewDelayer(a.kafka)
		if err != nil {
			return nil, err
		}
		return []part{{string(role), d.Run}}, nil
	case schemas.RoleSink:
		return a.sink()
	}
	return nil, fmt.Errorf("unknown role %q: the roles are %v", role, Roles())
}

// hostname returns the name of the machine; "" if it is unknown.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

func (a *App) worker(role schemas.Role) string {
	return fmt.Sprintf("%s/%s/%d", hostname(), role, os.Getpid())
}

// afterTables returns a part that starts when the tables have been read.
func afterTables(name string, run func(context.Context) error, tables ...topicReader) part {
	return part{name, func(ctx context.Context) error {
		if err := ready(ctx, tables...); err != nil {
			return err
		}
		return run(ctx)
	}}
}

func (a *App) planner() ([]part, error) {
	p, err := plan.New(plan.Config{Large: int64(a.cfg.Duplication.LargeThreshold)}, a.policyRegistry)
	if err != nil {
		return nil, err
	}
	pool, err := kafka.NewPool(a.kafka, a.decisions(kafka.PoolConfig{Role: schemas.RolePlanner,
		Topics: []schemas.Topic{schemas.Changes}}), p.Handle)
	if err != nil {
		return nil, err
	}
	run := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-a.folder.Published(): // changes that are planned without a policy are not planned again
			return pool.Run(ctx)
		}
	}
	return []part{afterTables("planner", run, a.policies)}, nil
}

// pool sets the fields that all pools share, and those from the settings of a role.
func (a *App) pool(r config.Role, pc kafka.PoolConfig) kafka.PoolConfig {
	pc.Workers, pc.Reserved, pc.Large, pc.HighWeight = r.Workers, r.Reserved, r.Large, a.cfg.Roles.HighWeight
	pc.Window, pc.Bytes = r.Window, int64(r.Bytes)
	pc.DrainTimeout, pc.StallTimeout, pc.Retry, pc.MaxAttempts = a.drain, a.cfg.Roles.Stall, inWork, a.cfg.Roles.Attempts
	pc.Slots, pc.Admit = a.slots, a.stores.Admit
	return pc
}

// decisions sets the fields that the pools of deciding roles share. They do not access stores.
func (a *App) decisions(pc kafka.PoolConfig) kafka.PoolConfig {
	pc.Describe, pc.Window, pc.Bytes = kafka.WorkOf, 1024, 16<<20
	pc.DrainTimeout, pc.StallTimeout, pc.Retry, pc.MaxAttempts = a.drain, 10*time.Second, inDecision, a.cfg.Roles.Attempts
	return pc
}

func (a *App) copier() ([]part, error) {
	lists, parts, err := a.heldLists()
	if err != nil {
		return nil, err
	}
	e, err := duplicate.New(duplicate.Config{Worker: a.worker(schemas.RoleCopier), Host: hostname(), Software: Version,
		Large: int64(a.cfg.Duplication.LargeThreshold), WaitIntervals: a.cfg.Duplication.Wait,
		MissingIntervals: a.cfg.Fixity.Recheck, NoCheck: !a.cfg.Fixity.AfterCopy, Lists: a.lists,
		Rewrites: lists.rewrites, Repairs: lists.repairs, Held: lists, Restores: restores{a},
		ExternalWrites: a.stores.ExternalWrites, Apart: a.kafka.Clock.Apart}, a.stores, a.policyRegistry,
		parkedRecords{records: a.reader})
	if err != nil {
		return nil, err
	}
	p, err := kafka.NewPool(a.kafka, a.pool(a.cfg.Roles.Copier, kafka.PoolConfig{Role: schemas.RoleCopier,
		Topics:  []schemas.Topic{schemas.DuplicationHigh, schemas.DuplicationLow, schemas.DuplicationLarge},
		Prepare: lists.catchUp,
		Describe: func(b schemas.Body) kafka.Work {
			c := b.(*pb.DuplicationCommand)
			w := kafka.Work{
				Key:     schemas.Key(c.GetAccount(), c.GetDestinationStore(), c.GetSpace(), c.GetItem()),
				Account: c.GetAccount(), Stores: [2]string{c.GetSourceStore(), c.GetDestinationStore()},
				Bytes: c.GetSize(),
			}
			if len(c.GetRestore().GetSources()) > 1 { // if one is unavailable, another is tried
				w.Stores = [2]string{c.GetDestinationStore()}
			}
			return w
		}}), a.workMetrics.counting(e.Handle))
	if err != nil {
		return nil, err
	}
	return append(parts,
		afterTables("rewrites", lists.rewrites.Run, lists.checkpoints),
		afterTables("repairs", lists.repairs.Run, lists.checkpoints),
		afterTables("copier", p.Run, a.policies, a.actions, a.incidents, lists.checkpoints)), nil
}

func (a *App) deleter() ([]part, error) {
	lists, parts, err := a.heldLists()
	if err != nil {
		return nil, err
	}
	d, err := deletion.New(deletion.Config{
		Delay: a.cfg.Deletes.Delay, Large: int64(a.cfg.Duplication.LargeThreshold), Settle: 2 * a.cfg.Roles.Drain,
		Brake: lists.brake, Lists: lists, Publisher: a.producer, ExcludeLists: a.lists,
		Account: func(account string) deletion.Account { return a.accountOf(a.policyRegistry, account) },
		Now:     a.kafka.Clock.Now,
		Worker:  a.worker(schemas.RoleDeleter), Host: hostname(), Software: Version},
		a.stores, a.policyRegistry, parkedRecords{a.reader, maxDeleteAge})
	if err != nil {
		return nil, err
	}
	p, err := kafka.NewPool(a.kafka, a.pool(a.cfg.Roles.Deleter, kafka.PoolConfig{Role: schemas.RoleDeleter,
		Topics: []schemas.Topic{schemas.Deletions}, CoPartitioned: true, Describe: deletionWork,
		Prepare: lists.catchUp}), d.Handle)
	if err != nil {
		return nil, err
	}
	return append(parts,
		afterTables("deletes", lists.brake.Run, lists.checkpoints),
		afterTables("deleter", p.Run, a.policies, a.actions, a.incidents, lists.checkpoints),
		afterTables("held lists", lists.report, a.incidents, a.actions)), nil
}

// deletionWork describes a delete. Records are partitioned by destination, so one process has all
// deletes of a destination; their work keys are the items, so that it runs many at a time.
func deletionWork(b schemas.Body) kafka.Work {
	c := b.(*pb.DeletionCommand)
	return kafka.Work{
		Key:     schemas.Key(c.GetAccount(), c.GetDestinationStore(), c.GetSpace(), c.GetItem()),
		Account: c.GetAccount(), Stores: [2]string{c.GetDestinationStore(), c.GetSourceStore()},
	}
}

func (a *App) checker() ([]part, error) {
	f := a.cfg.Fixity
	c, err := fixity.New(fixity.Config{Worker: a.worker(schemas.RoleChecker), Host: hostname(), Software: Version,
		Settings: fixity.Settings{Recheck: f.Recheck, Settle: f.Settle}, MinInterval: f.MinInterval,
		At: a.kafka.Clock.At, Period: func(c schemas.Copy) time.Duration { return f.PeriodOf(c.Account, c.Store, c.Space) }},
		a.stores, parkedRecords{records: a.reader}, spaceIncidents{a.incidentBoard})
	if err != nil {
		return nil, err
	}
	p, err := kafka.NewPool(a.kafka, a.pool(a.cfg.Roles.Checker, kafka.PoolConfig{Role: schemas.RoleChecker,
		Topics: []schemas.Topic{schemas.FixityHigh, schemas.FixityLow, schemas.FixityLarge},
		Describe: func(b schemas.Body) kafka.Work {
			t := b.(*pb.FixityTask)
			return kafka.Work{
				Key:     schemas.CopyOf(t).String(),
				Account: t.GetAccount(), Stores: [2]string{t.GetStore()},
				Bytes: max(t.GetKnown().GetManifest().GetSize(), t.GetSize()),
			}
		}}), a.workMetrics.counting(c.Handle))
	if err != nil {
		return nil, err
	}
	return []part{afterTables("checker", p.Run, a.policies, a.actions)}, nil
}

func (a *App) steward() ([]part, error) {
	c := steward.Config{Large: int64(a.cfg.Duplication.LargeThreshold)}
	if intervals := a.cfg.Fixity.Recheck; len(intervals) > 0 {
		c.Recheck = intervals[0]
	}
	s, err := steward.New(c, steward.Deps{Stores: a.stores, Records: a.reader, Log: a.log})
	if err != nil {
		return nil, err
	}
	a.onIncident = append(a.onIncident, s.Apply) // after those of the board
	pool, err := kafka.NewPool(a.kafka, a.decisions(kafka.PoolConfig{Role: schemas.RoleSteward,
		Topics: []schemas.Topic{schemas.FixityResults, schemas.DuplicationResults, schemas.Admin},
		// One steward handles all messages of a copy, and has read the decisions of its predecessor.
		CoPartitioned: true,
		Prepare:       a.incidents.CatchUp}), s.Handle)
	if err != nil {
		return nil, err
	}
	run := func(ctx context.Context) error {
		defer s.Report()
		return pool.Run(ctx)
	}
	maintain := func(ctx context.Context) error { return a.maintainIncidents(ctx, s, pool.Owns) }
	return []part{afterTables("steward", run, a.policies), {"overwritten incidents", maintain}}, nil
}

// sink writes the log tables and, in a consumer group of its own, the state tables.
func (a *App) sink() ([]part, error) {
	logs, state := clickhouse.NewSink(a.db), clickhouse.NewState(a.db)
	s := a.cfg.Sink
	batch := func(role schemas.Role, topics []schemas.Topic, memory config.Size) kafka.BatchConfig {
		return kafka.BatchConfig{Role: role, Topics: topics, MaxRows: s.Rows, MaxBytes: int(s.Bytes), MaxAge: s.Age,
			PartsPerSecond: s.PartsPerSecond, Memory: int64(memory), DrainTimeout: a.drain}
	}
	ofLogs := batch(schemas.RoleSink, logs.Topics(), s.Memory)
	ofLogs.RecordLoss = a.recordRemoved
	lg, err := kafka.NewBatchGroup(a.kafka, ofLogs, logs)
	if err != nil {
		return nil, err
	}
	sg, err := kafka.NewBatchGroup(a.kafka, batch(schemas.RoleState, state.Topics(), s.Memory/3), state)
	if err != nil {
		return nil, err
	}
	return []part{{"sink", lg.Run}, {"state", sg.Run}, {"positions", a.watchPositions}}, nil
}
