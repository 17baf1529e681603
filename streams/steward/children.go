package steward

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// A childCount counts the open children of a parent that are incidents of copies. Those of held repairs are all missing
// copies of the space, also those that were found before there were too many.
type childCount struct {
	about    incident.Subject
	key      string
	children int
	named    int // children that name the parent
	awaiting int // children whose repairs wait for an approval
}

// A childSet has the children of a parent, by key. Each map holds those of one state, so that no count needs a scan.
type childSet struct{ named, others, awaiting map[string]*pb.Incident }

// childSets are the children of all parents.
type childSets map[incident.Subject]*childSet

// parentsOf returns the parents of i: the one that it names, and the one of the missing copies of its space, which may
// be the same.
func parentsOf(i *pb.Incident) (named, held incident.Subject) {
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
func (c childSets) remove(i *pb.Incident) {
	if closed(i) {
		return
	}
	named, held := parentsOf(i)
	for _, about := range [...]incident.Subject{named, held} {
		set := c[about]
		if set == nil {
			continue
		}
		key := schemas.IncidentKey(i)
		delete(set.named, key)
		delete(set.others, key)
		if delete(set.awaiting, key); len(set.named)+len(set.others) == 0 {
			delete(c, about)
		}
	}
}

// add adds an incident; nil is none.
func (c childSets) add(i *pb.Incident) {
	if closed(i) {
		return
	}
	key := schemas.IncidentKey(i)
	named, held := parentsOf(i)
	if named.Kind != "" {
		c.of(named).named[key] = i
	}
	if held.Kind == "" {
		return
	}
	if held != named {
		c.of(held).others[key] = i
	}
	if i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL {
		c.of(held).awaiting[key] = i
	}
}

func (c childSets) of(about incident.Subject) *childSet {
	if c[about] == nil {
		c[about] = &childSet{map[string]*pb.Incident{}, map[string]*pb.Incident{}, map[string]*pb.Incident{}}
	}
	return c[about]
}

// childCounts returns the numbers of the children of all parents, ordered by key.
func (t *table) childCounts() []childCount {
	t.mu.RLock()
	all := make([]childCount, 0, len(t.children))
	for about, set := range t.children {
		all = append(all, childCount{about, about.Key(), len(set.named) + len(set.others), len(set.named), len(set.awaiting)})
	}
	t.mu.RUnlock()
	slices.SortFunc(all, func(a, b childCount) int { return cmp.Compare(a.key, b.key) })
	return all
}

// joined returns when the last child came to a parent.
func (t *table) joined(about incident.Subject) (last time.Time) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.children[about] == nil {
		return last
	}
	for _, i := range t.children[about].named {
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
	return t.children[about] != nil && len(t.children[about].named) > 0
}

// eachAwaiting calls do for each child of held repairs that waits for an approval, until it returns false.
func (t *table) eachAwaiting(about incident.Subject, do func(key string, i *pb.Incident) bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.children[about] == nil {
		return
	}
	for key, i := range t.children[about].awaiting {
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
