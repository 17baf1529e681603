package duplicate

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// agent is the agent of Changes by executors.
const agent = "copier"

// messages returns all messages of the execution. The result is the last.
func (w *execution) messages() []schemas.Message {
	if w.task != nil && (!w.cfg.NoCheck || w.end.Row == RowRepair || w.end.Row == RowRestore) {
		w.requestCheck(w.task)
	}
	c := w.Command
	r := &pb.DuplicationResult{
		Id: schemas.NewID(), Command: c.GetId(), Cause: c.GetCause(),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetSourceStore(), DestinationStore: c.GetDestinationStore(), Reason: c.GetReason(),
		Decision: string(w.end.Row), Result: w.end.Result, Outcome: w.outcome, Newer: w.end.Newer,
		Bytes: w.bytes, Digests: w.digests, Detail: w.detail,
		Started: timestamppb.New(w.started), Finished: schemas.Finished(w.started, time.Now()),
		ChangeTime: c.GetChangeTime(), Planned: c.GetTime(), Incident: c.GetRepair().GetIncident(),
		List: w.list, Effect: w.effect, Attempt: int32(w.delivery.Attempt), SourceVersion: w.sourceVersion,
		Worker: w.cfg.Worker, Host: w.cfg.Host, Software: w.cfg.Software,
	}
	if c.GetDryRun() {
		r.Result, r.WouldBe = ResultDryRun, r.Result
	}
	w.emit(schemas.DuplicationResults, r)
	return w.out
}

// requestCheck adds a task to the messages, in the topic of its class.
func (w *execution) requestCheck(t *pb.FixityTask) {
	topic := schemas.FixityHigh
	if w.cfg.Large > 0 && max(t.GetSize(), t.GetKnown().GetManifest().GetSize()) >= w.cfg.Large {
		t.Priority = pb.Priority_PRIORITY_LARGE
	}
	switch t.GetPriority() {
	case pb.Priority_PRIORITY_LOW:
		topic = schemas.FixityLow
	case pb.Priority_PRIORITY_LARGE:
		topic = schemas.FixityLarge
	}
	w.emit(topic, t)
}

func (w *execution) origin() pb.Origin {
	if w.Command.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR {
		return pb.Origin_ORIGIN_REPAIR
	}
	return pb.Origin_ORIGIN_DUPLICATION
}

func (w *execution) seal(c *pb.Change, o pb.Origin) *pb.Change {
	c.Origin, c.Cause, c.Agent = o, w.Command.GetId(), agent
	return record.Seal(c)
}

// contentChange returns the Change of the destination's copy o. If the source's properties are unknown and the copy has
// none, the Change says that they are unknown.
func (w *execution) contentChange(s Observation, o storage.Object) *pb.Change {
	o.Original = w.originalOf(s)
	if s.Source.Object.PropertiesUnknown && o.Properties.IsEmpty() {
		o.PropertiesUnknown = true
	}
	return w.seal(record.Content(w.Copy, o), w.origin())
}

// originalOf returns the source content that the destination is, or becomes, a copy of. A repaired copy remains a copy
// of the content on record, whichever store it is repaired from.
func (w *execution) originalOf(s Observation) storage.Original {
	switch row := s.Destination.Record.GetManifest(); {
	case w.origin() == pb.Origin_ORIGIN_REPAIR && row.GetSourceTime() == nil:
		return storage.Original{}
	case w.origin() == pb.Origin_ORIGIN_REPAIR:
		return storage.Original{Modified: row.GetSourceTime().AsTime(), Version: row.GetSourceVersion()}
	case s.Source.Presence == Present:
		return record.Original(s.Source.Object)
	}
	return s.original()
}

// presentChange returns the Change of the destination's object o, which the manifest lacks. Without a source, and
// without evidence that it is a copy, its origin is a sweep.
func (w *execution) presentChange(s Observation, o storage.Object) *pb.Change {
	c := w.contentChange(s, o)
	if s.Source.Presence != Present && c.GetSourceTime() == nil && c.GetOrigin() == pb.Origin_ORIGIN_DUPLICATION {
		c.Origin = pb.Origin_ORIGIN_SWEEP
	}
	return c
}

// announceSource publishes the source's content once. The manifest has no row, or no digests, of it. If it has a row,
// the Change completes that of the row.
func (w *execution) announceSource(s Observation) {
	if w.sourceAnnounced {
		return
	}
	w.sourceAnnounced = true
	o := s.Source.Object
	o.Digests = supported(s.Source.digests())
	change := record.Content(w.SourceCopy, o)
	if row, ok := s.sourceRow(); ok && isLive(row) && contentOf(row).matches(s.Source) {
		record.Complete(change, row)
	} else {
		record.At(change, o, record.Dated(o, w.started))
	}
	w.emit(schemas.Changes, w.seal(change, pb.Origin_ORIGIN_FIXITY))
}

// propertiesChange returns the Change of o's properties. Stores date only contents, so its time is the latest of the
// content's, the causing change's and the command's.
func (w *execution) propertiesChange(o storage.Object) *pb.Change {
	c := record.Content(w.Copy, o)
	c.Op = pb.Op_OP_SET_PROPERTIES
	c.Digests, c.Provenance = nil, pb.Provenance_PROVENANCE_UNSPECIFIED
	c.Time = later(c.GetTime(), later(schemas.ChangedAt(w.Command), w.Command.GetTime()))
	return w.seal(c, w.origin())
}

