// Package deletion deletes copies after their source was deleted.
//
// It observes both stores before a delete, and deletes only if a fresh tombstone of the source proves that the delete
// is meant: it is newer than the content that the destination holds and than the rule that propagates deletes. Nothing
// is deleted while a store or a record is unknown. The delete is conditional on the version that was observed, and the
// store keeps the bytes if it can.
//
// It observes the source again after the delete. If the source is back, a command to observe both sides again follows,
// which goes by the records. So a delete that runs beside a put never loses the copy. Executing a command twice deletes
// nothing more.
package deletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// maxIterations bounds how often one execution observes an item that keeps changing.
const maxIterations = 5

// observeTimeout bounds an observation that is not cancelled with its task. It is half of the time that a Pool gives a
// cancelled task to end, so the messages that follow are published before the process ends.
const observeTimeout = 2500 * time.Millisecond

// agent is the agent of Changes by deleters.
const agent = "deleter"

// Config configures a Deleter.
type Config struct {
	// Delay is the least time between the delete of the source and that of a copy.
	Delay time.Duration
	// Large is the size in bytes from which commands to copy have the class large; 0: none has.
	Large int64
	// Settle is the time after which both sides are observed again if the source is present beside its copy. A delete may
	// take effect after it returned an error, or after its process lost the command; Settle is longer than such a process
	// keeps a command.
	Settle time.Duration
	// Brake limits the deletes. Required.
	Brake *brake.Brake
	// Lists holds what needs a decision, and reads and reports lists. Required.
	Lists Lists
	// Publisher publishes what follows from a decision. Required.
	Publisher schemas.Publisher
	// ExcludeLists reads the exclusion lists of policies; nil: commands of spaces that have one wait.
	ExcludeLists duplicate.Lists
	// Account returns what is known of an account; nil: no copies are removed by order.
	Account func(account string) Account
	// Now returns Kafka's time, by which Delay counts; nil: time.Now.
	Now func() time.Time
	// Worker, Host and Software identify the deleter in results.
	Worker, Host, Software string
}

// A Deleter handles the topic deletions. It is safe for concurrent use.
type Deleter struct {
	cfg      Config
	observer *duplicate.Observer
	rules    duplicate.Rules
	records  duplicate.Records
}

// New returns a Deleter.
func New(c Config, stores duplicate.Stores, rules duplicate.Rules, records duplicate.Records) (*Deleter, error) {
	if c.Delay < 0 || c.Settle < 0 {
		return nil, fmt.Errorf("deletion: delay of %s or settle of %s is negative", c.Delay, c.Settle)
	}
	if c.Brake == nil || c.Lists == nil || c.Publisher == nil {
		return nil, errors.New("deletion: brake, lists or publisher are missing")
	}
	observer, err := duplicate.NewObserver(stores, rules, records, c.ExcludeLists)
	if err != nil {
		return nil, err
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Deleter{c, observer, rules, records}, nil
}

// Handle executes the DeletionCommand in d: it deletes one copy, or the space of a command without an item, if both
// sides and the records still allow it. It returns the Change of the copy, a command to observe both sides again if the
// source is back, and the result, in this order.
func (e *Deleter) Handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	c, ok := d.Body.(*pb.DeletionCommand)
	if !ok {
		return nil, retry.Permanent(fmt.Errorf("deletion: message is a %T, not a DeletionCommand", d.Body))
	}
	switch {
	case c.GetIncident() != "" && c.GetItem() != "" && c.GetSpace() != "" && !c.GetDryRun():
		return e.deleteReturned(ctx, c, d.Attempt)
	case c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_MANUAL && c.GetSourceStore() == "" &&
		c.GetItem() != "" && c.GetSpace() != "" && !c.GetDryRun():
		return e.remove(ctx, c, d.Attempt)
	case c.GetItem() != "" || c.GetSpace() == "" || c.GetDryRun():
	case c.GetApproveList() != "" || c.GetRefuseList() != "":
		return e.decideList(ctx, c, d.Attempt)
	}
	if c.GetSpace() == "" {
		return nil, retry.Permanent(fmt.Errorf("execute deletion %q: space is empty", c.GetId()))
	}
	w := &execution{cfg: e.cfg, command: c, attempt: d.Attempt, started: time.Now()}
	wait := c.GetDeleted().AsTime().Add(e.cfg.Delay).Sub(e.cfg.Now())
	if e.cfg.Delay > 0 && wait > 0 && !c.GetDryRun() {
		return nil, retry.Wait(fmt.Errorf("delete no sooner than %s after the source", e.cfg.Delay), time.Now().Add(wait))
	}
	var err error
	if w.sides, err = e.observer.Sides(w.observeCommand()); err != nil {
		return nil, err
	}
	if c.GetDryRun() {
		return w.dryRun(ctx)
	}
	iterate := w.iterate
	if c.GetItem() == "" {
		iterate = w.iterateSpace
	}
	return w.repeat(func() ([]schemas.Message, error) { return iterate(ctx) })
}

