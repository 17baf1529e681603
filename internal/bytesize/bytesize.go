// Package bytesize reads and writes numbers of bytes with a unit, such as 200MB or 5GiB.
package bytesize

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

type unit struct {
	name string
	size int64
}

// units returns the units, largest first. Format uses the first of two names of the same size.
func units() []unit {
	return []unit{
		{"TiB", 1 << 40}, {"TB", 1e12}, {"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6},
		{"KiB", 1 << 10}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
	}
}

// ErrSyntax says what Parse accepts.
var ErrSyntax = errors.New("a number of bytes with a unit: 512KiB, 200MB, 5GiB")

// Parse reads a whole number of bytes with a unit. The error is ErrSyntax.
func Parse(text string) (int64, error) {
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		return 0, ErrSyntax
	}
	n, err := strconv.ParseFloat(text[:end], 64)
	if err != nil {
		return 0, ErrSyntax
	}
	name := strings.TrimSpace(text[end:])
	for _, u := range units() {
		if u.name != name {
			continue
		}
		if bytes := n * float64(u.size); bytes == math.Trunc(bytes) && bytes < math.MaxInt64 {
			return int64(bytes), nil
		}
	}
	return 0, ErrSyntax
}

// Format writes size in the largest unit of which it is a multiple.
func Format(size int64) string {
	for _, u := range units() {
		if size != 0 && size%u.size == 0 {
			return strconv.FormatInt(size/u.size, 10) + u.name
		}
	}
	return "0B"
}
