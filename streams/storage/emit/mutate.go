package emit

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
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
	before, err := s.before(ctx, space, item, o.Condition)
	if err != nil {
		return storage.Object{}, err
	}
	op := pb.Op_OP_ADD
	if before != nil {
		op = pb.Op_OP_UPDATE
	}
	in := Intent{Draft: s.draft(ctx, op, space, item), Before: before}
	in.Draft.MediaType, in.Draft.Properties = o.Properties.MediaType, maps.Clone(o.Properties.User)
	o.Compute = s.with(o.Compute)
	var came *content
	verify := o.Verify
	o.Verify = func(d digest.Set, size int64) error {
		if verify != nil {
			if err := verify(d, size); err != nil {
				return err
			}
		}
		came = &content{maps.Clone(d), size}
		return nil
	}
	var obj storage.Object
	err = s.mutate(ctx, in, func() (*pb.Change, *content, error) {
		var err error
		if obj, err = s.inner.Put(ctx, space, item, r, o); err != nil {
			if came == nil { // the bytes were never judged to be good
				err = &notDone{err}
			}
			return nil, came, err
		}
		c := s.stored(in.Draft, obj)
		if came != nil {
			c.Digests = came.digests // and not what was told beside them
		}
		return c, came, nil
	})
	return obj, err
}

// content is what was streamed.
type content struct {
	digests digest.Set
	size    int64
}

// stored returns the Change that tells of o.
func (s *Store) stored(draft *pb.Change, o storage.Object) *pb.Change {
	c := record.Content(s.copyOf(draft), o)
	c.Op, c.User, c.Agent, c.Origin, c.Sequence = draft.Op, draft.User, draft.Agent, draft.Origin, draft.Sequence
	return c
}

// SetProperties implements storage.Store. It emits SET_PROPERTIES.
func (s *Store) SetProperties(ctx context.Context, space, item string, p storage.Properties, c storage.Condition) (storage.Object, error) {
	before, err := s.before(ctx, space, item, storage.Condition{})
	if err != nil {
		return storage.Object{}, err
	}
	in := Intent{Draft: s.draft(ctx, pb.Op_OP_SET_PROPERTIES, space, item), Before: before}
	in.Draft.MediaType, in.Draft.Properties = p.MediaType, maps.Clone(p.User)
	var obj storage.Object
	err = s.mutate(ctx, in, func() (*pb.Change, *content, error) {
		var err error
		if obj, err = s.inner.SetProperties(ctx, space, item, p, c); err != nil {
			return nil, nil, err
		}
		return s.undated(s.stored(in.Draft, obj)), nil, nil
	})
	return obj, err
}

// Delete implements storage.Store. It emits DELETE.
func (s *Store) Delete(ctx context.Context, space, item string, o storage.DeleteOptions) (storage.Deleted, error) {
	before, err := s.before(ctx, space, item, storage.Condition{})
	if err != nil {
		return storage.Deleted{}, err
	}
	in := Intent{Draft: s.draft(ctx, pb.Op_OP_DELETE, space, item), Before: before}
	var d storage.Deleted
	err = s.mutate(ctx, in, func() (*pb.Change, *content, error) {
		var err error
		if d, err = s.inner.Delete(ctx, space, item, o); err != nil {
			return nil, nil, err
		}
		return s.deleted(in.Draft, d), nil, nil
	})
	return d, err
}

func (s *Store) deleted(draft *pb.Change, d storage.Deleted) *pb.Change {
	c := record.Delete(s.copyOf(draft), d)
	c.User, c.Agent, c.Origin, c.Sequence = draft.User, draft.Agent, draft.Origin, draft.Sequence
	return c
}

// CreateSpace implements storage.Store. It emits CREATE_SPACE.
func (s *Store) CreateSpace(ctx context.Context, space storage.Space) error {
	return s.onSpace(ctx, pb.Op_OP_CREATE_SPACE, space, func() error { return s.inner.CreateSpace(ctx, space) })
}

// SetSpace implements storage.Store. It emits SET_ACL where only the ACL changes, else
// SET_SPACE_PROPERTIES; both carry all of both.
func (s *Store) SetSpace(ctx context.Context, space storage.Space) error {
	if err := storage.CheckSpace(space.Name); err != nil {
		return retry.Permanent(err)
	}
	was, err := s.inner.StatSpace(ctx, space.Name)
	if err != nil {
		return err
	}
	op := pb.Op_OP_SET_SPACE_PROPERTIES
	if maps.Equal(was.Properties, space.Properties) && !maps.Equal(was.ACL, space.ACL) {
		op = pb.Op_OP_SET_ACL
	}
	return s.onSpace(ctx, op, space, func() error { return s.inner.SetSpace(ctx, space) })
}

// DeleteSpace implements storage.Store. It emits DELETE_SPACE.
func (s *Store) DeleteSpace(ctx context.Context, space string) error {
	return s.onSpace(ctx, pb.Op_OP_DELETE_SPACE, storage.Space{Name: space}, func() error { return s.inner.DeleteSpace(ctx, space) })
}

