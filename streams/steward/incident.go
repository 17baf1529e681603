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
	stepOpened     = "opened"
	stepSeenAgain  = "seen-again"
	stepOlder      = "older-check"
	stepAsked      = "approval-asked"
	stepApproved   = "approved"
	stepOrdered    = "repair-ordered"
	stepRepaired   = "repaired"
	stepMoot       = "repair-moot"
	stepFailed     = "repair-failed"
	stepExhausted  = "repairs-exhausted"
	stepNoCopy     = "no-good-copy"
	stepNoDigests  = "no-verified-digests"
	stepUnknown    = "records-unknown"
	stepClosed     = "closed"
	stepOutdated   = "decision-outdated"
	stepOther      = "repair-ordered-by-another" // Ref: the command
	kindCorrupt    = "content-corrupt"
	kindMissing    = "content-missing"
	kindReplaced   = "replaced"
	kindUncaptured = "not-captured"
	kindBack       = "resurrected"  // present under a tombstone
	kindDiffers    = "copy-differs" // from its source, whose content no client has reported
	kindMetadata   = "metadata-damaged"
)

// A cause is the message that makes an incident change.
type cause struct {
	ref string // its id
	by  string // the person behind it, if there is one
	at  time.Time
}

// step adds a step to an incident that is being changed.
func (s *Steward) step(i *pb.Incident, action string, c cause, detail string) {
	i.StepCount++
	i.Updated = timestamppb.New(c.at)
	i.Steps = append(i.Steps, &pb.IncidentStep{Time: i.Updated, Action: action, Ref: c.ref, By: c.by, Detail: detail})
	if extra := len(i.Steps) - s.config.MaxSteps; extra > 0 {
		i.Steps = slices.Delete(i.Steps, 0, extra)
	}
}

// edit returns a form of i that may be changed.
func edit(i *pb.Incident) *pb.Incident { return proto.CloneOf(i) }

// open returns a new incident of c. Of two incidents of one key the one that was opened later counts, so it is not dated
// before the last one, nil if there was none: the clocks of checkers differ.
func (s *Steward) open(place schemas.Copy, kind string, last *pb.Incident, c cause) *pb.Incident {
	opened := c.at
	if last != nil {
		for _, at := range []time.Time{last.GetOpened().AsTime().Add(time.Millisecond), last.GetClosed().AsTime()} {
			if at.After(opened) {
				opened = at
			}
		}
	}
	i := &pb.Incident{
		Account: place.Account, Store: place.Store, Space: place.Space, Item: place.Item, Kind: kind,
		State: pb.IncidentState_INCIDENT_STATE_OPEN, Opened: timestamppb.New(opened),
	}
	i.Id = schemas.ID("incident", schemas.IncidentKey(i), c.ref)
	return i
}

// Seen returns a digest of what a person who decides about an incident knows of its copy: what it is and what it should
// be. It is the same for a record of the topic and for a row of the table.
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
	return schemas.ID(parts...)
}

// meant says that a person decided about i as it is now. An action of an older program names neither the incident nor
// what was seen of it: it is about what was found before it.
func meant(i *pb.Incident, a *pb.AdminAction) bool {
	if a.GetIncident() != "" {
		return a.GetIncident() == i.GetId() && a.GetSeen() == Seen(i)
	}
	at := a.GetTime().AsTime()
	for _, s := range i.GetSteps() {
		if (s.GetAction() == stepOpened || s.GetAction() == stepSeenAgain) && s.GetTime().AsTime().After(at) {
			return false
		}
	}
	return !i.GetOpened().AsTime().After(at)
}

// closed says that i, which may be nil, is no open incident.
func closed(i *pb.Incident) bool {
	return i == nil || i.GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED
}

// knows says that the message ref has been taken into account.
func knows(i *pb.Incident, ref string) bool {
	return slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool { return s.GetRef() == ref })
}

// has says that i has taken a step.
func has(i *pb.Incident, action string) bool {
	return slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool { return s.GetAction() == action })
}

