package steward

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The steps of an incident.
const (
	stepOpened    = "opened"
	stepSeenAgain = "seen-again"
	stepOlder     = "older-check"
	stepAsked     = "approval-asked"
	stepHeld      = "repair-held" // on a list: Detail says why
	stepApproved  = "approved"
	stepOrdered   = "repair-ordered"
	stepRepaired  = "repaired"
	stepMoot      = "repair-moot"
	stepFailed    = "repair-failed"
	stepExhausted = "repairs-exhausted"
	stepNoCopy    = "no-good-copy"
	stepNoDigests = "no-verified-digests"
	stepUnknown   = "records-unknown"
	stepClosed    = "closed"
	stepOutdated  = "decision-outdated"
	stepOther     = "repair-ordered-by-another" // Ref is the id of the command
	// An operator accepts what the copy holds, the latter also under the version on record. A check decides about it.
	stepAccept       = "accept-ordered"
	stepAcceptForced = "accept-forced"
	stepCorrected    = "corrected"     // Detail is the id of the Change
	stepOlderRecords = "older-records" // a pass on records from before the newest event; a fresh check follows
	stepUnseen       = "not-seen"      // no check has described the object that a decision is about
	kindCorrupt      = "content-corrupt"
	kindMissing      = "content-missing"
	kindReplaced     = "replaced"
	kindUpdate       = "not-captured-update"
	kindNoQuorum     = "no-quorum"
	kindBack         = "resurrected" // present under a tombstone
	kindMetadata     = "metadata-damaged"

	kindManifestWrong     = "manifest-wrong"
	kindManifestCorrected = "manifest-corrected"
)

// A cause is the message that changes an incident.
type cause struct {
	ref string // id of the message
	by  string // the operator, if there is one
	at  time.Time
}

// step adds a step to i, which must be a clone.
func (s *Steward) step(i *pb.Incident, action string, c cause, detail string) {
	i.StepCount++
	i.Updated = timestamppb.New(c.at)
	i.Steps = append(i.Steps, &pb.IncidentStep{Time: i.Updated, Action: action, Ref: c.ref, By: c.by, Detail: detail})
	if extra := len(i.Steps) - s.config.MaxSteps; extra > 0 {
		i.Steps = slices.Delete(i.Steps, 0, extra)
	}
}

// clone returns a copy of i that may be changed.
func clone(i *pb.Incident) *pb.Incident { return proto.CloneOf(i) }

// open returns a new incident caused by c. last is the previous incident of the same key, or nil. The one opened later
// is the current one, so open never sets a time before that of last, even if the clocks of checkers differ.
func (s *Steward) open(cp schemas.Copy, kind string, last *pb.Incident, c cause) *pb.Incident {
	opened := c.at
	if last != nil {
		for _, at := range []time.Time{last.GetOpened().AsTime().Add(time.Millisecond), last.GetClosed().AsTime()} {
			if at.After(opened) {
				opened = at
			}
		}
	}
	i := &pb.Incident{
		Account: cp.Account, Store: cp.Store, Space: cp.Space, Item: cp.Item, Kind: kind,
		State: pb.IncidentState_INCIDENT_STATE_OPEN, Opened: timestamppb.New(opened),
	}
	i.Id = schemas.ID("incident", schemas.IncidentKey(i), c.ref)
	return i
}

// Seen returns a digest of the facts that a decision about an incident is based on: the actual and the expected state
// of its copy, and the newest event on record. It is the same for a record of the topic and for a row of the table.
func Seen(i *pb.Incident) string {
	parts := []string{"seen", strconv.Itoa(int(i.GetRow()))}
	if o := i.GetObject(); o.GetVersion() != "" || o.GetEtag() != "" || o.GetModified() != nil {
		parts = append(parts, o.GetVersion(), o.GetEtag(), strconv.FormatInt(o.GetSize(), 10))
		if o.GetModified() != nil {
			parts = append(parts, o.GetModified().AsTime().Format(time.RFC3339Nano))
		}
	}
	for _, digests := range []map[string]string{i.GetFound(), i.GetExpected()} {
		parts = append(parts, "digests")
		for _, algorithm := range slices.Sorted(maps.Keys(digests)) {
			parts = append(parts, algorithm, digests[algorithm])
		}
	}
	if last := i.GetLastEvent(); last != nil {
		parts = append(parts, "event", last.AsTime().Format(time.RFC3339Nano))
	}
	return schemas.ID(parts...)
}

// closed reports whether i is nil or closed.
func closed(i *pb.Incident) bool {
	return i == nil || i.GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED
}

// hasRef reports whether a step of i was caused by the message ref.
func hasRef(i *pb.Incident, ref string) bool {
	return slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool { return s.GetRef() == ref })
}

// hasStep reports whether i has a step with the given action.
func hasStep(i *pb.Incident, action string) bool {
	return slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool { return s.GetAction() == action })
}

// save stores i in the table and returns the messages to publish: i itself and, unless it is finished, the order or the
// check that the message ref caused.
func (s *Steward) save(i *pb.Incident, ref string) []schemas.Message {
	s.table.set(i)
	out := []schemas.Message{{Topic: schemas.Incidents, Body: i}}
	if n := orderedBy(i, ref); n >= 0 {
		out = append(out, s.order(i, n))
	}
	for _, task := range []*pb.FixityTask{acceptTask(i, ref), followUp(i, ref)} {
		if task != nil {
			out = append(out, s.checkRequest(task))
		}
	}
	if task := postponedCheck(i, ref); task != nil {
		m := s.checkRequest(task)
		m.Due = time.Now().Add(s.config.Recheck)
		out = append(out, m)
	}
	return out
}

// large reports whether an item of size bytes is of class large.
func (s *Steward) large(size int64) bool { return s.config.Large > 0 && size >= s.config.Large }

// checkRequest returns the message for a check, with the topic and priority for its size.
func (s *Steward) checkRequest(task *pb.FixityTask) schemas.Message {
	topic := schemas.FixityHigh
	if s.large(task.GetSize()) {
		topic, task.Priority = schemas.FixityLarge, pb.Priority_PRIORITY_LARGE
	}
	return schemas.Message{Topic: topic, Body: task}
}

// postponedCheck returns the check that replaces the repair order if the message ref could not order a repair because
// the records were unavailable. It returns nil if a repair has been ordered. The reason of the task is not
// FIXITY_REASON_REPAIR, because a failed check with that reason would end a repair that was ordered meanwhile.
func postponedCheck(i *pb.Incident, ref string) *pb.FixityTask {
	n := slices.IndexFunc(i.GetSteps(), func(s *pb.IncidentStep) bool {
		return s.GetAction() == stepUnknown && s.GetRef() == ref
	})
	if n < 0 || n < lastOrder(i) || i.GetState() != pb.IncidentState_INCIDENT_STATE_OPEN {
		return nil
	}
	return &pb.FixityTask{
		Id:      schemas.ID(stepUnknown, i.GetId(), ref),
		Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(), Item: i.GetItem(),
		Reason: pb.FixityReason_FIXITY_REASON_SUSPECT, Priority: pb.Priority_PRIORITY_HIGH,
		Cause: ref, Time: i.Steps[n].GetTime(), Size: i.GetSize(),
	}
}