func (s *Store) onSpace(ctx context.Context, op pb.Op, space storage.Space, call func() error) error {
	if err := storage.CheckSpace(space.Name); err != nil {
		return retry.Permanent(err)
	}
	in := Intent{Draft: s.draft(ctx, op, space.Name, "")}
	in.Draft.Properties, in.Draft.Acl = maps.Clone(space.Properties), maps.Clone(space.ACL)
	return s.mutate(ctx, in, func() (*pb.Change, *content, error) {
		if err := call(); err != nil {
			return nil, nil, err
		}
		return s.undated(proto.CloneOf(in.Draft)), nil, nil
	})
}

// before returns what is there, as far as it matters; nil where the item is absent. A
// condition that says it saves the question.
func (s *Store) before(ctx context.Context, space, item string, c storage.Condition) (*storage.Object, error) {
	if err := errors.Join(storage.CheckSpace(space), storage.CheckItem(item)); err != nil {
		return nil, retry.Permanent(err)
	}
	switch {
	case c.Absent:
		return nil, nil
	case c.Version != "":
		return &storage.Object{Item: item, Version: c.Version}, nil
	}
	o, err := s.inner.Stat(ctx, space, item)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &o, nil
}

// undated gives a Change that the store does not date the emitter's time. Two
// changes of one item or space never have the same.
func (s *Store) undated(c *pb.Change) *pb.Change {
	now := s.cfg.Now().UnixMilli()
	key := schemas.ItemKey("", c.GetSpace(), c.GetItem())
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.times) > 1<<12 {
		maps.DeleteFunc(s.times, func(_ string, t int64) bool { return t < now })
	}
	now = max(now, s.times[key]+1)
	s.times[key] = now
	c.Time = record.Time(time.UnixMilli(now))
	return c
}

// notDone marks an error with which a call proves that it did nothing.
type notDone struct{ error }

func (e *notDone) Unwrap() error { return e.error }

// didNothing reports whether a store's error proves that nothing was done.
func didNothing(err error) bool {
	var proof *notDone
	return errors.As(err, &proof) || slices.ContainsFunc([]error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrExists, storage.ErrNotEmpty, storage.ErrChanged,
		storage.ErrDigest, storage.ErrName, storage.ErrReadOnly, storage.ErrUnsupported,
	}, func(known error) bool { return errors.Is(err, known) })
}

// lookTime bounds how long a failed call is looked into, and an outcome is noted, when
// the caller has gone.
const lookTime = 10 * time.Second

// mutate makes one mutation and tells of it: size, intent, call, outcome, publish, done.
func (s *Store) mutate(ctx context.Context, in Intent, call func() (*pb.Change, *content, error)) error {
	if err := s.fits(in.Draft); err != nil {
		return fmt.Errorf("refuse a change that cannot be told: %w", err)
	}
	s.mu.Lock()
	s.live[in.Draft.Sequence] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.live, in.Draft.Sequence)
	}()
	ticket, err := s.cfg.Outbox.Intend(ctx, in)
	if err != nil {
		return fmt.Errorf("note the intent: %w", err)
	}
	change, came, err := call()
	// From here on what was done must be noted, also when the caller has gone.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime)
	defer cancel()
	if err != nil {
		if didNothing(err) {
			return errors.Join(unwrapped(err), s.cfg.Outbox.Outcome(late, ticket, nil))
		}
		// Whatever comes of it: the store said that it failed.
		if lerr := s.resolve(late, Pending{Ticket: ticket, Intent: in}, came); lerr != nil {
			err = fmt.Errorf("%w; and look what was done: %w", err, lerr)
		}
		return err
	}
	record.Seal(change)
	noted := s.cfg.Outbox.Outcome(late, ticket, change) // where it is told now, it need not be noted
	if err := s.tell(ctx, ticket, change); err != nil {
		return &NotPublishedError{change, errors.Join(err, noted)}
	}
	return nil
}

func unwrapped(err error) error {
	var proof *notDone
	if errors.As(err, &proof) {
		return proof.error
	}
	return err
}

// A NotPublishedError tells of a mutation that was done and is not published yet. It
// wraps ErrNotPublished, and why.
type NotPublishedError struct {
	Change *pb.Change
	Err    error
}

func (e *NotPublishedError) Error() string {
	return fmt.Sprintf("%s of %q in %q: %v: %v", e.Change.GetOp(), e.Change.GetItem(), e.Change.GetSpace(), ErrNotPublished, e.Err)
}

// Unwrap returns ErrNotPublished and the reason.
func (e *NotPublishedError) Unwrap() []error { return []error{ErrNotPublished, e.Err} }

// fits says whether the Change that comes of a draft can be a message, with room for
// what the store will say.
func (s *Store) fits(draft *pb.Change) error {
	c := proto.CloneOf(draft)
	c.Version, c.Etag = strings.Repeat("v", 1024), strings.Repeat("e", 1024)
	c.Size, c.Provenance, c.Time = 1<<50, pb.Provenance_PROVENANCE_VERIFIED, record.Time(s.cfg.Now())
	c.Digests = map[string]string{}
	for _, alg := range s.with([]string{digest.SHA1}) {
		c.Digests[alg] = strings.Repeat("0", digest.HexLen(alg))
	}
	_, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
	if err != nil {
		return retry.Permanent(err)
	}
	return nil
}

func (s *Store) lineOf(key string) *line {
	h := fnv.New32a()
	h.Write([]byte(key))
	return &s.lines[h.Sum32()%lineCount]
}
