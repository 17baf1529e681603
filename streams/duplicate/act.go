package duplicate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// copy streams the source's bytes to the destination: C4, C4d, C4n, C5, C0, and C3 at stores that set no properties.
func (w *execution) copy(ctx context.Context, s Observation, d Decision) (done bool, err error) {
	o := storage.PutOptions{
		Condition:    storage.Condition{Absent: s.Destination.Presence == Absent, Version: s.Destination.Object.Version},
		Properties:   s.copyProperties(d.Expected.Union(s.Source.digests())),
		Digests:      d.Expected.Union(supported(s.Source.digests())),
		Compute:      []string{digest.MD5, digest.SHA256},
		Size:         s.Source.Object.Size,
		KeepReplaced: s.Destination.Presence == Present && d.Row != RowPropertiesDiffer, // whose bytes are the same
		Original:     w.originalOf(s),
	}
	if d.ReadTwice && len(s.Source.Read) == 0 {
		first, err := readDigests(ctx, w.SourceStore, w.SourceCopy, s.Source.Object.Version, nil)
		if err != nil {
			return false, err
		}
		if first.Compare(s.Source.digests()) == digest.Disagree {
			return w.sourceMismatch(s, d, fmt.Errorf("%w: the store says %v and the bytes %v", storage.ErrDigest, s.Source.digests(), first))
		}
		o.Digests = first.Union(o.Digests)
	}
	if o.Absent {
		if err := w.prepare(ctx, s); err != nil {
			return false, err
		}
	}
	if d.Row == RowPropertiesDiffer {
		o.Verify = func(digest.Set, int64) error { return w.unchanged(ctx, s.Destination.Object) }
	}
	put, err := w.stream(ctx, s.Source.Object.Version, o)
	if errors.Is(err, storage.ErrDigest) {
		return w.sourceMismatch(s, d, err)
	}
	if err != nil {
		return false, err
	}
	w.recordCopy(s, d, put)
	return d.Row == RowRepair, nil // the check that follows a repair is its second look
}

// unchanged returns ErrChanged if the destination is not as it was seen. A condition on its version does not hold off a
// newer command that has put the same bytes with newer properties, if a version is a function of the bytes.
func (w *execution) unchanged(ctx context.Context, seen storage.Object) error {
	o, err := w.Store.Stat(ctx, w.Copy.Space, w.Copy.Item)
	if err != nil {
		return fmt.Errorf("stat %s: %w", w.Copy, err)
	}
	if o.Version != seen.Version || !o.Modified.Equal(seen.Modified) || o.PropertiesUnknown != seen.PropertiesUnknown ||
		o.Properties.MediaType != seen.Properties.MediaType || !maps.Equal(o.Properties.User, seen.Properties.User) {
		return fmt.Errorf("put %s with other properties: %w", w.Copy, storage.ErrChanged)
	}
	return nil
}

