package duplicate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// Restores says what restore orders may write.
type Restores interface {
	// Refuses returns why nothing is restored in a store; empty if something may be.
	Refuses(account, store string) string
	// Proven returns the digests of the content of an item that shares these digests, as the audit log has them, in
	// whichever store; none if none of them was verified against bytes. After an error nothing is known.
	Proven(ctx context.Context, item schemas.Copy, digests digest.Set) (digest.Set, error)
}

// A restoration is the progress of an execution of a restore order.
type restoration struct {
	order    *pb.RestoreOrder
	sources  []*pb.RestoreSource // not yet found to be bad; the first is tried
	misreads int                 // readings of the first source that did not have the expected digests
	suspects []schemas.Copy      // sources with other bytes
	failures []string
	away     error
}

// skip gives up the first source.
func (r *restoration) skip(why string, away error) {
	name := r.sources[0].GetStore()
	if kept := r.sources[0].GetKept(); kept != "" {
		name += ", kept " + kept
	}
	r.sources, r.misreads = r.sources[1:], 0
	r.failures = append(r.failures, fmt.Sprintf("store %s: %s", name, why))
	if r.away == nil {
		r.away = away
	}
}

// executeRestore executes a restore order.
func (w *execution) executeRestore(ctx context.Context) error {
	if w.cfg.Restores == nil {
		return retry.Unavailable(errors.New("this process executes no restore orders"))
	}
	store, ok := w.observer.stores.Store(w.Copy.Account, w.Copy.Store)
	if !ok {
		return retry.Permanent(fmt.Errorf("restore %s: the account has no such store", w.Copy))
	}
	w.Store = store
	order := w.Command.GetRestore()
	w.list = order.GetList()
	r := &restoration{order: order, sources: slices.Clone(order.GetSources())}
	var err error
	for range maxIterations + 2*len(r.sources) { // each source may be read twice
		var done bool
		if done, err = w.restore(ctx, r); done {
			for _, c := range r.suspects {
				w.requestCheck(w.suspectOf(c))
			}
			return nil
		}
		if err != nil && !errors.Is(err, errStale) {
			break
		}
	}
	if err == nil {
		err = errStale
	}
	return fmt.Errorf("execute restore order %s: %w", w.Command.GetId(), err)
}

// restore observes, decides and acts once. It returns true when the order has a result.
func (w *execution) restore(ctx context.Context, r *restoration) (done bool, err error) {
	s := restoreObservation{Order: r.order, There: w.observeThere(ctx)}
	s.Refused, s.Hold = w.refusal(s.There), w.Hold()
	from := source{}
	for {
		s.Exhausted, s.Away, s.Failures = len(r.sources) == 0, r.away != nil, r.failures
		d := decideRestore(s)
		switch d.action {
		case actFail:
			return false, w.restoreError(s, r)
		case actReadBytes:
			s.There.Read, err = readDigests(ctx, w.Store, w.Copy, s.There.Object.Version, r.order.GetDigests())
		case actReadRecords:
			err = w.readRestoreRecords(ctx, &s, r)
		case actReadProof:
			err = w.readProof(ctx, &s)
		case actNextSource:
			from, err = w.nextSource(ctx, &s, r, from, d)
		case actCopy:
			return w.writeRestored(ctx, s, d, r, from)
		default:
			w.finishRestore(s, d, len(r.suspects) > 0)
			return true, nil
		}
		if err != nil {
			return false, markStale(err)
		}
	}
}

// observeThere observes the copy that is to get the content.
func (w *execution) observeThere(ctx context.Context) Side {
	s := w.observer.observeSide(ctx, w.Copy, w.Store)
	w.observer.confirmSpaceAbsent(ctx, w.Copy, w.Store, &s)
	return s
}

// refusal returns why nothing may be written in place of what is there; empty if it may.
func (w *execution) refusal(there Side) string {
	can := w.Store.Capabilities()
	switch {
	case can.ReadOnly:
		return "the store is read-only"
	case there.Presence == Present && !can.KeepsReplaced:
		return "the store cannot keep the bytes that would be replaced"
	}
	return w.cfg.Restores.Refuses(w.Copy.Account, w.Copy.Store)
}

