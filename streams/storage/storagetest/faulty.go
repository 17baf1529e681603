package storagetest

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"

	"github.com/millrace/millrace/streams/storage"
)

// ErrFault is what a Fault without an error of its own returns.
var ErrFault = errors.New("scripted fault")

// A Call is one call of a method of a Faulty store.
type Call struct {
	Method      string // as in storage.Store
	Space, Item string
}

// A Fault is what goes wrong with the calls that it matches. Empty strings match all.
type Fault struct {
	Method, Space, Item string
	// Skip lets so many matching calls through first.
	Skip int
	// Times is how many calls fail: 0 means one, a negative number all.
	Times int
	// Err is what the caller gets; nil: ErrFault.
	Err error
	// Done has the call carried out before its failure is reported; otherwise it is
	// not carried out at all.
	Done bool
	// Mid has a stream fail after After bytes (Open: what is read; Put: what is put) or
	// After entries (List, Spaces), instead of the call.
	Mid   bool
	After int
}

// Faulty is a store whose calls fail as scripted. It is safe for concurrent use.
type Faulty struct {
	inner storage.Store

	mu     sync.Mutex // guards what follows
	faults []*Fault
	before func(context.Context, Call) error
	calls  []Call
}

var _ storage.Store = (*Faulty)(nil)

// NewFaulty returns a store that passes all calls to inner until it is told otherwise.
func NewFaulty(inner storage.Store) *Faulty { return &Faulty{inner: inner} }

// Script adds faults. Of several that match a call the first one that is not used up acts.
func (f *Faulty) Script(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range faults {
		if x.Times == 0 {
			x.Times = 1
		}
		if x.Err == nil {
			x.Err = ErrFault
		}
		f.faults = append(f.faults, &x)
	}
}

// Heal forgets all faults.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Before has every call but Capabilities call g first, outside of any lock; its error
// is returned and nothing is done. A test may change the inner store there.
func (f *Faulty) Before(g func(context.Context, Call) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = g
}

// Calls returns all calls so far but those of Capabilities.
func (f *Faulty) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Count returns how often a method was called.
func (f *Faulty) Count(method string) int {
	n := 0
	for _, c := range f.Calls() {
		if c.Method == method {
			n++
		}
	}
	return n
}

// enter records a call and returns the fault that it meets. An error ends the call.
func (f *Faulty) enter(ctx context.Context, method, space, item string) (Fault, error) {
	c := Call{method, space, item}
	f.mu.Lock()
	f.calls = append(f.calls, c)
	before := f.before
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, c); err != nil {
			return Fault{}, err
		}
	}
	x := f.match(c)
	if x.Err != nil && !x.Done && !x.Mid {
		return x, x.Err
	}
	return x, nil
}

func (f *Faulty) match(c Call) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	is := func(want, got string) bool { return want == "" || want == got }
	for _, x := range f.faults {
		if x.Times == 0 || !is(x.Method, c.Method) || !is(x.Space, c.Space) || !is(x.Item, c.Item) {
			continue
		}
		if x.Skip > 0 {
			x.Skip--
			continue
		}
		if x.Times > 0 {
			x.Times--
		}
		return *x
	}
	return Fault{}
}

// leave returns what a call returns that was carried out with err.
func (x Fault) leave(err error) error {
	if x.Err != nil && x.Done {
		return x.Err
	}
	return err
}

// Capabilities asks inner; it cannot fail.
func (f *Faulty) Capabilities() storage.Capabilities { return f.inner.Capabilities() }

func faultySeq[T any](x Fault, err error, inner iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		if err != nil {
			yield(zero, err)
			return
		}
		n := 0
		for v, err := range inner {
			if x.Err != nil && x.Mid && n == x.After {
				break
			}
			if !yield(v, err) {
				return
			}
			n++
		}
		if x.Err != nil {
			yield(zero, x.Err)
		}
	}
}

// Spaces implements storage.Store. Its fault is found when the listing begins.
func (f *Faulty) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		x, err := f.enter(ctx, "Spaces", "", "")
		faultySeq(x, err, f.inner.Spaces(ctx))(yield)
	}
}

