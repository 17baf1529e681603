package steward

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// table holds the newest form of each incident of a copy, closed ones too: what the topic says,
// and what was decided since. What it holds is never modified.
type table struct {
	mu sync.RWMutex
	// All guarded by mu.
	incidents map[string]*pb.Incident
	copies    map[schemas.Copy][]string // keys of a copy's incidents, sorted
	behind    map[string]bool           // keys of which the topic's newest record lacks something that is held
}

// apply takes what the topic says. Incidents without an item are those of others.
func (t *table) apply(key string, i *pb.Incident) {
	if i != nil && i.GetItem() == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.incidents[key]
	delete(t.behind, key)
	if i == nil {
		t.drop(key, old)
		return
	}
	now, behind := reconcile(old, i)
	t.put(key, now)
	if behind {
		if t.behind == nil {
			t.behind = map[string]bool{}
		}
		t.behind[key] = true
	}
}

// unsaid returns the incidents of a copy of which the topic's newest record lacks something.
func (t *table) unsaid(c schemas.Copy) (all []*pb.Incident) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.behind) == 0 { // nearly always
		return nil
	}
	for _, key := range t.copies[c] {
		if t.behind[key] {
			all = append(all, t.incidents[key])
		}
	}
	return all
}

// overwritten returns the incidents of which the topic's newest record lacks something.
func (t *table) overwritten() (all []*pb.Incident) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for key := range t.behind {
		all = append(all, t.incidents[key])
	}
	return all
}

func (t *table) drop(key string, old *pb.Incident) {
	if old == nil {
		return
	}
	delete(t.incidents, key)
	c := schemas.CopyOf(old)
	keys := slices.DeleteFunc(t.copies[c], func(k string) bool { return k == key })
	if len(keys) == 0 {
		delete(t.copies, c)
	} else {
		t.copies[c] = keys
	}
}

func (t *table) put(key string, i *pb.Incident) {
	if t.incidents == nil {
		t.incidents, t.copies = map[string]*pb.Incident{}, map[schemas.Copy][]string{}
	}
	if t.incidents[key] == nil {
		c := schemas.CopyOf(i)
		keys := append(slices.Clone(t.copies[c]), key)
		slices.Sort(keys)
		t.copies[c] = keys
	}
	t.incidents[key] = i
}

// set takes what was decided.
func (t *table) set(i *pb.Incident) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(schemas.IncidentKey(i), i)
}

// get returns the incident of a key; nil where there is none.
func (t *table) get(key string) *pb.Incident {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.incidents[key]
}

// of returns the incidents of a copy.
func (t *table) of(c schemas.Copy) []*pb.Incident {
	t.mu.RLock()
	defer t.mu.RUnlock()
	keys := t.copies[c]
	if len(keys) == 0 {
		return nil
	}
	out := make([]*pb.Incident, len(keys))
	for n, key := range keys {
		out[n] = t.incidents[key]
	}
	return out
}

// newest returns when the newest check began that any incident of c took into account. Those of kindDiffers and
// kindMetadata do not count: what they took into account says nothing of the bytes.
func (t *table) newest(c schemas.Copy) time.Time {
	var newest time.Time
	for _, i := range t.of(c) {
		if i.GetKind() == kindDiffers || i.GetKind() == kindMetadata {
			continue
		}
		if at := i.GetChecked().AsTime(); at.After(newest) {
			newest = at
		}
	}
	return newest
}
