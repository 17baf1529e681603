package app

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// A spaceName is a space of an account, in all its stores.
type spaceName struct{ account, space string }

// spaceHolds knows the spaces whose kept bytes do not expire, because an incident of the space is open: the bytes may
// be needed to resolve it. The kind does not matter, and neither does the store, since a copy is repaired or restored
// from what another store has kept.
//
// Everything is held while the open incidents are not known: a record of one cannot be read, or the tables lack records
// (records-behind), so that it is unknown which bytes are needed.
type spaceHolds struct {
	mu         sync.Mutex           // guards the fields below
	open       map[string]spaceName // by the key of an open incident of a space
	count      map[spaceName]int    // open incidents of a space, and of an account under the space ""
	behind     map[string]bool      // keys of open incidents records-behind
	unreadable map[string]bool      // keys of records that could not be read
}

func newSpaceHolds() *spaceHolds {
	return &spaceHolds{open: map[string]spaceName{}, count: map[spaceName]int{}, behind: map[string]bool{},
		unreadable: map[string]bool{}}
}

// Apply applies a record of the topic incidents; nil is a tombstone.
func (h *spaceHolds) Apply(key []byte, i *pb.Incident) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := string(key)
	delete(h.unreadable, k)
	delete(h.behind, k)
	if was, ok := h.open[k]; ok {
		delete(h.open, k)
		h.add(was, -1)
	}
	switch {
	case i == nil || i.GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED:
	case i.GetSpace() != "":
		h.open[k] = spaceName{i.GetAccount(), i.GetSpace()}
		h.add(h.open[k], 1)
	case i.GetKind() == incident.RecordsBehind:
		h.behind[k] = true
	}
}

// add counts an open incident; h.mu is held.
func (h *spaceHolds) add(at spaceName, n int) {
	for _, of := range []spaceName{at, {at.account, ""}} {
		if h.count[of] += n; h.count[of] == 0 {
			delete(h.count, of)
		}
	}
}

// Unreadable records that the newest record of a key cannot be read.
func (h *spaceHolds) Unreadable(key []byte, _ time.Time, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unreadable[string(key)] = true
}

// holds reports whether the kept objects of a space must stay now. The space "" is unknown: it is held if any space of
// the account is.
func (h *spaceHolds) holds(account, space string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.behind) > 0 || len(h.unreadable) > 0 || h.count[spaceName{account, space}] > 0
}

// reasons returns the keys of at most n incidents because of which bytes of an account are held.
func (h *spaceHolds) reasons(account string, n int) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := slices.Collect(maps.Keys(h.behind))
	for key := range h.unreadable {
		keys = append(keys, schemas.Key("unreadable", key))
	}
	for key, at := range h.open {
		if at.account == account {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys[:min(n, len(keys))]
}
