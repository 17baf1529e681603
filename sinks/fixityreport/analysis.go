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
	Total     uint64  `json:"total"`  // copies, or checks, that have it
	Failed    uint64  `json:"failed"` // of them
	Share     float64 `json:"share"`  // of all that failed
	Expected  float64 `json:"expected"`
	// Chance is the logarithm to base 10 of the probability that chance puts so many failures into a group of this size,
	// or more.
	Chance float64 `json:"chance_log10"`
}

// falseCauses is the share of analyses in which chance alone makes a cause.
const falseCauses = 0.001

// Causes returns the groups that have more failures than their size explains, the least likely first. What all have
// explains nothing. all is the number of groups of which these are those with most failures.
func Causes(all uint64, groups []read.FailureGroup) (causes []Cause) {
	bound := math.Log10(falseCauses / float64(max(all, 1)))
	for _, g := range groups {
		if g.Failed == 0 || g.Total == g.All {
			continue
		}
		share := float64(g.Total) / float64(g.All)
		c := Cause{Dimension: g.Dimension, Value: g.Value, Total: g.Total, Failed: g.Failed,
			Share: float64(g.Failed) / float64(g.AllFailed), Expected: share * float64(g.AllFailed)}
		if float64(c.Failed) <= c.Expected {
			continue
		}
		if c.Chance = binomialTail(g.Failed, g.AllFailed, share) / math.Ln10; c.Chance < bound {
			causes = append(causes, c)
		}
	}
	slices.SortStableFunc(causes, func(a, b Cause) int { return cmp.Compare(a.Chance, b.Chance) })
	return causes
}

// binomialTail returns the logarithm of the probability of k or more of n events that each have a probability p, for k
// above the mean.
func binomialTail(k, n uint64, p float64) float64 {
	gamma := func(x uint64) float64 {
		v, _ := math.Lgamma(float64(x) + 1)
		return v
	}
	first := gamma(n) - gamma(k) - gamma(n-k) + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p)
	sum, term := 1.0, 1.0
	for i := k; i < n && term > 1e-12*sum; i++ {
		term *= float64(n-i) / float64(i+1) * p / (1 - p)
		sum += term
	}
	return first + math.Log(sum)
}
