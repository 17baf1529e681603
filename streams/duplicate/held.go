package duplicate

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/storage"
)

// heldKind returns the kind of the lists on which a copy waits that a brake does not allow, and the brake; "" if none
// limits it. Limited are rewrites, and repairs of missing copies, by a sweep too, that no person has approved alone.
func (w *execution) heldKind(s Observation, d Decision) (held.Kind, *brake.Brake) {
	there := s.Destination.Presence == Present
	k, b := held.Kind(""), (*brake.Brake)(nil)
	switch d.Row {
	case RowContentDiffers, RowSourceUnrecorded:
		if there {
			k, b = held.Rewrites, w.cfg.Rewrites
		}
	case RowRepair, RowDestinationNotAsRecorded:
		if c := s.Command; !there && (c.GetApproved() == "" || c.GetList() != "") {
			k, b = held.Repairs, w.cfg.Repairs
		}
	}
	if b == nil {
		k = ""
	}
	return k, b
}

// ask returns what was decided about the effect of the execution, and whether others of the kind wait.
func (w *execution) ask(ctx context.Context, s Observation, d Decision, k held.Kind) (held.Standing, bool, error) {
	e := held.Effect{At: w.Copy, Kind: k, ID: s.effect(d.Row)}
	if s.isApproved(d.Row) {
		e.Approved = w.Command.GetList()
	}
	return held.Ask(ctx, w.cfg.Held, e)
}

// copyAllowed copies, if that may be done now: by the decision about it, and by the brake. Otherwise the copy is kept
// as it is, or waits for a decision.
func (w *execution) copyAllowed(ctx context.Context, s Observation, d Decision) (done bool, err error) {
	k, b := w.heldKind(s, d)
	if k == "" {
		return w.copy(ctx, s, d)
	}
	standing, wait, err := w.ask(ctx, s, d, k)
	switch {
	case err != nil:
		return false, err
	case standing.Approved != "":
		effect := s.effect(d.Row)
		if done, err = w.copy(ctx, s, d); w.wrote() {
			w.list, w.effect = standing.Approved, effect
		}
		return done, err
	case standing.Kept != "":
		return true, w.keep(s, d, standing)
	}
	var p *brake.Permit
	reached := held.EarlierWaits
	if !wait {
		p, reached, err = b.Take(ctx, w.Copy)
	}
	switch {
	case err != nil:
		return false, err
	case reached != "":
		err = w.hold(ctx, s, d, k, "the brake: "+reached)
		return err == nil, err
	}
	before := w.record
	done, err = w.copy(ctx, s, d)
	switch {
	case w.record == before && (err == nil || changedNothing(err)):
		p.GiveBack()
	case k == held.Repairs:
		w.effect = s.effect(d.Row) // by it the brake counts what has no checkpoint
	}
	return done, err
}

// dryRunResult returns how a copy would end, and why, if it would not be made now. It counts nothing.
func (w *execution) dryRunResult(ctx context.Context, s Observation, d Decision) (result, why string, err error) {
	k, b := w.heldKind(s, d)
	if k == "" {
		return d.Result, d.Detail, nil
	}
	standing, wait, err := w.ask(ctx, s, d, k)
	reached := held.EarlierWaits
	if !wait {
		reached = b.Reached(w.Copy)
	}
	switch {
	case err != nil:
		return "", "", err
	case standing.Kept != "":
		return resultKept, standing.Kept, nil
	case standing.Approved == "" && reached != "":
		return resultAwaitingApproval, "the brake: " + reached, nil
	}
	return d.Result, d.Detail, nil
}

// changedNothing reports whether a write that returned err certainly left the destination as it was. Without the mark,
// ErrChanged may be the answer to a repeated request whose first one was applied.
func changedNothing(err error) bool {
	return errors.Is(err, errStale) || errors.Is(err, errNotWritten) || storage.IsNotApplied(err)
}

// isApproved reports whether the command is of an approved list, and the effect is the one that was on it; or whether
// it carries the content that the source of a refused rewrite got back, which the source still has.
func (s Observation) isApproved(row Row) bool {
	c, restored := s.Command, s.reported()
	switch held.KindOf(c.GetList()).Act() {
	case held.Rewrite:
		if c.GetEffect() == "" && c.GetCause() != c.GetList() {
			return !restored.empty() && restored.matches(s.Source)
		}
	case held.Repair:
	default:
		return false
	}
	return c.GetEffect() == s.effect(row)
}

// keep ends the execution without the write that a person has decided against. After a write of this execution, the
// source has changed since; that change has a command of its own.
func (w *execution) keep(s Observation, d Decision, standing held.Standing) error {
	if w.wrote() {
		return nil
	}
	d.Result, w.detail, w.effect = resultKept, standing.Kept, s.effect(d.Row)
	w.finish(d, pb.Outcome_OUTCOME_NOTHING)
	return nil
}

// hold ends the execution with an effect that waits for a decision.
func (w *execution) hold(ctx context.Context, s Observation, d Decision, k held.Kind, cause string) (err error) {
	if w.wrote() {
		return nil // as in keep
	}
	if w.list, err = w.cfg.Held.Hold(ctx, w.Copy, k, cause); err != nil {
		return fmt.Errorf("report that %s of %s wait for a decision: %w", k.Act(), w.Copy, err)
	}
	w.digests, w.effect = d.Expected.Union(s.Source.digests()), s.effect(d.Row)
	w.sourceVersion, w.detail = s.Source.Object.Version, cause
	d.Result = resultAwaitingApproval
	w.finishUnchanged(s, d)
	w.outcome = pb.Outcome_OUTCOME_HANDED_ON
	return nil
}

// holdDiffers holds a rewrite that only a person may order, unless there was a decision about it.
func (w *execution) holdDiffers(ctx context.Context, s Observation, d Decision) error {
	standing, _, err := w.ask(ctx, s, d, held.Differs)
	switch {
	case err != nil:
		return err
	case standing.Kept != "":
		return w.keep(s, d, standing)
	case standing.Approved != "" && s.Hold != nil: // the command of the list waits for the end of the hold
		w.finishUnchanged(s, s.held(d))
		return nil
	case standing.Approved != "": // decide again, as for the command of the list
		c := proto.CloneOf(w.Command)
		c.List, c.Effect, c.IfAbsent = standing.Approved, s.effect(d.Row), false
		w.Command = c
		return errStale
	}
	cause := "only a person may have the copy overwritten: no client has reported what the source shows, or the copy"
	if d.Row == RowSourceOlder {
		cause = "the source shows older content than its record, or than the copy has"
	}
	return w.hold(ctx, s, d, held.Differs, cause)
}
