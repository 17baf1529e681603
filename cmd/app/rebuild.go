package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/retry"
)

// stepWaitForCommits is the step in which a rebuild waits for commits of sinks that started before
// it moved the positions.
const stepWaitForCommits = "wait for commits that had begun"

// The size of one insert of a rebuild.
const (
	rebuildRows  = 10_000
	rebuildBytes = 8 << 20
)

// The admin actions that record lost records, and their acceptance by an operator.
const (
	actionLost   = "records-lost"
	actionAccept = "accept-loss"
)

// A Loss is a range of offsets of a partition; some of its records are neither in Kafka nor in the
// table.
type Loss struct {
	// ID is derived from the other fields.
	ID string `json:"id"`
	clickhouse.Gap
	Held int64 `json:"held"` // offsets in the range that have rows; for the table of copies, in its log
	// Lists are those that keep copies because of results in the range. The copies may be deleted now.
	Lists []string `json:"lists,omitempty"`
}

func newLost(g clickhouse.Gap, held int64) Loss {
	id := schemas.ID(actionLost, g.Table, string(g.Topic), strconv.FormatUint(uint64(g.Incarnation), 10),
		strconv.Itoa(int(g.Partition)), strconv.FormatInt(g.From, 10), strconv.FormatInt(g.To, 10),
		strconv.FormatInt(held, 10))
	return Loss{ID: id, Gap: g, Held: held}
}

// message returns the admin action that records the loss.
func (l Loss) message(by Actor) (schemas.Message, error) {
	after, err := json.Marshal(l)
	if err != nil {
		return schemas.Message{}, fmt.Errorf("encode the loss: %w", err)
	}
	lost := by.action(actionLost, l.ID)
	lost.Id, lost.After = l.ID, string(after)
	return schemas.Message{Topic: schemas.Admin, Body: lost}, nil
}

// recordRemoved returns the messages that record the loss of records that were removed from Kafka
// before the sink had read them. Their table has no position, so without this the loss is unknown
// once the group has continued after them. Rows that were stored and not committed count as lost.
func (a *App) recordRemoved(
	ctx context.Context, topic schemas.Topic, partition int32, from, to int64,
) ([]schemas.Message, error) {
	table := clickhouse.NewSink(a.db).Table(topic)
	if table == "" || table == clickhouse.Positions()[schemas.RoleSink][topic] { // rebuild records the others
		return nil, nil
	}
	e, err := a.admin.Extent(ctx, topic)
	if err != nil {
		return nil, err
	}
	gap := clickhouse.Gap{Table: table, Topic: topic, Incarnation: e.Incarnation, Partition: partition, From: from, To: to}
	msg, err := newLost(gap, 0).
		message(Actor{Who: string(schemas.RoleSink), Reason: "removed from Kafka before the sink had read it"})
	return []schemas.Message{msg}, err
}

// RebuildResult is the result of a rebuild.
type RebuildResult struct {
	// Gaps are the gaps that it closed, as they were before.
	Gaps []clickhouse.Gap `json:"gaps,omitempty"`
	// Lost are the losses, from this and earlier rebuilds, that no operator has accepted. After an error
	// it has only those of this rebuild.
	Lost []Loss `json:"lost,omitempty"`
}

// A rebuilder fills the gaps of the tables.
type rebuilder struct {
	*App
	by       Actor
	progress func(step string, done, total int64)
	sinks    map[schemas.Role]kafka.BatchSink
	lost     []Loss
	// restoredFormer are the topics that were recreated and whose former logs have been applied to the
	// table of copies.
	restoredFormer map[schemas.Topic]bool
}

// Rebuild fills the gaps of the tables: it stores again the committed records that they lack, from
// Kafka and, for the table of copies, from the logs, and then moves the positions. It can be
// interrupted, repeated, and run beside a sink. Records that neither Kafka nor the logs have are
// published as lost before the position moves past them. Tables without positions get the records
// of their topics that they lack.
func (a *App) Rebuild(
	ctx context.Context, by Actor, progress func(step string, done, total int64),
) (done RebuildResult, err error) {
	if err := errors.Join(migrate.Check(ctx, a.db), migrate.CheckWrites(ctx, a.db)); err != nil {
		return done, asPrecondition(err)
	}
	r := rebuilder{
		App: a, by: by, progress: progress, restoredFormer: map[schemas.Topic]bool{},
		sinks: map[schemas.Role]kafka.BatchSink{
			schemas.RoleSink: clickhouse.NewSink(a.db), schemas.RoleState: clickhouse.NewState(a.db),
		},
	}
	done.Gaps, err = r.fillGaps(ctx)
	if err = errors.Join(err, r.fillOthers(ctx)); err != nil {
		done.Lost = r.lost
		return done, err
	}
	done.Lost, err = unacceptedLosses(ctx, r.admin)
	return done, err
}

