package emit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/record"
)

// Put implements storage.Store. It emits ADD, or UPDATE if the item was present.
func (s *Store) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	var obj storage.Object
	err := s.mutateItem(ctx, space, item, o.Condition, func(m *mutation, before *pb.Change) error {
		op := pb.Op_OP_ADD
		if before != nil {
			op = pb.Op_OP_UPDATE
		}
		in := &outbox.Mutation{Draft: s.draft(ctx, op, space, item), Before: before}
		in.Draft.MediaType, in.Draft.Properties = o.Properties.MediaType, maps.Clone(o.Properties.User)
		o.Compute = s.withDigests(o.Compute)
		o.Verify = s.verifyAndRecord(m, in, o.Verify)
		return s.mutate(ctx, m, in, func() (*pb.Change, error) {
			var err error
			if obj, err = s.inner.Put(ctx, space, item, r, o); err != nil {
				return nil, err
			}
			c := completed(in.Draft, record.Content(schemas.CopyOf(in.Draft), obj))
			if in.Streamed != nil {
				// Only the digests computed from the stream, not those that the caller declared.
				c.Digests = maps.Clone(in.Streamed.Digests)
			}
			return c, nil
		})
	})
	return obj, err
}

// verifyAndRecord returns a PutOptions.Verify that calls verify and then records the digests and size of
// the stream before the bytes become visible.
func (s *Store) verifyAndRecord(
	m *mutation, in *outbox.Mutation, verify func(digest.Set, int64) error,
) func(digest.Set, int64) error {
	return func(d digest.Set, size int64) error {
		if verify != nil {
			if err := verify(d, size); err != nil {
				return err
			}
		}
		streamed := outbox.Content{Digests: maps.Clone(d), Size: size}
		if err := s.cfg.Outbox.Content(m.ticket, streamed); err != nil {
			return fmt.Errorf("record streamed content: %w", err)
		}
		in.Streamed = &streamed
		return nil
	}
}

// SetProperties implements storage.Store. It emits SET_PROPERTIES.
func (s *Store) SetProperties(
	ctx context.Context, space, item string, p storage.Properties, c storage.Condition,
) (storage.Object, error) {
	var obj storage.Object
	err := s.mutateItem(ctx, space, item, storage.Condition{}, func(m *mutation, before *pb.Change) error {
		if err := s.checkAbsence(ctx, before); err != nil {
			return err
		}
		in := &outbox.Mutation{Draft: s.draft(ctx, pb.Op_OP_SET_PROPERTIES, space, item), Before: before}
		in.Draft.MediaType, in.Draft.Properties = p.MediaType, maps.Clone(p.User)
		return s.mutate(ctx, m, in, func() (*pb.Change, error) {
			var err error
			if obj, err = s.inner.SetProperties(ctx, space, item, p, c); err != nil {
				return nil, err
			}
			return s.stampNow(completed(in.Draft, record.Content(schemas.CopyOf(in.Draft), obj))), nil
		})
	})
	return obj, err
}

// Delete implements storage.Store. It emits DELETE.
func (s *Store) Delete(ctx context.Context, space, item string, o storage.DeleteOptions) (storage.Deleted, error) {
	var d storage.Deleted
	err := s.mutateItem(ctx, space, item, storage.Condition{}, func(m *mutation, before *pb.Change) error {
		if err := s.checkAbsence(ctx, before); err != nil {
			return err
		}
		in := &outbox.Mutation{Draft: s.draft(ctx, pb.Op_OP_DELETE, space, item), Before: before}
		return s.mutate(ctx, m, in, func() (*pb.Change, error) {
			var err error
			if d, err = s.inner.Delete(ctx, space, item, o); err != nil {
				return nil, err
			}
			return completed(in.Draft, record.Delete(schemas.CopyOf(in.Draft), d)), nil
		})
	})
	return d, err
}