// StatSpace implements storage.Store.
func (f *Faulty) StatSpace(ctx context.Context, space string) (storage.Space, error) {
	x, err := f.enter(ctx, "StatSpace", space, "")
	if err != nil {
		return storage.Space{}, err
	}
	s, err := f.inner.StatSpace(ctx, space)
	return s, x.leave(err)
}

// CreateSpace implements storage.Store.
func (f *Faulty) CreateSpace(ctx context.Context, space storage.Space) error {
	x, err := f.enter(ctx, "CreateSpace", space.Name, "")
	if err != nil {
		return err
	}
	return x.leave(f.inner.CreateSpace(ctx, space))
}

// SetSpace implements storage.Store.
func (f *Faulty) SetSpace(ctx context.Context, space storage.Space) error {
	x, err := f.enter(ctx, "SetSpace", space.Name, "")
	if err != nil {
		return err
	}
	return x.leave(f.inner.SetSpace(ctx, space))
}

// DeleteSpace implements storage.Store.
func (f *Faulty) DeleteSpace(ctx context.Context, space string) error {
	x, err := f.enter(ctx, "DeleteSpace", space, "")
	if err != nil {
		return err
	}
	return x.leave(f.inner.DeleteSpace(ctx, space))
}

// List implements storage.Store. Its fault is found when the listing begins.
func (f *Faulty) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		x, err := f.enter(ctx, "List", space, "")
		faultySeq(x, err, f.inner.List(ctx, space, after))(yield)
	}
}

// Stat implements storage.Store.
func (f *Faulty) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	x, err := f.enter(ctx, "Stat", space, item)
	if err != nil {
		return storage.Object{}, err
	}
	o, err := f.inner.Stat(ctx, space, item)
	return faulted(x, o, err)
}

func faulted[T any](x Fault, v T, err error) (T, error) {
	if err = x.leave(err); err != nil {
		var zero T
		return zero, err
	}
	return v, nil
}

// Open implements storage.Store.
func (f *Faulty) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	x, err := f.enter(ctx, "Open", space, item)
	if err != nil {
		return nil, storage.Object{}, err
	}
	r, o, err := f.inner.Open(ctx, space, item, version)
	if err != nil {
		return nil, storage.Object{}, x.leave(err)
	}
	if x.Done && x.Err != nil {
		r.Close()
		return nil, storage.Object{}, x.Err
	}
	if x.Mid {
		return struct {
			io.Reader
			io.Closer
		}{FailingReader(r, x.After, x.Err), r}, o, nil
	}
	return r, o, nil
}

// Put implements storage.Store.
func (f *Faulty) Put(ctx context.Context, space, item string, r io.Reader, p storage.PutOptions) (storage.Object, error) {
	x, err := f.enter(ctx, "Put", space, item)
	if err != nil {
		return storage.Object{}, err
	}
	if x.Mid {
		r = FailingReader(r, x.After, x.Err)
	}
	o, err := f.inner.Put(ctx, space, item, r, p)
	return faulted(x, o, err)
}

// SetProperties implements storage.Store.
func (f *Faulty) SetProperties(ctx context.Context, space, item string, p storage.Properties, c storage.Condition) (storage.Object, error) {
	x, err := f.enter(ctx, "SetProperties", space, item)
	if err != nil {
		return storage.Object{}, err
	}
	o, err := f.inner.SetProperties(ctx, space, item, p, c)
	return faulted(x, o, err)
}

// Delete implements storage.Store.
func (f *Faulty) Delete(ctx context.Context, space, item string, d storage.DeleteOptions) (storage.Deleted, error) {
	x, err := f.enter(ctx, "Delete", space, item)
	if err != nil {
		return storage.Deleted{}, err
	}
	o, err := f.inner.Delete(ctx, space, item, d)
	return faulted(x, o, err)
}

// Marker implements storage.Store.
func (f *Faulty) Marker(ctx context.Context) error {
	x, err := f.enter(ctx, "Marker", "", "")
	if err != nil {
		return err
	}
	return x.leave(f.inner.Marker(ctx))
}

// WriteMarker implements storage.Store.
func (f *Faulty) WriteMarker(ctx context.Context) error {
	x, err := f.enter(ctx, "WriteMarker", "", "")
	if err != nil {
		return err
	}
	return x.leave(f.inner.WriteMarker(ctx))
}
