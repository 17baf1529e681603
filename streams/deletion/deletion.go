// Package deletion carries deletes of a source to its destinations.
//
// It looks again before it deletes, and deletes only what a fresh tombstone of the
// source proves to be meant: one that is newer than what the destination holds and than
// the rule that lets deletes through. Nothing is deleted while anything is unknown; what
// is deleted is the version that was seen, and is kept where the store can.
//
// It looks at the source once more after the delete. If the source was put back meanwhile, a command to copy it goes
// out, so a delete that crosses a put never costs a copy.
package deletion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// maxRounds bounds how often one execution looks at an item that keeps changing.
const maxIterations = 5

// lookTime bounds a look that must not be cancelled. It is half of the time that a Pool gives a cancelled task to end, so
// what the look leads to is published before the process ends.
const observeTimeout = 2500 * time.Millisecond

// agent names the deleter in Changes.
const agent = "deleter"

// Config is how a Deleter works and names itself.
type Config struct {
	// Delay is how long after the delete of the source a copy is kept.
	Delay time.Duration
	// Large is the size in bytes from which on a command to copy is of the class large; 0: none is.
	Large int64
	// Settle is when both sides are looked at again if the source is there beside its copy, since a delete may still take
	// effect after its error, or after its process lost the command. It is longer than such a process keeps the command.
	Settle time.Duration
	// Held reports to a person that the delete of a copy waits for approval. It is called before the delete ends so; if it
	// returns an error the delete is tried again. nil: nothing is reported.
	Held func(context.Context, schemas.Copy) error
	// Worker, Host and Software stand in results.
	Worker, Host, Software string
}

// A Deleter handles the topic deletions. It is safe for concurrent use.
type Deleter struct {
	cfg      Config
	observer *duplicate.Observer
}

// New returns a Deleter.
func New(c Config, stores duplicate.Stores, rules duplicate.Rules, records duplicate.Records) (*Deleter, error) {
	if c.Delay < 0 || c.Settle < 0 {
		return nil, fmt.Errorf("deletion: delay of %s or settle of %s is negative", c.Delay, c.Settle)
	}
	looker, err := duplicate.NewObserver(stores, rules, records)
	if err != nil {
		return nil, err
	}
	return &Deleter{c, looker}, nil
}

// Handle executes the DeletionCommand in d: it deletes one copy, if that is still
// right, and returns the result, after the Change of the copy and a command to copy the source if that is back.
func (e *Deleter) Handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	c, ok := d.Body.(*pb.DeletionCommand)
	if !ok {
		return nil, retry.Permanent(fmt.Errorf("deletion: found a %T where a DeletionCommand belongs", d.Body))
	}
	if c.GetSpace() == "" || c.GetItem() == "" {
		return nil, retry.Permanent(fmt.Errorf("execute deletion %q: space or item is empty", c.GetId()))
	}
	w := &execution{cfg: e.cfg, command: c, attempt: d.Attempt, started: time.Now()}
	if due := c.GetDeleted().AsTime().Add(e.cfg.Delay); e.cfg.Delay > 0 && time.Now().Before(due) {
		return nil, retry.Wait(fmt.Errorf("delete no sooner than %s after the source", e.cfg.Delay), due)
	}
	var err error
	if w.sides, err = e.observer.Sides(w.observeCommand()); err != nil {
		return nil, err
	}
	for range maxIterations {
		var out []schemas.Message
		if out, err = w.iterate(ctx); err == nil {
			return out, nil
		}
		if !errors.Is(err, storage.ErrChanged) && !errors.Is(err, storage.ErrNotFound) {
			break
		}
	}
	return nil, fmt.Errorf("execute deletion %s: %w", c.GetId(), err)
}

// work is one execution of one command.
type execution struct {
	cfg        Config
	command    *pb.DeletionCommand
	sides      *duplicate.Sides
	attempt    int
	started    time.Time
	lastDelete time.Time // the latest delete of the source that a delete of the copy was tried for
}

