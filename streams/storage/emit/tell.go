package emit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// tell publishes a Change, after all of its item that wait, in the order of their times.
func (s *Store) tell(ctx context.Context, t Ticket, c *pb.Change) error {
	key := schemas.ItemKey(c.GetAccount(), c.GetSpace(), c.GetItem())
	w := s.lineOf(key)
	select {
	case w.held <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-w.held }()
	queue := append(w.waiting[key], Pending{Ticket: t, Change: c})
	slices.SortStableFunc(queue, func(a, b Pending) int {
		if c := a.Change.GetTime().AsTime().Compare(b.Change.GetTime().AsTime()); c != 0 {
			return c
		}
		return cmp.Compare(a.Ticket, b.Ticket)
	})
	queue = slices.CompactFunc(queue, func(a, b Pending) bool { return a.Ticket == b.Ticket })
	var failed error
	for len(queue) > 0 {
		err := s.out.Publish(ctx, queue[0].Change)
		if err != nil && !retry.IsPermanent(err) {
			failed = err
			break
		}
		if err != nil { // it stays in the outbox, and is in nobody's way
			failed = errors.Join(failed, err)
		} else if err := s.cfg.Outbox.Done(ctx, queue[0].Ticket); err != nil {
			// It will be told again, which is telling it once.
			failed = errors.Join(failed, fmt.Errorf("note what is told: %w", err))
		}
		queue = queue[1:]
	}
	if w.waiting[key] = queue; len(queue) == 0 {
		delete(w.waiting, key)
	}
	return failed
}

// Flush looks into mutations of which nobody knows what came of them, and publishes
// what waits. It goes on after a failure, and returns all.
func (s *Store) Flush(ctx context.Context) error {
	var failed []error
	for p, err := range s.cfg.Outbox.Pending(ctx) {
		if err != nil {
			return errors.Join(append(failed, fmt.Errorf("read the outbox: %w", err))...)
		}
		if ctx.Err() != nil {
			return errors.Join(append(failed, context.Cause(ctx))...)
		}
		s.mu.Lock()
		live := s.live[p.Intent.Draft.GetSequence()]
		s.mu.Unlock()
		switch {
		case live: // its caller will
		case p.Change != nil:
			failed = append(failed, s.tell(ctx, p.Ticket, p.Change))
		default:
			failed = append(failed, s.resolve(ctx, p, nil))
		}
	}
	return errors.Join(failed...)
}

// resolve looks at the store to find out what came of a mutation, and tells of it. An
// error leaves it in the outbox. came is what was streamed, where that is known.
func (s *Store) resolve(ctx context.Context, p Pending, came *content) error {
	c, err := s.look(ctx, p.Intent, came)
	if err != nil {
		return err
	}
	if c != nil {
		record.Seal(c)
	}
	if err := s.cfg.Outbox.Outcome(ctx, p.Ticket, c); err != nil || c == nil {
		return err
	}
	return s.tell(ctx, p.Ticket, c)
}

// look returns the Change that tells of an intent that was carried out, nil for one that
// was not. Where nobody can say, it is the state that is seen, on nobody's behalf.
func (s *Store) look(ctx context.Context, in Intent, came *content) (*pb.Change, error) {
	d := in.Draft
	if d.GetItem() == "" {
		return s.lookAtSpace(ctx, d)
	}
	o, err := s.inner.Stat(ctx, d.GetSpace(), d.GetItem())
	absent := errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrNoSpace)
	if absent {
		err = s.inner.Marker(ctx) // absence is a fact only in the store that it should be
	}
	if err != nil {
		return nil, fmt.Errorf("look at item %q: %w", d.GetItem(), err)
	}
	switch {
	case d.GetOp() == pb.Op_OP_SET_PROPERTIES:
		if absent || o.Properties.MediaType != d.GetMediaType() || !maps.Equal(o.Properties.User, d.GetProperties()) {
			return nil, nil
		}
		return s.undated(s.stored(d, o)), nil
	case absent && d.GetOp() == pb.Op_OP_DELETE && in.Before != nil:
		return s.deleted(d, storage.Deleted{Object: *in.Before, Time: s.cfg.Now()}), nil
	case absent:
		return nil, nil // what was never there, or is gone again by another's hand
	case in.Before != nil && in.Before.Version == o.Version, in.Before == nil && d.GetOp() == pb.Op_OP_DELETE:
		return nil, nil
	case came != nil && o.Size == came.size && o.Digests.Compare(came.digests) == digest.Agree:
		return s.stored(d, o), nil
	}
	if s.cfg.Undecided != nil {
		s.cfg.Undecided(in)
	}
	c := s.stored(d, o)
	c.Op, c.Origin, c.User = pb.Op_OP_UPDATE, pb.Origin_ORIGIN_SWEEP, ""
	return c, nil
}

func (s *Store) lookAtSpace(ctx context.Context, d *pb.Change) (*pb.Change, error) {
	o, err := s.inner.StatSpace(ctx, d.GetSpace())
	absent := errors.Is(err, storage.ErrNoSpace)
	if err != nil && !absent {
		return nil, fmt.Errorf("look at space %q: %w", d.GetSpace(), err)
	}
	done := !absent && maps.Equal(o.Properties, d.GetProperties()) && maps.Equal(o.ACL, d.GetAcl())
	if d.GetOp() == pb.Op_OP_DELETE_SPACE {
		done = absent
	}
	if !done {
		return nil, nil
	}
	return s.undated(proto.CloneOf(d)), nil
}
