package emit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/storage"
)

// resolveOrphans looks into all mutations of which nobody knows what came of them, and goes
// on after a failure.
func (s *Store) resolveOrphans(ctx context.Context) (failed []error) {
	s.mu.Lock()
	lanes := slices.SortedFunc(maps.Values(s.orphaned), func(a, b *lane) int { return cmp.Compare(a.orphans[0].ticket, b.orphans[0].ticket) })
	s.mu.Unlock()
	for _, l := range lanes {
		if ctx.Err() != nil {
			return append(failed, storage.Ended(ctx))
		}
		if err := s.resolveAll(ctx, l); err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

// resolveAll looks into the orphans of a lane, until one cannot be.
func (s *Store) resolveAll(ctx context.Context, l *lane) error {
	for {
		s.mu.Lock()
		n := len(l.orphans)
		s.mu.Unlock()
		if n == 0 {
			return nil
		}
		if err := s.resolveFirst(ctx, l); err != nil {
			return err
		}
	}
}

// resolveFirst looks into the first orphan of a lane, or waits for whoever does.
func (s *Store) resolveFirst(ctx context.Context, l *lane) error {
	s.mu.Lock()
	switch {
	case len(l.orphans) == 0:
		s.mu.Unlock()
		return nil
	case l.resolving:
		changed := l.changed()
		s.mu.Unlock()
		select {
		case <-changed:
			return nil
		case <-ctx.Done():
			return storage.Ended(ctx)
		}
	}
	l.resolving = true
	m := l.orphans[0]
	crowded := m.crowded
	s.mu.Unlock()
	defer func() { // also if the store panics
		s.mu.Lock()
		defer s.mu.Unlock()
		l.resolving = false
		s.arrange(l)
	}()
	if err := s.resolve(ctx, m, crowded); err != nil {
		return fmt.Errorf("find out what came of an earlier mutation: %w", err)
	}
	return nil
}

// resolve looks at the store to find out what came of a mutation. An error leaves it as it is, or with its outcome
// noted: then the next call goes on there.
func (s *Store) resolve(ctx context.Context, m *mutation, crowded bool) error {
	p, err := s.cfg.Outbox.Read(m.ticket)
	switch {
	case errors.Is(err, errNotHeld): // it is noted that nothing was done
		s.drop(m)
		return nil
	case err != nil:
		return err
	case p.Change == nil:
		p.Intent.Crowded = p.Intent.Crowded || crowded
		if p.Change, p.Settled, err = s.outcome(ctx, m.ticket, p); err != nil {
			return err
		}
	}
	if p.Change == nil {
		s.drop(m)
		return nil
	}
	if err := s.cfg.Outbox.Safe(ctx); err != nil {
		return fmt.Errorf("note what came of it: %w", err)
	}
	m.gone = p.Change.GetOp() == pb.Op_OP_DELETE
	s.settle(m, p.Settled, p.Change, false)
	return nil
}

// outcome looks at the store, and notes and returns the Change of an intent; nil if nothing was done.
func (s *Store) outcome(ctx context.Context, t Ticket, p Pending) (c *pb.Change, settled Ticket, err error) {
	seen, at, err := s.see(ctx, p.Intent.Draft)
	if err != nil {
		return nil, 0, err
	}
	v := judge(p.Intent, p.Came, seen, s.inner.Capabilities())
	c = s.verdict(v, p.Intent, p.Came, seen, at)
	if v == undecided {
		if err := s.report(t, p, c); err != nil {
			return nil, 0, err
		}
	}
	if settled, err = s.cfg.Outbox.Outcome(t, c); err != nil {
		return nil, 0, fmt.Errorf("note what came of it: %w", err)
	}
	s.count.resolved(v)
	return c, settled, nil
}

// drop forgets an orphan of which there is nothing to publish.
func (s *Store) drop(m *mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.lane.orphans = slices.DeleteFunc(m.lane.orphans, func(x *mutation) bool { return x == m })
}

// report tells of an intent that nobody can decide on.
func (s *Store) report(t Ticket, p Pending, c *pb.Change) error {
	p.Change = c
	if err := s.cfg.Outbox.Report(Report{Ticket: t, Pending: p}); err != nil {
		return fmt.Errorf("report an intent of which nobody knows what came of it: %w", err)
	}
	d := p.Intent.Draft
	s.log.Error("nobody can say whether a mutation was made; what is seen is told", "ticket", uint64(t), "op", d.GetOp().String(),
		"space", d.GetSpace(), "item", d.GetItem(), "user", d.GetUser(), "began", p.Intent.Began)
	return nil
}

// see returns what is there as a Change without an op, nil if it is absent, and when it was so. Neither is believed
// unless the store's marker is right before the look and after it: else what is seen may be of another store, or of an
// empty mount point.
func (s *Store) see(ctx context.Context, d *pb.Change) (seen *pb.Change, at time.Time, err error) {
	if err := s.known(ctx, time.Now()); err != nil {
		return nil, at, err
	}
	if seen, at, err = s.look(ctx, d); err != nil {
		return nil, at, err
	}
	return seen, at, s.known(ctx, time.Now())
}

// look is see without a look at the marker. What is absent is so at the time that the store says, by the clock by which it
// dates what is put after that.
func (s *Store) look(ctx context.Context, d *pb.Change) (seen *pb.Change, at time.Time, err error) {
	at = s.cfg.Now()
	if d.GetItem() == "" {
		o, err := s.inner.StatSpace(ctx, d.GetSpace())
		switch {
		case errors.Is(err, storage.ErrNoSpace):
			return nil, at, nil
		case err != nil:
			return nil, at, fmt.Errorf("look at space %q: %w", d.GetSpace(), err)
		}
		return spaceChange(d, o), at, nil
	}
	o, err := s.inner.Stat(ctx, d.GetSpace(), d.GetItem())
	switch {
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrNoSpace):
		var absent *storage.AbsentError
		if errors.As(err, &absent) && !absent.At.IsZero() {
			at = absent.At
		}
		return nil, at, nil
	case err != nil:
		return nil, at, fmt.Errorf("look at item %q: %w", d.GetItem(), err)
	}
	return record.Content(schemas.CopyOf(d), o), at, nil
}

// verdict returns the Change to tell; nil where there is none.
func (s *Store) verdict(v verdict, in Intent, came *Content, seen *pb.Change, at time.Time) *pb.Change {
	switch v {
	case done:
		return record.Seal(s.carriedOut(in, came, seen, at))
	case undecided:
		if c := s.sighted(in, seen, at); c != nil {
			return record.Seal(c)
		}
	}
	return nil
}

// carriedOut returns the Change of an intent that was carried out.
func (s *Store) carriedOut(in Intent, came *Content, seen *pb.Change, at time.Time) *pb.Change {
	switch op := in.Draft.GetOp(); op {
	case pb.Op_OP_DELETE:
		return by(in.Draft, s.gone(in.Before, at))
	case pb.Op_OP_SET_PROPERTIES:
		c := by(in.Draft, proto.CloneOf(seen))
		c.Op = op
		return s.datedFrom(at, c)
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		c := by(in.Draft, proto.CloneOf(seen))
		c.Op, c.Digests = op, maps.Clone(came.Digests)
		return c
	}
	return s.datedFrom(at, proto.CloneOf(in.Draft))
}

// sighted returns the Change that tells what is seen, on nobody's behalf; nil where nothing
// is there, and nothing was.
func (s *Store) sighted(in Intent, seen *pb.Change, at time.Time) *pb.Change {
	var c *pb.Change
	op, d := in.Draft.GetOp(), in.Draft
	switch {
	case seen == nil && in.Before == nil:
		return nil
	case seen == nil && d.GetItem() != "":
		c = s.gone(in.Before, at)
	case seen == nil:
		c = proto.CloneOf(in.Before)
		c.Op, c.Properties, c.Acl = pb.Op_OP_DELETE_SPACE, nil, nil
		s.datedFrom(at, c)
	case d.GetItem() == "":
		c = proto.CloneOf(seen)
		c.Op = pb.Op_OP_SET_SPACE_PROPERTIES
		s.datedFrom(at, c)
	case op == pb.Op_OP_SET_PROPERTIES:
		c = proto.CloneOf(seen)
		c.Op = op
		s.datedFrom(at, c)
	default:
		c = proto.CloneOf(seen)
		c.Op = pb.Op_OP_UPDATE
	}
	c.Origin, c.Agent, c.Sequence, c.User = pb.Origin_ORIGIN_SWEEP, d.GetAgent(), d.GetSequence(), ""
	return c
}

// gone returns the Change that says that what was there is absent, and was so at a time.
func (s *Store) gone(before *pb.Change, at time.Time) *pb.Change {
	c := proto.CloneOf(before)
	c.Op, c.MediaType, c.Properties = pb.Op_OP_DELETE, "", nil
	s.datedFrom(at, c)
	if was := before.GetTime().AsTime(); !c.GetTime().AsTime().After(was) {
		c.Time = record.Time(was.Add(time.Millisecond))
	}
	return c
}
