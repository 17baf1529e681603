package steward

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// A family is a parent with its open children. Those of held repairs are all missing copies of the space, also those
// that were found before there were too many.
type family struct {
	about    incident.Subject
	key      string
	children int
	named    int // children that name the parent
	awaiting int // children whose repairs wait for an approval
}

// A kin is the children of a parent, by key. They are in the maps by what they are, so that no count needs a scan.
type kin struct{ named, others, awaiting map[string]*pb.Incident }

// kins are the families of the open incidents.
type kins map[incident.Subject]*kin

// familiesOf returns the parents of i: the one that it names, and the one of the missing copies of its space, which may
// be the same.
func familiesOf(i *pb.Incident) (named, held incident.Subject) {
	if i.GetKind() == kindMissing {
		held = heldOf(schemas.CopyOf(i).WithoutItem())
	}
	if i.GetParent() == "" {
		return named, held
	}
	for _, about := range [...]incident.Subject{held, groupOf(i, ofSpace), groupOf(i, ofStore), groupOf(i, ofWorker)} {
		if about.Kind != "" && about.Incident().GetId() == i.GetParent() {
			return about, held
		}
	}
	return named, held
}

// remove removes an incident; nil is none.
func (k kins) remove(i *pb.Incident) {
	if closed(i) {
		return
	}
	named, held := familiesOf(i)
	for _, about := range [...]incident.Subject{named, held} {
		f := k[about]
		if f == nil {
			continue
		}
		key := schemas.IncidentKey(i)
		delete(f.named, key)
		delete(f.others, key)
		if delete(f.awaiting, key); len(f.named)+len(f.others) == 0 {
			delete(k, about)
		}
	}
}

// add adds an incident; nil is none.
func (k kins) add(i *pb.Incident) {
	if closed(i) {
		return
	}
	key := schemas.IncidentKey(i)
	named, held := familiesOf(i)
	if named.Kind != "" {
		k.of(named).named[key] = i
	}
	if held.Kind == "" {
		return
	}
	if held != named {
		k.of(held).others[key] = i
	}
	if i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL {
		k.of(held).awaiting[key] = i
	}
}

func (k kins) of(about incident.Subject) *kin {
	if k[about] == nil {
		k[about] = &kin{map[string]*pb.Incident{}, map[string]*pb.Incident{}, map[string]*pb.Incident{}}
	}
	return k[about]
}

// families returns the families of the open incidents, ordered by key.
func (t *table) families() []family {
	t.mu.RLock()
	all := make([]family, 0, len(t.kins))
	for about, k := range t.kins {
		all = append(all, family{about, about.Key(), len(k.named) + len(k.others), len(k.named), len(k.awaiting)})
	}
	t.mu.RUnlock()
	slices.SortFunc(all, func(a, b family) int { return cmp.Compare(a.key, b.key) })
	return all
}

// joined returns when the last child came to a parent.
func (t *table) joined(about incident.Subject) (last time.Time) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.kins[about] == nil {
		return last
	}
	for _, i := range t.kins[about].named {
		at := i.GetOpened().AsTime()
		if about.Kind == incident.RepairsHeld {
			at = heldAt(i)
		}
		if at.After(last) {
			last = at
		}
	}
	return last
}

// isNamed reports whether an open incident names a parent.
func (t *table) isNamed(about incident.Subject) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.kins[about] != nil && len(t.kins[about].named) > 0
}

// eachAwaiting calls do for each child of held repairs that waits for an approval, until it returns false.
func (t *table) eachAwaiting(about incident.Subject, do func(key string, i *pb.Incident) bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.kins[about] == nil {
		return
	}
	for key, i := range t.kins[about].awaiting {
		if !do(key, i) {
			return
		}
	}
}

// heldAt returns when the repair of i was held last; when i was opened if the step is not carried any more.
func heldAt(i *pb.Incident) time.Time {
	for _, step := range slices.Backward(i.GetSteps()) {
		if step.GetAction() == stepHeld {
			return step.GetTime().AsTime()
		}
	}
	return i.GetOpened().AsTime()
}
