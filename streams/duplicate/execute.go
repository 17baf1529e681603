// Package duplicate executes duplication commands: it observes both sides of an item, decides by the tables in
// docs/decisions-duplication.md, acts, and observes again.
//
// The decision depends on the state of the stores and never on the command alone, so a command may run twice, late, or
// in two executors at once. The source is only read. A copy becomes visible only if its bytes match the expected
// digests, and replaced bytes are kept. Nothing is written while a side or a record that matters is unknown.
package duplicate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// maxIterations bounds how often one execution observes an item that keeps changing.
const maxIterations = 5

// errStale says that an observation is out of date, so both sides must be observed again.
var errStale = errors.New("item changed meanwhile")

// Config configures an Executor.
type Config struct {
	// WaitIntervals are the intervals for which a command waits for a Change that may be on its way; after the last it
	// ends. MissingIntervals are those of a missing source (C6, C8x). nil: 5 m, 30 m, 2 h.
	WaitIntervals, MissingIntervals []time.Duration
	// NoCheck omits the fixity task that follows each copy, but for repairs.
	NoCheck bool
	// Large is the size in bytes from which checks have the class large; 0: a check has the class of its command.
	Large int64
	// Lists reads the exclusion lists of policies; nil: commands of spaces that have one wait.
	Lists Lists
	// Restores says what restore orders may write; nil: they wait.
	Restores Restores
	// ExternalWrites reports whether another program was expected to write an object of that time; nil: never.
	ExternalWrites func(c schemas.Copy, modified time.Time) bool
	// Rewrites limits copies over a copy with other content, and Repairs those in place of a missing one; nil: no limit.
	Rewrites, Repairs *brake.Brake
	// Held holds rewrites and repairs for a decision. Required with a limit; nil: what only a person may order ends.
	Held held.Lists
	// Now returns the time; nil: time.Now.
	Now func() time.Time
	// Apart returns how far Kafka's time of something may be from now; nil: by Now.
	Apart func(time.Time) time.Duration
	// Worker, Host and Software identify the executor in results.
	Worker, Host, Software string
}

// An Executor handles the topics duplication.*. It is safe for concurrent use.
type Executor struct {
	cfg      Config
	observer *Observer
}

// New returns an Executor.
func New(c Config, stores Stores, rules Rules, records Records) (*Executor, error) {
	observer, err := NewObserver(stores, rules, records, c.Lists)
	if err != nil {
		return nil, err
	}
	observer.external = c.ExternalWrites
	if c.Now != nil {
		observer.now = c.Now
	}
	if c.Apart != nil {
		observer.apart = c.Apart
	}
	for _, intervals := range []*[]time.Duration{&c.WaitIntervals, &c.MissingIntervals} {
		if *intervals == nil {
			*intervals = []time.Duration{5 * time.Minute, 30 * time.Minute, 2 * time.Hour}
		}
		for _, wait := range *intervals {
			if wait <= 0 {
				return nil, fmt.Errorf("duplicate: wait of %s is not positive", wait)
			}
		}
	}
	return &Executor{c, observer}, nil
}

// Handle executes the DuplicationCommand in d. It returns the Changes of its writes, the tasks that follow, and the
// result, in this order.
func (e *Executor) Handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	c, ok := d.Body.(*pb.DuplicationCommand)
	if !ok {
		return nil, retry.Permanent(fmt.Errorf("duplicate: message is a %T, not a DuplicationCommand", d.Body))
	}
	if c.GetSpace() == "" {
		return nil, retry.Permanent(fmt.Errorf("decide row %s: command %q has no space", RowSpaceNoID, c.GetId()))
	}
	sides, err := e.observer.Sides(c)
	if err != nil {
		return nil, err
	}
	sides.read = d.Timestamp
	w := &execution{Sides: sides, cfg: e.cfg, delivery: d, started: time.Now()}
	next, _ := d.Successor.(*pb.DuplicationCommand)
	switch {
	case c.GetDryRun():
		err = w.dryRun(ctx)
	case c.GetItem() == "":
		err = w.executeSpace(ctx)
	case c.GetRestore() != nil:
		err = w.executeRestore(ctx)
	case next.GetItem() != "" && supersedes(next, c) && !w.isOnlyReport(ctx, next):
		w.detail = "command " + next.GetId()
		w.finish(Decision{Row: RowSuperseded, Result: "superseded"}, pb.Outcome_OUTCOME_NOTHING)
	default:
		err = w.executeItem(ctx)
	}
	if err != nil {
		return nil, err
	}
	return w.messages(), nil
}

