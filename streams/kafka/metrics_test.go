package kafka

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// Gathered returns the values of the metrics in a registry whose name and labels contain all of like, by name and
// labels without the common prefix. For histograms the value is the count.
func Gathered(t *testing.T, reg *prometheus.Registry, like ...string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), "millrace_kafka_") + "{" + strings.Join(labels, ",") + "}"
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	maps.DeleteFunc(all, func(name string, _ float64) bool {
		return slices.ContainsFunc(like, func(s string) bool { return !strings.Contains(name, s) })
	})
	return all
}

// SameValues returns the differences between gathered values and the expected ones.
func SameValues(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[name]; !ok {
			t.Errorf("%s: absent, want %v", name, want[name])
		} else if v != want[name] {
			t.Errorf("%s: got %v, want %v", name, v, want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: got %v, want it absent", name, got[name])
		}
	}
}

// All metrics of a role are 0 from the start, so that rates of them are correct.
func TestMetricsOfNewRole(t *testing.T) {
	reg := prometheus.NewRegistry()
	NewMetrics(reg).role(schemas.RoleCopier, schemas.Large)
	want := map[string]float64{"publish_failures_total{class=,role=producer}": 0}
	for _, name := range []string{
		"handler_seconds{%s}", "in_flight_messages{%s}", "in_flight_bytes{%s}",
		"working_tasks{%s}", "parked_tasks{%s}", "paused_messages{%s}",
		"stuck_tasks{%s}",
		"assigned_partitions{%s}", "oldest_task_seconds{%s}", "oldest_message_seconds{%s}", "publish_failures_total{%s}",
		"commits_total{class=large,result=ok,role=copier}", "commits_total{class=large,result=failed,role=copier}",
		"messages_total{class=large,outcome=done,role=copier}", "messages_total{class=large,outcome=retried,role=copier}",
		"messages_total{class=large,outcome=transient,role=copier}",
		"messages_total{class=large,outcome=unavailable,role=copier}",
		"messages_total{class=large,outcome=wait,role=copier}", "messages_total{class=large,outcome=paused,role=copier}",
		"messages_total{class=large,outcome=moved,role=copier}",
		"messages_total{class=large,outcome=dead,role=copier}",
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
	SameValues(t, Gathered(t, reg), want)
}

func TestMetricsNames(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.role(schemas.RoleCopier, schemas.High)
	bytes, seconds := int64(1), 1.0
	NewLagMetrics(reg).Set([]Lag{{Role: schemas.RoleCopier, Class: schemas.High, Topic: schemas.DuplicationHigh,
		Bytes: &bytes, Seconds: &seconds}})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "millrace_kafka_") {
			t.Errorf("%s: want the prefix millrace_kafka_", f.GetName())
		}
	}
}

func TestMetricsCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := NewMetrics(reg)
		r := m.role(schemas.RoleCopier, "")
		if m.role(schemas.RoleCopier, schemas.High) != r {
			t.Error("a class has two handles, and high is not the class of those that have but one")
		}
		start := time.Now()
		parts := map[string][]int32{"a": {0, 1}, "b": {0}}
		time.Sleep(2 * time.Second)
		r.countRebalance(partitionsAssigned, parts, start)
		r.countRebalance(partitionsRevoked, map[string][]int32{"a": {1}}, time.Now())
		r.addInFlight(10, 1000)
		r.addBusy(3)
		r.addHeld(1)
		r.addStuck(1)
		r.countHandled(dispositionDone, 4, time.Second)
		r.addInFlight(-4, -400)
		countSettled(r, []inflightRecord{
			{disposition: dispositionDone},
			{disposition: dispositionDead},
			{disposition: dispositionDead},
		})
		r.countCommit(nil)
		r.countCommit(errors.New("no"))
		r.countPublishFailures(2)
		m.countPublishFailure()
		done := time.Now()
		time.Sleep(time.Minute)
		r.countHandled(dispositionRetried, 1, time.Second)
		r.addOldest(func() oldest { return oldest{task: time.Now().Add(-3 * time.Second)} })
		r.addOldest(func() oldest {
			return oldest{task: time.Now().Add(-2 * time.Second), message: time.Now().Add(-time.Hour)}
		})
		got := Gathered(t, reg)
		maps.DeleteFunc(got, func(_ string, v float64) bool { return v == 0 })
		const l = "class=high,role=copier"
		SameValues(t, got, map[string]float64{
			"messages_total{class=high,outcome=done,role=copier}": 5, "messages_total{class=high,outcome=dead,role=copier}": 2,
			"messages_total{class=high,outcome=retried,role=copier}": 1, "handler_seconds{" + l + "}": 2,
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
		r.markProgress()
		state := m.State()
		want := RoleState{
			Role: schemas.RoleCopier, Class: schemas.High, Member: true,
			Owned:    map[string]map[int32]bool{"a": {0: true}, "b": {0: true}},
			InFlight: 6, Held: 1, Busy: 3, Stuck: 1, Active: time.Now(), Success: done,
		}
		if len(state) != 1 || fmt.Sprint(state[0]) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", state, want)
		}
		r.countRebalance(partitionsLost, map[string][]int32{"a": {0}, "b": {0}}, time.Now())
		if s := m.State()[0]; s.Member || s.Owned["a"][0] || s.Owned["b"][0] {
			t.Errorf("got %+v, want no member, which owns nothing", s)
		}
	})
}

