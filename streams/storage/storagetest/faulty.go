package storagetest

import (
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A Call is one call of a method of a Faulty store.
type Call struct {
	Method      string // as in storage.Store
	Space, Item string
}

// A Faulty is a store with scripted faults. It is safe for concurrent use.
type Faulty struct {
	inner storage.Store

	mu     sync.Mutex // guards the fields below
	faults []*Fault
	before func(context.Context, Call) error
	calls  []Call
	dice   *rand.Rand
}

var (
	_ storage.Store   = (*Faulty)(nil)
	_ storage.Locator = (*Faulty)(nil)
	_ storage.Keeper  = (*Faulty)(nil)
)

// NewFaulty returns a store without faults that passes all calls to inner.
func NewFaulty(inner storage.Store) *Faulty {
	f := &Faulty{inner: inner}
	f.Seed(1)
	return f
}

// Seed restarts the draws of Fault.Chance: the same calls in the same order meet the same faults.
func (f *Faulty) Seed(seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dice = rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // faults must be reproducible
}

// Script adds faults. A call meets the first matching fault that is not used up.
func (f *Faulty) Script(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range faults {
		if x.Times == 0 {
			x.Times = 1
		}
		if x.Err == nil && !x.silent() {
			x.Err = ErrFault
		}
		f.faults = append(f.faults, &x)
	}
}

// Heal removes all faults.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Before sets a function that is called before every call except Capabilities, without any lock; if it
// fails, its error is returned and the call is not carried out. It may change the inner store.
func (f *Faulty) Before(g func(context.Context, Call) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = g
}

// Calls returns all calls so far, except those of Capabilities.
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
	if x.Delay > 0 && !x.Mid {
		if err := retry.Sleep(ctx, x.Delay); err != nil {
			return Fault{}, err
		}
	}
	if x.Err != nil && !x.Applied && !x.Mid {
		return x, x.fail()
	}
	return x, nil
}

func (f *Faulty) match(c Call) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	is := func(want, got string) bool { return want == "" || want == got }
	for _, x := range f.faults {
		if x.Times == 0 || !is(x.Method, c.Method) || !is(x.Space, c.Space) || !is(x.Item, c.Item) || !x.drawn(f.dice) {
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

// Capabilities implements storage.Store. It never fails.
func (f *Faulty) Capabilities() storage.Capabilities { return f.inner.Capabilities() }

// Spaces implements storage.Store. Its fault is drawn when the listing begins.
func (f *Faulty) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		x, err := f.enter(ctx, "Spaces", "", "")
		sequence(ctx, x, err, f.inner.Spaces(ctx))(yield)
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
	if err != nil || x.FalseSuccess {
		return err
	}
	return x.leave(f.inner.CreateSpace(ctx, space))
}

// SetSpace implements storage.Store.
func (f *Faulty) SetSpace(ctx context.Context, space storage.Space) error {
	x, err := f.enter(ctx, "SetSpace", space.Name, "")
	if err != nil || x.FalseSuccess {
		return err
	}
	return x.leave(f.inner.SetSpace(ctx, space))
}

// DeleteSpace implements storage.Store.
func (f *Faulty) DeleteSpace(ctx context.Context, space string) error {
	x, err := f.enter(ctx, "DeleteSpace", space, "")
	if err != nil || x.FalseSuccess {
		return err
	}
	return x.leave(f.inner.DeleteSpace(ctx, space))
}

// List implements storage.Store. Its fault is drawn when the listing begins.
func (f *Faulty) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		x, err := f.enter(ctx, "List", space, "")
		inner := f.inner.List(ctx, space, after)
		if x.Stale != nil {
			inner = stale(x.Stale, after)
		}
		sequence(ctx, x, err, inner)(yield)
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
	if x.Applied && x.Err != nil {
		r.Close()
		return nil, storage.Object{}, x.fail()
	}
	return x.body(ctx, r), o, nil
}

