package bench

import (
	"context"
	"fmt"
)

// figure describes a row and how to measure it.
type figure struct {
	name    string
	unit    string
	peer    string
	target  target
	measure func(ctx context.Context) (measurement, error)
}

const perSecond = "records/s"

// figures returns the figures of the stream runtime in table order.
func (r *runner) figures() []figure {
	a := r.amounts
	atLeast := func(bound float64) target { return target{op: ">=", bound: bound} }
	atMost := func(bound float64) target { return target{op: "<=", bound: bound} }
	ratio := func(t target) target { t.ratio = true; return t }
	return []figure{
		{fmt.Sprintf("pool: no-op over %s messages, %s keys", count(a.noop), count(keys)), perSecond, "", target{}, r.noop},
		{fmt.Sprintf("pool: %s tasks of 1 ms over %s keys, %d workers", count(a.tasks), count(keys), workers), "tasks/s", "",
			atLeast(8e4), r.tasks},
		{fmt.Sprintf("pool: %s tasks of 1 ms, zipf keys, %d workers", count(a.skewed), workers), "tasks/s",
			fmt.Sprintf("%d goroutines, one a partition", partitions), ratio(atLeast(1.7)), r.skewed},
		{"pool: p99 from publish to handler at 1,000/s", "ms", "", atMost(5), r.publishLatency},
		{fmt.Sprintf("pool: heap growth with %s records behind stuck handlers", count(a.waiting)), "MiB", "", atMost(256),
			r.heapGrowth},
		{fmt.Sprintf("pool: no-op over %s messages, a process a side", count(a.peerRecords)), perSecond,
			watermill, ratio(atLeast(2.5)), r.compareWatermill},
		{fmt.Sprintf("pool: p99 of class high, tasks of 1 ms, %s of class low behind", count(a.flood)), "ms",
			"the same, idle", ratio(atMost(2)), r.classes},
		{fmt.Sprintf("pool: p99 of a tenant, tasks of 1 ms, %s of another's in front", count(a.sustained)), "ms",
			"the same, idle", ratio(atMost(3)), r.tenants},
	}
}

// count formats n with thousands separators.
func count(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
