package fixityreport

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A Rate is a number of events for an amount, with the interval that has the true rate with a probability of 95 %.
type Rate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// z is the quantile of the normal distribution for an interval of 95 %.
const z = 1.959964

// RateOf returns the rate of n events of a Poisson process in an amount that is more than 0. The interval is Byar's
// approximation, which is within a percent of the exact one, and exact for n = 0.
func RateOf(n uint64, amount float64) Rate {
	k := float64(n)
	cube := func(x float64) float64 { return x * x * x }
	r := Rate{Value: k / amount}
	if n > 0 {
		r.Low = k * cube(1-1/(9*k)-z/(3*math.Sqrt(k))) / amount
		r.High = (k + 1) * cube(1-1/(9*(k+1))+z/(3*math.Sqrt(k+1))) / amount
	} else {
		r.High = -math.Log(0.025) / amount
	}
	r.Low = max(r.Low, 0)
	return r
}

// A Cause is what failures have in common more often than chance explains.
type Cause struct {
	Dimension string  `json:"dimension"`
	Value     string  `json:"value"`
	Total     uint64  `json:"total"`  // copies, or checks of dimensions of checks, that have it
	Failed    uint64  `json:"failed"` // of them
	Share     float64 `json:"share"`  // of all that failed
	Expected  float64 `json:"expected"`
	// Deviation is the statistic of the likelihood ratio, by which causes are ordered.
	Deviation float64 `json:"deviation"`
}

// significant is the deviation of a group that occurs by chance once in a thousand tests. With m groups it is 2 ln m more.
const significant = 10.83

// Causes returns the groups that have more failures than their size explains, those that deviate most first. A dimension
// of which all have the same value explains nothing. The groups of one dimension add up to all copies, or all checks.
func Causes(groups []read.FailureGroup) (causes []Cause) {
	type sum struct{ total, failed uint64 }
	all := map[string]sum{}
	for _, g := range groups {
		s := all[g.Dimension]
		all[g.Dimension] = sum{s.total + g.Total, s.failed + g.Failed}
	}
	bound := significant + 2*math.Log(float64(max(len(groups), 1)))
	for _, g := range groups {
		s := all[g.Dimension]
		if s.failed == 0 || g.Total == s.total {
			continue
		}
		share := float64(g.Total) / float64(s.total)
		c := Cause{Dimension: g.Dimension, Value: g.Value, Total: g.Total, Failed: g.Failed,
			Share: float64(g.Failed) / float64(s.failed), Expected: share * float64(s.failed)}
		if c.Deviation = deviation(g, s.total, s.failed); float64(c.Failed) > c.Expected && c.Deviation > bound {
			causes = append(causes, c)
		}
	}
	slices.SortStableFunc(causes, func(a, b Cause) int { return cmp.Compare(b.Deviation, a.Deviation) })
	return causes
}

// deviation returns the statistic of the likelihood ratio of the table of failed and good ones, in the group and out of
// it: how much likelier the failures are if the group has a rate of its own.
func deviation(g read.FailureGroup, total, failed uint64) float64 {
	cell := func(observed, row, column uint64) float64 {
		if observed == 0 {
			return 0
		}
		o := float64(observed)
		return o * math.Log(o*float64(total)/(float64(row)*float64(column)))
	}
	out, outFailed := total-g.Total, failed-g.Failed
	return 2 * (cell(g.Failed, g.Total, failed) + cell(g.Total-g.Failed, g.Total, total-failed) +
		cell(outFailed, out, failed) + cell(out-outFailed, out, total-failed))
}