// completed makes c, the state after a mutation, the Change of the mutation: op, user, agent, origin and sequence are
// those of its draft.
func completed(draft, c *pb.Change) *pb.Change {
	c.Op, c.User, c.Agent = draft.GetOp(), draft.GetUser(), draft.GetAgent()
	c.Origin, c.Sequence = draft.GetOrigin(), draft.GetSequence()
	return c
}

// mutateItem checks names and marker, enters the item's queue and calls f with the item as it is before the
// mutation (nil: absent).
func (s *Store) mutateItem(
	ctx context.Context, space, item string, c storage.Condition, f func(m *mutation, before *pb.Change) error,
) (err error) {
	if err := errors.Join(storage.CheckSpace(space), storage.CheckItem(item)); err != nil {
		return storage.NotApplied(retry.Permanent(err))
	}
	if err := s.checkMarker(ctx, time.Time{}); err != nil {
		return storage.NotApplied(err)
	}
	defer func() { err = s.confirmAbsence(ctx, err) }()
	m, err := s.begin(ctx, s.key(space, item))
	if err != nil {
		return storage.NotApplied(err)
	}
	defer s.abandon(m)
	before, err := s.before(ctx, space, item, c)
	if err != nil {
		return storage.NotApplied(err)
	}
	return f(m, before)
}

// before returns the item's current state for Mutation.Before; nil if it is absent. A condition that states
// it saves the Stat.
func (s *Store) before(ctx context.Context, space, item string, c storage.Condition) (*pb.Change, error) {
	at := schemas.Copy{Account: s.cfg.Account, Store: s.cfg.Store, Space: space, Item: item}
	switch {
	case c.Absent:
		return nil, nil
	case c.Version != "":
		named := storage.Object{Item: item, Version: c.Version, Size: storage.UnknownSize, PropertiesUnknown: true}
		return record.Content(at, named), nil
	}
	o, err := s.inner.Stat(ctx, space, item)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return record.Content(at, o), nil
}

// CreateSpace implements storage.Store. It emits CREATE_SPACE.
func (s *Store) CreateSpace(ctx context.Context, space storage.Space) error {
	return s.mutateSpace(ctx, pb.Op_OP_CREATE_SPACE, space, func() error { return s.inner.CreateSpace(ctx, space) })
}

// SetSpace implements storage.Store. It emits SET_ACL if only the ACL changes, else SET_SPACE_PROPERTIES;
// both carry all properties and the whole ACL.
func (s *Store) SetSpace(ctx context.Context, space storage.Space) error {
	return s.mutateSpace(ctx, pb.Op_OP_SET_SPACE_PROPERTIES, space, func() error { return s.inner.SetSpace(ctx, space) })
}

// DeleteSpace implements storage.Store. It emits DELETE_SPACE.
func (s *Store) DeleteSpace(ctx context.Context, space string) error {
	return s.mutateSpace(ctx, pb.Op_OP_DELETE_SPACE, storage.Space{Name: space}, func() error {
		return s.inner.DeleteSpace(ctx, space)
	})
}

func (s *Store) mutateSpace(ctx context.Context, op pb.Op, space storage.Space, call func() error) (err error) {
	if err := storage.CheckSpace(space.Name); err != nil {
		return storage.NotApplied(retry.Permanent(err))
	}
	if err := s.checkMarker(ctx, time.Time{}); err != nil {
		return storage.NotApplied(err)
	}
	defer func() { err = s.confirmAbsence(ctx, err) }()
	m, err := s.begin(ctx, s.key(space.Name, ""))
	if err != nil {
		return storage.NotApplied(err)
	}
	defer s.abandon(m)
	current, err := s.inner.StatSpace(ctx, space.Name)
	absent := errors.Is(err, storage.ErrNoSpace)
	if absent && op != pb.Op_OP_SET_SPACE_PROPERTIES {
		err = s.checkMarker(ctx, time.Now())
		absent = err == nil
	}
	if err != nil && (!absent || op == pb.Op_OP_SET_SPACE_PROPERTIES) {
		return storage.NotApplied(err)
	}
	if op == pb.Op_OP_SET_SPACE_PROPERTIES &&
		maps.Equal(current.Properties, space.Properties) && !maps.Equal(current.ACL, space.ACL) {
		op = pb.Op_OP_SET_ACL
	}
	in := &outbox.Mutation{Draft: s.draft(ctx, op, space.Name, "")}
	in.Draft.Properties, in.Draft.Acl = maps.Clone(space.Properties), maps.Clone(space.ACL)
	in.Draft.PropertiesUnknown = space.PropertiesUnknown
	if !absent {
		in.Before = spaceChange(in.Draft, current)
	}
	return s.mutate(ctx, m, in, func() (*pb.Change, error) {
		if err := call(); err != nil {
			return nil, err
		}
		return s.stampNow(proto.CloneOf(in.Draft)), nil
	})
}

