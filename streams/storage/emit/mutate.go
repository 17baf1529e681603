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
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Put implements storage.Store. It emits ADD, or UPDATE where something was there.
func (s *Store) Put(ctx context.Context, space, item string, r io.Reader, o storage.PutOptions) (storage.Object, error) {
	var obj storage.Object
	err := s.mutateItem(ctx, space, item, o.Condition, func(m *mutation, before *pb.Change) error {
		op := pb.Op_OP_ADD
		if before != nil {
			op = pb.Op_OP_UPDATE
		}
		in := Intent{Draft: s.draft(ctx, op, space, item), Before: before}
		in.Draft.MediaType, in.Draft.Properties = o.Properties.MediaType, maps.Clone(o.Properties.User)
		o.Compute = s.withDigests(o.Compute)
		o.Verify = s.verifyAndRecord(m, o.Verify)
		return s.mutate(ctx, m, in, func() (*pb.Change, error) {
			var err error
			if obj, err = s.inner.Put(ctx, space, item, r, o); err != nil {
				return nil, err
			}
			c := putChange(in.Draft, obj)
			if m.streamed != nil {
				c.Digests = maps.Clone(m.streamed.Digests) // and not what was told beside them
			}
			return c, nil
		})
	})
	return obj, err
}

// watched has it noted what was streamed, before it becomes visible.
func (s *Store) verifyAndRecord(m *mutation, verify func(digest.Set, int64) error) func(digest.Set, int64) error {
	return func(d digest.Set, size int64) error {
		if verify != nil {
			if err := verify(d, size); err != nil {
				return err
			}
		}
		came := Content{maps.Clone(d), size}
		if err := s.cfg.Outbox.Content(m.ticket, came); err != nil {
			return fmt.Errorf("note what came: %w", err)
		}
		m.streamed = &came
		return nil
	}
}

// stored returns the Change that tells of o.
func putChange(draft *pb.Change, o storage.Object) *pb.Change {
	c := attributed(draft, record.Content(schemas.CopyOf(draft), o))
	c.Op = draft.GetOp()
	return c
}

