// Package lazy opens a store at its first use, for stores that may be unavailable when the process
// starts.
//
// Until the store's marker has been read once, every operation on spaces and items reads the marker
// first, and fails with an error of class unavailable if that fails. So an unmounted root does not
// look like an empty store. After that, operations go directly to the driver, which detects by itself
// that the store is gone. While the marker is being read, these callers wait no longer than their
// contexts, however long an access to the root hangs. WriteMarker, Path and Driver open the driver
// without its marker, and wait until that has returned.
package lazy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A Store is a driver's store that is opened at its first use. Its methods may be called
// concurrently.
type Store struct {
	kind       string // the driver's name
	openDriver func(context.Context) (storage.Store, error)

	opened atomic.Pointer[storage.Store] // the driver; nil until its marker was read

	opening sync.Mutex    // held while the driver is opened, which may block
	driver  storage.Store // guarded by opening; nil: not opened yet

	mu        sync.Mutex   // guards lastProbe
	lastProbe *markerProbe // the latest probe
}

// A markerProbe is one attempt to read the marker. err is set before done is closed.
type markerProbe struct {
	done chan struct{}
	err  error
}

var (
	_ storage.Store   = (*Store)(nil)
	_ storage.Locator = (*Store)(nil)
	_ storage.Keeper  = (*Store)(nil)
)

// New returns a store of the driver kind. open opens the driver; it is called at most once at a
// time, and again only after an error.
func New(kind string, open func(context.Context) (storage.Store, error)) *Store {
	return &Store{kind: kind, openDriver: open}
}

// Driver opens the driver if it is not open, and does not read the marker: for commands that inspect
// or mark a store. It may block for as long as an access to the root does.
func (s *Store) Driver(ctx context.Context) (storage.Store, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.driver == nil {
		d, err := s.openDriver(ctx)
		if err != nil {
			return nil, err
		}
		s.driver = d
	}
	return s.driver, nil
}

// Opened reports whether the marker has been read once. The store may have become unavailable since.
func (s *Store) Opened() bool { return s.opened.Load() != nil }

// Available returns the driver if its marker was read or can be read now. Otherwise the error is of
// class unavailable.
func (s *Store) Available(ctx context.Context) (storage.Store, error) {
	if d := s.opened.Load(); d != nil {
		return *d, nil
	}
	l := s.startProbe(ctx)
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil, retry.Unavailable(fmt.Errorf("look for the store's marker: %w", storage.ContextErr(ctx)))
	}
	if l.err != nil {
		return nil, retry.Unavailable(l.err)
	}
	return *s.opened.Load(), nil
}

// startProbe starts to read the marker, or returns the probe that is running. At most one goroutine
// runs per store, and callers do not wait for it without a limit: access to a network mount can
// hang indefinitely.
func (s *Store) startProbe(ctx context.Context) *markerProbe {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastProbe != nil {
		select {
		case <-s.lastProbe.done:
		default:
			return s.lastProbe
		}
	}
	l := &markerProbe{done: make(chan struct{})}
	s.lastProbe = l
	ctx = context.WithoutCancel(ctx) // other callers wait for it too
	go func() {
		defer close(l.done)
		d, err := s.Driver(ctx)
		if err == nil {
			err = d.Marker(ctx)
		}
		if l.err = err; err == nil {
			s.opened.Store(&d)
		}
	}()
	return l
}

// Close closes the driver if it has resources. It does not wait for a driver that is still being
// opened.
func (s *Store) Close() error {
	if !s.opening.TryLock() {
		return nil
	}
	defer s.opening.Unlock()
	if c, ok := s.driver.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// errNoFiles reports that a store does not have paths.
var errNoFiles = errors.New("the store does not keep files")

// Path returns the path of an item's file, in a store that keeps items in files. It does not read the
// marker.
func (s *Store) Path(ctx context.Context, space, item string) (string, error) {
	d, err := s.Driver(ctx)
	if err != nil {
		return "", err
	}
	files, ok := d.(interface {
		Path(space, item string) (string, error)
	})
	if !ok {
		return "", errNoFiles
	}
	return files.Path(space, item)
}

// Capabilities implements storage.Store. Before the marker was read only the kind is known; callers
// use another method first.
func (s *Store) Capabilities() storage.Capabilities {
	if d := s.opened.Load(); d != nil {
		return (*d).Capabilities()
	}
	return storage.Capabilities{Kind: s.kind}
}

// Spaces implements storage.Store.
func (s *Store) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		d, err := s.Available(ctx)
		if err != nil {
			yield("", err)
			return
		}
		d.Spaces(ctx)(yield)
	}
}