// look is the command to look at the item again. It tells of no delete, so that only a
// tombstone, read afresh, can prove one.
func (w *execution) observeCommand() *pb.DuplicationCommand {
	c := w.command
	return &pb.DuplicationCommand{
		Id: c.GetId(), Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetSourceStore(), DestinationStore: c.GetDestinationStore(),
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Cause: c.GetCause(),
		ChangeTime: c.GetDeleted(), PolicyRevision: c.GetPolicyRevision(), Time: c.GetTime(), Approved: c.GetApproved(),
	}
}

// end is how the execution ends.
type ending struct {
	row            duplicate.Row
	result, detail string
	outcome        pb.Outcome
	digests        digest.Set
	change         *pb.Change
	copy           *schemas.Message // the command to look at both sides again
}

func (w *execution) iterate(ctx context.Context) ([]schemas.Message, error) {
	s := w.sides.Observe(ctx)
	if s.Source.Presence == duplicate.Present {
		return w.endWithSource(s, "the source is present"), nil
	}
	d, err := w.sides.Decide(ctx, &s) // it looks again after the records were read: what follows is done at once
	if err != nil {
		return nil, err
	}
	if s.Source.Presence == duplicate.Present { // it came back while the records were read
		return w.endWithSource(s, "the source is present"), nil
	}
	e := ending{row: d.Row, result: d.Result, outcome: pb.Outcome_OUTCOME_NOTHING}
	switch {
	case d.Row == duplicate.RowBothAbsent:
		if d.Announce {
			e.change = w.sides.DeleteChange(s, d)
		}
	case d.Row == duplicate.RowSourceMissing, d.Row == duplicate.RowAllCopiesMissing:
		// Nothing proves a delete. The command that led here has ended, so another one waits for the source and reports.
		e.result, e.detail, e.outcome = "not-deleted", d.Result, pb.Outcome_OUTCOME_HANDED_ON
		e.copy = w.copyCommand(storage.Object{})
	case d.Deleted.IsZero():
	case d.NeedsApproval || w.command.GetNeedsApproval():
		if err := w.reportHeld(ctx); err != nil {
			return nil, err
		}
		e.result, e.outcome = "awaiting-approval", pb.Outcome_OUTCOME_HANDED_ON
	default:
		if err := w.stillAbsent(ctx); err != nil {
			return nil, err
		}
		return w.delete(ctx, s.Destination.Object, d.Deleted)
	}
	return w.messages(e), nil
}

// held reports that the delete waits for approval.
func (w *execution) reportHeld(ctx context.Context) error {
	if w.cfg.Held == nil {
		return nil
	}
	if err := w.cfg.Held(ctx, w.sides.Copy); err != nil {
		return fmt.Errorf("report that the delete of %s waits for approval: %w", w.sides.Copy, err)
	}
	return nil
}

// present ends the execution if the source is there.
func (w *execution) endWithSource(s duplicate.Observation, detail string) []schemas.Message {
	e := ending{row: duplicate.RowSourceDeleted, result: "not-deleted", detail: detail, outcome: pb.Outcome_OUTCOME_HANDED_ON}
	carried := w.command.GetDeleted()
	if w.lastDelete.After(carried.AsTime()) {
		carried = timestamppb.New(w.lastDelete)
	}
	e.copy = w.putBack(s, carried)
	return w.messages(e)
}

// putBack returns the command to copy the source again, unless that is known to be absent. The deletion of the copy has
// carried the delete of the source at a time: here, or in an execution whose end is not known. If the copy is there, such
// a delete may still come, and the command is due when it has.
func (w *execution) putBack(s duplicate.Observation, carried *timestamppb.Timestamp) *schemas.Message {
	if s.Source.Presence == duplicate.Absent {
		return nil
	}
	m := w.copyCommand(s.Source.Object)
	c := m.Body.(*pb.DuplicationCommand)
	c.CarriedDelete, c.IfAbsent = carried, true
	if s.Source.Presence == duplicate.Present {
		seen := record.Content(w.sides.SourceCopy, s.Source.Object)
		c.CauseOp, c.ChangeTime, c.ChangeVersion = seen.GetOp(), seen.GetTime(), seen.GetVersion()
		c.Size, c.Digests, c.Provenance = seen.GetSize(), seen.GetDigests(), seen.GetProvenance()
	}
	if s.Destination.Presence == duplicate.Present {
		m.Due = time.Now().Add(w.cfg.Settle)
	}
	return m
}

