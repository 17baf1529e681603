package duplicate

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// copy streams the source's bytes to the destination: C4, C4d, C4n, C5, C0, and C3 at stores that set no properties.
func (w *work) copy(ctx context.Context, s Sight, d Decision) (done bool, err error) {
	o := storage.PutOptions{
		Condition:    storage.Condition{Absent: s.Destination.Presence == Absent, Version: s.Destination.Object.Version},
		Properties:   s.given(d.Known.Union(s.Source.digests())),
		Digests:      d.Known.Union(computable(s.Source.digests())),
		Compute:      []string{digest.MD5, digest.SHA256},
		Size:         s.Source.Object.Size,
		KeepReplaced: s.Destination.Presence == Present && d.Row != "C3", // whose bytes are the same
		Original:     w.of(s),
	}
	if d.Twice && len(s.Source.Read) == 0 {
		first, err := hash(ctx, w.SourceStore, w.SourceCopy, s.Source.Object.Version, nil)
		if err != nil {
			return false, err
		}
		if first.Compare(s.Source.digests()) == digest.Disagree {
			return w.misreading(s, d, fmt.Errorf("%w: the store says %v and the bytes %v", storage.ErrDigest, s.Source.digests(), first))
		}
		o.Digests = first.Union(o.Digests)
	}
	if o.Absent {
		if err := w.prepare(ctx, s); err != nil {
			return false, err
		}
	}
	put, err := w.stream(ctx, s.Source.Object.Version, o)
	if errors.Is(err, storage.ErrDigest) {
		return w.misreading(s, d, err)
	}
	if err != nil {
		return false, err
	}
	w.copied(s, d, put)
	return d.Row == "C0", nil // the check that follows a repair is its second look
}

// prepare makes sure, before something is written where nothing was, that the store is
// the one that it should be, and that the space exists.
func (w *work) prepare(ctx context.Context, s Sight) error {
	if err := w.looker.confirm(ctx, w.Copy, w.Store, time.Now().Add(-markerAge)); err != nil {
		return err
	}
	if !s.Destination.NoSpace {
		return nil
	}
	space, err := w.SourceStore.StatSpace(ctx, w.Copy.Space)
	if err != nil {
		return fmt.Errorf("stat space of %s: %w", w.SourceCopy, err)
	}
	return w.createSpace(ctx, space)
}

func (w *work) createSpace(ctx context.Context, space storage.Space) error {
	err := w.Store.CreateSpace(ctx, space)
	if errors.Is(err, storage.ErrExists) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create space %q in store %s: %w", space.Name, w.Copy.Store, err)
	}
	w.emit(schemas.Changes, w.spaceCreated(space))
	return nil
}

// stream copies one version of the source; the destination verifies it.
func (w *work) stream(ctx context.Context, version string, o storage.PutOptions) (storage.Object, error) {
	r, _, err := w.SourceStore.Open(ctx, w.SourceCopy.Space, w.SourceCopy.Item, version)
	if err != nil {
		return storage.Object{}, fmt.Errorf("open %s: %w", w.SourceCopy, err)
	}
	defer r.Close() // nothing was written to it
	if at, ok := w.place(ctx, version, o.Size); ok {
		defer func() { _ = at.Close() }() // nor there
		o.Source = &at
	}
	put, err := w.Store.Put(ctx, w.Copy.Space, w.Copy.Item, r, o)
	if err != nil {
		return storage.Object{}, fmt.Errorf("put %s: %w", w.Copy, err)
	}
	return put, nil
}

// place tells where the source's bytes lie, where the destination's service may copy them by itself. It is a short cut:
// whatever keeps from taking it, the bytes are read and put.
func (w *work) place(ctx context.Context, version string, size int64) (storage.Place, bool) {
	to := w.Store.Capabilities()
	if to.SourceFrom == 0 || size < to.SourceFrom || w.SourceStore.Capabilities().Kind != to.Kind {
		return storage.Place{}, false
	}
	at, err := storage.Locate(ctx, w.SourceStore, storage.Ref{Space: w.SourceCopy.Space, Item: w.SourceCopy.Item, Version: version})
	return at, err == nil
}

// misreading handles bytes that are not as they are known to be. The first time they
// are read again: it may have been the transport. Then the source is suspect, and a
// repair from it is moot.
func (w *work) misreading(s Sight, d Decision, err error) (bool, error) {
	w.misread++
	if w.misread == 1 {
		return false, fmt.Errorf("%w: %w", errAgain, err)
	}
	w.detail = err.Error()
	if d.Row == "C0" {
		w.rest(s, Decision{Row: "C0", Result: "repair-moot", CheckSource: true, CheckDestination: true})
	} else {
		w.rest(s, Decision{Row: "C4s", Result: "source-suspect", CheckSource: true, CheckDestination: s.Destination.Presence == Present, Newer: d.Newer})
	}
	return true, nil
}

