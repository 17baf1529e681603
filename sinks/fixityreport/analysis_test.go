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

// traits are what a copy has in common with others, as numbers.
type traits struct{ store, space, prefix, month, worker, host, software int }

// traitsOf returns the traits of a copy by chance.
func traitsOf(rng *rand.Rand) traits {
	return traits{store: rng.IntN(3), space: rng.IntN(10), prefix: rng.IntN(5), month: rng.IntN(24), worker: rng.IntN(8),
		host: rng.IntN(4), software: rng.IntN(3)}
}

// values returns the value of each dimension. A prefix is one of a space.
func (c traits) values() map[string]string {
	word := func(n int) string { return string(rune('a' + n)) }
	return map[string]string{read.ByStore: word(c.store), read.BySpace: word(c.space),
		read.ByPrefix: word(c.space) + "/" + word(c.prefix), read.ByMonth: word(c.month), read.ByWorker: word(c.worker),
		read.ByHost: word(c.host), read.BySoftware: word(c.software)}
}

// groupsOf returns the groups of n copies, whose failures a function decides.
func groupsOf(rng *rand.Rand, n int, fails func(traits) bool) (all uint64, groups []read.FailureGroup) {
	copies, failed := map[traits]uint64{}, map[traits]uint64{}
	var t read.FailureTotals
	for range n {
		c := traitsOf(rng)
		copies[c]++
		if t.Copies++; fails(c) {
			failed[c]++
			t.Failed++
		}
	}
	type key struct{ dimension, value string }
	counts := map[key]*read.FailureGroup{}
	for c, total := range copies {
		for dimension, value := range c.values() {
			g := counts[key{dimension, value}]
			if g == nil {
				g = &read.FailureGroup{Dimension: dimension, Value: value}
				counts[key{dimension, value}] = g
			}
			g.Total += total
			g.Failed += failed[c]
		}
	}
	for _, g := range counts {
		g.All, g.AllFailed = t.Copies, t.Failed
		groups = append(groups, *g)
	}
	return uint64(len(groups)), groups
}

// A cause is named first; without one nothing is.
func TestCauses(t *testing.T) {
	for seed := range uint64(10) {
		var rng *rand.Rand
		rare := func(rate float64) bool { return rng.Float64() < rate }
		for name, tt := range map[string]struct {
			fails func(traits) bool
			want  string
		}{
			"by chance": {func(traits) bool { return rare(0.002) }, ""},
			"none":      {func(traits) bool { return false }, ""},
			"a store":   {func(c traits) bool { return c.store == 1 && rare(0.01) }, "store b"},
			"a space":   {func(c traits) bool { return c.space == 4 && rare(0.05) }, "space e"},
			"a month":   {func(c traits) bool { return c.month == 7 && rare(0.1) || rare(0.0005) }, "month h"},
			"a prefix": {func(c traits) bool {
				return c.space == 3 && c.prefix == 2 && rare(0.1) || rare(0.0005)
			}, "prefix d/c"},
			"a worker":               {func(c traits) bool { return c.worker == 5 && rare(0.02) || rare(0.0005) }, "worker f"},
			"a host":                 {func(c traits) bool { return c.host == 3 && rare(0.01) || rare(0.0005) }, "host d"},
			"a version":              {func(c traits) bool { return c.software == 2 && rare(0.01) }, "software c"},
			"a space, beside chance": {func(c traits) bool { return c.space == 2 && rare(0.02) || rare(0.001) }, "space c"},
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
	of := func(dimension, value string, total, failed uint64) read.FailureGroup {
		return read.FailureGroup{Dimension: dimension, Value: value, Total: total, Failed: failed, All: 100, AllFailed: 50}
	}
	groups := []read.FailureGroup{of(read.BySoftware, "1", 100, 50), of(read.ByHost, "a", 50, 50),
		of(read.ByHost, "b", 50, 0)}
	if causes := Causes(3, groups); len(causes) != 1 || causes[0].Value != "a" || causes[0].Share != 1 ||
		causes[0].Expected != 25 {
		t.Errorf("got %+v", causes)
	}
	if causes := Causes(0, nil); len(causes) != 0 {
		t.Errorf("of nothing: %+v", causes)
	}
}

// The more groups there are, the more failures one of them has by chance, also if only some of them are given.
func TestCausesAmongManyGroups(t *testing.T) {
	groups := []read.FailureGroup{{Dimension: read.ByPrefix, Value: "a/b", Total: 10, Failed: 4, All: 10_000_000,
		AllFailed: 50_000}}
	if few, many := Causes(1000, groups), Causes(1_000_000, groups); len(few) != 1 || len(many) != 0 {
		t.Errorf("got %+v of 1,000 groups, and %+v of a million", few, many)
	}
}