// spaceChange returns the state of a space as a Change without an op.
func spaceChange(draft *pb.Change, o storage.Space) *pb.Change {
	return &pb.Change{
		Account: draft.GetAccount(), Store: draft.GetStore(), Space: draft.GetSpace(),
		Properties: maps.Clone(o.Properties), Acl: maps.Clone(o.ACL), PropertiesUnknown: o.PropertiesUnknown,
	}
}

// stampNow sets the time of a Change that the store does not date. Two changes of one item or space never
// have the same time, and none has a time ahead of the clock, which the store may use for the next one: if
// the millisecond is taken, stampNow waits for the next.
func (s *Store) stampNow(c *pb.Change) *pb.Change { return s.stampFrom(time.Time{}, c) }

// stampFrom is stampNow for a state that was observed at from; zero means now.
func (s *Store) stampFrom(from time.Time, c *pb.Change) *pb.Change {
	key := s.key(c.GetSpace(), c.GetItem())
	for before := (time.Time{}); ; {
		now := s.cfg.Now()
		least := from
		if from.IsZero() {
			least = now
		}
		// Do not wait for a clock that does not advance.
		at, ok := s.nextTime(key, least.UnixMilli(), now.UnixMilli(), now.Equal(before))
		if ok {
			c.Time = record.Time(time.UnixMilli(at))
			return c
		}
		before = now
		<-time.After(time.UnixMilli(at).Sub(now))
	}
}

// maxAhead is the largest lead, in ms, of an item's last Change over the clock for which the next Change
// waits. A clock that was set back by more is not waited for.
const maxAhead = 1000

// nextTime returns the time in ms of the next Change of a key, at least least, and reports whether it was
// reserved. It is not reserved if it is up to maxAhead ahead of the clock because of the key's last Change,
// unless always is set.
func (s *Store) nextTime(key string, least, now int64, always bool) (at int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lastTimes) > 1<<12 {
		maps.DeleteFunc(s.lastTimes, func(_ string, t int64) bool { return t < now })
	}
	at = max(least, s.lastTimes[key]+1)
	if ahead := at - now; at > least && ahead > 0 && ahead <= maxAhead && !always {
		return at, false
	}
	s.lastTimes[key] = at
	return at, true
}

// resolveTimeout bounds recording and looking up an outcome after the call returned, even if the caller's
// context has ended.
const resolveTimeout = 10 * time.Second

// mutate makes one mutation and publishes its Change: check size, record intent, call, record outcome,
// publish, delete the record.
func (s *Store) mutate(ctx context.Context, m *mutation, in *outbox.Mutation, call func() (*pb.Change, error)) error {
	if err := s.fits(in.Draft); err != nil {
		return storage.NotApplied(fmt.Errorf("encode change: %w", err))
	}
	if err := s.intend(ctx, m, in); err != nil {
		return storage.NotApplied(fmt.Errorf("record intent: %w", err))
	}
	change, err := call()
	err = dropForeignMark(ctx, err)
	if op := in.Draft.GetOp(); in.Streamed == nil && (op == pb.Op_OP_ADD || op == pb.Op_OP_UPDATE) {
		err = storage.NotApplied(err) // Verify was not called: no bytes became visible
	}
	// From here on the outcome must be recorded, even if the caller's context has ended.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveTimeout)
	defer cancel()
	switch {
	case err == nil:
		return s.complete(ctx, late, m, record.Seal(change))
	case storage.IsNotApplied(err): // any other sentinel in the chain may follow a visible step
		if _, err := s.cfg.Outbox.Outcome(m.ticket, nil); err != nil {
			s.deferDone(m.ticket)
		}
		s.end(m)
		return err
	}
	// The caller gets the store's error even if the look-up finds that the mutation was applied.
	s.orphan(m)
	lerr := s.resolveAll(late, m.queue)
	if lerr == nil && m.outcome != 0 {
		lerr = s.publishNow(late, m)
	}
	if lerr != nil {
		//nolint:errorlint // the marks and class of lerr say nothing about this call
		err = fmt.Errorf("%w; and resolve outcome: %v", err, lerr)
	}
	return err
}

