package mem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// markNotApplied marks the error of a mutation: this store returns all of them before anything changes.
func markNotApplied(err *error) { *err = storage.NotApplied(*err) }

// Put implements storage.Store.
func (s *Store) Put(
	ctx context.Context, space, id string, r io.Reader, o storage.PutOptions,
) (_ storage.Object, err error) {
	defer markNotApplied(&err)
	if err := errors.Join(s.fits(o.Properties), s.check(space, id, o.Condition)); err != nil {
		return storage.Object{}, err
	}
	algs, err := o.Algorithms(s.cfg.Digests)
	if err != nil {
		return storage.Object{}, err
	}
	h, err := s.pool.Get(algs...)
	if err != nil {
		return storage.Object{}, err
	}
	defer s.pool.Put(h)
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.TeeReader(contextReader{ctx, r}, h)); err != nil {
		return storage.Object{}, fmt.Errorf("read stream: %w", err)
	}
	digests, err := o.Accept(h.Sum(), h.Size())
	if err != nil {
		return storage.Object{}, fmt.Errorf("item %q: %w", id, err)
	}
	return s.commit(space, &item{storage.Object{
		Item: id, Size: int64(b.Len()), Digests: digests, Properties: properties(o.Properties), Original: o.Original,
	}, b.Bytes()}, o)
}

// check checks a condition before any byte is read; commit checks it again.
func (s *Store) check(space, id string, c storage.Condition) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, old, err := s.find(space, id)
	if sp == nil {
		return err
	}
	return old.check(c)
}

func (it *item) check(c storage.Condition) error {
	if it == nil {
		return c.Check(storage.Object{}, false)
	}
	return c.Check(it.object, true)
}

func (s *Store) commit(space string, it *item, o storage.PutOptions) (storage.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := it.object.Item
	sp, old, err := s.find(space, id)
	if sp == nil {
		return storage.Object{}, err
	}
	if err := old.check(o.Condition); err != nil && !s.cfg.Weak.Conditions {
		return storage.Object{}, fmt.Errorf("item %q: %w", id, err)
	}
	it.object.Modified = s.nextTime(sp, id)
	if old != nil && o.KeepReplaced {
		s.keep(space, old, storage.KeptReplaced, it.object.Modified)
	}
	it.object.Version = s.version(it.bytes)
	sp.insert(it)
	return clone(it.object), nil
}

func (sp *spaceItems) insert(it *item) {
	id := it.object.Item
	if i, found := slices.BinarySearch(sp.order, id); !found {
		sp.order = slices.Insert(sp.order, i, id)
	}
	sp.items[id] = it
}

func (sp *spaceItems) remove(id string) {
	if i, found := slices.BinarySearch(sp.order, id); found {
		sp.order = slices.Delete(sp.order, i, i+1)
	}
	delete(sp.items, id)
}

// nextTime returns the time of a write of an item, later than all before; s.mu is held.
func (s *Store) nextTime(sp *spaceItems, id string) time.Time {
	now := s.cfg.Now().UTC().Truncate(s.cfg.Weak.Times)
	if last := sp.lastTimes[id]; !now.After(last) && s.cfg.Weak.Times <= time.Millisecond {
		now = last.Add(time.Millisecond)
	}
	sp.lastTimes[id] = now
	return now
}

// now returns the store's time, not before the last write of an item; sp may be nil. s.mu is held.
func (s *Store) now(sp *spaceItems, id string) time.Time {
	now := s.cfg.Now().UTC().Truncate(s.cfg.Weak.Times)
	if sp != nil && now.Before(sp.lastTimes[id]) {
		return sp.lastTimes[id]
	}
	return now
}

// fits returns an error if properties exceed MaxPropertyBytes.
func (s *Store) fits(p storage.Properties) error {
	n := 0
	for k, v := range p.User {
		n += len(k) + len(v)
	}
	if bound := s.cfg.Weak.MaxPropertyBytes; bound > 0 && n > bound {
		return retry.Permanent(fmt.Errorf("properties of %d bytes, at most %d: %w", n, bound, storage.ErrTooLarge))
	}
	return nil
}

// SetProperties implements storage.Store. Neither version nor time changes.
func (s *Store) SetProperties(
	ctx context.Context, space, id string, p storage.Properties, c storage.Condition,
) (_ storage.Object, err error) {
	defer markNotApplied(&err)
	if s.cfg.Weak.Properties {
		return storage.Object{}, retry.Permanent(fmt.Errorf("set properties of item %q: %w", id, storage.ErrUnsupported))
	}
	if err := s.fits(p); err != nil {
		return storage.Object{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, old, err := s.find(space, id)
	if err != nil {
		return storage.Object{}, err
	}
	if err := old.check(c); err != nil {
		return storage.Object{}, fmt.Errorf("item %q: %w", id, err)
	}
	it := *old
	it.object.Properties, it.object.PropertiesUnknown = properties(p), false
	sp.items[id] = &it
	return clone(it.object), nil
}

func properties(p storage.Properties) storage.Properties {
	return storage.Properties{MediaType: p.MediaType, User: maps.Clone(p.User)}
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, space, id string, o storage.DeleteOptions) (_ storage.Deleted, err error) {
	defer markNotApplied(&err)
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, old, err := s.find(space, id)
	if err != nil {
		return storage.Deleted{}, err
	}
	if err := old.check(o.Condition); err != nil {
		return storage.Deleted{}, fmt.Errorf("item %q: %w", id, err)
	}
	now := s.nextTime(sp, id)
	if o.KeepDeleted {
		s.keep(space, old, storage.KeptDeleted, now)
	}
	sp.remove(id)
	return storage.Deleted{Object: clone(old.object), Time: now}, nil
}

func (s *Store) keep(space string, it *item, reason storage.KeptReason, at time.Time) {
	s.lastKept++
	k := storage.Kept{ID: strconv.FormatInt(s.lastKept, 10), Object: clone(it.object), At: at, Reason: reason}
	s.kept = append(s.kept, Kept{space, k, it.bytes})
}

// A contextReader fails when ctx has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, storage.ContextErr(r.ctx)
	}
	return r.r.Read(p)
}
