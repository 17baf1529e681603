package app

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

// A lazyStore is a store that may be unavailable when the process starts. Until its marker has been
// read once, nothing is read from it or written to it: every operation reads the marker first, and
// fails with an error of class unavailable if that fails. After that, operations go directly to the
// driver, which detects by itself that the store is gone.
type lazyStore struct {
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
	_ storage.Store   = (*lazyStore)(nil)
	_ storage.Locator = (*lazyStore)(nil)
)

// open opens the driver if it is not open. It may block for as long as an access to the root does.
func (m *lazyStore) open(ctx context.Context) (storage.Store, error) {
	m.opening.Lock()
	defer m.opening.Unlock()
	if m.driver == nil {
		d, err := m.openDriver(ctx)
		if err != nil {
			return nil, err
		}
		m.driver = d
	}
	return m.driver, nil
}

// available returns the driver if its marker was read or can be read now.
func (m *lazyStore) available(ctx context.Context) (storage.Store, error) {
	if d := m.opened.Load(); d != nil {
		return *d, nil
	}
	l := m.startProbe(ctx)
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil, retry.Unavailable(fmt.Errorf("look for the store's marker: %w", storage.ContextErr(ctx)))
	}
	if l.err != nil {
		return nil, retry.Unavailable(l.err)
	}
	return *m.opened.Load(), nil
}

// startProbe starts to read the marker, or returns the probe that is running. At most one goroutine
// runs per store, and callers do not wait for it without a limit: access to a network mount can
// hang indefinitely.
func (m *lazyStore) startProbe(ctx context.Context) *markerProbe {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lastProbe != nil {
		select {
		case <-m.lastProbe.done:
		default:
			return m.lastProbe
		}
	}
	l := &markerProbe{done: make(chan struct{})}
	m.lastProbe = l
	ctx = context.WithoutCancel(ctx) // other callers wait for it too
	go func() {
		defer close(l.done)
		d, err := m.open(ctx)
		if err == nil {
			err = d.Marker(ctx)
		}
		if l.err = err; err == nil {
			m.opened.Store(&d)
		}
	}()
	return l
}

// close closes the driver. It does not wait for a driver that is still being opened.
func (m *lazyStore) close() error {
	if !m.opening.TryLock() {
		return nil
	}
	defer m.opening.Unlock()
	if c, ok := m.driver.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// errNoFiles reports that a store does not have paths.
var errNoFiles = errors.New("the store does not keep files")

// Path returns the path of an item's file.
func (m *lazyStore) Path(ctx context.Context, space, item string) (string, error) {
	d, err := m.open(ctx)
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
func (m *lazyStore) Capabilities() storage.Capabilities {
	if d := m.opened.Load(); d != nil {
		return (*d).Capabilities()
	}
	return storage.Capabilities{Kind: m.kind}
}

// Spaces implements storage.Store.
func (m *lazyStore) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		d, err := m.available(ctx)
		if err != nil {
			yield("", err)
			return
		}
		d.Spaces(ctx)(yield)
	}
}

// StatSpace implements storage.Store.
func (m *lazyStore) StatSpace(ctx context.Context, space string) (storage.Space, error) {
	d, err := m.available(ctx)
	if err != nil {
		return storage.Space{}, err
	}
	return d.StatSpace(ctx, space)
}

// CreateSpace implements storage.Store.
func (m *lazyStore) CreateSpace(ctx context.Context, space storage.Space) error {
	d, err := m.available(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	return d.CreateSpace(ctx, space)
}

// SetSpace implements storage.Store.
func (m *lazyStore) SetSpace(ctx context.Context, space storage.Space) error {
	d, err := m.available(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	return d.SetSpace(ctx, space)
}

// DeleteSpace implements storage.Store.
func (m *lazyStore) DeleteSpace(ctx context.Context, space string) error {
	d, err := m.available(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	return d.DeleteSpace(ctx, space)
}

// List implements storage.Store.
func (m *lazyStore) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		d, err := m.available(ctx)
		if err != nil {
			yield(storage.Object{}, err)
			return
		}
		d.List(ctx, space, after)(yield)
	}
}

// Stat implements storage.Store.
func (m *lazyStore) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	d, err := m.available(ctx)
	if err != nil {
		return storage.Object{}, err
	}
	return d.Stat(ctx, space, item)
}

// Open implements storage.Store.
func (m *lazyStore) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	d, err := m.available(ctx)
	if err != nil {
		return nil, storage.Object{}, err
	}
	return d.Open(ctx, space, item, version)
}

// Locate implements storage.Locator.
func (m *lazyStore) Locate(ctx context.Context, ref storage.Ref) (storage.Location, error) {
	d, err := m.available(ctx)
	if err != nil {
		return storage.Location{}, err
	}
	return storage.Locate(ctx, d, ref)
}

// Put implements storage.Store.
func (m *lazyStore) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	d, err := m.available(ctx)
	if err != nil {
		return storage.Object{}, storage.NotApplied(err)
	}
	return d.Put(ctx, space, item, r, o)
}

// SetProperties implements storage.Store.
func (m *lazyStore) SetProperties(
	ctx context.Context, space, item string, p storage.Properties, c storage.Condition,
) (storage.Object, error) {
	d, err := m.available(ctx)
	if err != nil {
		return storage.Object{}, storage.NotApplied(err)
	}
	return d.SetProperties(ctx, space, item, p, c)
}

// Delete implements storage.Store.
func (m *lazyStore) Delete(ctx context.Context, space, item string, o storage.DeleteOptions) (storage.Deleted, error) {
	d, err := m.available(ctx)
	if err != nil {
		return storage.Deleted{}, storage.NotApplied(err)
	}
	return d.Delete(ctx, space, item, o)
}

// Marker implements storage.Store. Before the marker was read once, a missing marker is an error of
// class unavailable.
func (m *lazyStore) Marker(ctx context.Context) error {
	if d := m.opened.Load(); d != nil {
		return (*d).Marker(ctx)
	}
	_, err := m.available(ctx)
	return err
}

// WriteMarker implements storage.Store.
func (m *lazyStore) WriteMarker(ctx context.Context) error {
	d, err := m.open(ctx)
	if err != nil {
		return err
	}
	return d.WriteMarker(ctx)
}
