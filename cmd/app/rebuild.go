package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
)

// stepSettle is the step of a rebuild in which it waits for commits of sinks that had begun before it moved positions.
const stepWaitForCommits = "wait for commits that had begun"

// Bounds of what a rebuild stores at once.
const (
	rebuildRows  = 10_000
	rebuildBytes = 8 << 20
)

// The actions by which a rebuild and a person speak of records that are lost.
const (
	actionLost   = "records-lost"
	actionAccept = "accept-loss"
)

// A Lost names offsets of a partition of which neither Kafka nor the table has all records.
type Lost struct {
	// ID is a function of the rest.
	ID string `json:"id"`
	clickhouse.Gap
	Held int64 `json:"held"` // offsets of which there are rows all the same; of the state, in the log that it is made of
}

func newLost(g clickhouse.Gap, held int64) Lost {
	return Lost{schemas.ID(actionLost, g.Table, string(g.Topic), strconv.FormatUint(uint64(g.Incarnation), 10), strconv.Itoa(int(g.Partition)),
		strconv.FormatInt(g.From, 10), strconv.FormatInt(g.To, 10), strconv.FormatInt(held, 10)), g, held}
}

// message is what puts the loss on record.
func (l Lost) message(by Approval) (schemas.Message, error) {
	after, err := json.Marshal(l)
	if err != nil {
		return schemas.Message{}, fmt.Errorf("encode what is lost: %w", err)
	}
	return schemas.Message{Topic: schemas.Admin, Body: &pb.AdminAction{
		Id: l.ID, Time: timestamppb.Now(), Who: by.Who, Action: actionLost, Target: l.ID, Reason: by.Reason, From: by.From, After: string(after),
	}}, nil
}

// removed returns what puts on record that records were removed before the sink had read them. Without it the loss is
// forgotten once the group goes on behind them, as their table has no position. Rows that were stored and not committed
// count as lost.
func (a *App) recordRemoved(ctx context.Context, topic schemas.Topic, partition int32, from, to int64) ([]schemas.Message, error) {
	table := clickhouse.NewSink(a.db).Table(topic)
	if table == "" || table == clickhouse.Positions()[schemas.RoleSink][topic] { // or rebuild puts it on record
		return nil, nil
	}
	e, err := a.admin.Extent(ctx, topic)
	if err != nil {
		return nil, err
	}
	msg, err := newLost(clickhouse.Gap{Table: table, Topic: topic, Incarnation: e.Incarnation, Partition: partition, From: from, To: to}, 0).
		message(Approval{Who: string(schemas.RoleSink), Reason: "removed from Kafka before the sink had read it"})
	return []schemas.Message{msg}, err
}

// Rebuilt is what a rebuild did.
type Rebuilt struct {
	// Gaps are those that it closed, as it found them.
	Gaps []clickhouse.Gap `json:"gaps,omitempty"`
	// Lost is what is lost for good and is not accepted, found now or before. After an error it is what was found now.
	Lost []Lost `json:"lost,omitempty"`
}

// A rebuilder fills the gaps of the tables.
type rebuilder struct {
	*App
	by       Approval
	progress func(step string, done, total int64)
	sinks    map[schemas.Role]kafka.BatchSink
	lost     []Lost
	// former are topics of which the state has what logs of that name were before.
	restoredFormer map[schemas.Topic]bool
}

// Rebuild fills what the tables lack of what was committed, from Kafka and, for the state, from the logs, and then moves
// their positions. It may be stopped, and run again or beside a sink. What neither Kafka nor the logs have any more is
// published as lost before the position moves over it. Tables without positions get what they lack of the records that
// their topics have.
func (a *App) Rebuild(ctx context.Context, by Approval, told func(step string, done, total int64)) (done Rebuilt, err error) {
	if err := errors.Join(a.db.Check(ctx), a.db.CheckWrites(ctx)); err != nil {
		return done, asPrecondition(err)
	}
	r := rebuilder{App: a, by: by, progress: told, restoredFormer: map[schemas.Topic]bool{}, sinks: map[schemas.Role]kafka.BatchSink{
		schemas.RoleSink: clickhouse.NewSink(a.db), schemas.RoleState: clickhouse.NewState(a.db)}}
	done.Gaps, err = r.fillGaps(ctx)
	if err = errors.Join(err, r.fillOthers(ctx)); err != nil {
		done.Lost = r.lost
		return done, err
	}
	done.Lost, err = unacceptedLosses(ctx, r.admin)
	return done, err
}

