package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/bytesize"
)

const day = 24 * time.Hour

// A Size is a number of bytes, written as 200MB or 5GiB.
type Size int64

// A Share is a part of a whole, written as 10% or 2.5%.
type Share float64

// String formats s as a percentage.
func (s Share) String() string { return strconv.FormatFloat(float64(s)*100, 'g', 12, 64) + "%" }

func parseShare(text string) (Share, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	n, err := strconv.ParseFloat(number+"e-2", 64) // a division by 100 would be rounded a second time
	if err != nil || !percent || !plainNumber(number) || n > 1 {
		return 0, errShare
	}
	return Share(n), nil
}

// String formats s in the largest unit of which it is a multiple.
func (s Size) String() string { return bytesize.Format(int64(s)) }

var (
	errSize     = bytesize.ErrSyntax
	errShare    = errors.New("a share of 0% to 100%: 10%, 2.5%")
	errDuration = errors.New("a duration with units: 500ms, 30s, 5m, 2h, 90d, 1w or several of them, as in 1d12h")
)

func parseSize(text string) (Size, error) {
	n, err := bytesize.Parse(text)
	return Size(n), err
}

// splitUnit splits text after its leading digits and points.
func splitUnit(text string) (number, rest string) {
	n := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if n < 0 {
		n = len(text)
	}
	return text[:n], text[n:]
}

type unit struct {
	name string
	size int64
}

// plainNumber reports whether s has only digits and points. ParseFloat also accepts signs,
// exponents and words.
func plainNumber(s string) bool { return strings.Trim(s, "0123456789.") == "" }

func durationUnits() []unit {
	return []unit{
		{"w", int64(7 * day)}, {"d", int64(day)}, {"h", int64(time.Hour)}, {"m", int64(time.Minute)},
		{"s", int64(time.Second)}, {"ms", int64(time.Millisecond)}, {"us", int64(time.Microsecond)},
		{"µs", int64(time.Microsecond)}, {"ns", 1},
	}
}

// ParseDuration is time.ParseDuration with days (24 hours) and weeks (7 days).
func ParseDuration(text string) (time.Duration, error) {
	if text == "0" {
		return 0, nil
	}
	rest, negative := strings.CutPrefix(text, "-")
	var total float64
	for more := true; more; more = rest != "" {
		var number string
		number, rest = splitUnit(rest)
		n, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return 0, errDuration
		}
		name := rest
		if end := strings.IndexAny(rest, "0123456789."); end >= 0 {
			name = rest[:end]
		}
		rest = rest[len(name):]
		size := int64(0)
		for _, u := range durationUnits() {
			if u.name == name {
				size = u.size
			}
		}
		if total += n * float64(size); size == 0 || total >= math.MaxInt64 {
			return 0, errDuration
		}
	}
	if negative {
		total = -total
	}
	return time.Duration(total), nil
}

// formatDuration formats d in the form that ParseDuration reads: 90d, 1d12h, 500ms.
func formatDuration(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	if d < 0 {
		return "-" + formatDuration(-d)
	}
	var b strings.Builder
	for _, u := range durationUnits()[1:] { // no weeks: 14d reads better than 2w
		if n := int64(d) / u.size; n > 0 && u.name != "µs" {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d -= time.Duration(n * u.size)
		}
	}
	return b.String()
}
