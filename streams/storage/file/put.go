package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// Put implements storage.Store. It writes the bytes to a temporary file, verifies and syncs it,
// and renames it to the item's path.
func (s *Store) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (_ storage.Object, err error) {
	var w *write
	defer func() {
		if w == nil || !w.visible {
			err = storage.NotApplied(err)
		}
	}()
	p, err := newItemPath(space, item)
	if err != nil {
		return storage.Object{}, err
	}
	if err := checkProperties(o.Properties); err != nil {
		return storage.Object{}, err
	}
	sess, err := s.acquireForWrite()
	if err != nil {
		return storage.Object{}, err
	}
	defer s.release(sess)
	if err := check(sess, p, o.Condition); err != nil { // fail before r is read; tryCommit checks again
		return storage.Object{}, err
	}
	t, err := sess.temp()
	if err != nil {
		return storage.Object{}, classify(err)
	}
	defer t.discard()
	digests, err := s.stream(ctx, t, r, o)
	if err != nil {
		return storage.Object{}, fmt.Errorf("put item %q: %w", item, classify(err))
	}
	w = &write{s: s, sess: sess, p: p, t: t, o: o, digests: digests}
	defer w.discard()
	if err := w.syncEarly(); err != nil {
		return storage.Object{}, fmt.Errorf("put item %q: %w", item, classify(err))
	}
	if err := w.commit(ctx); err != nil {
		return storage.Object{}, fmt.Errorf("put item %q: %w", item, classify(err))
	}
	return object(item, &w.st, newMetadata(&w.st, maps.Clone(digests), o.Properties, newOriginal(o.Original))), nil
}

// check returns an error if the condition does not hold or the space is absent. It takes no lock.
func check(sess *session, p itemPath, c storage.Condition) error {
	if c == (storage.Condition{}) {
		return sess.checkSpace(p.space)
	}
	_, st, err := sess.locate(p)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	return c.Check(storage.Object{Version: versionOf(st.Mtim.Nano())}, err == nil)
}

// stream writes r to t and verifies its digests and size. It returns the digests to record.
func (s *Store) stream(ctx context.Context, t *temp, r io.Reader, o storage.PutOptions) (digest.Set, error) {
	algs, err := o.Algorithms(s.cfg.digests)
	if err != nil {
		return nil, err
	}
	h, err := s.pool.Get(algs...)
	if err != nil {
		return nil, err
	}
	defer s.pool.Put(h)
	buf := s.bufs.Get().(*[]byte)
	defer s.bufs.Put(buf)
	for err == nil {
		var n int
		if n, err = fill(ctx, r, *buf); n > 0 {
			_, _ = h.Write((*buf)[:n]) // never fails
			if _, err := t.Write((*buf)[:n]); err != nil {
				return nil, err
			}
		}
	}
	if err != io.EOF { //nolint:errorlint // an error that wraps EOF means a broken stream
		return nil, fmt.Errorf("read the bytes to put: %w", err)
	}
	return o.Accept(h.Sum(), h.Size())
}

// fill reads until b is full, r ends, or ctx is done.
func fill(ctx context.Context, r io.Reader, b []byte) (n int, err error) {
	for empty := 0; n < len(b) && err == nil; empty++ {
		if ctx.Err() != nil {
			return n, storage.ContextErr(ctx)
		}
		var m int
		m, err = r.Read(b[n:])
		n += m
		if m > 0 {
			empty = 0
		} else if empty == 100 && err == nil {
			return n, io.ErrNoProgress
		}
	}
	return n, err
}
