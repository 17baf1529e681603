package steward

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A table holds the newest state of each incident of a copy, closed ones included: the record of the topic with the
// decisions since. Its incidents are never modified.
type table struct {
	mu sync.RWMutex
	// All guarded by mu.
	incidents map[string]*pb.Incident
	copies    map[schemas.Copy][]string // sorted keys of the incidents of each copy
	stale     map[string]bool           // keys for which the newest record of the topic lacks steps
}

// apply applies a record of the topic. It ignores incidents without an item, which other roles and the board manage.
func (t *table) apply(key string, i *pb.Incident) {
	if i != nil && i.GetItem() == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.incidents[key]
	delete(t.stale, key)
	if i == nil {
		t.drop(key, old)
		return
	}
	now, stale := reconcile(old, i)
	t.put(key, now)
	if stale {
		if t.stale == nil {
			t.stale = map[string]bool{}
		}
		t.stale[key] = true
	}
}

// staleOf returns the incidents of a copy for which the newest record of the topic lacks steps.
func (t *table) staleOf(c schemas.Copy) (all []*pb.Incident) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.stale) == 0 { // usual case
		return nil
	}
	for _, key := range t.copies[c] {
		if t.stale[key] {
			all = append(all, t.incidents[key])
		}
	}
	return all
}

// overwritten returns all incidents for which the newest record of the topic lacks steps.
func (t *table) overwritten() (all []*pb.Incident) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for key := range t.stale {
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

// set stores a decision.
func (t *table) set(i *pb.Incident) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(schemas.IncidentKey(i), i)
}

// get returns the incident of a key; nil if there is none.
func (t *table) get(key string) *pb.Incident {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.incidents[key]
}

// find returns the incident of a copy and a kind; nil if there is none.
func (t *table) find(c schemas.Copy, kind string) *pb.Incident {
	return t.get(schemas.Key(c.Account, c.Store, c.Space, c.Item, kind))
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

// newest returns the start of the newest check among the incidents of c. It skips kindMetadata, because its checks are
// not about the bytes.
func (t *table) newest(c schemas.Copy) time.Time {
	var newest time.Time
	for _, i := range t.of(c) {
		if i.GetKind() == kindMetadata {
			continue
		}
		if at := i.GetChecked().AsTime(); at.After(newest) {
			newest = at
		}
	}
	return newest
}
