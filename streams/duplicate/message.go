package duplicate

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/storage"
)

// agent names the executors in Changes.
const agent = "copier"

// messages returns all that the execution leads to, the result last.
func (w *execution) messages() []schemas.Message {
	if w.task != nil && (!w.cfg.NoCheck || w.end.Row == RowRepair) {
		w.requestCheck(w.task)
	}
	c := w.Command
	w.emit(schemas.DuplicationResults, &pb.DuplicationResult{
		Id: schemas.NewID(), Command: c.GetId(), Cause: c.GetCause(),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetSourceStore(), DestinationStore: c.GetDestinationStore(), Reason: c.GetReason(),
		Decision: string(w.end.Row), Result: w.end.Result, Outcome: w.outcome, Newer: w.end.Newer,
		Bytes: w.bytes, Digests: w.digests, Detail: w.detail,
		Started: timestamppb.New(w.started), Finished: timestamppb.Now(), Attempt: int32(w.delivery.Attempt),
		ChangeTime: c.GetChangeTime(), Incident: c.GetRepair().GetIncident(),
		Worker: w.cfg.Worker, Host: w.cfg.Host, Software: w.cfg.Software,
	})
	return w.out
}

// ask asks for a check, in the class of its priority.
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

// content is the Change of the destination's copy, o. A copy that has no properties, of a source whose properties are
// not known, is not said to have none.
func (w *execution) contentChange(s Observation, o storage.Object) *pb.Change {
	o.Original = w.originalOf(s)
	if s.Source.Object.PropertiesUnknown && isEmpty(o.Properties) {
		o.PropertiesUnknown = true
	}
	return w.seal(record.Content(w.Copy, o), w.origin())
}

// of returns the content that the destination is a copy of, or is made one of. A repaired copy stays one of the content
// that it is to hold again, whichever copy that is taken from.
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

// present is the Change of the destination's object, o, which was found there. Without a source, and with nothing that
// says that it is a copy, it is put on record as found.
func (w *execution) presentChange(s Observation, o storage.Object) *pb.Change {
	c := w.contentChange(s, o)
	if s.Source.Presence != Present && c.GetSourceTime() == nil && c.GetOrigin() == pb.Origin_ORIGIN_DUPLICATION {
		c.Origin = pb.Origin_ORIGIN_SWEEP
	}
	return c
}

// announceSource publishes the source's content, once: nothing was on record of it, or no digests.
func (w *execution) announceSource(at Side) {
	if w.sourceAnnounced {
		return
	}
	w.sourceAnnounced = true
	o := at.Object
	o.Digests = supported(at.digests())
	w.emit(schemas.Changes, w.seal(record.Content(w.SourceCopy, o), pb.Origin_ORIGIN_FIXITY))
}

// propertiesSet is the Change that tells of o's properties. Stores date contents only, so
// it is as young as the youngest of the content, the change that caused it, and its command.
func (w *execution) propertiesChange(o storage.Object) *pb.Change {
	c := record.Content(w.Copy, o)
	c.Op = pb.Op_OP_SET_PROPERTIES
	c.Digests, c.Provenance = nil, pb.Provenance_PROVENANCE_UNSPECIFIED
	c.Time = later(c.GetTime(), later(w.Command.GetChangeTime(), w.Command.GetTime()))
	return w.seal(c, w.origin())
}

func (w *execution) spaceChange(space storage.Space) *pb.Change {
	c := &pb.Change{
		Op: pb.Op_OP_CREATE_SPACE, Account: w.Copy.Account, Store: w.Copy.Store, Space: space.Name,
		Properties: space.Properties, Acl: space.ACL,
		// Stores do not date spaces; the command's time is the same in every execution.
		Time: later(w.Command.GetChangeTime(), w.Command.GetTime()),
	}
	if c.Time == nil {
		c.Time = record.Time(w.delivery.Timestamp)
	}
	return w.seal(c, w.origin())
}

// Gone is the DELETE Change of a destination that C8 found absent while its row was live. No one saw when it was deleted:
// by the clock of its store not before its content came, and not after the look that found it absent. Between these
// the time of the source's delete is taken, though another clock has it: so a second execution publishes the same Change.
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
		Object: storage.Object{Version: row.GetVersion(), ETag: row.GetEtag(), Size: schemas.SizeOf(row), Digests: row.GetDigests()},
		Time:   at,
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

// known is what is on record of a copy once its Change has landed.
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
	return &pb.CopyRecord{Manifest: r(), Audit: r()}
}

// afterCopy asks for the check of what a Change tells of.
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

// suspect asks for the check of a copy that was found odd, at once. That of a repair is
// the check of the copy that was to be repaired; its source is suspect like any other.
func (w *execution) suspectTask(at schemas.Copy, s Observation) *pb.FixityTask {
	side, row := s.Source, s.Command.GetSourceRecord()
	if at == w.Copy {
		side, row = s.Destination, s.Command.GetDestinationRecord()
	}
	size := side.Object.Size // 0 where it is absent: there is nothing to be read
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
	}
}
