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
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/record"
)

// resolveOrphans resolves all orphans; it continues after a failure.
func (s *Store) resolveOrphans(ctx context.Context) (failed []error) {
	s.mu.Lock()
	queues := slices.SortedFunc(maps.Values(s.withOrphans), func(a, b *itemQueue) int {
		return cmp.Compare(a.orphans[0].ticket, b.orphans[0].ticket)
	})
	s.mu.Unlock()
	for _, q := range queues {
		if ctx.Err() != nil {
			return append(failed, storage.ContextErr(ctx))
		}
		if err := s.resolveAll(ctx, q); err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

// resolveAll resolves the orphans of a queue until one fails.
func (s *Store) resolveAll(ctx context.Context, q *itemQueue) error {
	for {
		s.mu.Lock()
		n := len(q.orphans)
		s.mu.Unlock()
		if n == 0 {
			return nil
		}
		if err := s.resolveFirst(ctx, q); err != nil {
			return err
		}
	}
}

// resolveFirst resolves the first orphan of a queue, or waits for the goroutine that does.
func (s *Store) resolveFirst(ctx context.Context, q *itemQueue) error {
	s.mu.Lock()
	switch {
	case len(q.orphans) == 0:
		s.mu.Unlock()
		return nil
	case q.resolving:
		changed := q.changed()
		s.mu.Unlock()
		select {
		case <-changed:
			return nil
		case <-ctx.Done():
			return storage.ContextErr(ctx)
		}
	}
	q.resolving = true
	m := q.orphans[0]
	concurrent := m.concurrent
	s.mu.Unlock()
	defer func() { // deferred for the case that the store panics
		s.mu.Lock()
		defer s.mu.Unlock()
		q.resolving = false
		s.reschedule(q)
	}()
	if err := s.resolve(ctx, m, concurrent); err != nil {
		return fmt.Errorf("resolve an earlier mutation: %w", err)
	}
	return nil
}

// resolve looks up the outcome of a mutation in the store. After an error the mutation stays an orphan; if
// its outcome is recorded by then, the next call continues from there.
func (s *Store) resolve(ctx context.Context, m *mutation, concurrent bool) error {
	in, err := s.cfg.Outbox.Read(m.ticket)
	switch {
	case errors.Is(err, outbox.ErrNotHeld): // recorded as not done
		s.dropOrphan(m)
		return nil
	case err != nil:
		return err
	case in.Change == nil:
		in.Concurrent = in.Concurrent || concurrent
		if in.Change, in.Outcome, err = s.lookUpOutcome(ctx, in); err != nil {
			return err
		}
	}
	if in.Change == nil {
		s.dropOrphan(m)
		return nil
	}
	if err := s.cfg.Outbox.Safe(ctx); err != nil {
		return fmt.Errorf("record outcome: %w", err)
	}
	m.foundAbsent = in.Change.GetOp() == pb.Op_OP_DELETE
	s.enqueue(m, in.Outcome, in.Change, false)
	return nil
}

// lookUpOutcome observes the store, judges an intent, and records and returns its Change; nil if nothing
// was done.
func (s *Store) lookUpOutcome(
	ctx context.Context, in outbox.Mutation,
) (c *pb.Change, outcome outbox.Ticket, err error) {
	observed, at, err := s.observe(ctx, in.Draft)
	if err != nil {
		return nil, 0, err
	}
	v := judge(in, observed, s.inner.Capabilities())
	c = s.changeOf(v, in, observed, at)
	if v == undecided {
		if err := s.reportUndecided(in, c); err != nil {
			return nil, 0, err
		}
	}
	if outcome, err = s.cfg.Outbox.Outcome(in.Ticket, c); err != nil {
		return nil, 0, fmt.Errorf("record outcome: %w", err)
	}
	s.counters.countResolved(v)
	return c, outcome, nil
}

// dropOrphan removes an orphan without a Change.
func (s *Store) dropOrphan(m *mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.queue.orphans = slices.DeleteFunc(m.queue.orphans, func(x *mutation) bool { return x == m })
}

// reportUndecided reports and logs a mutation for which the store's state, c, does not prove that it was applied or
// not.
func (s *Store) reportUndecided(in outbox.Mutation, c *pb.Change) error {
	in.Change = c
	if err := s.cfg.Outbox.Report(in, nil); err != nil {
		return fmt.Errorf("report undecided mutation: %w", err)
	}
	d := in.Draft
	s.log.Error("report undecided mutation", "ticket", uint64(in.Ticket), "op", d.GetOp().String(),
		"space", d.GetSpace(), "item", d.GetItem(), "user", d.GetUser(), "began", in.Began)
	return nil
}

// observe returns the current state as a Change without an op, nil if the item or space is absent, and the
// time of the observation. It fails unless the store's marker is right before and after: otherwise the
// state may be that of another store or of an unmounted mount point.
func (s *Store) observe(ctx context.Context, d *pb.Change) (observed *pb.Change, at time.Time, err error) {
	if err := s.checkMarker(ctx, time.Now()); err != nil {
		return nil, at, err
	}
	if observed, at, err = s.stat(ctx, d); err != nil {
		return nil, at, err
	}
	return observed, at, s.checkMarker(ctx, time.Now())
}

// stat is observe without the marker checks. The time of an absence is the store's own if it reports one:
// the store dates later writes by the same clock.
func (s *Store) stat(ctx context.Context, d *pb.Change) (observed *pb.Change, at time.Time, err error) {
	at = s.cfg.Now()
	if d.GetItem() == "" {
		o, err := s.inner.StatSpace(ctx, d.GetSpace())
		switch {
		case errors.Is(err, storage.ErrNoSpace):
			return nil, at, nil
		case err != nil:
			return nil, at, fmt.Errorf("stat space %q: %w", d.GetSpace(), err)
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
		return nil, at, fmt.Errorf("stat item %q: %w", d.GetItem(), err)
	}
	return record.Content(schemas.CopyOf(d), o), at, nil
}

// changeOf returns the Change to publish for a verdict; nil if there is none.
func (s *Store) changeOf(v verdict, in outbox.Mutation, observed *pb.Change, at time.Time) *pb.Change {
	switch v {
	case done:
		return record.Seal(s.carriedOutChange(in, observed, at))
	case undecided:
		if c := s.observedChange(in, observed, at); c != nil {
			return record.Seal(c)
		}
	}
	return nil
}

// carriedOutChange returns the Change of an intent that was carried out.
func (s *Store) carriedOutChange(in outbox.Mutation, observed *pb.Change, at time.Time) *pb.Change {
	switch in.Draft.GetOp() {
	case pb.Op_OP_DELETE:
		return completed(in.Draft, s.deletionChange(in.Before, at))
	case pb.Op_OP_SET_PROPERTIES:
		return s.stampFrom(at, completed(in.Draft, proto.CloneOf(observed)))
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		c := completed(in.Draft, proto.CloneOf(observed))
		c.Digests = maps.Clone(in.Streamed.Digests)
		return c
	}
	return s.stampFrom(at, proto.CloneOf(in.Draft))
}

// observedChange returns a Change of the observed state, without a user; nil if the item or space was
// absent before and is absent now.
func (s *Store) observedChange(in outbox.Mutation, observed *pb.Change, at time.Time) *pb.Change {
	var c *pb.Change
	op, d := in.Draft.GetOp(), in.Draft
	switch {
	case observed == nil && in.Before == nil:
		return nil
	case observed == nil && d.GetItem() != "":
		c = s.deletionChange(in.Before, at)
	case observed == nil:
		c = proto.CloneOf(in.Before)
		c.Op, c.Properties, c.Acl = pb.Op_OP_DELETE_SPACE, nil, nil
		s.stampFrom(at, c)
	case d.GetItem() == "":
		c = proto.CloneOf(observed)
		c.Op = pb.Op_OP_SET_SPACE_PROPERTIES
		s.stampFrom(at, c)
	case op == pb.Op_OP_SET_PROPERTIES:
		c = proto.CloneOf(observed)
		c.Op = op
		s.stampFrom(at, c)
	default:
		c = proto.CloneOf(observed)
		c.Op = pb.Op_OP_UPDATE
	}
	c.Origin, c.Agent, c.Sequence, c.User = pb.Origin_ORIGIN_SWEEP, d.GetAgent(), d.GetSequence(), ""
	return c
}

// deletionChange returns the Change of a deletion that was observed at a time.
func (s *Store) deletionChange(before *pb.Change, at time.Time) *pb.Change {
	c := proto.CloneOf(before)
	c.Op, c.MediaType, c.Properties = pb.Op_OP_DELETE, "", nil
	s.stampFrom(at, c)
	if last := before.GetTime().AsTime(); !c.GetTime().AsTime().After(last) {
		c.Time = record.Time(last.Add(time.Millisecond))
	}
	return c
}
