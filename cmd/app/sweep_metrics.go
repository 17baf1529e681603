package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// sweepLabels returns the label of each sweep and job in metrics. Rounds by hand count for their sweep.
func sweepLabels() map[string]string {
	labels := map[string]string{}
	for _, name := range Sweeps() {
		labels[name], labels[name+demand] = name, name
	}
	for _, name := range Jobs() {
		labels[name] = name
	}
	return labels
}

// sweepTimes are the times at which a round of a sweep began and ended last, in any process. A zero time is unknown.
type sweepTimes struct{ begun, ended time.Time }

// with returns t with the times of a checkpoint.
func (t sweepTimes) with(c *pb.Checkpoint) sweepTimes {
	if at := c.GetStarted().AsTime(); c.GetStarted() != nil && at.After(t.begun) {
		t.begun = at
	}
	if at := c.GetFinished().AsTime(); c.GetFinished() != nil && at.After(t.ended) {
		t.ended = at
	}
	return t
}

// sweepTimesOf exports the times of the sweeps and jobs, by their checkpoints. The label is the sweep. A time that is
// unknown is absent.
type sweepTimesOf struct {
	known        *checkpoints
	labels       map[string]string
	begun, ended *prometheus.Desc
}

var _ prometheus.Collector = (*sweepTimesOf)(nil)

func newSweepTimes(known *checkpoints) *sweepTimesOf {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_sweep_"+name+"_timestamp_seconds", help, []string{"sweep"}, nil)
	}
	return &sweepTimesOf{known, sweepLabels(),
		desc("round_begun", "When a round of a sweep, or an iteration of a job, began last, in any process."),
		desc("round_ended", "When a round of a sweep, or an iteration of a job, ended last, in any process."),
	}
}

// Describe implements prometheus.Collector.
func (m *sweepTimesOf) Describe(to chan<- *prometheus.Desc) {
	to <- m.begun
	to <- m.ended
}

// Collect implements prometheus.Collector.
func (m *sweepTimesOf) Collect(to chan<- prometheus.Metric) {
	begun, ended := map[string]time.Time{}, map[string]time.Time{}
	m.known.mu.Lock()
	for name, t := range m.known.times {
		if label, ok := m.labels[name]; ok { // of a sweep and of its rounds by hand
			begun[label], ended[label] = latest(begun[label], t.begun), latest(ended[label], t.ended)
		}
	}
	m.known.mu.Unlock()
	for desc, times := range map[*prometheus.Desc]map[string]time.Time{m.begun: begun, m.ended: ended} {
		for label, at := range times {
			if !at.IsZero() {
				to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(at.UnixMilli())/1000, label)
			}
		}
	}
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
