// Package space knows which spaces a person has declared gone.
//
// A space that is expected and not there is unknown, and so is all that was in it. An action of a person ends
// that: from then on what the space lacks is absent. The action is no Change, since it says nothing about any item.
package space

import (
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The actions about the space that account, store and space of an AdminAction name.
const (
	ActionGone = "space-gone" // it is gone
	ActionBack = "space-back" // withdraws ActionGone
)

// Gone holds the spaces that are declared gone, from the topic admin. It is safe for concurrent use.
type Gone struct {
	mu    sync.RWMutex
	since map[schemas.Copy]time.Time // by space; guarded by mu
}

// Apply takes an action. Those of one space have one key, so they come in their order; of those that are not about
// spaces nothing is kept.
func (g *Gone) Apply(a *pb.AdminAction) {
	at := schemas.Copy{Account: a.GetAccount(), Store: a.GetStore(), Space: a.GetSpace()}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch a.GetAction() {
	case ActionGone:
		if g.since == nil {
			g.since = map[schemas.Copy]time.Time{}
		}
		g.since[at] = a.GetTime().AsTime()
	case ActionBack:
		delete(g.since, at)
	}
}

// Since returns when a space was declared gone; zero if it is not.
func (g *Gone) Since(account, store, space string) time.Time {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.since[schemas.Copy{Account: account, Store: store, Space: space}]
}