// SetProperties implements storage.Store. It emits SET_PROPERTIES.
func (s *Store) SetProperties(ctx context.Context, space, item string, p storage.Properties, c storage.Condition) (storage.Object, error) {
	var obj storage.Object
	err := s.mutateItem(ctx, space, item, storage.Condition{}, func(m *mutation, before *pb.Change) error {
		if err := s.checkAbsence(ctx, before); err != nil {
			return err
		}
		in := Intent{Draft: s.draft(ctx, pb.Op_OP_SET_PROPERTIES, space, item), Before: before}
		in.Draft.MediaType, in.Draft.Properties = p.MediaType, maps.Clone(p.User)
		return s.mutate(ctx, m, in, func() (*pb.Change, error) {
			var err error
			if obj, err = s.inner.SetProperties(ctx, space, item, p, c); err != nil {
				return nil, err
			}
			return s.stampNow(putChange(in.Draft, obj)), nil
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
		in := Intent{Draft: s.draft(ctx, pb.Op_OP_DELETE, space, item), Before: before}
		return s.mutate(ctx, m, in, func() (*pb.Change, error) {
			var err error
			if d, err = s.inner.Delete(ctx, space, item, o); err != nil {
				return nil, err
			}
			return attributed(in.Draft, record.Delete(schemas.CopyOf(in.Draft), d)), nil
		})
	})
	return d, err
}

// by gives c what a draft says of who and which way.
func attributed(draft, c *pb.Change) *pb.Change {
	c.User, c.Agent, c.Origin, c.Sequence = draft.GetUser(), draft.GetAgent(), draft.GetOrigin(), draft.GetSequence()
	return c
}

// onItem calls f with a mutation that is known, and with what is there.
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

// before returns what is there, as far as it matters; nil where the item is absent. A
// condition that says it saves the question.
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

// SetSpace implements storage.Store. It emits SET_ACL where only the ACL changes, else
// SET_SPACE_PROPERTIES; both carry all of both.
func (s *Store) SetSpace(ctx context.Context, space storage.Space) error {
	return s.mutateSpace(ctx, pb.Op_OP_SET_SPACE_PROPERTIES, space, func() error { return s.inner.SetSpace(ctx, space) })
}

// DeleteSpace implements storage.Store. It emits DELETE_SPACE.
func (s *Store) DeleteSpace(ctx context.Context, space string) error {
	return s.mutateSpace(ctx, pb.Op_OP_DELETE_SPACE, storage.Space{Name: space}, func() error { return s.inner.DeleteSpace(ctx, space) })
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
	was, err := s.inner.StatSpace(ctx, space.Name)
	absent := errors.Is(err, storage.ErrNoSpace)
	if absent && op != pb.Op_OP_SET_SPACE_PROPERTIES {
		err = s.checkMarker(ctx, time.Now())
		absent = err == nil
	}
	if err != nil && (!absent || op == pb.Op_OP_SET_SPACE_PROPERTIES) {
		return storage.NotApplied(err)
	}
	if op == pb.Op_OP_SET_SPACE_PROPERTIES && maps.Equal(was.Properties, space.Properties) && !maps.Equal(was.ACL, space.ACL) {
		op = pb.Op_OP_SET_ACL
	}
	in := Intent{Draft: s.draft(ctx, op, space.Name, "")}
	in.Draft.Properties, in.Draft.Acl = maps.Clone(space.Properties), maps.Clone(space.ACL)
	if !absent {
		in.Before = spaceChange(in.Draft, was)
	}
	return s.mutate(ctx, m, in, func() (*pb.Change, error) {
		if err := call(); err != nil {
			return nil, err
		}
		return s.stampNow(proto.CloneOf(in.Draft)), nil
	})
}

// spaceChange returns what a space is, as a Change without an op.
func spaceChange(draft *pb.Change, o storage.Space) *pb.Change {
	return &pb.Change{
		Account: draft.GetAccount(), Store: draft.GetStore(), Space: draft.GetSpace(),
		Properties: maps.Clone(o.Properties), Acl: maps.Clone(o.ACL),
	}
}

// undated gives a Change that the store does not date the emitter's time. Two changes of one item or space never have
// the same, and none is dated ahead of the clock, by which the store may date the next one: a Change waits until the
// millisecond of the one before it is over.
func (s *Store) stampNow(c *pb.Change) *pb.Change { return s.stampFrom(time.Time{}, c) }

// datedFrom is undated for a Change of what was so at a time; zero is now.
func (s *Store) stampFrom(from time.Time, c *pb.Change) *pb.Change {
	key := s.key(c.GetSpace(), c.GetItem())
	for before := (time.Time{}); ; {
		now := s.cfg.Now()
		least := from
		if from.IsZero() {
			least = now
		}
		at, ok := s.nextTime(key, least.UnixMilli(), now.UnixMilli(), now.Equal(before)) // a clock that stands still is not waited for
		if ok {
			c.Time = record.Time(time.UnixMilli(at))
			return c
		}
		before = now
		<-time.After(time.UnixMilli(at).Sub(now))
	}
}

// longestAhead is how many milliseconds a clock may be behind the last Change to be waited for: one that was set back
// further is not.
const maxAhead = 1000

// date returns the time in ms of the next Change of a key, least or later, and whether it is taken: unless always, it is
// not while the last Change of the key has it be ahead of the clock.
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

// lookTime bounds how long a failed call is looked into, and an outcome is noted, when
// the caller has gone.
const resolveTimeout = 10 * time.Second

// mutate makes one mutation and tells of it: size, intent, call, outcome, publish, done.
func (s *Store) mutate(ctx context.Context, m *mutation, in Intent, call func() (*pb.Change, error)) error {
	if err := s.fits(in.Draft); err != nil {
		return storage.NotApplied(fmt.Errorf("refuse a change that cannot be told: %w", err))
	}
	if err := s.intend(ctx, m, in); err != nil {
		return storage.NotApplied(fmt.Errorf("note the intent: %w", err))
	}
	change, err := call()
	err = dropForeignMark(ctx, err)
	if op := in.Draft.GetOp(); m.streamed == nil && (op == pb.Op_OP_ADD || op == pb.Op_OP_UPDATE) {
		err = storage.NotApplied(err) // the bytes were never judged to be good
	}
	// From here on what was done must be noted, also when the caller has gone.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveTimeout)
	defer cancel()
	switch {
	case err == nil:
		return s.complete(ctx, late, m, record.Seal(change))
	case storage.IsNotApplied(err): // anything else in its chain may have been found after a step that others see
		if _, noted := s.cfg.Outbox.Outcome(m.ticket, nil); noted != nil {
			s.deferDone(m.ticket)
		}
		s.end(m)
		return err
	}
	// Whatever comes of it: the store said that it failed.
	s.orphan(m)
	lerr := s.resolveAll(late, m.queue)
	if m.queued != nil && lerr == nil {
		lerr = s.publishNow(late, m)
	}
	if lerr != nil {
		err = fmt.Errorf("%w; and look what was done: %v", err, lerr) //nolint:errorlint // its marks and class are not of this call
	}
	return err
}

// ofCall returns the error of a call without the mark of the error that ended ctx, as that of another call of its
// group: it proves nothing of this one.
func dropForeignMark(ctx context.Context, err error) error {
	if ctx.Err() == nil || !storage.IsNotApplied(context.Cause(ctx)) || !storage.IsNotApplied(err) {
		return err
	}
	return fmt.Errorf("%w: %v", ctx.Err(), err) //nolint:errorlint // its marks and class may be of the other call
}

// intend notes the intent of a mutation.
func (s *Store) intend(ctx context.Context, m *mutation, in Intent) error {
	s.mu.Lock()
	in.Concurrent, in.Began = m.concurrent, s.cfg.Now()
	s.mu.Unlock()
	ticket, err := s.cfg.Outbox.Intend(ctx, in)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		return err
	}
	m.ticket, m.began = ticket, in.Began
	s.reschedule(m.queue) // what was ready may have to wait for it now
	return nil
}

// done notes the Change of a mutation that was made, and tells of it. Late outlives ctx.
func (s *Store) complete(ctx, late context.Context, m *mutation, c *pb.Change) error {
	settled, noted := s.cfg.Outbox.Outcome(m.ticket, c)
	again := !rebuildable(c) // after a crash it would be told as another Change
	if noted == nil && again {
		noted = s.cfg.Outbox.Safe(late)
	}
	s.enqueue(m, settled, c, noted != nil && again)
	if noted == nil && s.cfg.Outbox.Durable() {
		told, err := s.awaitPublish(ctx, m)
		if told {
			return err
		}
		noted = s.cfg.Outbox.Safe(late)
		if noted == nil {
			return nil // Run tells of it
		}
	}
	// Where it is told now, it need not be noted.
	if err := s.publishNow(ctx, m); err != nil {
		return &NotPublishedError{c, errors.Join(err, noted)}
	}
	return nil
}

// rebuildable reports whether a Change with the same id can be made of what the store shows.
func rebuildable(c *pb.Change) bool {
	switch c.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		return true
	}
	return false
}

// fits says whether the Change that comes of a draft can be a message, with room for
// what the store will say.
func (s *Store) fits(draft *pb.Change) error {
	c := draft.CloneVT()
	c.Id, c.Version, c.Etag, c.Digests = s.largestFields.GetId(), s.largestFields.GetVersion(), s.largestFields.GetEtag(), s.largestFields.GetDigests()
	c.Size, c.Provenance, c.Time = 1<<50, pb.Provenance_PROVENANCE_VERIFIED, record.Time(s.cfg.Now())
	if _, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c}); err != nil {
		return retry.Permanent(err)
	}
	return nil
}

// longestSaid returns what stores may say of an item, as long as it gets.
func (s *Store) largestReported() *pb.Change {
	c := &pb.Change{
		Id: strings.Repeat("0", 32), Version: strings.Repeat("v", 1024), Etag: strings.Repeat("e", 1024), Digests: map[string]string{},
	}
	for _, alg := range s.withDigests([]string{digest.SHA1}) {
		c.Digests[alg] = strings.Repeat("0", digest.HexLen(alg))
	}
	return c
}