func (w *execution) restoreError(s restoreObservation, r *restoration) error {
	err := s.There.Err
	if err == nil && s.Exhausted {
		err = r.away
	}
	if err == nil {
		err = retry.Unavailable(errors.New("a record that is needed is unknown"))
	}
	return fmt.Errorf("decide row %s of %s: %w", RowRestore, w.Copy, err)
}

// readRestoreRecords reads the record of the copy, and those of the sources, which may prove the content. It takes
// seconds, so the copy is observed again.
func (w *execution) readRestoreRecords(ctx context.Context, s *restoreObservation, r *restoration) error {
	s.recordsState = recordsFailed
	copies := []schemas.Copy{w.Copy}
	for _, from := range r.order.GetSources() {
		if c := w.Copy.In(from.GetStore()); !slices.Contains(copies, c) {
			copies = append(copies, c)
		}
	}
	records, err := FreshRecords(ctx, w.observer.records, w.Copy, copies...)
	if err != nil {
		return err
	}
	was := s.There
	s.There = w.observeThere(ctx)
	if err := w.deletedMeanwhile(was, s.There); err != nil {
		return err
	}
	s.There.reuseRead(was.Object, was.Read)
	s.There.Record, s.recordsState = records[0], recordsRead
	s.Refused, s.Hold = w.refusal(s.There), w.Hold()
	w.records = map[schemas.Copy]*pb.CopyRecord{}
	known := make([]Side, len(copies))
	for i, c := range copies {
		w.records[c], known[i].Record = records[i], records[i]
	}
	if s.Proven = provenBy(s.Order.GetDigests(), known...); s.Proven != nil {
		s.proofState = recordsRead
	}
	return nil
}

// readProof looks the content up in the whole audit log: only an older version needs that.
func (w *execution) readProof(ctx context.Context, s *restoreObservation) (err error) {
	s.proofState = recordsFailed
	if s.Proven, err = w.cfg.Restores.Proven(ctx, w.Copy, s.Order.GetDigests()); err != nil {
		return retry.Unavailable(fmt.Errorf("read the audit log of %s: %w", w.Copy, err))
	}
	s.proofState = recordsRead
	return nil
}

// A source is an opened place of bytes.
type source struct {
	from  *pb.RestoreSource // nil: none was looked at yet
	copy  schemas.Copy
	store storage.Store
}

// nextSource gives up the source that was looked at, if there is one, and looks at the next one that is left.
func (w *execution) nextSource(
	ctx context.Context, s *restoreObservation, r *restoration, tried source, d Decision,
) (source, error) {
	if tried.from != nil {
		why, away := "the item is not there", s.Source.Err
		if away != nil {
			why = away.Error()
		}
		if d.CheckSource {
			why = "the bytes are others"
			if tried.from.GetKept() == "" && w.shouldHold(tried.copy, r.order) {
				r.suspects = append(r.suspects, tried.copy)
			}
		}
		r.skip(why, away)
		s.Source = Side{}
	}
	if len(r.sources) == 0 {
		return source{}, nil
	}
	next := source{from: r.sources[0], copy: w.Copy.In(r.sources[0].GetStore())}
	store, ok := w.observer.stores.Store(next.copy.Account, next.copy.Store)
	if !ok {
		s.Source = Side{Presence: Absent}
		return next, nil
	}
	next.store = storage.ReadOnly(store)
	s.Source = w.observeSource(ctx, next)
	s.Source.Record = w.records[next.copy]
	return next, ctx.Err()
}

// shouldHold reports whether a copy that has other bytes is a live copy of the content according to the records: then
// its bytes are wrong.
func (w *execution) shouldHold(c schemas.Copy, order *pb.RestoreOrder) bool {
	row := w.records[c].GetManifest()
	return isLive(row) && digest.Set(order.GetDigests()).Compare(row.GetDigests()) == digest.Agree
}

// observeSource observes a source: a copy, or kept bytes.
func (w *execution) observeSource(ctx context.Context, from source) Side {
	id := from.from.GetKept()
	if id == "" {
		s := w.observer.observeSide(ctx, from.copy, from.store)
		w.observer.confirmSpaceAbsent(ctx, from.copy, from.store, &s)
		return s
	}
	kept, err := storage.StatKept(ctx, from.store, storage.KeptRef{Space: w.Copy.Space, Item: w.Copy.Item, ID: id})
	switch {
	case err == nil:
		return Side{Presence: Present, Object: kept.Object}
	case errors.Is(err, storage.ErrNotFound):
		err = w.observer.confirmMarker(ctx, from.copy, from.store, time.Now())
	case errors.Is(err, storage.ErrUnsupported):
		err = nil
	}
	if err != nil {
		return Side{Err: fmt.Errorf("stat what store %s keeps of %s: %w", from.copy.Store, from.copy, err)}
	}
	return Side{Presence: Absent}
}

