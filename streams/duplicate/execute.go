// Package duplicate executes duplication commands: it looks at both sides of one item,
// decides by the table of docs/decisions-duplication.md, acts, and looks again.
//
// What is done follows from what is there, never from the command alone, so a command
// may be executed twice, late, or by two executors at once. The source is only read;
// bytes become visible only where they agree with what is known of them; what is
// replaced is kept; nothing is written while anything that matters is unknown.
package duplicate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// maxRounds bounds how often one execution looks at an item that keeps changing.
const maxIterations = 5

// errAgain is what asks for another look: what was seen is no longer so.
var errStale = errors.New("item changed meanwhile")

// Config is how an Executor works and names itself.
type Config struct {
	// WaitLadder is how long a command waits for a Change that may still arrive, wait by wait;
	// after the last it ends. MissingLadder is the same for a source that is missing (rows C6 and C8x).
	// nil: 5 m, 30 m, 2 h.
	WaitLadder, MissingLadder []time.Duration
	// NoCheck leaves out the fixity task that follows each copy.
	NoCheck bool
	// Large is the size in bytes from which on a check is of the class large; 0: where its command is.
	Large int64
	// Worker, Host and Software stand in results.
	Worker, Host, Software string
}

// An Executor handles the topics duplication.*. It is safe for concurrent use.
type Executor struct {
	cfg      Config
	observer *Observer
}

// New returns an Executor.
func New(c Config, stores Stores, rules Rules, records Records) (*Executor, error) {
	looker, err := NewObserver(stores, rules, records)
	if err != nil {
		return nil, err
	}
	for _, ladder := range []*[]time.Duration{&c.WaitLadder, &c.MissingLadder} {
		if *ladder == nil {
			*ladder = []time.Duration{5 * time.Minute, 30 * time.Minute, 2 * time.Hour}
		}
		for _, wait := range *ladder {
			if wait <= 0 {
				return nil, fmt.Errorf("duplicate: wait of %s is not positive", wait)
			}
		}
	}
	return &Executor{c, looker}, nil
}

// Handle executes the DuplicationCommand in d and returns its result, after the
// Changes of what it wrote and the tasks that follow.
func (e *Executor) Handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	c, ok := d.Body.(*pb.DuplicationCommand)
	if !ok {
		return nil, retry.Permanent(fmt.Errorf("duplicate: found a %T where a DuplicationCommand belongs", d.Body))
	}
	if c.GetSpace() == "" {
		return nil, retry.Permanent(fmt.Errorf("decide row %s: command %q has no space", RowSpaceNoID, c.GetId()))
	}
	scene, err := e.observer.Sides(c)
	if err != nil {
		return nil, err
	}
	w := &execution{Sides: scene, cfg: e.cfg, delivery: d, started: time.Now()}
	next, _ := d.Behind.(*pb.DuplicationCommand)
	switch {
	case c.GetItem() == "":
		err = w.executeSpace(ctx)
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

// supersedes reports whether the execution of next does all that one of c would do: it looks at the same item, later, with
// the same rights and as soon.
func supersedes(next, c *pb.DuplicationCommand) bool {
	return next.GetReason() != pb.DuplicationReason_DUPLICATION_REASON_REPAIR && next.GetReason() == c.GetReason() &&
		next.GetAccount() == c.GetAccount() && next.GetSpace() == c.GetSpace() && next.GetItem() == c.GetItem() &&
		next.GetSourceStore() == c.GetSourceStore() && next.GetDestinationStore() == c.GetDestinationStore() &&
		next.GetIfAbsent() == c.GetIfAbsent() && next.GetApproved() == c.GetApproved() && next.GetPriority() == c.GetPriority() &&
		c.GetCarriedDelete() == nil && next.GetCarriedDelete() == nil && (reportedByClient(next) || !reportedByClient(c))
}

// alone reports whether the command may be the only one that knows the content of the source: what a client's change
// says is also on record by the time that next is executed, unless a clock that is ahead has dated another content later.
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

// work is one execution of one command.
type execution struct {
	*Sides
	cfg      Config
	delivery *schemas.Delivery
	started  time.Time

	out     []schemas.Message // but for the last task and the result
	task    *pb.FixityTask    // of what was written last
	end     Decision          // in which the command ends
	outcome pb.Outcome
	detail  string
	// What was written last at the destination, if anything was; and from which version, with what was on record of it.
	written, from      storage.Object
	record, fromRecord *pb.CopyRecord
	sourceAnnounced    bool // the source's Change is among out
	bytes              int64
	digests            digest.Set
	misreads           int // readings of the source that did not agree with what is known
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
	if w.wrote() {
		// What was written is verified and must be told of. What could not be seen
		// after it moves nothing: who changes an item later sends a command of its own.
		if err != nil {
			w.detail = "the look after it: " + err.Error()
		}
		return nil
	}
	if err == nil {
		err = errStale
	}
	return fmt.Errorf("execute command %s: %w", w.Command.GetId(), err)
}

// round looks, decides and acts once. It is done when nothing is left to look at.
func (w *execution) iterate(ctx context.Context) (done bool, err error) {
	s := w.Observe(ctx)
	w.applyWritten(&s)
	d, err := w.Decide(ctx, &s)
	if err != nil {
		return false, markStale(err)
	}
	if w.wrote() && (d.Row == RowInSync || d.Row == RowPropertiesUnknown || d.action == actWait || d.Row == RowPropertiesDiffer && w.end.Row == RowPropertiesDiffer) {
		if d.AnnounceSource {
			w.announceSource(s.Source)
		}
		return true, nil // as it should be, or not for this command to mend
	}
	done, err = w.act(ctx, s, d)
	return done, markStale(err)
}

// recall adds what this execution itself knows of both sides.
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

// again marks errors that say that what was seen is no longer so.
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
		w.finishUnchanged(s, d)
		return true, nil
	case actWait:
		return w.wait(s, d)
	case actCopy:
		return w.copy(ctx, s, d)
	case actSetProperties:
		return w.setProperties(ctx, s, d)
	case actDelete:
		w.announce(s, d)
		w.finish(d, pb.Outcome_OUTCOME_HANDED_ON)
		w.emit(schemas.Deletions, w.deletionCommand(s, d))
		return true, nil
	}
	return false, retry.Permanent(fmt.Errorf("act on row %s: no such action %d", d.Row, d.action))
}

// rest acts on rows that change nothing: what is found is passed on.
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
	w.finish(d, outcome)
}

// announce publishes what the manifest does not show of both sides.
func (w *execution) announce(s Observation, d Decision) {
	if d.AnnounceSource {
		w.announceSource(s.Source)
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

// wait returns an error of class wait, and after the last ends the command.
func (w *execution) wait(s Observation, d Decision) (bool, error) {
	cause, ladder := "source-newer", w.cfg.WaitLadder
	switch d.Row {
	case RowContentDiffers:
		cause = d.Result
	case RowSourceMissing, RowAllCopiesMissing:
		cause, ladder = "source-missing", w.cfg.MissingLadder
	}
	if n := w.delivery.WaitsFor(cause); n < len(ladder) {
		err := fmt.Errorf("row %s of %s: %s", d.Row, w.Copy, d.Result)
		return false, retry.WaitFor(cause, err, time.Now().Add(ladder[max(n, 0)]))
	}
	w.finishUnchanged(s, d)
	return true, nil
}

func (w *execution) finish(d Decision, outcome pb.Outcome) { w.end, w.outcome = d, outcome }

func (w *execution) emit(topic schemas.Topic, body schemas.Body) {
	w.out = append(w.out, schemas.Message{Topic: topic, Body: body})
}
