package duplicate

import (
	"context"
	"errors"
	"fmt"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// copyAllowed copies, if that overwrites no copy with other content, or if that may be done now: by the decision about
// it, and by the brake on rewrites. Otherwise the copy is kept, or the rewrite waits for a decision.
func (w *execution) copyAllowed(ctx context.Context, s Observation, d Decision) (done bool, err error) {
	b, lists := w.cfg.Brake, w.cfg.Held
	if b == nil || !isRewrite(s, d) {
		return w.copy(ctx, s, d)
	}
	if err := lists.Refused(w.Copy); err != nil {
		return false, err
	}
	effect := s.rewriteEffect()
	approved, wait := s.isApproved(), false
	if !approved { // first what waits: a decision that ends that is known afterwards
		if wait, err = w.waits(ctx); err != nil {
			return false, err
		}
	}
	standing, err := lists.Decided(ctx, w.Copy, true, effect)
	if err != nil {
		return false, retry.Unavailable(fmt.Errorf("read the decisions about %s: %w", w.Copy, err))
	}
	if approved && standing.Kept == "" { // the command does not know whether the copy is kept by another decision
		standing.Approved = w.Command.GetList()
	}
	switch {
	case standing.Approved != "":
		if done, err = w.copy(ctx, s, d); w.wrote() {
			w.list, w.effect = standing.Approved, effect
		}
		return done, err
	case standing.Kept != "" && w.wrote():
		return true, nil
	case standing.Kept != "":
		d.Result, w.detail, w.effect = resultKept, standing.Kept, effect
		w.finish(d, pb.Outcome_OUTCOME_NOTHING)
		return true, nil
	}
	var p *brake.Permit
	reached := held.EarlierWaits
	if !wait {
		p, reached, err = b.Take(ctx, w.Copy)
	}
	switch {
	case err != nil:
		return false, err
	case reached == "":
	case w.wrote():
		return true, nil // the source has changed since; that change has a command of its own
	default:
		err = w.hold(ctx, s, d, "the brake: "+reached)
		return err == nil, err
	}
	before := w.record
	done, err = w.copy(ctx, s, d)
	if w.record == before && (err == nil || changedNothing(err)) {
		p.GiveBack()
	}
	return done, err
}

// isRewrite reports whether a copy overwrites one with other content.
func isRewrite(s Observation, d Decision) bool {
	return s.Destination.Presence == Present && (d.Row == RowContentDiffers || d.Row == RowSourceUnrecorded)
}

// waits reports whether an earlier rewrite waits for a decision.
func (w *execution) waits(ctx context.Context) (bool, error) {
	wait, err := w.cfg.Held.Wait(ctx, w.Copy, held.Rewrites)
	if err != nil {
		err = retry.Unavailable(fmt.Errorf("read what waits in the space of %s: %w", w.Copy, err))
	}
	return wait, err
}

// reached returns what would stop a copy now; empty if nothing would. It counts nothing.
func (w *execution) reached(ctx context.Context, s Observation, d Decision) (string, error) {
	if w.cfg.Brake == nil || !isRewrite(s, d) || s.isApproved() {
		return "", nil
	}
	if wait, err := w.waits(ctx); err != nil || wait {
		return held.EarlierWaits, err
	}
	return w.cfg.Brake.Reached(w.Copy), nil
}

// changedNothing reports whether a write that returned err certainly left the destination as it was. Without the mark,
// ErrChanged may be the answer to a repeated request whose first one was applied.
func changedNothing(err error) bool {
	return errors.Is(err, errStale) || errors.Is(err, errNotWritten) || storage.IsNotApplied(err)
}

// isApproved reports whether the command is of an approved list, and the rewrite is the effect that was on it; or
// whether it carries the content that the source of a refused rewrite got back, which the source still has.
func (s Observation) isApproved() bool {
	c, restored := s.Command, s.reported()
	switch {
	case !held.KindOf(c.GetList()).IsRewrite():
		return false
	case c.GetEffect() == "" && c.GetCause() != c.GetList():
		return !restored.empty() && restored.matches(s.Source)
	}
	return c.GetEffect() == s.rewriteEffect()
}

// hold ends the execution with a rewrite that waits for a decision.
func (w *execution) hold(ctx context.Context, s Observation, d Decision, cause string) (err error) {
	if w.list, err = w.cfg.Held.Hold(ctx, w.Copy, held.Rewrites, cause); err != nil {
		return fmt.Errorf("report that the rewrite of %s waits for a decision: %w", w.Copy, err)
	}
	d.Result = resultAwaitingApproval
	w.detail, w.digests, w.effect = cause, d.Expected.Union(s.Source.digests()), s.rewriteEffect()
	w.sourceVersion = s.Source.Object.Version
	w.finish(d, pb.Outcome_OUTCOME_HANDED_ON)
	return nil
}