// open opens the bytes of a source.
func (w *execution) open(ctx context.Context, from source, version string) (r io.ReadCloser, err error) {
	if id := from.from.GetKept(); id != "" {
		r, _, err = storage.OpenKept(ctx, from.store, storage.KeptRef{Space: w.Copy.Space, Item: w.Copy.Item, ID: id})
	} else {
		r, _, err = from.store.Open(ctx, w.Copy.Space, w.Copy.Item, version)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", from.copy, err)
	}
	return r, nil
}

// writeRestored writes the content on the condition that the copy is still as observed. What is there is kept. The
// content names no source, so that what the source had before the order neither overwrites nor deletes it.
func (w *execution) writeRestored(
	ctx context.Context, s restoreObservation, d Decision, r *restoration, from source,
) (bool, error) {
	p, unknown := s.properties(d.Expected)
	o := storage.PutOptions{
		Condition:    storage.Condition{Absent: s.There.Presence == Absent, Version: s.There.Object.Version},
		Properties:   p,
		Digests:      d.Expected.Union(supported(s.Source.digests())),
		Compute:      []string{digest.MD5, digest.SHA256},
		Size:         s.Source.Object.Size,
		KeepReplaced: s.There.Presence == Present,
		Verify: func(digest.Set, int64) error {
			now := s
			if now.Refused, now.Hold = w.refusal(s.There), w.Hold(); decideRestore(now).action != d.action {
				return errStale
			}
			return nil
		},
	}
	if err := w.prepareRestore(ctx, s, from); err != nil {
		return false, markStale(err)
	}
	body, err := w.open(ctx, from, s.Source.Object.Version)
	if err != nil {
		return false, w.sourceFailed(r, err)
	}
	read := &readErrors{r: body}
	put, err := w.Store.Put(ctx, w.Copy.Space, w.Copy.Item, read, o)
	_ = body.Close() // only read from
	switch {
	case errors.Is(err, storage.ErrDigest):
		return false, w.misread(r, from, err)
	case err != nil && read.err != nil:
		return false, w.sourceFailed(r, fmt.Errorf("read %s: %w", from.copy, read.err))
	case err != nil:
		return false, markStale(fmt.Errorf("put %s: %w", w.Copy, err))
	}
	put.PropertiesUnknown = put.PropertiesUnknown || unknown
	w.bytes += put.Size
	w.detail = sourceName(from)
	w.recordRestored(s, d, put, from)
	return true, nil
}

// readErrors remembers the error of a reader, to tell it from one of the store that is written.
type readErrors struct {
	r   io.Reader
	err error
}

func (r *readErrors) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

func sourceName(from source) string {
	if kept := from.from.GetKept(); kept != "" {
		return fmt.Sprintf("from store %s, kept %s", from.copy.Store, kept)
	}
	return "from store " + from.copy.Store
}

// prepareRestore runs before a write to an absent item. It confirms that the store is the right one, and creates the
// space, as the source has it.
func (w *execution) prepareRestore(ctx context.Context, s restoreObservation, from source) error {
	if s.There.Presence != Absent {
		return nil
	}
	if err := w.observer.confirmMarker(ctx, w.Copy, w.Store, time.Now().Add(-markerAge)); err != nil {
		return err
	}
	if !s.There.NoSpace {
		return nil
	}
	space, err := from.store.StatSpace(ctx, w.Copy.Space)
	if errors.Is(err, storage.ErrNoSpace) { // kept bytes of a space that was deleted
		space, err = storage.Space{Name: w.Copy.Space, PropertiesUnknown: true}, nil
	}
	if err != nil {
		return fmt.Errorf("stat space of %s: %w", from.copy, err)
	}
	return w.createSpace(ctx, space)
}

