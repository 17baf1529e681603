package file

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// readOnlyError returns the error of every mutation of a Plain.
func (p *Plain) readOnlyError(verb, name string) error {
	err := fmt.Errorf("%s %q in store %q: %w", verb, name, p.cfg.ID, storage.ErrReadOnly)
	return storage.NotApplied(retry.Permanent(err))
}

// CreateSpace implements storage.Store.
func (p *Plain) CreateSpace(_ context.Context, space storage.Space) error {
	return p.readOnlyError("create space", space.Name)
}

// SetSpace implements storage.Store.
func (p *Plain) SetSpace(_ context.Context, space storage.Space) error {
	return p.readOnlyError("set space", space.Name)
}

// DeleteSpace implements storage.Store.
func (p *Plain) DeleteSpace(_ context.Context, space string) error {
	return p.readOnlyError("delete space", space)
}

// Put implements storage.Store.
func (p *Plain) Put(_ context.Context, _, item string, _ io.Reader, _ storage.PutOptions) (storage.Object, error) {
	return storage.Object{}, p.readOnlyError("put", item)
}

// SetProperties implements storage.Store.
func (p *Plain) SetProperties(
	_ context.Context, _, item string, _ storage.Properties, _ storage.Condition,
) (storage.Object, error) {
	return storage.Object{}, p.readOnlyError("set properties of", item)
}

// Delete implements storage.Store.
func (p *Plain) Delete(_ context.Context, _, item string, _ storage.DeleteOptions) (storage.Deleted, error) {
	return storage.Deleted{}, p.readOnlyError("delete", item)
}

// WriteMarker implements storage.Store. It always fails: nothing is written into the tree.
func (p *Plain) WriteMarker(context.Context) error {
	return retry.Permanent(fmt.Errorf("mark root %s: %w: a plain tree is identified by %s, which must exist",
		p.dir, storage.ErrReadOnly, p.cfg.Expect))
}

// Path returns the path of an item's file in the file system, for output.
func (p *Plain) Path(space, item string) (string, error) {
	sess, err := p.acquire()
	if err != nil {
		return "", err
	}
	defer p.release(sess)
	at, _, err := p.locate(sess, space, item)
	if err != nil {
		return "", err
	}
	return filepath.Join(p.dir, filepath.FromSlash(at)), nil
}
