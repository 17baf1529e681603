package bench

import (
	"fmt"
	"math"
	"slices"
)

// percentile returns the p-th percentile of values by the nearest-rank method, or 0 if there are none.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// median returns the median of values, or 0 if there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// spread formats the minimum, median and maximum of the rounds.
func spread(values []float64) string {
	if len(values) == 1 {
		return number(significant(values[0]))
	}
	return fmt.Sprintf("min %s, median %s, max %s of %d rounds", number(significant(slices.Min(values))),
		number(significant(median(values))), number(significant(slices.Max(values))), len(values))
}