// StatSpace implements storage.Store.
func (s *Store) StatSpace(ctx context.Context, space string) (storage.Space, error) {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.Space{}, err
	}
	return d.StatSpace(ctx, space)
}

// CreateSpace implements storage.Store.
func (s *Store) CreateSpace(ctx context.Context, space storage.Space) error {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	return d.CreateSpace(ctx, space)
}

// SetSpace implements storage.Store.
func (s *Store) SetSpace(ctx context.Context, space storage.Space) error {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	return d.SetSpace(ctx, space)
}

// DeleteSpace implements storage.Store.
func (s *Store) DeleteSpace(ctx context.Context, space string) error {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	return d.DeleteSpace(ctx, space)
}

// List implements storage.Store.
func (s *Store) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		d, err := s.Available(ctx)
		if err != nil {
			yield(storage.Object{}, err)
			return
		}
		d.List(ctx, space, after)(yield)
	}
}

// Stat implements storage.Store.
func (s *Store) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.Object{}, err
	}
	return d.Stat(ctx, space, item)
}

// Open implements storage.Store.
func (s *Store) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	d, err := s.Available(ctx)
	if err != nil {
		return nil, storage.Object{}, err
	}
	return d.Open(ctx, space, item, version)
}

// Locate implements storage.Locator.
func (s *Store) Locate(ctx context.Context, ref storage.Ref) (storage.Location, error) {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.Location{}, err
	}
	return storage.Locate(ctx, d, ref)
}

// Kept implements storage.Keeper.
func (s *Store) Kept(ctx context.Context, space string, items []string) iter.Seq2[storage.Kept, error] {
	return func(yield func(storage.Kept, error) bool) {
		d, err := s.Available(ctx)
		if err != nil {
			yield(storage.Kept{}, err)
			return
		}
		storage.ListKept(ctx, d, space, items)(yield)
	}
}

// StatKept implements storage.Keeper.
func (s *Store) StatKept(ctx context.Context, ref storage.KeptRef) (storage.Kept, error) {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.Kept{}, err
	}
	return storage.StatKept(ctx, d, ref)
}

// OpenKept implements storage.Keeper.
func (s *Store) OpenKept(ctx context.Context, ref storage.KeptRef) (io.ReadCloser, storage.Kept, error) {
	d, err := s.Available(ctx)
	if err != nil {
		return nil, storage.Kept{}, err
	}
	return storage.OpenKept(ctx, d, ref)
}

// Put implements storage.Store.
func (s *Store) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.Object{}, storage.NotApplied(err)
	}
	return d.Put(ctx, space, item, r, o)
}

// SetProperties implements storage.Store.
func (s *Store) SetProperties(
	ctx context.Context, space, item string, p storage.Properties, c storage.Condition,
) (storage.Object, error) {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.Object{}, storage.NotApplied(err)
	}
	return d.SetProperties(ctx, space, item, p, c)
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, space, item string, o storage.DeleteOptions) (storage.Deleted, error) {
	d, err := s.Available(ctx)
	if err != nil {
		return storage.Deleted{}, storage.NotApplied(err)
	}
	return d.Delete(ctx, space, item, o)
}

// Marker implements storage.Store. Before the marker was read once, a missing marker is an error of
// class unavailable.
func (s *Store) Marker(ctx context.Context) error {
	if d := s.opened.Load(); d != nil {
		return (*d).Marker(ctx)
	}
	_, err := s.Available(ctx)
	return err
}

// WriteMarker implements storage.Store.
func (s *Store) WriteMarker(ctx context.Context) error {
	d, err := s.Driver(ctx)
	if err != nil {
		return err
	}
	return d.WriteMarker(ctx)
}