// fillGaps fills the gaps of the tables with positions, and returns them.
func (r *rebuilder) fillGaps(ctx context.Context) (filled []clickhouse.Gap, err error) {
	last, settled := map[clickhouse.Gap]bool{}, true
	for {
		// A running sink commits meanwhile but moves no position past a gap, so its commits are filled
		// too.
		gaps, err := r.findGaps(ctx)
		if err != nil || len(gaps) == 0 && settled {
			return filled, err
		}
		if len(gaps) == 0 { // a sink that read a position before it was moved may still commit
			r.progress(stepWaitForCommits, 0, 1)
			if err := retry.Sleep(ctx, r.commitTimeout); err != nil {
				return filled, err
			}
			r.progress(stepWaitForCommits, 1, 1)
			last, settled = map[clickhouse.Gap]bool{}, true
			continue
		}
		settled = false
		now := map[clickhouse.Gap]bool{}
		for _, g := range gaps {
			if last[g] {
				return filled, fmt.Errorf("%s, also after they were stored: was the table restored meanwhile?", g)
			}
			now[g] = true
		}
		last = now
		for _, g := range gaps { // logs come before the table of copies, which is made from them
			if err := r.fill(ctx, g); err != nil {
				return filled, fmt.Errorf("rebuild %s from %s, partition %d: %w", g.Table, g.Topic, g.Partition, err)
			}
		}
		filled = append(filled, gaps...)
	}
}

// fillOthers fills the tables without positions, such as those of incidents and policies. Their
// topics are small, so they are read from their starts; the sink finds out which records are
// already stored. Rows of records that a topic no longer has, because it was trimmed or compacted,
// stay as they are.
func (r *rebuilder) fillOthers(ctx context.Context) error {
	sink := clickhouse.NewSink(r.db)
	var errs []error
	for _, topic := range sink.Topics() {
		// If a topic feeds two tables, the other one may have the position.
		if clickhouse.Positions()[schemas.RoleSink][topic] == sink.Table(topic) {
			continue
		}
		if err := r.fillOther(ctx, sink, topic); err != nil {
			errs = append(errs, fmt.Errorf("rebuild %s from %s: %w", sink.Table(topic), topic, err))
		}
	}
	return errors.Join(errs...)
}

func (r *rebuilder) fillOther(ctx context.Context, sink kafka.BatchSink, topic schemas.Topic) error {
	e, err := r.admin.Extent(ctx, topic)
	if err != nil {
		return err
	}
	committed, err := r.admin.Committed(ctx, schemas.RoleSink, topic)
	if err != nil {
		return err
	}
	for id, start := range e.Starts {
		g := clickhouse.Gap{Table: sink.Table(topic), Topic: topic, Incarnation: e.Incarnation, Partition: id,
			From: start, To: min(committed[id], e.Ends[id])}
		if g.From >= g.To {
			continue
		}
		if err := r.read(ctx, &gapFill{Gap: g, sink: sink, next: g.From, progress: r.progress}); err != nil {
			return fmt.Errorf("partition %d: %w", id, err)
		}
	}
	return nil
}

