package storage

import (
	"context"
	"fmt"
	"io"
	"iter"
)

// ReadOnly returns a read-only view of s: every mutation returns ErrReadOnly and does not reach s.
func ReadOnly(s Store) Store { return readOnly{s} }

type readOnly struct{ s Store }

var (
	_ Store   = readOnly{}
	_ Locator = readOnly{}
	_ Keeper  = readOnly{}
)

func (r readOnly) Capabilities() Capabilities {
	c := r.s.Capabilities()
	c.ReadOnly = true
	c.ConditionalPut, c.ConditionalDelete, c.KeepsReplaced, c.SetProperties = false, false, false, false
	return c
}

func (r readOnly) Spaces(ctx context.Context) iter.Seq2[string, error] { return r.s.Spaces(ctx) }

func (r readOnly) StatSpace(ctx context.Context, space string) (Space, error) {
	return r.s.StatSpace(ctx, space)
}

func (r readOnly) CreateSpace(_ context.Context, space Space) error {
	return refuse("create space", space.Name)
}

func (r readOnly) SetSpace(_ context.Context, space Space) error {
	return refuse("set space", space.Name)
}

func (r readOnly) DeleteSpace(_ context.Context, space string) error {
	return refuse("delete space", space)
}

func (r readOnly) List(ctx context.Context, space, after string) iter.Seq2[Object, error] {
	return r.s.List(ctx, space, after)
}

func (r readOnly) Stat(ctx context.Context, space, item string) (Object, error) {
	return r.s.Stat(ctx, space, item)
}

func (r readOnly) Open(ctx context.Context, space, item, version string) (io.ReadCloser, Object, error) {
	return r.s.Open(ctx, space, item, version)
}

func (r readOnly) Put(_ context.Context, _, item string, _ io.Reader, _ PutOptions) (Object, error) {
	return Object{}, refuse("put", item)
}

func (r readOnly) SetProperties(_ context.Context, _, item string, _ Properties, _ Condition) (Object, error) {
	return Object{}, refuse("set properties of", item)
}

func (r readOnly) Delete(_ context.Context, _, item string, _ DeleteOptions) (Deleted, error) {
	return Deleted{}, refuse("delete", item)
}

func (r readOnly) Marker(ctx context.Context) error { return r.s.Marker(ctx) }

func (r readOnly) WriteMarker(context.Context) error { return refuse("write", "marker") }

func (r readOnly) Locate(ctx context.Context, ref Ref) (Location, error) {
	return Locate(ctx, r.s, ref)
}

func (r readOnly) Kept(ctx context.Context, space string, items []string) iter.Seq2[Kept, error] {
	return ListKept(ctx, r.s, space, items)
}

func (r readOnly) StatKept(ctx context.Context, ref KeptRef) (Kept, error) {
	return StatKept(ctx, r.s, ref)
}

func (r readOnly) OpenKept(ctx context.Context, ref KeptRef) (io.ReadCloser, Kept, error) {
	return OpenKept(ctx, r.s, ref)
}

func refuse(verb, name string) error {
	return NotApplied(fmt.Errorf("%s %q: %w", verb, name, ErrReadOnly))
}