// Put implements storage.Store.
func (f *Faulty) Put(
	ctx context.Context, space, item string, r io.Reader, p storage.PutOptions,
) (storage.Object, error) {
	x, err := f.enter(ctx, "Put", space, item)
	if err != nil {
		return storage.Object{}, err
	}
	if r = x.stream(ctx, r); x.FalseSuccess {
		return pretend(item, r, p)
	}
	o, err := f.inner.Put(ctx, space, item, r, p)
	return faulted(x, o, err)
}

// pretend returns the result of a Put, and stores nothing.
func pretend(item string, r io.Reader, p storage.PutOptions) (storage.Object, error) {
	algs, err := p.Algorithms([]string{digest.MD5, digest.SHA256})
	if err != nil {
		return storage.Object{}, err
	}
	h, err := digest.New(algs...)
	if err != nil {
		return storage.Object{}, err
	}
	if _, err := h.ReadFrom(r); err != nil {
		return storage.Object{}, err
	}
	sums, err := p.Accept(h.Sum(), h.Size())
	if err != nil {
		return storage.Object{}, err
	}
	return storage.Object{
		Item: item, Size: h.Size(), Modified: time.Now().UTC(), Version: "pretended", Digests: sums, Properties: p.Properties,
	}, nil
}

// SetProperties implements storage.Store.
func (f *Faulty) SetProperties(
	ctx context.Context, space, item string, p storage.Properties, c storage.Condition,
) (storage.Object, error) {
	x, err := f.enter(ctx, "SetProperties", space, item)
	if err != nil {
		return storage.Object{}, err
	}
	if x.FalseSuccess {
		o, err := f.inner.Stat(ctx, space, item)
		o.Properties = p
		return o, err
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
	if x.FalseSuccess {
		o, err := f.inner.Stat(ctx, space, item)
		return storage.Deleted{Object: o, Time: time.Now().UTC()}, err
	}
	o, err := f.inner.Delete(ctx, space, item, d)
	return faulted(x, o, err)
}

// Locate implements storage.Locator.
func (f *Faulty) Locate(ctx context.Context, ref storage.Ref) (storage.Location, error) {
	x, err := f.enter(ctx, "Locate", ref.Space, ref.Item)
	if err != nil {
		return storage.Location{}, err
	}
	p, err := storage.Locate(ctx, f.inner, ref)
	if err == nil && x.leave(nil) != nil {
		err = errors.Join(x.Err, p.Close())
	}
	return faulted(x, p, err)
}

// Kept implements storage.Keeper. Its fault is drawn when the listing begins.
func (f *Faulty) Kept(ctx context.Context, space string, items []string) iter.Seq2[storage.Kept, error] {
	return func(yield func(storage.Kept, error) bool) {
		x, err := f.enter(ctx, "Kept", space, "")
		sequence(ctx, x, err, storage.ListKept(ctx, f.inner, space, items))(yield)
	}
}

// StatKept implements storage.Keeper.
func (f *Faulty) StatKept(ctx context.Context, ref storage.KeptRef) (storage.Kept, error) {
	x, err := f.enter(ctx, "StatKept", ref.Space, ref.Item)
	if err != nil {
		return storage.Kept{}, err
	}
	k, err := storage.StatKept(ctx, f.inner, ref)
	return faulted(x, k, err)
}

// OpenKept implements storage.Keeper.
func (f *Faulty) OpenKept(ctx context.Context, ref storage.KeptRef) (io.ReadCloser, storage.Kept, error) {
	x, err := f.enter(ctx, "OpenKept", ref.Space, ref.Item)
	if err != nil {
		return nil, storage.Kept{}, err
	}
	r, k, err := storage.OpenKept(ctx, f.inner, ref)
	if err != nil {
		return nil, storage.Kept{}, x.leave(err)
	}
	if x.Applied && x.Err != nil {
		r.Close()
		return nil, storage.Kept{}, x.fail()
	}
	return x.body(ctx, r), k, nil
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
	if err != nil || x.FalseSuccess {
		return err
	}
	return x.leave(f.inner.WriteMarker(ctx))
}