// fillGaps fills the gaps of the tables that have positions, and returns those that it filled.
func (r *rebuilder) fillGaps(ctx context.Context) (filled []clickhouse.Gap, err error) {
	last, settled := map[clickhouse.Gap]bool{}, true
	for {
		// A sink that runs commits meanwhile, and moves no position over a gap: what it has committed is filled, too.
		gaps, err := r.findGaps(ctx)
		if err != nil || len(gaps) == 0 && settled {
			return filled, err
		}
		if len(gaps) == 0 { // but a sink that looked at a position before it was moved may still commit
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
				return filled, fmt.Errorf("%s, and still does after they were stored: was the table restored meanwhile?", g)
			}
			now[g] = true
		}
		last = now
		for _, g := range gaps { // the state's table comes behind the logs of which it is made
			if err := r.fill(ctx, g); err != nil {
				return filled, fmt.Errorf("rebuild %s from %s, partition %d: %w", g.Table, g.Topic, g.Partition, err)
			}
		}
		filled = append(filled, gaps...)
	}
}

// fillOthers fills the tables that have no positions, such as those of incidents and policies. What their topics hold is
// little, so they are read from their starts; the sink asks the tables which records have landed. What a topic does not
// hold any more, because it was trimmed or is compacted, stays as it is.
func (r *rebuilder) fillOthers(ctx context.Context) error {
	sink := clickhouse.NewSink(r.db)
	var errs []error
	for _, topic := range sink.Topics() {
		// Of a topic that feeds two tables, the position may be in the other one.
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
	start := g.To // if the topic was made anew since, Kafka has nothing of it
	if e.Incarnation == g.Incarnation {
		start = min(e.Starts[g.Partition], g.To)
	}
	sink := r.sinks[schemas.RoleSink]
	if g.Table == clickhouse.Positions()[schemas.RoleState][g.Topic] {
		sink = r.sinks[schemas.RoleState]
		if g.From == 0 && !r.restoredFormer[g.Topic] { // before any position of the topic moves: it is made again after a kill
			if err := r.db.StateOfFormer(ctx, g); err != nil {
				return err
			}
			r.restoredFormer[g.Topic] = true
		}
	}
	f := gapFill{Gap: g, sink: sink, next: g.From, progress: r.progress, onRemoved: r.removed}
	if start > g.From {
		gone := g
		gone.To = start
		if err := r.fillWithoutKafka(ctx, gone); err != nil {
			return err
		}
		if err := f.movePosition(ctx, start); err != nil {
			return err
		}
	}
	return r.read(ctx, &f)
}

// read fills what Kafka has of a gap.
func (r *rebuilder) read(ctx context.Context, f *gapFill) error {
	g := f.Gap
	part := schemas.Extent{Starts: map[int32]int64{g.Partition: f.next}, Ends: map[int32]int64{g.Partition: g.To}}
	f.expected = f.next
	if err := r.admin.Read(ctx, g.Topic, part, func(d *schemas.Delivery, unreadable error) error {
		if d.Incarnation != g.Incarnation {
			return clickhouse.ErrAnew
		}
		f.skipTo(d.Offset)
		f.expected = d.Offset + 1
		if unreadable == nil { // else the sink has made it a dead letter
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

// removed does what can be done for offsets that were not read because Kafka has removed them since the gap was looked
// at. Others that were not read are of records that only say that their key is gone.
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

// withoutKafka does what can be done for offsets that Kafka no longer has. The state is made of the logs; what a log
// has not is lost, of the log and of the state.
func (r *rebuilder) fillWithoutKafka(ctx context.Context, g clickhouse.Gap) error {
	log := g
	if g.Table == clickhouse.Positions()[schemas.RoleState][g.Topic] {
		if err := r.db.StateOf(ctx, g); err != nil {
			return err
		}
		log.Table = clickhouse.Positions()[schemas.RoleSink][g.Topic]
	}
	held, err := r.db.Held(ctx, log)
	if err != nil || held == g.To-g.From {
		return err
	}
	lost := newLost(g, held)
	msg, err := lost.message(r.by)
	if err != nil {
		return err
	}
	if err := r.producer.Publish(ctx, msg); err != nil {
		return fmt.Errorf("publish what is lost: %w", err)
	}
	r.lost = append(r.lost, lost)
	return nil
}

// A filling is a gap that is being filled, from its start on.
type gapFill struct {
	clickhouse.Gap
	sink     kafka.BatchSink
	progress func(step string, done, total int64)
	next     int64 // everything before is filled, and the position says so
	batch    []*schemas.Delivery
	bytes    int
	// expected is the offset behind the last record that was read, and skipped are offsets before it, from next on, that
	// were not; removed is called with them before the position moves. nil: the table has no positions.
	expected  int64
	skipped   []clickhouse.Gap
	onRemoved func(ctx context.Context, skipped []clickhouse.Gap) error
}

// skipTo notes that the next record that was read has an offset.
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

// flush stores what was read, and moves the position.
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

// store stores a batch without the records that cannot be stored: the sink has made them dead letters.
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

// reached moves the position. Without a position the table has what lies before the gap, which is nothing.
func (f *gapFill) movePosition(ctx context.Context, next int64) error {
	if next <= f.next {
		return nil
	}
	f.next = next
	f.progress("rebuild "+f.Table+" from "+string(f.Topic)+"/"+strconv.Itoa(int(f.Partition)), next-f.From, f.To-f.From)
	if f.onRemoved == nil {
		f.sink.Forget(f.Topic, f.Partition) // what follows may have landed
		return nil
	}
	return f.sink.Mark(ctx, []schemas.Progress{{Topic: f.Topic, Incarnation: f.Incarnation, Partition: f.Partition,
		Start: f.From, From: f.From, Next: next}})
}

// AcceptLoss publishes that a person accepts what is lost for good, and returns it.
func (a *App) AcceptLoss(ctx context.Context, by Approval) ([]Lost, error) {
	lost, err := unacceptedLosses(ctx, a.admin)
	if err != nil || len(lost) == 0 {
		return nil, err
	}
	var actions []schemas.Message
	for _, l := range lost {
		actions = append(actions, schemas.Message{Topic: schemas.Admin, Body: &pb.AdminAction{
			Id: schemas.NewID(), Time: timestamppb.Now(), Who: by.Who, Action: actionAccept, Target: l.ID, Reason: by.Reason, From: by.From,
		}})
	}
	if err := a.producer.Publish(ctx, actions...); err != nil {
		return nil, fmt.Errorf("accept what is lost: some of it may be accepted, and it can be done again: %w", err)
	}
	return lost, nil
}

// lostForGood returns what rebuilds found to be lost, and nobody has accepted since. Of one range the last record counts:
// all records of a loss are in one partition, since their keys are the same.
func unacceptedLosses(ctx context.Context, admin *kafka.Admin) ([]Lost, error) {
	found := map[clickhouse.Gap]Lost{}
	err := eachAction(ctx, admin, func(m *pb.AdminAction) error {
		switch m.GetAction() {
		case actionLost:
			var l Lost
			if err := json.Unmarshal([]byte(m.GetAfter()), &l); err != nil {
				return fmt.Errorf("read what is lost: action %s: %w", m.GetId(), err)
			}
			found[l.Gap] = l
		case actionAccept:
			maps.DeleteFunc(found, func(_ clickhouse.Gap, l Lost) bool { return l.ID == m.GetTarget() })
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for what is lost: %w", err)
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Lost) int { return a.Compare(b.Gap) }), nil
}

// eachAction calls do for each record of the topic admin; for one that cannot be read, with nil.
func eachAction(ctx context.Context, admin *kafka.Admin, do func(*pb.AdminAction) error) error {
	e, err := admin.Extent(ctx, schemas.Admin)
	if err != nil {
		return err
	}
	return admin.Read(ctx, schemas.Admin, e, func(d *schemas.Delivery, _ error) error {
		action, _ := d.Body.(*pb.AdminAction)
		return do(action)
	})
}
