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
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// copy streams the source's bytes to the destination: C0, C4, C4d, C4n, C5, and C3 at stores that cannot set
// properties.
func (w *execution) copy(ctx context.Context, s Observation, d Decision) (done bool, err error) {
	o := storage.PutOptions{
		Condition:    storage.Condition{Absent: s.Destination.Presence == Absent, Version: s.Destination.Object.Version},
		Properties:   s.copyProperties(d.Expected.Union(s.Source.digests())),
		Digests:      d.Expected.Union(supported(s.Source.digests())),
		Compute:      []string{digest.MD5, digest.SHA256},
		Size:         s.Source.Object.Size,
		KeepReplaced: s.Destination.Presence == Present && d.Row != RowPropertiesDiffer, // the bytes are the same
		Original:     w.originalOf(s),
		Verify:       func(digest.Set, int64) error { return w.verify(ctx, s, d) },
	}
	if d.ReadTwice && len(s.Source.Read) == 0 {
		first, err := readDigests(ctx, w.SourceStore, w.SourceCopy, s.Source.Object.Version, nil)
		if err != nil {
			return false, fmt.Errorf("%w: %w", errNotWritten, err)
		}
		if first.Compare(s.Source.digests()) == digest.Disagree {
			return w.sourceMismatch(s, d, fmt.Errorf("%w: the store reports %v, the bytes have %v",
				storage.ErrDigest, s.Source.digests(), first))
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
		return w.sourceMismatch(s, d, err)
	}
	if err != nil {
		return false, err
	}
	w.recordCopy(s, d, put)
	return d.Row == RowRepair, nil // the check that follows a repair replaces the second observation
}

// verify runs before bytes become visible. It returns an error if the rules in force now allow them no more, or if they
// carry properties, or repair a copy, and the copy is not as observed.
func (w *execution) verify(ctx context.Context, s Observation, d Decision) error {
	if err := w.Confirm(s, d); err != nil {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	if k, _ := w.heldKind(s, d); k != "" && k.Act() == held.Rewrite {
		if err := w.cfg.Held.Refused(w.Copy); err != nil {
			return err
		}
	}
	switch d.Row {
	case RowPropertiesDiffer, RowRepair, RowRepairProperties:
		if s.Destination.Presence == Present {
			return w.unchanged(ctx, s.Destination.Object)
		}
	}
	return nil
}

// unchanged returns ErrChanged if the destination is not as observed. Its version alone does not show that a newer
// command has put the same bytes with newer properties, if the store derives the version from the bytes.
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

// prepare runs before a write to an absent item. It confirms that the store is the right one, and creates the space.
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
	w.emit(schemas.Changes, w.spaceChange(pb.Op_OP_CREATE_SPACE, space))
	return nil
}

// errNotWritten marks errors of the source before a write was tried.
var errNotWritten = errors.New("nothing was written")

// stream copies one version of the source. The destination verifies the digests.
func (w *execution) stream(ctx context.Context, version string, o storage.PutOptions) (storage.Object, error) {
	r, _, err := w.SourceStore.Open(ctx, w.SourceCopy.Space, w.SourceCopy.Item, version)
	if err != nil {
		return storage.Object{}, fmt.Errorf("%w: open %s: %w", errNotWritten, w.SourceCopy, err)
	}
	defer r.Close() // only read from
	if at, ok := w.locateSource(ctx, version, o.Size); ok {
		defer func() { _ = at.Close() }() // only read from
		o.Source = &at
	}
	put, err := w.Store.Put(ctx, w.Copy.Space, w.Copy.Item, r, o)
	if err != nil {
		return storage.Object{}, fmt.Errorf("put %s: %w", w.Copy, err)
	}
	return put, nil
}

// locateSource returns the location of the source's bytes if the destination's service may copy them itself. This is an
// optimization: on any error the bytes are streamed.
func (w *execution) locateSource(ctx context.Context, version string, size int64) (storage.Location, bool) {
	to := w.Store.Capabilities()
	if to.MinSourceBytes == 0 || size < to.MinSourceBytes || w.SourceStore.Capabilities().Kind != to.Kind {
		return storage.Location{}, false
	}
	ref := storage.Ref{Space: w.SourceCopy.Space, Item: w.SourceCopy.Item, Version: version}
	at, err := storage.Locate(ctx, w.SourceStore, ref)
	return at, err == nil
}

// sourceMismatch handles bytes of the source that do not have the expected digests. They are read once more, since the
// transport may have damaged them. Then the source is suspect, and a repair from it is moot.
func (w *execution) sourceMismatch(s Observation, d Decision, err error) (bool, error) {
	w.misreads++
	if w.misreads == 1 {
		return false, fmt.Errorf("%w: %w", errStale, err)
	}
	w.detail = err.Error()
	if d.Row == RowRepair {
		w.finishUnchanged(s, Decision{Row: RowRepair, Result: "repair-moot", CheckSource: true, CheckDestination: true})
	} else {
		w.finishUnchanged(s, Decision{
			Row: RowSourceSuspect, Result: "source-suspect",
			CheckSource: true, CheckDestination: s.Destination.Presence == Present, Newer: d.Newer,
		})
	}
	return true, nil
}

// recordCopy adds the Changes and the check of a copy that was made, and ends the command.
func (w *execution) recordCopy(s Observation, d Decision, put storage.Object) {
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

// setProperties acts on C3. A store that cannot set properties gets the same bytes again, with the new properties.
func (w *execution) setProperties(ctx context.Context, s Observation, d Decision) (done bool, err error) {
	if !w.Store.Capabilities().SetProperties {
		d.Expected = supported(s.Destination.digests())
		if done, err = w.copy(ctx, s, d); errors.Is(err, storage.ErrUnsupported) { // such as an archived source
			return w.deferProperties(d), nil
		}
		return done, err
	}
	o, err := w.Store.SetProperties(ctx, w.Copy.Space, w.Copy.Item, s.Source.Object.Properties,
		storage.Condition{Version: s.Destination.Object.Version})
	if errors.Is(err, storage.ErrUnsupported) {
		return w.deferProperties(d), nil
	}
	if err != nil {
		return false, fmt.Errorf("set properties of %s: %w", w.Copy, err)
	}
	// If the store made no new version, this Change has the id of the content's Change, and is needed only if that was
	// never published.
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

// repairProperties acts on C0p. It repeats what is on record, so its Change has the time of the content: whatever a
// client sets meanwhile is newer.
func (w *execution) repairProperties(ctx context.Context, s Observation, d Decision) (done bool, err error) {
	change, err := w.setRecorded(ctx, s, d)
	switch {
	case errors.Is(err, storage.ErrUnsupported):
		w.detail = err.Error()
		w.finish(Decision{Row: d.Row, Result: "properties-unsupported"}, pb.Outcome_OUTCOME_NOTHING)
		return true, nil
	case errors.Is(err, storage.ErrDigest):
		w.detail = err.Error()
		w.finishUnchanged(s, Decision{Row: d.Row, Result: "repair-moot", CheckDestination: true})
		return true, nil
	case err != nil:
		return false, fmt.Errorf("set properties of %s: %w", w.Copy, err)
	}
	w.emit(schemas.Changes, change)
	w.requestCheck(w.suspectTask(w.Copy, s))
	w.finish(d, pb.Outcome_OUTCOME_DONE)
	return true, nil
}

// setRecorded sets the properties on record, and returns the Change. A store that cannot set properties gets the same
// bytes again, if they are those on record.
func (w *execution) setRecorded(ctx context.Context, s Observation, d Decision) (*pb.Change, error) {
	at, m := s.Destination.Object, s.Destination.Record.GetManifest()
	p, same := record.PropertiesOn(at, m), storage.Condition{Version: at.Version}
	if w.Store.Capabilities().SetProperties {
		if err := w.unchanged(ctx, at); err != nil {
			return nil, err
		}
		o, err := w.Store.SetProperties(ctx, w.Copy.Space, w.Copy.Item, p, same)
		if err != nil {
			return nil, err
		}
		change := w.propertiesChange(o)
		change.Time = record.Time(o.Modified)
		return record.Seal(change), nil
	}
	expected := supported(m.GetDigests())
	if len(expected) == 0 {
		return nil, fmt.Errorf("no digest of the bytes is on record: %w", storage.ErrUnsupported)
	}
	put, err := w.stream(ctx, at.Version, storage.PutOptions{
		Condition: same, Properties: p, Digests: expected, Compute: []string{digest.MD5, digest.SHA256},
		Size: at.Size, Original: w.originalOf(s),
		Verify: func(digest.Set, int64) error { return w.verify(ctx, s, d) },
	})
	if err != nil {
		return nil, err
	}
	w.bytes += put.Size
	change := w.contentChange(s, put)
	change.Op = pb.Op_OP_UPDATE
	return change, nil
}

// deferProperties ends the command if the store cannot set the properties now.
func (w *execution) deferProperties(d Decision) (done bool) {
	if !w.wrote() { // else the result is that of the copy
		d.Result = "properties-deferred"
		w.finish(d, pb.Outcome_OUTCOME_NOTHING)
	}
	return true
}