// supersedes reports whether the execution of next includes all that one of c would do: it has the same item, rights
// and priority, and observes the item later.
func supersedes(next, c *pb.DuplicationCommand) bool {
	return !next.GetDryRun() && next.GetRestore() == nil &&
		next.GetReason() != pb.DuplicationReason_DUPLICATION_REASON_REPAIR && next.GetReason() == c.GetReason() &&
		next.GetAccount() == c.GetAccount() && next.GetSpace() == c.GetSpace() && next.GetItem() == c.GetItem() &&
		next.GetSourceStore() == c.GetSourceStore() && next.GetDestinationStore() == c.GetDestinationStore() &&
		next.GetIfAbsent() == c.GetIfAbsent() && next.GetApproved() == c.GetApproved() && next.GetList() == c.GetList() &&
		next.GetPriority() == c.GetPriority() &&
		(next.GetCauseOp() != 0 || c.GetCauseOp() == 0) && (reportedByClient(next) || !reportedByClient(c))
}

// isOnlyReport reports whether this command may be the only evidence of the source's content. A client's change is
// usually on record by the time that next runs; it is not if a fast clock has dated another content later.
func (w *execution) isOnlyReport(ctx context.Context, next *pb.DuplicationCommand) bool {
	if !reportedByClient(w.Command) || w.Store == nil {
		return false
	}
	o, err := w.SourceStore.Stat(ctx, w.SourceCopy.Space, w.SourceCopy.Item)
	if err != nil {
		return !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrNoSpace)
	}
	at := Side{Presence: Present, Object: o}
	return w.observation().reported().compare(at) != digest.Disagree && !Observation{Command: next}.reported().matches(at)
}

// An execution is one run of one command.
type execution struct {
	*Sides
	cfg      Config
	delivery *schemas.Delivery
	started  time.Time

	out     []schemas.Message // without the last task and the result
	task    *pb.FixityTask    // the check of the last write
	end     Decision          // the decision that the result reports
	outcome pb.Outcome
	detail  string
	// The object that was written last and the source's object that it was made from, each with its record.
	written, from      storage.Object
	record, fromRecord *pb.CopyRecord
	sourceAnnounced    bool // out has the source's Change
	bytes              int64
	digests            digest.Set
	misreads           int // readings of the source that did not match the expected digests
	// records are those of the copies that a restore order names, read afresh.
	records                     map[schemas.Copy]*pb.CopyRecord
	list, effect, sourceVersion string // of what waits for a decision, is kept by it, or was approved

	space storage.Space // the destination's, after a write
}

func (w *execution) wrote() bool { return w.record != nil }

func (w *execution) executeItem(ctx context.Context) error {
	var err error
	for range maxIterations {
		var done bool
		if done, err = w.iterate(ctx); done {
			return nil
		}
		if err == nil || errors.Is(err, errStale) {
			continue
		}
		break
	}
	if err == nil {
		err = errStale
	}
	if w.wrote() {
		w.orderAgain(err)
		return nil
	}
	return fmt.Errorf("execute command %s: %w", w.Command.GetId(), err)
}

// observeAgain is how long after a write without an observation both sides are observed again.
const observeAgain = time.Minute

// orderAgain orders the same command once more, since the observation after the write ended in err. The write is
// verified and must be reported. A later change has a command of its own, but that may have been executed before the
// write was visible.
func (w *execution) orderAgain(err error) {
	w.detail = "observe after the write: " + err.Error()
	again := proto.CloneOf(w.Command)
	again.Id = schemas.ID("again", again.GetId())
	w.out = append(w.out, schemas.Message{Topic: w.delivery.Topic, Body: again, Due: time.Now().Add(observeAgain)})
}

// iterate observes, decides and acts once. It returns true when no further observation is needed.
func (w *execution) iterate(ctx context.Context) (done bool, err error) {
	s := w.Observe(ctx)
	w.applyWritten(&s)
	d, err := w.Decide(ctx, &s)
	if err != nil {
		return false, markStale(err)
	}
	if w.wrote() && (d.Row == RowInSync || d.Row == RowPropertiesUnknown || d.action == actWait ||
		d.Result == ResultHeld || d.Row == RowPropertiesDiffer && w.end.Row == RowPropertiesDiffer) {
		if d.AnnounceSource {
			w.announceSource(s)
		}
		return true, nil // in sync, or left to another command
	}
	done, err = w.act(ctx, s, d)
	return done, markStale(err)
}

