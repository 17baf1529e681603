package fixityreport

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// The limits of Garwood's exact intervals.
func TestRateOf(t *testing.T) {
	for n, want := range map[uint64][2]float64{
		0: {0, 3.689}, 1: {0.0253, 5.572}, 2: {0.242, 7.225}, 5: {1.623, 11.668}, 10: {4.795, 18.390}, 100: {81.364, 121.627},
	} {
		r := RateOf(n, 1)
		if r.Value != float64(n) || math.Abs(r.Low-want[0]) > 0.002*max(want[0], 0.1) ||
			math.Abs(r.High-want[1]) > 0.002*want[1] {
			t.Errorf("%d events: got %+v, want %v", n, r, want)
		}
	}
	if r := RateOf(3, 2e15); math.Abs(r.Value-1.5e-15) > 1e-20 {
		t.Errorf("got %g", r.Value)
	}
}

// groupsOf returns the groups of copies in stores, spaces and months, whose failures a function decides.
func groupsOf(
	rng *rand.Rand, n int, fails func(store, space, month int) bool,
) (t read.FailureTotals, groups []read.FailureGroup) {
	type key struct {
		dimension string
		value     int
	}
	counts := map[key]*read.FailureGroup{}
	for range n {
		store, space, month := rng.IntN(3), rng.IntN(10), rng.IntN(24)
		failed := fails(store, space, month)
		if t.Copies++; failed {
			t.Failed++
		}
		for _, k := range []key{{read.ByStore, store}, {read.BySpace, space}, {read.ByMonth, month}} {
			g := counts[k]
			if g == nil {
				g = &read.FailureGroup{Dimension: k.dimension, Value: string(rune('a' + k.value))}
				counts[k] = g
			}
			if g.Total++; failed {
				g.Failed++
			}
		}
	}
	for _, g := range counts {
		groups = append(groups, *g)
	}
	return t, groups
}

// A cause is named first; without one nothing is.
func TestCauses(t *testing.T) {
	for seed := range uint64(20) {
		var rng *rand.Rand
		rare := func(rate float64) bool { return rng.Float64() < rate }
		for name, tt := range map[string]struct {
			fails func(store, space, month int) bool
			want  string
		}{
			"by chance":              {func(int, int, int) bool { return rare(0.002) }, ""},
			"none":                   {func(int, int, int) bool { return false }, ""},
			"a store":                {func(store, _, _ int) bool { return store == 1 && rare(0.01) }, "store b"},
			"a space":                {func(_, space, _ int) bool { return space == 4 && rare(0.05) }, "space e"},
			"a month":                {func(_, _, month int) bool { return month == 7 && rare(0.1) || rare(0.0005) }, "month h"},
			"a space, beside chance": {func(_, space, _ int) bool { return space == 2 && rare(0.02) || rare(0.001) }, "space c"},
		} {
			// Each case has its own numbers, so that they do not depend on the order of the cases.
			rng = rand.New(rand.NewPCG(seed, uint64(len(name)))) //nolint:gosec // a seeded test
			got := ""
			if causes := Causes(groupsOf(rng, 20_000, tt.fails)); len(causes) > 0 {
				got = causes[0].Dimension + " " + causes[0].Value
			}
			if got != tt.want {
				t.Errorf("seed %d, %s: got %q, want %q", seed, name, got, tt.want)
			}
		}
	}
}

// What all have in common explains nothing.
func TestCommonToAll(t *testing.T) {
	groups := []read.FailureGroup{{Dimension: read.BySoftware, Value: "1", Total: 100, Failed: 50},
		{Dimension: read.ByHost, Value: "a", Total: 50, Failed: 50}, {Dimension: read.ByHost, Value: "b", Total: 50}}
	totals := read.FailureTotals{Copies: 100, Failed: 50}
	if causes := Causes(totals, groups); len(causes) != 1 || causes[0].Value != "a" || causes[0].Share != 1 ||
		causes[0].Expected != 25 {
		t.Errorf("got %+v", causes)
	}
	if causes := Causes(read.FailureTotals{}, nil); len(causes) != 0 {
		t.Errorf("of nothing: %+v", causes)
	}
}