// order returns a command to look at both sides again, in the class of source.
func (w *execution) copyCommand(source storage.Object) *schemas.Message {
	c := w.command
	priority, topic := w.sides.Class(source, w.cfg.Large)
	return &schemas.Message{Topic: topic, Body: &pb.DuplicationCommand{
		Id:      schemas.ID("put-back", c.GetId()),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetSourceStore(), DestinationStore: c.GetDestinationStore(),
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Priority: priority, Cause: c.GetId(),
		PolicyRevision: c.GetPolicyRevision(), Time: c.GetTime(),
	}}
}

// delete deletes the version of the copy that was seen, since the source was deleted at a time, and looks at both sides
// after it.
func (w *execution) delete(ctx context.Context, seen storage.Object, deletedAt time.Time) ([]schemas.Message, error) {
	if deletedAt.After(w.lastDelete) {
		w.lastDelete = deletedAt
	}
	at, store := w.sides.Copy, w.sides.Store
	deleted, err := store.Delete(ctx, at.Space, at.Item, storage.DeleteOptions{
		Condition: storage.Condition{Version: seen.Version}, Keep: store.Capabilities().KeepsReplaced,
	})
	if err != nil {
		return w.failed(ctx, fmt.Errorf("delete %s: %w", at, err))
	}
	change := record.Delete(at, deleted)
	change.Origin, change.Cause, change.Agent = pb.Origin_ORIGIN_DUPLICATION, w.command.GetId(), agent
	e := ending{
		row: duplicate.RowSourceDeleted, result: "deleted", outcome: pb.Outcome_OUTCOME_DONE,
		digests: deleted.Object.Digests, change: record.Seal(change),
	}
	if e.copy = w.putBack(w.observeAfter(ctx), timestamppb.New(deletedAt)); e.copy != nil {
		e.detail = "the source may have been put back"
	}
	return w.messages(e), nil
}

// stillAbsent looks at the source right before the delete. The look that the decision is made from may be older than the
// reading of a marker or of records.
func (w *execution) stillAbsent(ctx context.Context) error {
	at := w.sides.SourceCopy
	_, err := w.sides.SourceStore.Stat(ctx, at.Space, at.Item)
	switch {
	case err == nil:
		return fmt.Errorf("%w: the source is back", storage.ErrChanged)
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrNoSpace):
		return nil
	}
	return fmt.Errorf("stat %s: %w", at, err)
}

// failed ends the execution if the source is there after a delete that failed, since that may be done all the same, or
// may be done later. Else it returns the error.
func (w *execution) failed(ctx context.Context, err error) ([]schemas.Message, error) {
	if errors.Is(err, storage.ErrChanged) || errors.Is(err, storage.ErrNotFound) || retry.IsPermanent(err) {
		return nil, err
	}
	if s := w.observeAfter(ctx); s.Source.Presence == duplicate.Present {
		return w.endWithSource(s, err.Error()), nil
	}
	return nil, err
}

// after looks at both sides after a delete, even if the execution is cancelled.
func (w *execution) observeAfter(ctx context.Context) duplicate.Observation {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), observeTimeout)
	defer cancel()
	return w.sides.Observe(ctx)
}

func (w *execution) messages(e ending) []schemas.Message {
	c := w.command
	var out []schemas.Message
	if e.change != nil {
		out = append(out, schemas.Message{Topic: schemas.Changes, Body: e.change})
	}
	if e.copy != nil {
		out = append(out, *e.copy)
	}
	return append(out, schemas.Message{Topic: schemas.DuplicationResults, Body: &pb.DuplicationResult{
		Id: schemas.NewID(), Command: c.GetId(), Cause: c.GetCommand(),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetSourceStore(), DestinationStore: c.GetDestinationStore(), Reason: c.GetReason(),
		Decision: string(e.row), Result: e.result, Detail: e.detail, Outcome: e.outcome, Digests: e.digests,
		Started: timestamppb.New(w.started), Finished: timestamppb.Now(), Attempt: int32(w.attempt), ChangeTime: c.GetDeleted(),
		Worker: w.cfg.Worker, Host: w.cfg.Host, Software: w.cfg.Software,
	}})
}
