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
	lanes := slices.SortedFunc(maps.Values(s.withOrphans), func(a, b *itemQueue) int { return cmp.Compare(a.orphans[0].ticket, b.orphans[0].ticket) })
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
func (s *Store) resolveAll(ctx context.Context, l *itemQueue) error {
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
func (s *Store) resolveFirst(ctx context.Context, l *itemQueue) error {
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
	crowded := m.concurrent
	s.mu.Unlock()
	defer func() { // also if the store panics
		s.mu.Lock()
		defer s.mu.Unlock()
		l.resolving = false
		s.reschedule(l)
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
		s.dropOrphan(m)
		return nil
	case err != nil:
		return err
	case p.Change == nil:
		p.Intent.Concurrent = p.Intent.Concurrent || crowded
		if p.Change, p.Outcome, err = s.lookUpOutcome(ctx, m.ticket, p); err != nil {
			return err
		}
	}
	if p.Change == nil {
		s.dropOrphan(m)
		return nil
	}
	if err := s.cfg.Outbox.Safe(ctx); err != nil {
		return fmt.Errorf("note what came of it: %w", err)
	}
	m.foundAbsent = p.Change.GetOp() == pb.Op_OP_DELETE
	s.enqueue(m, p.Outcome, p.Change, false)
	return nil
}

// outcome looks at the store, and notes and returns the Change of an intent; nil if nothing was done.
func (s *Store) lookUpOutcome(ctx context.Context, t Ticket, p Pending) (c *pb.Change, settled Ticket, err error) {
	seen, at, err := s.observe(ctx, p.Intent.Draft)
	if err != nil {
		return nil, 0, err
	}
	v := judge(p.Intent, p.Streamed, seen, s.inner.Capabilities())
	c = s.changeOf(v, p.Intent, p.Streamed, seen, at)
	if v == undecided {
		if err := s.reportUndecided(t, p, c); err != nil {
			return nil, 0, err
		}
	}
	if settled, err = s.cfg.Outbox.Outcome(t, c); err != nil {
		return nil, 0, fmt.Errorf("note what came of it: %w", err)
	}
	s.counters.countResolved(v)
	return c, settled, nil
}

// drop forgets an orphan of which there is nothing to publish.
func (s *Store) dropOrphan(m *mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.queue.orphans = slices.DeleteFunc(m.queue.orphans, func(x *mutation) bool { return x == m })
}

// report tells of an intent that nobody can decide on.
func (s *Store) reportUndecided(t Ticket, p Pending, c *pb.Change) error {
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
func (s *Store) observe(ctx context.Context, d *pb.Change) (seen *pb.Change, at time.Time, err error) {
	if err := s.checkMarker(ctx, time.Now()); err != nil {
		return nil, at, err
	}
	if seen, at, err = s.stat(ctx, d); err != nil {
		return nil, at, err
	}
	return seen, at, s.checkMarker(ctx, time.Now())
}

// look is see without a look at the marker. What is absent is so at the time that the store says, by the clock by which it
// dates what is put after that.
func (s *Store) stat(ctx context.Context, d *pb.Change) (seen *pb.Change, at time.Time, err error) {
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
func (s *Store) changeOf(v verdict, in Intent, came *Content, seen *pb.Change, at time.Time) *pb.Change {
	switch v {
	case done:
		return record.Seal(s.carriedOutChange(in, came, seen, at))
	case undecided:
		if c := s.observedChange(in, seen, at); c != nil {
			return record.Seal(c)
		}
	}
	return nil
}

// carriedOut returns the Change of an intent that was carried out.
func (s *Store) carriedOutChange(in Intent, came *Content, seen *pb.Change, at time.Time) *pb.Change {
	switch op := in.Draft.GetOp(); op {
	case pb.Op_OP_DELETE:
		return attributed(in.Draft, s.deletionChange(in.Before, at))
	case pb.Op_OP_SET_PROPERTIES:
		c := attributed(in.Draft, proto.CloneOf(seen))
		c.Op = op
		return s.stampFrom(at, c)
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		c := attributed(in.Draft, proto.CloneOf(seen))
		c.Op, c.Digests = op, maps.Clone(came.Digests)
		return c
	}
	return s.stampFrom(at, proto.CloneOf(in.Draft))
}

// sighted returns the Change that tells what is seen, on nobody's behalf; nil where nothing
// is there, and nothing was.
func (s *Store) observedChange(in Intent, seen *pb.Change, at time.Time) *pb.Change {
	var c *pb.Change
	op, d := in.Draft.GetOp(), in.Draft
	switch {
	case seen == nil && in.Before == nil:
		return nil
	case seen == nil && d.GetItem() != "":
		c = s.deletionChange(in.Before, at)
	case seen == nil:
		c = proto.CloneOf(in.Before)
		c.Op, c.Properties, c.Acl = pb.Op_OP_DELETE_SPACE, nil, nil
		s.stampFrom(at, c)
	case d.GetItem() == "":
		c = proto.CloneOf(seen)
		c.Op = pb.Op_OP_SET_SPACE_PROPERTIES
		s.stampFrom(at, c)
	case op == pb.Op_OP_SET_PROPERTIES:
		c = proto.CloneOf(seen)
		c.Op = op
		s.stampFrom(at, c)
	default:
		c = proto.CloneOf(seen)
		c.Op = pb.Op_OP_UPDATE
	}
	c.Origin, c.Agent, c.Sequence, c.User = pb.Origin_ORIGIN_SWEEP, d.GetAgent(), d.GetSequence(), ""
	return c
}

// gone returns the Change that says that what was there is absent, and was so at a time.
func (s *Store) deletionChange(before *pb.Change, at time.Time) *pb.Change {
	c := proto.CloneOf(before)
	c.Op, c.MediaType, c.Properties = pb.Op_OP_DELETE, "", nil
	s.stampFrom(at, c)
	if was := before.GetTime().AsTime(); !c.GetTime().AsTime().After(was) {
		c.Time = record.Time(was.Add(time.Millisecond))
	}
	return c
}