// fill fills one gap.
func (r *rebuilder) fill(ctx context.Context, g clickhouse.Gap) error {
	e, err := r.admin.Extent(ctx, g.Topic)
	if err != nil {
		return err
	}
	start := g.To // if the topic was recreated since, Kafka has none of the records
	if e.Incarnation == g.Incarnation {
		start = min(e.Starts[g.Partition], g.To)
	}
	sink := r.sinks[schemas.RoleSink]
	if g.Table == clickhouse.Positions()[schemas.RoleState][g.Topic] {
		sink = r.sinks[schemas.RoleState]
		// Before any position of the topic moves, so that a killed rebuild repeats it.
		if g.From == 0 && !r.restoredFormer[g.Topic] {
			if err := verify.FillFormerState(ctx, r.db, g); err != nil {
				return err
			}
			r.restoredFormer[g.Topic] = true
		}
	}
	f := gapFill{Gap: g, sink: sink, next: g.From, progress: r.progress, onRemoved: r.removed}
	if start > g.From {
		removed := g
		removed.To = start
		if err := r.fillWithoutKafka(ctx, removed); err != nil {
			return err
		}
		if err := f.movePosition(ctx, start); err != nil {
			return err
		}
	}
	return r.read(ctx, &f)
}

// read fills the part of a gap that Kafka still has.
func (r *rebuilder) read(ctx context.Context, f *gapFill) error {
	g := f.Gap
	part := schemas.OffsetRange{Starts: map[int32]int64{g.Partition: f.next}, Ends: map[int32]int64{g.Partition: g.To}}
	f.expected = f.next
	if err := r.admin.Read(ctx, g.Topic, part, func(d *schemas.Delivery, unreadable error) error {
		if d.Incarnation != g.Incarnation {
			return verify.ErrRecreated
		}
		f.skipTo(d.Offset)
		f.expected = d.Offset + 1
		if unreadable == nil { // otherwise the sink has made it a dead letter
			return f.add(ctx, d)
		}
		return nil
	}); err != nil {
		return err
	}
	f.skipTo(g.To)
	if err := f.flush(ctx); err != nil {
		return err
	}
	return f.movePosition(ctx, g.To)
}

// removed handles offsets that were not read because Kafka removed them after the gap was found.
// Other offsets that were not read are tombstones, which have no rows.
func (r *rebuilder) removed(ctx context.Context, skipped []clickhouse.Gap) error {
	e, err := r.admin.Extent(ctx, skipped[0].Topic)
	if err != nil {
		return err
	}
	for _, g := range skipped {
		if g.To = min(g.To, e.Starts[g.Partition]); g.From < g.To {
			if err := r.fillWithoutKafka(ctx, g); err != nil {
				return err
			}
		}
	}
	return nil
}

// fillWithoutKafka handles offsets that Kafka no longer has. The table of copies is filled from the
// logs. Records that a log lacks are lost, for the log and for the table of copies.
func (r *rebuilder) fillWithoutKafka(ctx context.Context, g clickhouse.Gap) error {
	log := g
	if g.Table == clickhouse.Positions()[schemas.RoleState][g.Topic] {
		if err := verify.FillState(ctx, r.db, g); err != nil {
			return err
		}
		log.Table = clickhouse.Positions()[schemas.RoleSink][g.Topic]
	}
	held, err := verify.CountRows(ctx, r.db, log)
	if err != nil || held == g.To-g.From {
		return err
	}
	lost := newLost(g, held)
	msg, err := lost.message(r.by)
	if err != nil {
		return err
	}
	if err := r.producer.Publish(ctx, msg); err != nil {
		return fmt.Errorf("publish the loss: %w", err)
	}
	r.lost = append(r.lost, lost)
	return nil
}

// A gapFill is a gap that is being filled from its start.
type gapFill struct {
	clickhouse.Gap
	sink     kafka.BatchSink
	progress func(step string, done, total int64)
	next     int64 // all offsets before it are filled, and the position is here
	batch    []*schemas.Delivery
	bytes    int
	// expected is the offset after the last record that was read. skipped are the ranges from next to
	// expected that were not read. onRemoved is called with them before the position moves; it is nil
	// if the table has no positions.
	expected  int64
	skipped   []clickhouse.Gap
	onRemoved func(ctx context.Context, skipped []clickhouse.Gap) error
}

// skipTo records the offset of the next record that was read.
func (f *gapFill) skipTo(offset int64) {
	if f.onRemoved != nil && f.expected < offset {
		g := f.Gap
		g.From, g.To = f.expected, offset
		f.skipped = append(f.skipped, g)
	}
}

func (f *gapFill) add(ctx context.Context, d *schemas.Delivery) error {
	f.batch, f.bytes = append(f.batch, d), f.bytes+len(d.Key)+len(d.Value)
	if len(f.batch) < rebuildRows && f.bytes < rebuildBytes {
		return nil
	}
	return f.flush(ctx)
}