// An execution is one run of one command.
type execution struct {
	cfg     Config
	command *pb.DeletionCommand
	sides   *duplicate.Sides
	attempt int
	started time.Time

	spaceDeleted bool // a delete of the space was tried and may have taken effect
}

// repeat calls iterate again while the item changes.
func (w *execution) repeat(iterate func() ([]schemas.Message, error)) (out []schemas.Message, err error) {
	for range maxIterations {
		if out, err = iterate(); err == nil {
			return out, nil
		}
		if !errors.Is(err, storage.ErrChanged) && !errors.Is(err, storage.ErrNotFound) {
			break
		}
	}
	return nil, fmt.Errorf("execute deletion %s: %w", w.command.GetId(), err)
}

// observeCommand returns the command to observe the item with. It reports no delete, so that only a fresh tombstone
// proves one.
func (w *execution) observeCommand() *pb.DuplicationCommand {
	c := w.command
	return &pb.DuplicationCommand{
		Id: c.GetId(), Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetSourceStore(), DestinationStore: c.GetDestinationStore(),
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Cause: c.GetCause(),
		ChangeTime: c.GetDeleted(), PolicyRevision: c.GetPolicyRevision(), Time: c.GetTime(), Approved: c.GetApproved(),
	}
}

// An ending is the end of an execution: the fields of its result, and the messages before it.
type ending struct {
	row            duplicate.Row
	result, detail string
	outcome        pb.Outcome
	digests        digest.Set
	change         *pb.Change
	copy           *schemas.Message // the command to observe both sides again
	list, effect   string           // the list on which the delete waits, or that was approved and has it
	deleted        time.Time        // when the source was deleted, if that is not the time of the command
}

func (w *execution) iterate(ctx context.Context) ([]schemas.Message, error) {
	s := w.sides.Observe(ctx)
	if s.Source.Presence == duplicate.Present {
		return w.endWithSource(s, "the source is present"), nil
	}
	d, err := w.sides.Decide(ctx, &s) // it observes again after the records were read
	if err != nil {
		return nil, err
	}
	if s.Source.Presence == duplicate.Present { // it was put back while the records were read
		return w.endWithSource(s, "the source is present"), nil
	}
	switch e, ok := withoutDelete(d); {
	case w.awaitsHold(d):
		return nil, duplicate.AwaitHold(s.Hold)
	case ok && d.Row == duplicate.RowBothAbsent && d.Announce:
		e.change = w.sides.DeleteChange(s, d)
		return w.messages(e), nil
	case ok && e.outcome == pb.Outcome_OUTCOME_HANDED_ON:
		// The command that led here has ended, so a new one waits for the source and reports it.
		e.copy = w.copyCommand(storage.Object{})
		return w.messages(e), nil
	case ok:
		return w.messages(e), nil
	}
	return w.deleteAllowed(ctx, s, d)
}

// withoutDelete returns the ending of a decision that allows no delete; false if d allows one.
func withoutDelete(d duplicate.Decision) (ending, bool) {
	e := ending{row: d.Row, result: d.Result, detail: d.Detail, outcome: pb.Outcome_OUTCOME_NOTHING}
	switch d.Row {
	case duplicate.RowBothAbsent:
		return e, true
	case duplicate.RowSourceMissing, duplicate.RowAllCopiesMissing: // no delete is proved
		e.result, e.detail, e.outcome = "not-deleted", d.Result, pb.Outcome_OUTCOME_HANDED_ON
		return e, true
	}
	return e, d.Deleted.IsZero()
}

// isApproved reports whether an effect is the approved one that the command names.
func (w *execution) isApproved(effect string) bool {
	return w.command.GetList() != "" && w.command.GetEffect() == effect
}

// heldFor returns why a delete needs a decision whatever the brake says; an empty kind if it does not.
func (w *execution) heldFor(d duplicate.Decision, rules policy.Rules) (k held.Kind, cause string) {
	c := w.command
	pair := policy.Pair{Source: c.GetSourceStore(), Destination: c.GetDestinationStore()}
	switch {
	case rules.DeletesOf(pair, d.Deleted) == policy.Approve:
		return held.Approve, "the policy has deletes: approve"
	case d.NeedsApproval:
		return held.Unreported, "no client reported the deletes, or a clock may be wrong"
	case c.GetNeedsApproval():
		return held.Unreported, "the deletes needed approval when they were ordered"
	}
	return "", ""
}