// prepare makes sure, before something is written where nothing was, that the store is
// the one that it should be, and that the space exists.
func (w *execution) prepare(ctx context.Context, s Observation) error {
	if err := w.observer.confirmMarker(ctx, w.Copy, w.Store, time.Now().Add(-markerAge)); err != nil {
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

func (w *execution) createSpace(ctx context.Context, space storage.Space) error {
	err := w.Store.CreateSpace(ctx, space)
	if errors.Is(err, storage.ErrExists) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create space %q in store %s: %w", space.Name, w.Copy.Store, err)
	}
	w.emit(schemas.Changes, w.spaceChange(space))
	return nil
}

// stream copies one version of the source; the destination verifies it.
func (w *execution) stream(ctx context.Context, version string, o storage.PutOptions) (storage.Object, error) {
	r, _, err := w.SourceStore.Open(ctx, w.SourceCopy.Space, w.SourceCopy.Item, version)
	if err != nil {
		return storage.Object{}, fmt.Errorf("open %s: %w", w.SourceCopy, err)
	}
	defer r.Close() // nothing was written to it
	if at, ok := w.locateSource(ctx, version, o.Size); ok {
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
func (w *execution) locateSource(ctx context.Context, version string, size int64) (storage.Place, bool) {
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
func (w *execution) sourceMismatch(s Observation, d Decision, err error) (bool, error) {
	w.misreads++
	if w.misreads == 1 {
		return false, fmt.Errorf("%w: %w", errStale, err)
	}
	w.detail = err.Error()
	if d.Row == RowRepair {
		w.finishUnchanged(s, Decision{Row: RowRepair, Result: "repair-moot", CheckSource: true, CheckDestination: true})
	} else {
		w.finishUnchanged(s, Decision{Row: RowSourceSuspect, Result: "source-suspect", CheckSource: true, CheckDestination: s.Destination.Presence == Present, Newer: d.Newer})
	}
	return true, nil
}

// copied notes what a copy leads to: the Changes, the check, the end of the command.
func (w *execution) recordCopy(s Observation, d Decision, put storage.Object) {
	if d.Reference {
		w.announceSource(Side{Object: s.Source.Object, Read: put.Digests})
	}
	change := w.contentChange(s, put)
	if s.Destination.Presence == Present {
		change.Op = pb.Op_OP_UPDATE
	}
	w.emit(schemas.Changes, change)
	w.task = w.copyTask(change)
	if d.CheckSource {
		w.requestCheck(w.suspectTask(w.SourceCopy, s))
	}
	w.written, w.from, w.record, w.fromRecord = put, s.Source.Object, recordOf(change), s.Source.Record
	w.bytes += put.Size
	w.digests = digest.Set(change.GetDigests())
	w.finish(d, pb.Outcome_OUTCOME_DONE)
}

// setProperties acts on C3. A store that sets no properties gets the same bytes again, with them.
func (w *execution) setProperties(ctx context.Context, s Observation, d Decision) (done bool, err error) {
	deferred := func() (bool, error) {
		if !w.wrote() { // else the copy itself is the result
			d.Result = "properties-deferred"
			w.finish(d, pb.Outcome_OUTCOME_NOTHING)
		}
		return true, nil
	}
	if !w.Store.Capabilities().SetProperties {
		d.Expected = supported(s.Destination.digests())
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
	change := w.contentChange(s, o)
	w.emit(schemas.Changes, change)
	w.emit(schemas.Changes, w.propertiesChange(o))
	w.written, w.from, w.record, w.fromRecord = o, s.Source.Object, recordOf(change), s.Source.Record
	w.digests = o.Digests
	if w.bytes == 0 {
		w.finish(d, pb.Outcome_OUTCOME_DONE)
	}
	return false, nil
}

// space executes a command about a space.
func (w *execution) executeSpace(ctx context.Context) error {
	s := w.observeSpaces(ctx)
	d := decideSpace(s)
	switch d.action {
	case actFail:
		err := errors.Join(s.Source.Err, s.Destination.Err)
		if err == nil {
			err = retry.Unavailable(errors.New("a space that is needed is not known"))
		}
		return fmt.Errorf("decide row %s of space %q: %w", d.Row, w.Copy.Space, err)
	case actCreateSpace:
		if err := w.observer.confirmMarker(ctx, w.Copy, w.Store, time.Now().Add(-markerAge)); err != nil {
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

func (w *execution) observeSpaces(ctx context.Context) spaceObservation {
	s := spaceObservation{Command: w.Command, Rules: w.rules}
	if w.Store == nil {
		return s
	}
	s.FoldCase = w.SourceStore.Capabilities().FoldsPropertyCase || w.Store.Capabilities().FoldsPropertyCase
	s.Source = w.observer.observeSpace(ctx, w.SourceCopy, w.SourceStore)
	s.Destination = w.observer.observeSpace(ctx, w.Copy, w.Store)
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
func (l *Observer) observeSpace(ctx context.Context, c schemas.Copy, store storage.Store) spaceSide {
	side := l.statSpace(ctx, c, store)
	if side.Presence != Absent {
		return side
	}
	err := l.spaceMayBeAbsent(ctx, c)
	if err == nil {
		return side
	}
	if side = l.statSpace(ctx, c, store); side.Presence == Absent {
		return spaceSide{Err: err}
	}
	return side
}

func (l *Observer) statSpace(ctx context.Context, c schemas.Copy, store storage.Store) spaceSide {
	space, err := store.StatSpace(ctx, c.Space)
	if err == nil {
		return spaceSide{Presence: Present, Space: space}
	}
	if !errors.Is(err, storage.ErrNoSpace) {
		return spaceSide{Err: fmt.Errorf("stat space %q in store %s: %w", c.Space, c.Store, err)}
	}
	if err := l.confirmMarker(ctx, c, store, time.Now()); err != nil {
		return spaceSide{Err: fmt.Errorf("believe that space %q is absent: %w", c.Space, err)}
	}
	return spaceSide{Presence: Absent}
}
