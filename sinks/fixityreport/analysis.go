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

// exactEvents is the number of events from which the approximation of the interval is used.
const exactEvents = 100

// RateOf returns the rate of n events of a Poisson process in an amount that is more than 0. The interval is Garwood's;
// of many events Byar's approximation, which then is within a tenth of a percent.
func RateOf(n uint64, amount float64) Rate {
	k := float64(n)
	r := Rate{Value: k / amount}
	if n < exactEvents {
		if r.High = poissonMean(n, 0.025) / amount; n > 0 {
			r.Low = poissonMean(n-1, 0.975) / amount
		}
		return r
	}
	cube := func(x float64) float64 { return x * x * x }
	r.Low = k * cube(1-1/(9*k)-z/(3*math.Sqrt(k))) / amount
	r.High = (k + 1) * cube(1-1/(9*(k+1))+z/(3*math.Sqrt(k+1))) / amount
	return r
}

// poissonMean returns the mean of the Poisson distribution that has n events or fewer with a probability.
func poissonMean(n uint64, probability float64) float64 {
	low, high := 0.0, 3*float64(exactEvents)
	for range 60 {
		mean := (low + high) / 2
		term, sum := math.Exp(-mean), 0.0
		for i := uint64(0); i <= n; i++ {
			sum += term
			term *= mean / float64(i+1)
		}
		if sum > probability {
			low = mean
		} else {
			high = mean
		}
	}
	return (low + high) / 2
}

// A Cause is what failures have in common more often than chance explains.
type Cause struct {
	Dimension string  `json:"dimension"`
	Value     string  `json:"value"`
	Total     uint64  `json:"total"`  // copies that have it
	Failed    uint64  `json:"failed"` // of them
	Share     float64 `json:"share"`  // of all that failed
	Expected  float64 `json:"expected"`
	// Deviation is the statistic of the likelihood ratio, by which causes are ordered.
	Deviation float64 `json:"deviation"`
}

// significant is the deviation of a group that occurs by chance once in a thousand tests. With m groups it is 2 ln m more.
const significant = 10.83

// Causes returns the groups of copies that have more failures than their size explains, those that deviate most first.
// What all copies have explains nothing.
func Causes(t read.FailureTotals, groups []read.FailureGroup) (causes []Cause) {
	bound := significant + 2*math.Log(float64(max(len(groups), 1)))
	for _, g := range groups {
		if t.Failed == 0 || g.Total == t.Copies {
			continue
		}
		share := float64(g.Total) / float64(t.Copies)
		c := Cause{Dimension: g.Dimension, Value: g.Value, Total: g.Total, Failed: g.Failed,
			Share: float64(g.Failed) / float64(t.Failed), Expected: share * float64(t.Failed)}
		if c.Deviation = deviation(g, t.Copies, t.Failed); float64(c.Failed) > c.Expected && c.Deviation > bound {
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