// A leave is the permission to delete a copy, or the messages that end the execution without.
type leave struct {
	list   string            // the approved list that has it
	permit *brake.Permit     // of the brake; nil: none was needed
	ended  []schemas.Message // nil: it may be deleted
}

// awaitsHold reports whether only a hold keeps the execution from an approved delete. It does not use up the approval.
func (w *execution) awaitsHold(d duplicate.Decision) bool {
	return w.command.GetList() != "" && d.Result == duplicate.ResultHeld
}

// leave returns whether a delete may be done now: the decision about it, a list on which it waits, and the brake.
func (w *execution) leave(
	ctx context.Context, d duplicate.Decision, rules policy.Rules, effect string,
) (l leave, err error) {
	at := w.sides.Copy
	e := ending{row: d.Row, effect: effect, deleted: d.Deleted}
	standing, wait, err := w.ask(ctx, effect)
	switch {
	case err != nil:
		return l, err
	case standing.Approved != "":
		return leave{list: standing.Approved}, nil
	case standing.Kept != "":
		e.result, e.detail, e.outcome = "kept", standing.Kept, pb.Outcome_OUTCOME_NOTHING
		return leave{ended: w.messages(e)}, nil
	}
	k, cause := w.heldFor(d, rules)
	if k == "" {
		k, cause = held.Limit, "the brake: "+held.EarlierWaits
		if !wait {
			p, reached, err := w.take(ctx)
			if err != nil || p != nil {
				return leave{permit: p}, err
			}
			cause = "the brake: " + reached
		}
	}
	if e.list, err = w.cfg.Lists.Hold(ctx, at, k, cause); err != nil {
		return l, fmt.Errorf("report that the delete of %s waits for a decision: %w", at, err)
	}
	e.result, e.detail, e.outcome = "awaiting-approval", cause, pb.Outcome_OUTCOME_HANDED_ON
	return leave{ended: w.messages(e)}, nil
}

// ask returns what was decided about an effect, and whether deletes beyond the limits wait.
func (w *execution) ask(ctx context.Context, effect string) (held.Standing, bool, error) {
	e := held.Effect{At: w.sides.Copy, Kind: held.Limit, ID: effect}
	if w.isApproved(effect) {
		e.Approved = w.command.GetList()
	}
	return held.Ask(ctx, w.cfg.Lists, e)
}

// maxBrakeWait is how long a delete may wait for the brake without another observation.
const maxBrakeWait = time.Second

// deleteAllowed deletes the version seen of the copy if it may be deleted.
func (w *execution) deleteAllowed(
	ctx context.Context, s duplicate.Observation, d duplicate.Decision,
) ([]schemas.Message, error) {
	effect := duplicate.DeleteEffect(w.sides.Copy, d.Deleted, s.Destination.Object)
	if w.command.GetList() != "" && !w.isApproved(effect) && w.sides.Command.GetApproved() != "" {
		w.sides.Command.Approved = "" // the decision was made with it
		return nil, fmt.Errorf("%w: another delete was approved", storage.ErrChanged)
	}
	l, err := w.leave(ctx, d, s.Rules, effect)
	if err != nil || l.ended != nil {
		return l.ended, err
	}
	out, err := w.deleteConfirmed(ctx, s, d, effect, l.list)
	if deletedNothing(err) {
		l.permit.GiveBack()
	}
	return out, err
}

// deletedNothing reports whether a delete that returned err certainly did not take effect. Without the mark,
// ErrChanged and ErrNotFound may be the answer to a repeated request whose first one did.
func deletedNothing(err error) bool { return errors.Is(err, errNotTried) || storage.IsNotApplied(err) }

// take takes a permit of the brake, or returns which limit is reached. If that took long the error is
// storage.ErrChanged, and no permit is taken: the records may be old.
func (w *execution) take(ctx context.Context) (p *brake.Permit, reached string, err error) {
	b, asked := w.cfg.Brake, time.Now()
	p, reached, err = b.Take(ctx, w.sides.Copy)
	if took := time.Since(asked); p != nil && took > maxBrakeWait {
		p.GiveBack()
		return nil, "", fmt.Errorf("%w: the brake took %s", storage.ErrChanged, took.Round(time.Millisecond))
	}
	return p, reached, err
}

// errNotTried marks errors before a delete was tried.
var errNotTried = errors.New("nothing was deleted")

// deleteConfirmed deletes the copy observed if the source is still absent and the rules in force still allow it.
func (w *execution) deleteConfirmed(
	ctx context.Context, s duplicate.Observation, d duplicate.Decision, effect, list string,
) ([]schemas.Message, error) {
	err := w.stillAbsent(ctx)
	if err == nil {
		err = cmp.Or(w.sides.Confirm(s, d), w.cfg.Lists.Refused(w.sides.Copy))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotTried, err)
	}
	return w.delete(ctx, s.Destination.Object, effect, list)
}

