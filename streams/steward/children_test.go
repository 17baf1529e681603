package steward

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// child returns an open incident of a missing copy whose repair waits for the approval of the parent photos.
func child(n int) *pb.Incident {
	i := &pb.Incident{Account: at.Account, Store: at.Store, Space: at.Space, Item: "item-" + strconv.Itoa(n),
		Kind: kindMissing, State: awaiting, Opened: timestamppb.New(base), Parent: photos.Incident().GetId(), StepCount: 1,
		Steps: []*pb.IncidentStep{{Action: stepHeld, Time: timestamppb.New(base), Ref: "r" + strconv.Itoa(n)}}}
	i.Id = schemas.ID("incident", schemas.IncidentKey(i))
	return i
}

// fill applies n children, of which all but so many are closed.
func (w *harness) fill(n, open int) {
	for k := range n {
		i := child(k)
		if k >= open {
			i.State = shut
		}
		w.steward.Apply([]byte(schemas.IncidentKey(i)), i)
	}
}

// BenchmarkUpdateParents measures a call after one child has changed.
func BenchmarkUpdateParents(b *testing.B) {
	for name, open := range map[string]int{"100000 open": 100_000, "100 open of 100000": 100} {
		b.Run(name, func(b *testing.B) {
			w := newHarness(&testing.T{})
			w.fill(100_000, open)
			owns := func(string) bool { return true }
			if err := w.steward.UpdateParents(b.Context(), owns); err != nil {
				b.Fatal(err)
			}
			i := child(0)
			for b.Loop() {
				i = proto.CloneOf(i)
				i.StepCount++
				w.steward.Apply([]byte(schemas.IncidentKey(i)), i)
				if err := w.steward.UpdateParents(b.Context(), owns); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The children of each parent are counted as if all incidents were read anew, whatever has happened to them.
func TestChildCountsFollowTheIncidents(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	w := newHarness(t)
	groups := []string{"", "unknown", photos.Incident().GetId()}
	for _, s := range [...]scope{ofSpace, ofStore, ofWorker} {
		groups = append(groups, groupOf(&pb.Incident{Account: at.Account, Store: at.Store, Space: at.Space, Kind: kindMissing,
			Worker: "w"}, s).Incident().GetId())
	}
	kinds, states := []string{kindMissing, kindCorrupt}, []pb.IncidentState{open, awaiting, repairing, shut}
	for n := range 2000 {
		i := child(random.IntN(20))
		i.Kind, i.State = kinds[random.IntN(len(kinds))], states[random.IntN(len(states))]
		i.Parent, i.Worker = groups[random.IntN(len(groups))], "w"
		i.Opened, i.StepCount = timestamppb.New(base.Add(time.Duration(n)*time.Second)), int32(n)
		i.Id = fmt.Sprint(n)
		key := schemas.IncidentKey(i)
		if w.topic[key] = i; random.IntN(10) == 0 {
			delete(w.topic, key)
			i = nil
		}
		w.steward.Apply([]byte(key), i)
		if n%100 > 0 {
			continue
		}
		before := &w.steward.table
		w.restart()
		got, want := before.childCounts(), w.steward.table.childCounts()
		if !slices.Equal(got, want) {
			t.Fatalf("after %d changes:\n%+v, want\n%+v", n, got, want)
		}
		for _, f := range want {
			if got, want := before.joined(f.about), w.steward.table.joined(f.about); !got.Equal(want) {
				t.Errorf("the last child of %s came at %v, want %v", f.key, got, want)
			}
			if !maps.Equal(before.children[f.about].awaiting, w.steward.table.children[f.about].awaiting) {
				t.Errorf("other children of %s wait", f.key)
			}
		}
	}
}

// What a call allocates does not depend on the number of children, also while approvals are under way.
func TestUpdateParentsOfManyChildren(t *testing.T) {
	for name, approved := range map[string]bool{"held": false, "approved": true} {
		allocations := func(children int) float64 {
			w := newHarness(t)
			w.fill(children, children)
			w.update()
			if approved {
				w.handle(w.decide(ActionApprove, photos.Key()))
				w.update()
			}
			return testing.AllocsPerRun(10, w.update)
		}
		few, many := allocations(approvalsAtOnce+1), allocations(20*approvalsAtOnce)
		if many > few+few/10 {
			t.Errorf("%s: %v allocations, and %v with twenty times as many children", name, few, many)
		}
	}
}

// Of many children of an approved parent a thousand approvals are under way at a time, and each child gets one.
func TestApprovalsAtOnce(t *testing.T) {
	w := newHarness(t)
	const children = approvalsAtOnce * 5 / 2
	w.fill(children, children)
	w.update()
	w.handle(w.decide(ActionApprove, photos.Key()))
	approved := map[string]int{}
	for _, want := range []int{approvalsAtOnce, approvalsAtOnce, approvalsAtOnce / 2, 0} {
		w.update()
		if len(w.actions) != want {
			t.Fatalf("%d approvals, want %d", len(w.actions), want)
		}
		for _, a := range w.actions {
			approved[a.GetTarget()]++
		}
		if w.update(); len(w.actions) != want {
			t.Errorf("%d approvals, want none beside those that are under way", len(w.actions)-want)
		}
		w.deliver()
	}
	for key, n := range approved {
		if n != 1 {
			t.Errorf("%s was approved %d times", key, n)
		}
	}
	if len(approved) != children {
		t.Errorf("%d children were approved", len(approved))
	}
}