// flush stores the batch and moves the position.
func (f *gapFill) flush(ctx context.Context) error {
	if len(f.batch) > 0 {
		if err := f.store(ctx, f.batch); err != nil {
			return err
		}
	}
	if len(f.skipped) > 0 {
		if err := f.onRemoved(ctx, f.skipped); err != nil {
			return err
		}
		f.skipped = nil
	}
	if len(f.batch) == 0 {
		return nil
	}
	next := f.batch[len(f.batch)-1].Offset + 1
	f.batch, f.bytes = nil, 0
	return f.movePosition(ctx, next)
}

// store stores a batch without the records that cannot be stored; the sink has made those dead
// letters.
func (f *gapFill) store(ctx context.Context, batch []*schemas.Delivery) error {
	err := f.sink.Store(ctx, batch)
	if err == nil || !retry.IsPermanent(err) {
		return err
	}
	if len(batch) == 1 {
		return nil
	}
	half := len(batch) / 2
	if err := f.store(ctx, batch[:half]); err != nil {
		return err
	}
	return f.store(ctx, batch[half:])
}

// movePosition moves the position. A table without a position has no rows from before the gap.
func (f *gapFill) movePosition(ctx context.Context, next int64) error {
	if next <= f.next {
		return nil
	}
	f.next = next
	f.progress("rebuild "+f.Table+" from "+string(f.Topic)+"/"+strconv.Itoa(int(f.Partition)), next-f.From, f.To-f.From)
	if f.onRemoved == nil {
		f.sink.Forget(f.Topic, f.Partition) // the following records may be stored already
		return nil
	}
	return f.sink.Mark(ctx, []schemas.Progress{{Topic: f.Topic, Incarnation: f.Incarnation, Partition: f.Partition,
		Start: f.From, From: f.From, Next: next}})
}

// AcceptLoss records that an operator accepts all losses, and returns them.
func (a *App) AcceptLoss(ctx context.Context, by Actor) ([]Loss, error) {
	lost, err := unacceptedLosses(ctx, a.admin)
	if err != nil || len(lost) == 0 {
		return nil, err
	}
	var actions []schemas.Message
	for _, l := range lost {
		actions = append(actions, schemas.Message{Topic: schemas.Admin, Body: by.action(actionAccept, l.ID)})
	}
	if err := a.producer.Publish(ctx, actions...); err != nil {
		return nil, fmt.Errorf("accept losses: some may be accepted; repeating it is safe: %w", err)
	}
	return lost, nil
}

// unacceptedLosses returns the losses that rebuilds recorded and no operator has accepted since. For
// a range the last record counts: all records of a loss have the same key, so they are in one
// partition.
func unacceptedLosses(ctx context.Context, a *admin.Admin) ([]Loss, error) {
	e, err := a.Extent(ctx, schemas.Admin)
	if err != nil {
		return nil, fmt.Errorf("read the losses: %w", err)
	}
	found := map[clickhouse.Gap]Loss{}
	var decided held.Decisions
	err = a.Read(ctx, schemas.Admin, e, func(d *schemas.Delivery, _ error) error {
		m, _ := d.Body.(*pb.AdminAction) // nil if it cannot be decoded
		decided.Apply(m, d.Timestamp)
		switch m.GetAction() {
		case actionLost:
			var l Loss
			if err := json.Unmarshal([]byte(m.GetAfter()), &l); err != nil {
				return fmt.Errorf("decode the loss in action %s: %w", m.GetId(), err)
			}
			found[l.Gap] = l
		case actionAccept:
			maps.DeleteFunc(found, func(_ clickhouse.Gap, l Loss) bool { return l.ID == m.GetTarget() })
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the losses: %w", err)
	}
	lost := slices.SortedFunc(maps.Values(found), func(a, b Loss) int { return a.Compare(b.Gap) })
	for i, l := range lost {
		if l.Topic == schemas.DuplicationResults {
			lost[i].Lists = decided.Keeping(schemas.Coordinates{
				Incarnation: l.Incarnation, Partition: l.Partition, Offset: l.From}, l.To)
		}
	}
	return lost, nil
}
