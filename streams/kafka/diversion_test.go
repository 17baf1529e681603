package kafka

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/schedule"
)

// heaviest returns the flows of the heaviest accounts until at most keep is left, and none of a light
// account.
func TestHeaviest(t *testing.T) {
	for name, tt := range map[string]struct {
		weights     map[string]int64 // by account/store
		keep, least int64
		want        []string
	}{
		"nothing waits":              {nil, 25, 2, nil},
		"one has all":                {map[string]int64{"a/1": 100}, 25, 2, []string{"a/1"}},
		"one has nearly all":         {map[string]int64{"a/1": 3, "b/1": 90, "c/1": 2}, 25, 2, []string{"b/1"}},
		"two have it":                {map[string]int64{"a/1": 50, "b/1": 3, "c/1": 40}, 25, 2, []string{"a/1", "c/1"}},
		"a quarter is left as it is": {map[string]int64{"a/1": 75, "b/1": 10, "c/1": 15}, 25, 2, []string{"a/1"}},
		"all are light":              {map[string]int64{"a/1": 10, "b/1": 10, "c/1": 10}, 25, 11, nil},
		"there is room":              {map[string]int64{"a/1": 10, "b/1": 10}, 25, 2, nil},
		"one has it in many flows": {map[string]int64{"a/1": 10, "a/2": 11, "a/3": 10, "b/1": 9}, 20, 10,
			[]string{"a/2", "a/1", "a/3"}},
		"one store of two": {map[string]int64{"a/1": 80, "a/2": 1, "b/1": 9}, 20, 10, []string{"a/1"}},
	} {
		weights := map[schedule.FlowID]int64{}
		for name, n := range tt.weights {
			account, store, _ := strings.Cut(name, "/")
			weights[schedule.FlowID{Account: account, Stores: [2]string{store}}] = n
		}
		var got []string
		for _, w := range heaviest(weights, tt.keep, tt.least) {
			got = append(got, w.Account+"/"+w.Stores[0])
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// A flow is moved until few of its messages arrive. Flows get different slots while there are free ones.
func TestDiversion(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := diversion{flows: map[schedule.FlowID]*route{}}
	giant := schedule.FlowID{Account: "giant", Stores: [2]string{"1"}}
	other := schedule.FlowID{Account: "giant", Stores: [2]string{"2"}}
	d.expire(now, 10)
	slot := d.slotOf(giant)
	if _, ok := d.routeOf(giant); ok {
		t.Error("arriving messages of a flow are moved before the first ones")
	}
	if !d.open(giant) || d.open(giant) || d.slotOf(giant) != slot {
		t.Error("a flow is not new when it is moved first, is new later, or has another slot")
	}
	if _, ok := d.routeOf(other); ok {
		t.Error("a flow of another store is moved")
	}
	arrive := func(n int) {
		for range n {
			if _, ok := d.routeOf(giant); !ok {
				t.Fatal("the flow is not moved")
			}
		}
	}
	arrive(10)
	d.expire(now.Add(divertWindow), 10)
	d.stalled.Store(true)
	if _, ok := d.routeOf(giant); ok {
		t.Error("more is moved while the brokers take nothing")
	}
	d.stalled.Store(false)
	arrive(8) // and the one above
	d.expire(now.Add(2*divertWindow-time.Second), 10)
	arrive(0)
	used := map[int]bool{d.flows[giant].slot: true}
	for _, account := range []string{"a", "b"} {
		used[d.slotOf(schedule.FlowID{Account: account})] = true
	}
	if len(used) != client.BacklogSlots {
		t.Errorf("three flows have %d slots", len(used))
	}
	d.expire(now.Add(2*divertWindow), 10)
	if _, ok := d.routeOf(giant); ok || d.active.Load() {
		t.Error("the flow is moved, although few messages of it arrive")
	}
}