// sourceFailed gives up the first source after an error of its store, unless the item changed: then it is observed
// again.
func (w *execution) sourceFailed(r *restoration, err error) error {
	if stale := markStale(err); errors.Is(stale, errStale) && r.misreads == 0 {
		r.misreads++
		return stale
	}
	r.skip(err.Error(), err)
	return fmt.Errorf("%w: %w", errStale, err)
}

// misread handles bytes of a source that do not have the expected digests. They are read once more, since the transport
// may have damaged them. Then the source is given up and checked.
func (w *execution) misread(r *restoration, from source, err error) error {
	if r.misreads++; r.misreads > 1 {
		if from.from.GetKept() == "" {
			r.suspects = append(r.suspects, from.copy)
		}
		r.skip("the bytes are others", nil)
	}
	return fmt.Errorf("%w: %w", errStale, err)
}

// finishRestore ends an order without a write. If an earlier execution may have brought the content back and not have
// published all that follows, that goes out. checks: checks of sources follow.
func (w *execution) finishRestore(s restoreObservation, d Decision, checks bool) {
	w.detail = d.Detail
	if d.Announce {
		o := s.There.Object
		o.Digests = s.There.digests()
		w.recordRestored(s, d, o, source{})
		return
	}
	w.digests = s.There.digests()
	outcome := pb.Outcome_OUTCOME_NOTHING
	if checks {
		outcome = pb.Outcome_OUTCOME_HANDED_ON
	}
	w.finish(d, outcome)
}

// recordRestored adds the Change of the content o that is back, its check, and the commands that bring the other copies
// of this store in line with it.
func (w *execution) recordRestored(s restoreObservation, d Decision, o storage.Object, from source) {
	change := record.Content(w.Copy, o)
	if s.There.Presence == Present && d.Result == ResultRestored {
		change.Op = pb.Op_OP_UPDATE
	}
	c := w.Command
	change.Approved = c.GetApproved()
	change.Evidence = map[string]string{"restore": c.GetCause()}
	if why := s.Order.GetWhy(); why != "" {
		change.Evidence["why"] = why
	}
	change = w.seal(change, pb.Origin_ORIGIN_REPAIR)
	w.emit(schemas.Changes, change)
	w.task = w.copyTask(change)
	w.digests = digest.Set(change.GetDigests())
	for _, p := range w.rules.Pairs {
		if p.Source == w.Copy.Store && (p.Destination != from.copy.Store || from.from.GetKept() != "") {
			w.carryRestored(change, p.Destination)
		}
	}
	outcome := pb.Outcome_OUTCOME_DONE
	if d.Result != ResultRestored {
		outcome = pb.Outcome_OUTCOME_NOTHING
	}
	w.finish(d, outcome)
}

// carryRestored adds the command that compares a destination with the restored content. The planner makes none for a
// repair. Its id is the one that the planner would give it.
func (w *execution) carryRestored(change *pb.Change, destination string) {
	c := w.Command
	priority, topic := w.rules.Class(change.GetSize(), w.cfg.Large)
	w.emit(topic, &pb.DuplicationCommand{
		Id:      schemas.ID("command", change.GetId(), destination),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: w.Copy.Store, DestinationStore: destination,
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Priority: priority,
		Cause: change.GetId(), CauseOp: change.GetOp(), ChangeTime: change.GetTime(), ChangeVersion: change.GetVersion(),
		Size: change.GetSize(), SizeUnknown: change.GetSizeUnknown(), Digests: change.GetDigests(),
		Provenance: change.GetProvenance(), PolicyRevision: w.rules.Revision, Time: c.GetTime(),
		Approved: c.GetApproved(), List: c.GetRestore().GetList(), // refused rewrites are undone here too
	})
}

// suspectOf returns an urgent task to check a copy whose bytes were to be restored elsewhere and are others.
func (w *execution) suspectOf(c schemas.Copy) *pb.FixityTask {
	reason := pb.FixityReason_FIXITY_REASON_SUSPECT
	return &pb.FixityTask{
		Id:      schemas.ID("task", reason.String(), w.Command.GetId(), c.Store),
		Account: c.Account, Store: c.Store, Space: c.Space, Item: c.Item,
		Reason: reason, Priority: pb.Priority_PRIORITY_HIGH, Cause: w.Command.GetId(), Time: timestamppb.New(w.started),
		Size: w.Command.GetSize(),
	}
}
