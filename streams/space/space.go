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

// Gone holds what was last said of each space, from the topic admin. It is safe for concurrent use.
type Gone struct {
	mu   sync.RWMutex
	said map[schemas.Copy]word // by space; guarded by mu
}

// A word is an action about a space.
type word struct {
	gone      bool
	at        time.Time
	partition int32
}

// Apply takes an action, with its record's partition and the time at which the broker appended it. The actions about one
// space have one key, so those in one partition come in their order; those in others, which the key had before partitions
// were added, come at any time. Of actions that are not about spaces nothing is kept.
func (g *Gone) Apply(partition int32, at time.Time, a *pb.AdminAction) {
	if a.GetAction() != ActionGone && a.GetAction() != ActionBack {
		return
	}
	space := schemas.Copy{Account: a.GetAccount(), Store: a.GetStore(), Space: a.GetSpace()}
	now := word{a.GetAction() == ActionGone, at, partition}
	g.mu.Lock()
	defer g.mu.Unlock()
	if last, ok := g.said[space]; ok && !now.follows(last) {
		return
	} else if now.at.Before(last.at) {
		now.at = last.at // the clocks of brokers differ
	}
	if g.said == nil {
		g.said = map[schemas.Copy]word{}
	}
	g.said[space] = now
}

// follows reports whether w, which comes after last, was said after it. At one time ActionBack counts.
func (w word) follows(last word) bool {
	return w.partition == last.partition || w.at.After(last.at) || w.at.Equal(last.at) && !w.gone
}

// Since returns when a space was declared gone; zero if it is not.
func (g *Gone) Since(account, store, space string) time.Time {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if w := g.said[schemas.Copy{Account: account, Store: store, Space: space}]; w.gone {
		return w.at
	}
	return time.Time{}
}