// tried says that a repair of i was ordered from store.
func tried(i *pb.Incident, store string) bool {
	return slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool {
		return s.GetAction() == stepOrdered && s.GetDetail() == store
	})
}

// tell keeps i and returns it as a message, with what ref led to as long as that is
// still out: the order, or the check in its place.
func (s *Steward) tell(i *pb.Incident, ref string) []schemas.Message {
	s.table.set(i)
	out := []schemas.Message{{Topic: schemas.Incidents, Body: i}}
	if order := ordered(i, ref); order != nil {
		topic := schemas.DuplicationHigh
		if s.large(order.GetSize()) {
			topic, order.Priority = schemas.DuplicationLarge, pb.Priority_PRIORITY_LARGE
		}
		out = append(out, schemas.Message{Topic: topic, Body: order})
	}
	if task := putOff(i, ref); task != nil {
		m := s.asked(task)
		m.Due = task.GetTime().AsTime().Add(s.config.Recheck)
		out = append(out, m)
	}
	return out
}

// large says that an item of size bytes is of the class large.
func (s *Steward) large(size int64) bool { return s.config.Large > 0 && size >= s.config.Large }

// asked is the message that asks for the check that task is, in its class.
func (s *Steward) asked(task *pb.FixityTask) schemas.Message {
	topic := schemas.FixityHigh
	if s.large(task.GetSize()) {
		topic, task.Priority = schemas.FixityLarge, pb.Priority_PRIORITY_LARGE
	}
	return schemas.Message{Topic: topic, Body: task}
}

// putOff rebuilds the task of the check that stands in for the order that ref could not
// give; nil where it gave one, or where a repair has been ordered since. The task's
// reason is not repair, whose failure means that a repair has come to its end: one that
// another check orders meanwhile is let finish.
func putOff(i *pb.Incident, ref string) *pb.FixityTask {
	n := slices.IndexFunc(i.GetSteps(), func(s *pb.IncidentStep) bool { return s.GetAction() == stepUnknown && s.GetRef() == ref })
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

// orderID is the id of the nth order of repair of an incident.
func orderID(incident string, n int32) string {
	return schemas.ID("repair", incident, strconv.Itoa(int(n)))
}

// orderNumber says which order of i a command was; 0 where it was none.
func orderNumber(i *pb.Incident, command string) int32 {
	for n := i.GetRepairs(); n > 0; n-- {
		if orderID(i.GetId(), n) == command {
			return n
		}
	}
	return 0
}

// lastOrder returns which step of i ordered the newest repair; -1 where none did.
func lastOrder(i *pb.Incident) int {
	n := len(i.GetSteps()) - 1
	for n >= 0 && i.Steps[n].GetAction() != stepOrdered {
		n--
	}
	return n
}

// ordered rebuilds the order of repair that ref gave; nil where it gave none, or where
// the repair is over.
func ordered(i *pb.Incident, ref string) *pb.DuplicationCommand {
	if i.GetState() != pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return nil
	}
	n := lastOrder(i)
	if n < 0 || i.Steps[n].GetRef() != ref {
		return nil
	}
	step := i.Steps[n]
	var check string
	for _, before := range i.Steps[:n] {
		if a := before.GetAction(); a == stepOpened || a == stepSeenAgain {
			check = before.GetRef()
		}
	}
	return &pb.DuplicationCommand{
		Id:      orderID(i.GetId(), i.GetRepairs()),
		Account: i.GetAccount(), Space: i.GetSpace(), Item: i.GetItem(),
		SourceStore: step.GetDetail(), DestinationStore: i.GetStore(),
		Reason: pb.DuplicationReason_DUPLICATION_REASON_REPAIR, Priority: pb.Priority_PRIORITY_HIGH,
		Cause: i.GetId(), Size: i.GetSize(), Digests: i.GetExpected(), Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Approved: step.GetBy(), Time: step.GetTime(),
		Repair: &pb.RepairOrder{
			Incident: schemas.IncidentKey(i), Digests: i.GetExpected(), Failed: i.GetObject(),
			Check: check, Number: i.GetRepairs(),
		},
	}
}
