package steward

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/incident"
)

// A store loses copies of more spaces than whose details can be published in the time of the calls of UpdateParents.
// Details wait, and not the parent of the store and its approval.
func TestManySpacesOfAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		w.live, w.slow = 10, 100*time.Millisecond
		lost := 0
		lose := func() { // another copy of each space
			for k := range 400 {
				space, item := fmt.Sprintf("s%03d", k), "a"+strconv.Itoa(lost)
				w.hasGood(space, item)
				w.handle(w.result(8, of(item), inSpace(space)))
			}
			lost++
		}
		update := func(times int) {
			for n := range times {
				if n%6 == 0 {
					lose()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				_ = w.steward.UpdateParents(ctx, func(string) bool { return true }) // its time may be over
				cancel()
				time.Sleep(10 * time.Second)
			}
		}
		for range 9 {
			lose()
		}
		update(24)
		store := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
		w.checkParent(store, open)
		w.handle(w.decide(ActionApprove, store.Key()))
		update(1)
		if len(w.actions) != 400 {
			t.Errorf("%d approvals of spaces", len(w.actions))
		}
	})
}

// Parents that were updated at different times need no more updates when nothing changes: a call stops all other work.
func TestUpdatesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		w.live = 2
		calls := 0
		for k := range 59 {
			if k == 0 || k == 3 {
				for _, item := range []string{"a", "b"} {
					w.handle(w.result(8, of(item), inSpace("s"+strconv.Itoa(k))))
				}
			}
			if w.steward.ParentsDue() {
				w.update()
				calls++
			}
			time.Sleep(10 * time.Second)
		}
		if calls > 20 {
			t.Errorf("%d of 59 calls were due", calls)
		}
	})
}

// Approvals of copies that are handled while repairs are off in the store, or by a process that has them off, have an
// effect when they are on again, also if nothing else happens.
func TestRepairsOffForAWhile(t *testing.T) {
	for name, off := range map[string]time.Duration{"shortly": time.Second, "long": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHarness(t)
				w.live = 2
				w.lose("a", 3)
				w.update()
				w.approveLate(photos)
				w.modes[at.Store] = Off
				w.deliver()
				work := func(d time.Duration) {
					for range d / (10 * time.Second) {
						if w.steward.ParentsDue() {
							w.update()
							w.deliver()
						}
						time.Sleep(10 * time.Second)
					}
				}
				work(off)
				w.modes[at.Store] = Auto
				work(2 * sendAgain)
				if got := w.missingStates(); got[awaiting] > 0 {
					t.Errorf("copies wait: %v", got)
				}
			})
		})
	}
}