// copied notes what a copy leads to: the Changes, the check, the end of the command.
func (w *work) copied(s Sight, d Decision, put storage.Object) {
	if d.Reference {
		w.announceSource(Side{Object: s.Source.Object, Read: put.Digests})
	}
	change := w.content(s, put)
	if s.Destination.Presence == Present {
		change.Op = pb.Op_OP_UPDATE
	}
	w.emit(schemas.Changes, change)
	w.task = w.afterCopy(change)
	if d.CheckSource {
		w.ask(w.suspect(w.SourceCopy, s))
	}
	w.written, w.from, w.record, w.fromRecord = put, s.Source.Object, known(change), s.Source.Record
	w.bytes += put.Size
	w.digests = digest.Set(change.GetDigests())
	w.finish(d, pb.Outcome_OUTCOME_DONE)
}

// setProperties acts on C3. A store that sets no properties gets the same bytes again, with them.
func (w *work) setProperties(ctx context.Context, s Sight, d Decision) (done bool, err error) {
	deferred := func() (bool, error) {
		if !w.wrote() { // else the copy itself is the result
			d.Result = "properties-deferred"
			w.finish(d, pb.Outcome_OUTCOME_NOTHING)
		}
		return true, nil
	}
	if !w.Store.Capabilities().SetProperties {
		d.Known = computable(s.Destination.digests())
		return w.copy(ctx, s, d)
	}
	o, err := w.Store.SetProperties(ctx, w.Copy.Space, w.Copy.Item, s.Source.Object.Properties,
		storage.Condition{Version: s.Destination.Object.Version})
	if errors.Is(err, storage.ErrUnsupported) {
		return deferred()
	}
	if err != nil {
		return false, fmt.Errorf("set properties of %s: %w", w.Copy, err)
	}
	// The content's Change has the id that it had, unless the store made a version of
	// it: then, or where it was never sent, it is needed.
	o.Digests = s.Destination.digests()
	change := w.content(s, o)
	w.emit(schemas.Changes, change)
	w.emit(schemas.Changes, w.propertiesSet(o))
	w.written, w.from, w.record, w.fromRecord = o, s.Source.Object, known(change), s.Source.Record
	w.digests = o.Digests
	if w.bytes == 0 {
		w.finish(d, pb.Outcome_OUTCOME_DONE)
	}
	return false, nil
}

// space executes a command about a space.
func (w *work) space(ctx context.Context) error {
	s := w.lookSpace(ctx)
	d := decideSpace(s)
	switch d.action {
	case actFail:
		err := errors.Join(s.Source.Err, s.Destination.Err)
		if err == nil {
			err = retry.Unavailable(errors.New("a space that is needed is not known"))
		}
		return fmt.Errorf("decide row %s of space %q: %w", d.Row, w.Copy.Space, err)
	case actCreateSpace:
		if err := w.looker.confirm(ctx, w.Copy, w.Store, time.Now().Add(-markerAge)); err != nil {
			return err
		}
		if err := w.createSpace(ctx, s.Source.Space); err != nil {
			return err
		}
		w.finish(d, pb.Outcome_OUTCOME_DONE)
	default:
		w.finish(d, pb.Outcome_OUTCOME_NOTHING)
	}
	return nil
}

func (w *work) lookSpace(ctx context.Context) spaceSight {
	s := spaceSight{Command: w.Command, Rules: w.rules}
	if w.Store == nil {
		return s
	}
	s.FoldCase = w.SourceStore.Capabilities().FoldsPropertyCase || w.Store.Capabilities().FoldsPropertyCase
	s.Source = w.looker.lookAtSpace(ctx, w.SourceCopy, w.SourceStore)
	s.Destination = w.looker.lookAtSpace(ctx, w.Copy, w.Store)
	if s.Source.Presence == Absent && s.Destination.Presence == Present {
		s.Destination.Items = Absent
		for _, err := range w.Store.List(ctx, w.Copy.Space, "") {
			s.Destination.Items = Present
			if err != nil {
				s.Destination.Items, s.Destination.Err = Unknown, fmt.Errorf("list space %q: %w", w.Copy.Space, err)
			}
			break
		}
	}
	return s
}

// lookAtSpace is side and doubt of a space.
func (l *Looker) lookAtSpace(ctx context.Context, c schemas.Copy, store storage.Store) spaceSide {
	side := l.spaceSide(ctx, c, store)
	if side.Presence != Absent {
		return side
	}
	err := l.mayLack(ctx, c)
	if err == nil {
		return side
	}
	if side = l.spaceSide(ctx, c, store); side.Presence == Absent {
		return spaceSide{Err: err}
	}
	return side
}

func (l *Looker) spaceSide(ctx context.Context, c schemas.Copy, store storage.Store) spaceSide {
	space, err := store.StatSpace(ctx, c.Space)
	if err == nil {
		return spaceSide{Presence: Present, Space: space}
	}
	if !errors.Is(err, storage.ErrNoSpace) {
		return spaceSide{Err: fmt.Errorf("stat space %q in store %s: %w", c.Space, c.Store, err)}
	}
	if err := l.confirm(ctx, c, store, time.Now()); err != nil {
		return spaceSide{Err: fmt.Errorf("believe that space %q is absent: %w", c.Space, err)}
	}
	return spaceSide{Presence: Absent}
}
