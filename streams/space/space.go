// Package space holds the spaces that an operator has declared gone.
//
// If an expected space is missing, its state is unknown, as is the state of every item in it. After an operator has
// declared the space gone, its items count as absent. The declaration is not a Change, because it is not about an item.
package space

import (
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The actions about the space in an AdminAction.
const (
	ActionGone = "space-gone" // declares the space gone
	ActionBack = "space-back" // withdraws ActionGone
)

// Gone holds the last declaration about each space, from the topic admin. It is safe for concurrent use.
type Gone struct {
	mu       sync.RWMutex
	declared map[schemas.Copy]declaration // by space; guarded by mu
}

// A declaration is an action about a space.
type declaration struct {
	gone      bool
	at        time.Time
	partition int32
}

// Apply applies an action: the partition of its record, the time at which the broker appended it, and its message. All
// actions about a space have the same key, so those in one partition arrive in order. Actions in another partition are
// older than the adding of partitions and can arrive at any time. Apply ignores actions that are not about spaces.
func (g *Gone) Apply(partition int32, at time.Time, a *pb.AdminAction) {
	if a.GetAction() != ActionGone && a.GetAction() != ActionBack {
		return
	}
	space := schemas.Copy{Account: a.GetAccount(), Store: a.GetStore(), Space: a.GetSpace()}
	now := declaration{a.GetAction() == ActionGone, at, partition}
	g.mu.Lock()
	defer g.mu.Unlock()
	if last, ok := g.declared[space]; ok && !now.follows(last) {
		return
	} else if now.at.Before(last.at) {
		now.at = last.at // the clocks of brokers differ
	}
	if g.declared == nil {
		g.declared = map[schemas.Copy]declaration{}
	}
	g.declared[space] = now
}

// follows reports whether w, which is applied after last, is newer. If both have the same time and different
// partitions, ActionBack wins.
func (w declaration) follows(last declaration) bool {
	return w.partition == last.partition || w.at.After(last.at) || w.at.Equal(last.at) && !w.gone
}

// Since returns when a space was declared gone; zero if it was not.
func (g *Gone) Since(account, store, space string) time.Time {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if w := g.declared[schemas.Copy{Account: account, Store: store, Space: space}]; w.gone {
		return w.at
	}
	return time.Time{}
}