// applyWritten adds to s what this execution itself wrote.
func (w *execution) applyWritten(s *Observation) {
	if !w.wrote() {
		return
	}
	if s.Source.reuseRead(w.from, w.digests) {
		s.Source.Record = w.fromRecord
	}
	if s.Destination.reuseRead(w.written, w.digests) {
		s.Destination.Record = w.record
	}
}

// markStale wraps errors of a condition that no longer holds in errStale.
func markStale(err error) error {
	for _, stale := range []error{storage.ErrChanged, storage.ErrExists, storage.ErrNotFound, storage.ErrNoSpace} {
		if errors.Is(err, stale) {
			return fmt.Errorf("%w: %w", errStale, err)
		}
	}
	return err
}

func (w *execution) act(ctx context.Context, s Observation, d Decision) (done bool, err error) {
	switch d.action {
	case actNothing:
		if d.Result == ResultHeld && s.isApproved(RowContentDiffers) {
			return false, AwaitHold(s.Hold)
		}
		w.finishUnchanged(s, d)
		return true, nil
	case actWait:
		return w.wait(ctx, s, d)
	case actCopy:
		if err := w.awaitChunks(ctx, s, d); err != nil {
			return false, err
		}
		return w.copyAllowed(ctx, s, d)
	case actSetProperties:
		return w.setProperties(ctx, s, d)
	case actRepairProperties:
		return w.repairProperties(ctx, s, d)
	case actDelete:
		w.announce(s, d)
		w.finish(d, pb.Outcome_OUTCOME_HANDED_ON)
		w.emit(schemas.Deletions, w.deletionCommand(s, d))
		return true, nil
	}
	return false, retry.Permanent(fmt.Errorf("act on row %s: no such action %d", d.Row, d.action))
}

// finishUnchanged ends the execution without a write: it requests checks and publishes missing Changes.
func (w *execution) finishUnchanged(s Observation, d Decision) {
	outcome := pb.Outcome_OUTCOME_NOTHING
	if d.CheckSource {
		outcome = pb.Outcome_OUTCOME_HANDED_ON
		w.requestCheck(w.suspectTask(w.SourceCopy, s))
	}
	if d.CheckDestination {
		outcome = pb.Outcome_OUTCOME_HANDED_ON
		w.requestCheck(w.suspectTask(w.Copy, s))
	}
	w.announce(s, d)
	if w.detail == "" {
		w.detail = d.Detail
	}
	w.finish(d, outcome)
}

// announce publishes the Changes of both sides that the manifest lacks.
func (w *execution) announce(s Observation, d Decision) {
	if d.AnnounceSource {
		w.announceSource(s)
	}
	if s.Destination.Presence != Present {
		if d.Announce {
			w.emit(schemas.Changes, w.DeleteChange(s, d))
		}
		return
	}
	o := s.Destination.Object
	o.Digests = s.Destination.digests()
	switch {
	case d.Announce:
		change := w.presentChange(s, o)
		w.emit(schemas.Changes, change)
		w.task = w.copyTask(change)
	case d.AnnounceProperties:
		w.emit(schemas.Changes, w.propertiesChange(o))
	}
	if d.Unchecked && w.task == nil {
		w.task = w.copyTask(w.presentChange(s, o))
	}
}

// wait returns an error of class wait. After the last interval it ends the command.
func (w *execution) wait(ctx context.Context, s Observation, d Decision) (bool, error) {
	cause, intervals := "source-newer", w.cfg.WaitIntervals
	switch d.Row {
	case RowContentDiffers, RowSourceOlder:
		cause = d.Result
	case RowSourceMissing, RowAllCopiesMissing:
		cause, intervals = "source-missing", w.cfg.MissingIntervals
	}
	if n := w.delivery.WaitsFor(cause); n < len(intervals) {
		err := fmt.Errorf("row %s of %s: %s", d.Row, w.Copy, d.Result)
		return false, retry.WaitFor(cause, err, time.Now().Add(intervals[max(n, 0)]))
	}
	if d.Result == resultDiffers && w.cfg.Held != nil {
		err := w.holdDiffers(ctx, s, d)
		return err == nil, err
	}
	w.finishUnchanged(s, d)
	return true, nil
}

func (w *execution) finish(d Decision, outcome pb.Outcome) { w.end, w.outcome = d, outcome }

func (w *execution) emit(topic schemas.Topic, body schemas.Body) {
	w.out = append(w.out, schemas.Message{Topic: topic, Body: body})
}