// dropForeignMark returns the error of a call without a NotApplied mark that may come from the cause of
// ctx: the cause can be the error of another call of the same errgroup, and proves nothing about this one.
func dropForeignMark(ctx context.Context, err error) error {
	if ctx.Err() == nil || !storage.IsNotApplied(context.Cause(ctx)) || !storage.IsNotApplied(err) {
		return err
	}
	return fmt.Errorf("%w: %v", ctx.Err(), err) //nolint:errorlint // marks and class may be those of the other call
}

// intend records the intent of a mutation.
func (s *Store) intend(ctx context.Context, m *mutation, in *outbox.Mutation) error {
	s.mu.Lock()
	in.Concurrent, in.Began = m.concurrent, s.cfg.Now()
	s.mu.Unlock()
	ticket, err := s.cfg.Outbox.Intend(ctx, *in)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		return err
	}
	m.ticket, m.began = ticket, in.Began
	s.reschedule(m.queue) // a Change that was ready may have to wait for this mutation
	return nil
}

// complete records the Change of a mutation that was made, and publishes it. late outlives ctx.
func (s *Store) complete(ctx, late context.Context, m *mutation, c *pb.Change) error {
	outcome, recordErr := s.cfg.Outbox.Outcome(m.ticket, c)
	mustRecord := !rebuildable(c) // rebuilt after a crash, it would have another id
	if recordErr == nil && mustRecord {
		recordErr = s.cfg.Outbox.Safe(late)
	}
	s.enqueue(m, outcome, c, recordErr != nil && mustRecord)
	if recordErr == nil {
		finished, err := s.awaitPublish(ctx, m)
		if finished {
			return err
		}
		recordErr = s.cfg.Outbox.Safe(late)
		if recordErr == nil {
			return nil // Run publishes it
		}
	}
	// A failure to record does not matter if the Change is published now.
	if err := s.publishNow(ctx, m); err != nil {
		return notPublished(c, errors.Join(err, recordErr))
	}
	return nil
}

// rebuildable reports whether a Change with the same id can be built from what the store shows.
func rebuildable(c *pb.Change) bool {
	switch c.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		return true
	}
	return false
}

// fits returns an error if the Change of a draft could exceed the size of a message, once the store's
// fields are filled in.
func (s *Store) fits(draft *pb.Change) error {
	c := draft.CloneVT()
	largest := s.largestFields
	c.Id, c.Version, c.Etag, c.Digests = largest.GetId(), largest.GetVersion(), largest.GetEtag(), largest.GetDigests()
	c.Size, c.Provenance, c.Time = 1<<50, pb.Provenance_PROVENANCE_VERIFIED, record.Time(s.cfg.Now())
	if _, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c}); err != nil {
		return retry.Permanent(err)
	}
	return nil
}

// largestReported returns a Change with the fields that a store fills in, each at its maximum size.
func (s *Store) largestReported() *pb.Change {
	c := &pb.Change{
		Id: strings.Repeat("0", 32), Version: strings.Repeat("v", 1024), Etag: strings.Repeat("e", 1024),
		Digests: map[string]string{},
	}
	for _, alg := range s.withDigests([]string{digest.SHA1}) {
		c.Digests[alg] = strings.Repeat("0", digest.HexLen(alg))
	}
	return c
}
