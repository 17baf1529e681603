package steward

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// table holds the newest form of each incident, closed ones too: what the topic said,
// and what was decided since. What it holds is never modified.
type table struct {
	mu sync.RWMutex
	// Both guarded by mu.
	incidents map[string]*pb.Incident
	copies    map[schemas.Copy][]string // keys of a copy's incidents, sorted
}

// apply takes what the topic says, unless more has been decided since.
func (t *table) apply(key string, i *pb.Incident) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.incidents[key]
	switch {
	case i == nil:
		t.drop(key, old)
	case old == nil || !ahead(old, i):
		t.put(key, i)
	}
}

// ahead says that a was decided after b.
func ahead(a, b *pb.Incident) bool {
	if a.GetId() == b.GetId() {
		return a.GetStepCount() > b.GetStepCount()
	}
	return a.GetOpened().AsTime().After(b.GetOpened().AsTime())
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

// newest returns when the newest check began that any incident of c took into account.
func (t *table) newest(c schemas.Copy) time.Time {
	var newest time.Time
	for _, i := range t.of(c) {
		if at := i.GetChecked().AsTime(); at.After(newest) {
			newest = at
		}
	}
	return newest
}
