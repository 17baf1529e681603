package config

import (
	"fmt"
	"slices"
	"strings"
)

// A Fault is one thing that is wrong with a configuration.
type Fault struct {
	Key    string // path of the setting: accounts[0].stores[1].root
	Value  string // as it was given, shortened; empty where none was, or where it might be a secret
	Reason string // what is wrong, or what would be right
	Origin string // where the value came from: FILE:LINE, a variable, the command line, default

	meant string // path of the setting that an unknown one stands for
}

func (f Fault) String() string {
	var b strings.Builder
	if f.Origin != "" {
		b.WriteString(f.Origin + ": ")
	}
	if f.Key != "" {
		b.WriteString(f.Key)
		if f.Value != "" {
			b.WriteString(" = " + f.Value)
		}
		b.WriteString(": ")
	}
	return b.String() + f.Reason
}

// Faults are all that is wrong with a configuration.
type Faults []Fault

// Error lists the faults, one a line.
func (f Faults) Error() string {
	var b strings.Builder
	if len(f) == 1 {
		b.WriteString("1 fault in the configuration:")
	} else {
		fmt.Fprintf(&b, "%d faults in the configuration:", len(f))
	}
	for _, fault := range f {
		b.WriteString("\n  " + fault.String())
	}
	return b.String()
}

func (f *Faults) add(key string, value any, origin, reason string) {
	v := ""
	if value != nil {
		if v = fmt.Sprint(value); v == "" {
			v = `""`
		}
		if r := []rune(v); len(r) > 60 {
			v = string(r[:60]) + "..."
		}
	}
	*f = append(*f, Fault{Key: key, Value: v, Reason: reason, Origin: origin})
}

// nearest returns the candidate that key was most likely meant to be; empty if none is near.
func nearest(key string, candidates []string) string {
	best, distance := "", max(1, len(key)/3)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := edits(strings.ToLower(key), c); d < distance {
			best, distance = c, d
		}
	}
	return best
}

// edits counts the insertions, deletions, replacements and swaps of neighbours from a to b.
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
