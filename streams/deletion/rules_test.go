package deletion

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// parkedRecords calls do before it reads the records.
type parkedRecords struct {
	*world
	do func()
}

func (r parkedRecords) Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	r.do()
	return r.world.Fresh(ctx, copies)
}

// waitingPoints call change while a delete waits.
func waitingPoints() map[string]func(w *world, change func()) {
	return map[string]func(w *world, change func()){
		"for fresh records": func(w *world, change func()) {
			var err error
			w.deleter, err = New(w.config(Config{Settle: time.Hour}), w, w, parkedRecords{w, change})
			w.must(err)
		},
		"for the brake": func(w *world, change func()) {
			w.topic.Meanwhile = func(m schemas.Message) {
				if m.Topic == schemas.Checkpoints {
					change()
				}
			}
		},
		"for the last look at the source": func(w *world, change func()) {
			for _, method := range []string{"Stat", "StatSpace"} {
				n := 0
				w.on("1", method, func() {
					if n++; n == 3 { // after two observations
						change()
					}
				})
			}
		},
	}
}

// A rule that comes into force while a delete waits decides as if it had been in force before. What was not deleted
// takes no permit of the brake.
func TestRulesInForceAtTheDelete(t *testing.T) {
	for name, tt := range map[string]struct {
		change           func(*policy.Rules)
		result, approved string // approved: of what is on an approved list
	}{
		"hold": {func(r *policy.Rules) {
			r.Holds = []policy.Hold{{Until: time.Now().Add(time.Hour), Reason: "a lawsuit"}}
		}, "held", "waits"},
		"keep":                {func(r *policy.Rules) { r.Deletes = policy.KeepCopy }, "kept", "kept"},
		"approve":             {func(r *policy.Rules) { r.Deletes = policy.Approve }, "awaiting-approval", "deleted"},
		"propagate since now": {func(r *policy.Rules) { r.Since = hour(5) }, "kept", "kept"},
		"the pair is new":     {func(r *policy.Rules) { r.Added = map[policy.Pair]time.Time{pair: hour(5)} }, "kept", "kept"},
		"no pair":             {func(r *policy.Rules) { r.Pairs = nil }, "not-in-policy", "not-in-policy"},
		"exclusion":           {func(r *policy.Rules) { r.Exclude = []string{"*"} }, "deleted", "deleted"},
	} {
		for point, waits := range waitingPoints() {
			for what, space := range map[string]bool{"item": false, "space": true} {
				for list, want := range map[string]string{"": tt.result, "approve-1": tt.approved} {
					if list != "" && point == "for the brake" {
						continue // it does not count what is approved
					}
					t.Run(name+" while waiting "+point+", "+what+list, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							w, c := newWorld(t), order()
							if space {
								w, c = newSpaceWorld(t), spaceOrder()
							}
							w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1}
							before := w.rules
							if list != "" {
								w.rules.Deletes = policy.Approve
								_, r, err := w.run(c)
								w.must(err)
								c.List, c.Effect, w.rules = list, r.GetEffect(), before
							}
							var once sync.Once
							waits(w, func() { once.Do(func() { tt.change(&w.rules) }) })
							_, r, err := w.run(c)
							if want == "waits" { // the hold does not use up the approval
								if retry.ClassOf(err) != retry.ClassWait {
									t.Errorf("got %v, %v", r, err)
								}
								r = &pb.DuplicationResult{Result: want}
							} else {
								w.must(err)
							}
							there := w.present
							if space {
								there = w.hasSpace
							}
							if there(want != "deleted"); r.GetResult() != want {
								t.Errorf("got %s %s: %s, want %s", r.GetDecision(), r.GetResult(), r.GetDetail(), want)
							}
							if want == "deleted" {
								return
							}
							w.rules = before
							if _, r, err = w.run(c); err != nil || r.GetResult() != "deleted" {
								t.Errorf("under the rules before: got %v, %v", r, err)
							}
						})
					})
				}
			}
		}
	}
}

// So does a hold while the delete of a copy that came back waits.
func TestHoldWhileTheDeleteOfAReturnedCopyWaits(t *testing.T) {
	for _, point := range []string{"for fresh records", "for the brake"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t)
			c := w.returnedOrder()
			waitingPoints()[point](w, func() {
				w.rules.Holds = []policy.Hold{{Until: time.Now().Add(time.Hour), Reason: "a lawsuit"}}
			})
			_, r, err := w.run(c)
			w.must(err)
			if w.present(true); r.GetDecision() != "C0d" || r.GetResult() != "held" {
				t.Errorf("got %v", r)
			}
		})
	}
}