// Lags that are no longer set, and values that are unknown, are absent.
func TestMetricsLags(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := NewLagMetrics(reg)
		bytes, seconds := int64(70), 3.5
		m.Set([]Lag{
			{Role: schemas.RoleCopier, Class: schemas.Low, Topic: schemas.DuplicationLow, Records: 7,
				Bytes: &bytes, Seconds: &seconds},
			{Role: schemas.RoleSink, Class: schemas.High, Topic: schemas.Changes, Records: 9, Uncommitted: 2, Paused: true},
		})
		time.Sleep(lagTTL)
		SameValues(t, Gathered(t, reg, "lag_"), map[string]float64{
			"lag_records{class=low,role=copier,topic=duplication.low}":           7,
			"lag_due_records{class=low,role=copier,topic=duplication.low}":       7,
			"lag_undecided_records{class=low,role=copier,topic=duplication.low}": 0,
			"lag_bytes{class=low,role=copier,topic=duplication.low}":             70,
			"lag_seconds{class=low,role=copier,topic=duplication.low}":           3.5,
			"lag_records{class=high,role=sink,topic=changes}":                    9,
			"lag_due_records{class=high,role=sink,topic=changes}":                0,
			"lag_undecided_records{class=high,role=sink,topic=changes}":          2,
		})
		time.Sleep(time.Nanosecond)
		SameValues(t, Gathered(t, reg, "lag_"), map[string]float64{})
	})
}

// Several clients may have the same name. Their metrics disappear with them.
func TestMetricsOfClients(t *testing.T) {
	reg := prometheus.NewRegistry()
	cfg := Config{Brokers: []string{"127.0.0.1:1"}, Metrics: NewMetrics(reg)}
	clients := func() (names []string) {
		for name := range Gathered(t, reg, "client_buffered_fetch_bytes") {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	check := func(want ...string) {
		t.Helper()
		for i, name := range want {
			want[i] = "client_buffered_fetch_bytes{client=" + name + "}"
		}
		if got := clients(); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	open := func(name string) *kgo.Client {
		t.Helper()
		opts, err := cfg.options(name)
		if err != nil {
			t.Fatal(err)
		}
		cl, err := kgo.NewClient(opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return cl
	}
	a, b, c := open("admin"), open("admin"), open("copier")
	check("admin#2", "admin", "copier")
	a.Close()
	check("admin#2", "copier")
	open("admin")
	check("admin#2", "admin", "copier")
	b.Close()
	c.Close()
	check("admin")
}

// A nil *Metrics allocates nothing.
func TestMetricsNil(t *testing.T) {
	var m *Metrics
	r := m.role(schemas.RoleCopier, schemas.High)
	if r != nil {
		t.Fatal("a handle out of nothing")
	}
	allocs := testing.AllocsPerRun(100, func() {
		r.countHandled(dispositionDone, 1, time.Second)
		countSettled(r, nil)
		r.observeCall(time.Second)
		r.markProgress()
		r.addInFlight(1, 100)
		r.addBusy(1)
		r.addHeld(1)
		r.addStuck(1)
		r.countRebalance(partitionsLost, nil, time.Time{})
		r.countCommit(nil)
		r.countPublishFailures(1)
		r.addOldest(nil)
		m.countPublishFailure()
		if _, ok := m.meanRecordBytes(""); ok || m.State() != nil || m.hooks("") != nil {
			t.Error("nothing knows something")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}

func TestMetricsAllocateNothing(t *testing.T) {
	r := NewMetrics(prometheus.NewRegistry()).role(schemas.RoleCopier, schemas.High)
	allocs := testing.AllocsPerRun(100, func() {
		r.addInFlight(1, 100)
		r.addBusy(1)
		r.countHandled(dispositionDone, 1, time.Millisecond)
		r.addBusy(-1)
		r.addInFlight(-1, -100)
	})
	if allocs != 0 {
		t.Errorf("%v allocations per message, want none", allocs)
	}
}

func BenchmarkMetrics(b *testing.B) {
	for name, m := range map[string]*Metrics{"off": nil, "on": NewMetrics(prometheus.NewRegistry())} {
		b.Run(name, func(b *testing.B) {
			r := m.role(schemas.RoleCopier, schemas.High)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r.addInFlight(1, 100)
					r.addBusy(1)
					r.countHandled(dispositionDone, 1, time.Millisecond)
					r.addBusy(-1)
					r.addInFlight(-1, -100)
				}
			})
		})
	}
}

// Without a tracer and a trace context no span is created.
func TestSpanNil(t *testing.T) {
	r := newRouter(Config{}, schemas.RolePlanner, 0)
	headers := []kgo.RecordHeader{{Key: "ce_id", Value: []byte("1")}}
	ir := &inflightRecord{rec: &kgo.Record{Topic: "changes", Headers: headers}}
	ctx := t.Context()
	allocs := testing.AllocsPerRun(100, func() {
		in, end := r.span(ctx, ir)
		end(nil)
		if in != ctx || ir.traceHeaders() != nil || injectTrace(in) != nil {
			t.Error("a span out of nothing")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}

func BenchmarkSpanNil(b *testing.B) {
	r := newRouter(Config{}, schemas.RolePlanner, 0)
	ir := &inflightRecord{rec: &kgo.Record{Topic: "changes"}}
	ctx := b.Context()
	for b.Loop() {
		_, end := r.span(ctx, ir)
		end(nil)
	}
}
