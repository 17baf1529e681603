// Package metricstest reads and compares the metrics of a registry, for tests.
package metricstest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// Gather returns the values of the metrics in a registry whose name and labels contain all of like, by name and
// labels without the common prefix. For histograms the value is the count.
func Gather(t *testing.T, reg *prometheus.Registry, like ...string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), "millrace_kafka_") + "{" + strings.Join(labels, ",") + "}"
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	maps.DeleteFunc(all, func(name string, _ float64) bool {
		return slices.ContainsFunc(like, func(s string) bool { return !strings.Contains(name, s) })
	})
	return all
}

// Compare reports the differences between gathered values and the expected ones as errors of t.
func Compare(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[name]; !ok {
			t.Errorf("%s: absent, want %v", name, want[name])
		} else if v != want[name] {
			t.Errorf("%s: got %v, want %v", name, v, want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: got %v, want it absent", name, got[name])
		}
	}
}

// Lint checks the names and the help texts of the metrics in a registry.
func Lint(t *testing.T, reg *prometheus.Registry) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "millrace_kafka_") {
			t.Errorf("%s: want the prefix millrace_kafka_", f.GetName())
		}
	}
}
