package client

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/kafka/metrics/metricstest"
)

// Several clients may have the same name. Their metrics disappear with them.
func TestMetricsOfClients(t *testing.T) {
	reg := prometheus.NewRegistry()
	cfg := Config{Brokers: []string{"127.0.0.1:1"}, Metrics: metrics.New(reg)}
	clients := func() (names []string) {
		for name := range metricstest.Gather(t, reg, "client_buffered_fetch_bytes") {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	check := func(want ...string) {
		t.Helper()
		for i, name := range want {
			want[i] = "client_buffered_fetch_bytes{client=" + name + "}"
		}
		if got := clients(); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	open := func(name string) *kgo.Client {
		t.Helper()
		opts, err := cfg.Options(name)
		if err != nil {
			t.Fatal(err)
		}
		cl, err := kgo.NewClient(opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return cl
	}
	a, b, c := open("admin"), open("admin"), open("copier")
	check("admin#2", "admin", "copier")
	a.Close()
	check("admin#2", "copier")
	open("admin")
	check("admin#2", "admin", "copier")
	b.Close()
	c.Close()
	check("admin")
}
