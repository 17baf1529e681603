package metrics

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/metrics/metricstest"
)

// All metrics of a role are 0 from the start, so that rates of them are correct.
func TestMetricsOfNewRole(t *testing.T) {
	reg := prometheus.NewRegistry()
	New(reg).Role(schemas.RoleCopier, schemas.Large)
	want := map[string]float64{"publish_failures_total{class=,role=producer}": 0, "clock_offset_seconds{}": 0}
	for _, name := range []string{
		"handler_seconds{%s}", "in_flight_messages{%s}", "in_flight_bytes{%s}",
		"working_tasks{%s}", "parked_tasks{%s}", "paused_messages{%s}",
		"stuck_tasks{%s}",
		"assigned_partitions{%s}", "oldest_task_seconds{%s}", "oldest_message_seconds{%s}", "publish_failures_total{%s}",
		"commits_total{class=large,result=ok,role=copier}", "commits_total{class=large,result=failed,role=copier}",
		"messages_total{class=large,disposition=done,role=copier}",
		"messages_total{class=large,disposition=retried,role=copier}",
		"messages_total{class=large,disposition=transient,role=copier}",
		"messages_total{class=large,disposition=unavailable,role=copier}",
		"messages_total{class=large,disposition=wait,role=copier}",
		"messages_total{class=large,disposition=paused,role=copier}",
		"messages_total{class=large,disposition=moved,role=copier}",
		"messages_total{class=large,disposition=dead,role=copier}",
		"rebalances_total{class=large,kind=assigned,role=copier}",
		"rebalance_seconds_total{class=large,kind=assigned,role=copier}",
		"rebalances_total{class=large,kind=revoked,role=copier}",
		"rebalance_seconds_total{class=large,kind=revoked,role=copier}",
		"rebalances_total{class=large,kind=lost,role=copier}", "rebalance_seconds_total{class=large,kind=lost,role=copier}",
	} {
		if strings.Contains(name, "%s") {
			name = fmt.Sprintf(name, "class=large,role=copier")
		}
		want[name] = 0
	}
	metricstest.Compare(t, metricstest.Gather(t, reg), want)
}

func TestMetricsNames(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	m.Role(schemas.RoleCopier, schemas.High)
	metricstest.Lint(t, reg)
}

func TestMetricsCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := New(reg)
		r := m.Role(schemas.RoleCopier, "")
		if m.Role(schemas.RoleCopier, schemas.High) != r {
			t.Error("a class has two handles, and high is not the class of those that have but one")
		}
		start := time.Now()
		parts := map[string][]int32{"a": {0, 1}, "b": {0}}
		time.Sleep(2 * time.Second)
		r.CountRebalance(PartitionsAssigned, parts, start)
		r.CountRebalance(PartitionsRevoked, map[string][]int32{"a": {1}}, time.Now())
		r.AddInFlight(10, 1000)
		r.AddBusy(3)
		r.AddHeld(1)
		r.AddStuck(1)
		r.CountHandled(DispositionDone, 4, time.Second)
		r.AddInFlight(-4, -400)
		r.CountHandled(DispositionDone, 1, -1)
		r.CountHandled(DispositionDead, 2, -1)
		r.CountCommit(nil)
		r.CountCommit(errors.New("no"))
		r.CountPublishFailures(2)
		m.CountPublishFailure()
		done := time.Now()
		time.Sleep(time.Minute)
		r.CountHandled(DispositionRetried, 1, time.Second)
		r.AddOldest(func() Oldest { return Oldest{Task: time.Now().Add(-3 * time.Second)} })
		r.AddOldest(func() Oldest {
			return Oldest{Task: time.Now().Add(-2 * time.Second), Message: time.Now().Add(-time.Hour)}
		})
		got := metricstest.Gather(t, reg)
		maps.DeleteFunc(got, func(_ string, v float64) bool { return v == 0 })
		const l = "class=high,role=copier"
		metricstest.Compare(t, got, map[string]float64{
			"messages_total{class=high,disposition=done,role=copier}":    5,
			"messages_total{class=high,disposition=dead,role=copier}":    2,
			"messages_total{class=high,disposition=retried,role=copier}": 1, "handler_seconds{" + l + "}": 2,
			"in_flight_messages{" + l + "}": 6, "in_flight_bytes{" + l + "}": 600, "working_tasks{" + l + "}": 3,
			"paused_messages{" + l + "}": 1, "stuck_tasks{" + l + "}": 1, "assigned_partitions{" + l + "}": 2,
			"oldest_task_seconds{" + l + "}": 3, "oldest_message_seconds{" + l + "}": 3600,
			"last_success_timestamp_seconds{" + l + "}":                     float64(done.UnixMilli()) / 1e3,
			"rebalances_total{class=high,kind=assigned,role=copier}":        1,
			"rebalances_total{class=high,kind=revoked,role=copier}":         1,
			"rebalance_seconds_total{class=high,kind=assigned,role=copier}": 2,
			"commits_total{class=high,result=ok,role=copier}":               1,
			"commits_total{class=high,result=failed,role=copier}":           1,
			"publish_failures_total{" + l + "}":                             2,
			"publish_failures_total{class=,role=producer}":                  1,
		})
		r.MarkProgress()
		state := m.State()
		want := RoleState{
			Role: schemas.RoleCopier, Class: schemas.High, Member: true,
			Owned:    map[string]map[int32]bool{"a": {0: true}, "b": {0: true}},
			InFlight: 6, Held: 1, Busy: 3, Stuck: 1, Active: time.Now(), Success: done,
		}
		if len(state) != 1 || fmt.Sprint(state[0]) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", state, want)
		}
		r.CountRebalance(PartitionsLost, map[string][]int32{"a": {0}, "b": {0}}, time.Now())
		if s := m.State()[0]; s.Member || s.Owned["a"][0] || s.Owned["b"][0] {
			t.Errorf("got %+v, want no member, which owns nothing", s)
		}
	})
}

// A nil *Metrics knows nothing.
func TestMetricsNil(t *testing.T) {
	var m *Metrics
	m.Role(schemas.RoleCopier, schemas.High).CountHandled(DispositionDone, 1, time.Second)
	m.CountPublishFailure()
	m.SetClockOffset(time.Hour)
	if _, ok := m.MeanRecordBytes(""); ok || m.State() != nil || m.Hooks("") != nil {
		t.Error("nothing knows something")
	}
}

func TestMetricsAllocateNothing(t *testing.T) {
	r := New(prometheus.NewRegistry()).Role(schemas.RoleCopier, schemas.High)
	allocs := testing.AllocsPerRun(100, func() {
		r.AddInFlight(1, 100)
		r.AddBusy(1)
		r.CountHandled(DispositionDone, 1, time.Millisecond)
		r.AddBusy(-1)
		r.AddInFlight(-1, -100)
	})
	if allocs != 0 {
		t.Errorf("%v allocations per message, want none", allocs)
	}
}
