package duplicate

import (
	"context"
	"errors"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/storage"
)

// copyWithinLimits copies, if that overwrites no copy with other content, or the brake on rewrites allows it. Otherwise
// the copy is kept, and the rewrite waits for approval on a list.
func (w *execution) copyWithinLimits(ctx context.Context, s Observation, d Decision) (done bool, err error) {
	b := w.cfg.Brake
	switch {
	case b == nil || !isRewrite(s, d):
		return w.copy(ctx, s, d)
	case s.isApproved():
		if done, err = w.copy(ctx, s, d); w.wrote() {
			w.list = w.Command.GetList()
		}
		return done, err
	}
	if err := b.Refused(w.Copy, w.Command.GetCause()); err != nil {
		return false, err
	}
	p, reached, err := b.Take(ctx, w.Copy)
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

// reached returns the limit that would stop a copy now; empty if none would. It counts nothing.
func (w *execution) reached(s Observation, d Decision) string {
	if w.cfg.Brake == nil || !isRewrite(s, d) || s.isApproved() {
		return ""
	}
	return w.cfg.Brake.Reached(w.Copy)
}

// changedNothing reports whether a write that returned err certainly left the destination as it was. Without the mark,
// ErrChanged may be the answer to a repeated request whose first one was applied.
func changedNothing(err error) bool {
	return errors.Is(err, errStale) || errors.Is(err, errNotWritten) || storage.IsNotApplied(err)
}

// isApproved reports whether the command is of an approved list, and the source has the content that was on it.
func (s Observation) isApproved() bool {
	approved := s.reported()
	return brake.ReasonOf(s.Command.GetList()) == brake.ReasonRewrites && !approved.empty() && approved.matches(s.Source)
}

// hold ends the execution with a rewrite that waits for approval. Its result is published when hold returns. If its
// list was closed meanwhile, a second result puts it on the next list. The closed list is the cause of that result,
// which ends the rewrite there.
func (w *execution) hold(ctx context.Context, s Observation, d Decision, cause string) error {
	b := w.cfg.Brake
	d.Result = resultAwaitingApproval
	w.detail, w.digests = cause, d.Expected.Union(s.Source.digests())
	w.sourceVersion = s.Source.Object.Version
	w.finish(d, pb.Outcome_OUTCOME_HANDED_ON)
	why := brake.Held{Reason: brake.ReasonRewrites, Cause: cause}
	return b.Hold(ctx, w.Copy, why, func(ctx context.Context, list string) error {
		w.cause, w.list = w.list, list
		err := b.Publish(ctx, w.messages()...)
		w.out, w.published = nil, err == nil
		return err
	})
}