// DeleteChange returns the DELETE Change of a destination that C8 found absent while its row was live. The time of that
// delete is unknown: by the store's clock it is between the time of the content and that of the observation. Within
// these bounds the source's delete gives the time, so that a second execution publishes the same Change.
func (sc *Sides) DeleteChange(s Observation, d Decision) *pb.Change {
	row := s.Destination.Record.GetManifest()
	at := d.Deleted
	if at.After(s.Destination.AbsentAt) {
		at = s.Destination.AbsentAt
	}
	if came := row.GetTime().AsTime(); at.Before(came) {
		at = came
	}
	change := record.Delete(sc.Copy, storage.Deleted{
		Object: storage.Object{
			Version: row.GetVersion(), ETag: row.GetEtag(), Size: schemas.SizeOf(row), Digests: row.GetDigests(),
		},
		Time: at,
	})
	change.Provenance = row.GetProvenance()
	change.Origin, change.Cause, change.Agent = pb.Origin_ORIGIN_DUPLICATION, sc.Command.GetId(), agent
	change.SourceTime, change.SourceVersion = row.GetSourceTime(), row.GetSourceVersion()
	return record.Seal(change)
}

func later(a, b *timestamppb.Timestamp) *timestamppb.Timestamp {
	if a == nil || b != nil && b.AsTime().After(a.AsTime()) {
		return b
	}
	return a
}

// recordOf returns the record of a copy after its Change c is stored.
func recordOf(c *pb.Change) *pb.CopyRecord {
	r := func() *pb.Record {
		return &pb.Record{
			State: pb.RecordState_RECORD_STATE_LIVE, Digests: c.GetDigests(), Provenance: c.GetProvenance(),
			Size: c.GetSize(), SizeUnknown: c.GetSizeUnknown(), Version: c.GetVersion(), Etag: c.GetEtag(),
			Time: c.GetTime(), ChangeId: c.GetId(),
			SourceTime: c.GetSourceTime(), SourceVersion: c.GetSourceVersion(),
			MediaType: c.GetMediaType(), Properties: c.GetProperties(), Origin: c.GetOrigin(),
		}
	}
	known := &pb.CopyRecord{Manifest: r(), Audit: r()}
	if c.GetPropertiesUnknown() {
		known.PropertiesHash = schemas.UnknownProperties
	}
	return known
}

// copyTask returns the task of the check that follows Change c.
func (w *execution) copyTask(c *pb.Change) *pb.FixityTask {
	reason, priority := pb.FixityReason_FIXITY_REASON_AFTER_COPY, w.Command.GetPriority()
	if w.origin() == pb.Origin_ORIGIN_REPAIR {
		reason = pb.FixityReason_FIXITY_REASON_REPAIR
	}
	if priority == pb.Priority_PRIORITY_UNSPECIFIED {
		priority = pb.Priority_PRIORITY_HIGH
	}
	return &pb.FixityTask{
		Id:      schemas.ID("task", reason.String(), w.Command.GetId(), c.GetId()),
		Account: w.Copy.Account, Store: w.Copy.Store, Space: w.Copy.Space, Item: w.Copy.Item,
		Reason: reason, Priority: priority, Cause: w.Command.GetId(), Time: timestamppb.New(w.started),
		Known: schemas.WithoutProperties(recordOf(c)),
	}
}

// suspectTask returns an urgent task to check a copy that is not as expected. In a repair the check of the destination
// has the reason repair.
func (w *execution) suspectTask(at schemas.Copy, s Observation) *pb.FixityTask {
	side, row := s.Source, s.Command.GetSourceRecord()
	if at == w.Copy {
		side, row = s.Destination, s.Command.GetDestinationRecord()
	}
	size := side.Object.Size // 0 if it is absent
	if side.Presence == Unknown {
		size = max(side.Record.GetManifest().GetSize(), row.GetSize(), s.Command.GetSize())
	}
	reason := pb.FixityReason_FIXITY_REASON_SUSPECT
	if w.origin() == pb.Origin_ORIGIN_REPAIR && at == w.Copy {
		reason = pb.FixityReason_FIXITY_REASON_REPAIR
	}
	return &pb.FixityTask{
		Id:      schemas.ID("task", reason.String(), w.Command.GetId(), at.Store),
		Account: at.Account, Store: at.Store, Space: at.Space, Item: at.Item,
		Reason: reason, Priority: pb.Priority_PRIORITY_HIGH, Cause: w.Command.GetId(), Time: timestamppb.New(w.started),
		Size: size,
	}
}

func (w *execution) deletionCommand(s Observation, d Decision) *pb.DeletionCommand {
	c := w.Command
	return &pb.DeletionCommand{
		Id:      schemas.ID("deletion", c.GetId()),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetSourceStore(), DestinationStore: c.GetDestinationStore(),
		Command: c.GetId(), Cause: c.GetCause(), Deleted: timestamppb.New(d.Deleted.Truncate(time.Millisecond)),
		Destination: record.Identity(s.Destination.Object), NeedsApproval: d.NeedsApproval,
		Reason: c.GetReason(), PolicyRevision: s.Rules.Revision, Time: c.GetTime(), Approved: approvedDelete(c),
		DryRun: c.GetDryRun(),
	}
}
