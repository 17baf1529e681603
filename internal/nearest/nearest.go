// Package nearest finds the most likely intended word for a misspelt one.
package nearest

import (
	"slices"
	"strings"
)

// Of returns the candidate with the smallest edit distance to word, or "" if none is near. It ignores case.
func Of(word string, candidates []string) string {
	best, distance := "", max(1, len(word)/3)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := edits(strings.ToLower(word), strings.ToLower(c)); d < distance {
			best, distance = c, d
		}
	}
	return best
}

// edits returns the number of insertions, deletions, replacements and swaps of adjacent bytes that turn a into b.
func edits(a, b string) int {
	previous, row := []int(nil), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before := previous
		previous, row = row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(previous[j]+1, row[j-1]+1, previous[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