// endWithSource ends the execution without a delete if the source is present.
func (w *execution) endWithSource(s duplicate.Observation, detail string) []schemas.Message {
	e := ending{
		row: duplicate.RowSourceDeleted, result: "not-deleted", detail: detail, outcome: pb.Outcome_OUTCOME_HANDED_ON,
	}
	e.copy = w.putBack(s)
	return w.messages(e)
}

// putBack returns the command to observe both sides again, or nil if the source is known to be absent. It does not name
// what the source shows: a client that put it back reports it, and what a snapshot brought back stays deleted. If the
// copy is present, a delete by this execution or an interrupted one may still take effect, so the command is due after
// Config.Settle.
func (w *execution) putBack(s duplicate.Observation) *schemas.Message {
	if s.Source.Presence == duplicate.Absent {
		return nil
	}
	m := w.copyCommand(s.Source.Object)
	if s.Destination.Presence == duplicate.Present {
		m.Due = time.Now().Add(w.cfg.Settle)
	}
	return m
}

// copyCommand returns a command to observe both sides again, in the class of source.
func (w *execution) copyCommand(source storage.Object) *schemas.Message {
	c := w.command
	priority, topic := w.sides.Class(source, w.cfg.Large)
	return &schemas.Message{Topic: topic, Body: &pb.DuplicationCommand{
		Id:      schemas.ID("put-back", c.GetId()),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: w.sides.SourceCopy.Store, DestinationStore: c.GetDestinationStore(),
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Priority: priority, Cause: c.GetId(),
		PolicyRevision: c.GetPolicyRevision(), Time: c.GetTime(),
	}}
}

// delete deletes the version seen of the copy, and observes both sides afterwards.
func (w *execution) delete(
	ctx context.Context, seen storage.Object, effect, list string,
) ([]schemas.Message, error) {
	at, store := w.sides.Copy, w.sides.Store
	deleted, err := store.Delete(ctx, at.Space, at.Item, storage.DeleteOptions{
		Condition: storage.Condition{Version: seen.Version}, KeepDeleted: store.Capabilities().KeepsReplaced,
	})
	if err != nil {
		return w.failed(ctx, fmt.Errorf("delete %s: %w", at, err))
	}
	change := record.Delete(at, deleted)
	change.Origin, change.Cause, change.Agent = pb.Origin_ORIGIN_DUPLICATION, w.command.GetId(), agent
	e := ending{
		row: duplicate.RowSourceDeleted, result: "deleted", outcome: pb.Outcome_OUTCOME_DONE,
		digests: deleted.Object.Digests, change: record.Seal(change), effect: effect, list: list,
	}
	if e.copy = w.putBack(w.observeAfter(ctx)); e.copy != nil {
		e.detail = "the source may have been put back"
	}
	return w.messages(e), nil
}

// stillAbsent stats the source right before the delete, since the observation that the decision is based on may be
// older than the reading of a marker or of records.
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

// failed handles an error of a delete. The delete may have taken effect, or may do so later: if the source is present,
// the execution ends with a command to copy it. Otherwise it returns the error.
func (w *execution) failed(ctx context.Context, err error) ([]schemas.Message, error) {
	if errors.Is(err, storage.ErrChanged) || errors.Is(err, storage.ErrNotFound) || retry.IsPermanent(err) ||
		storage.IsNotApplied(err) {
		return nil, err
	}
	if s := w.observeAfter(ctx); s.Source.Presence == duplicate.Present {
		return w.endWithSource(s, err.Error()), nil
	}
	return nil, err
}

// observeAfter observes both sides after a delete, even if the execution is cancelled.
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
	deleted := c.GetDeleted()
	if !e.deleted.IsZero() {
		deleted = timestamppb.New(e.deleted)
	}
	r := &pb.DuplicationResult{
		Id: schemas.NewID(), Command: c.GetId(), Cause: c.GetCommand(),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetSourceStore(), DestinationStore: c.GetDestinationStore(), Reason: c.GetReason(),
		Decision: string(e.row), Result: e.result, Detail: e.detail, Outcome: e.outcome, Digests: e.digests,
		Started: timestamppb.New(w.started), Finished: schemas.Finished(w.started, time.Now()),
		Attempt: int32(w.attempt), ChangeTime: deleted, List: e.list, Effect: e.effect, Incident: c.GetIncident(),
		Worker: w.cfg.Worker, Host: w.cfg.Host, Software: w.cfg.Software,
	}
	if c.GetDryRun() {
		r.Result, r.WouldBe = duplicate.ResultDryRun, r.Result
	}
	return append(out, schemas.Message{Topic: schemas.DuplicationResults, Body: r})
}
