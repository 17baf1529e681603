package metrics

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/streams/kafka/metrics/metricstest"
)

// Clocks are compared once a minute, and a wrong one is reported when it becomes wrong.
func TestClockOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := New(reg)
		for n, tt := range []struct {
			wait  time.Duration
			due   bool
			ahead time.Duration
			wrong bool // newly
		}{
			{0, true, 0, false},
			{59 * time.Second, false, 0, false},
			{2 * time.Second, true, time.Minute, false},
			{time.Minute, true, 61 * time.Second, true},
			{time.Minute, true, -2 * time.Hour, false},
			{time.Hour, true, -time.Minute, false},
			{time.Minute, true, -61 * time.Second, true},
		} {
			time.Sleep(tt.wait)
			due := m.ClockDue()
			if due != tt.due || m.ClockDue() {
				t.Errorf("%d: due %v, want %v, once", n, due, tt.due)
			}
			if !due {
				continue
			}
			if wrong := m.SetClockOffset(tt.ahead); wrong != tt.wrong {
				t.Errorf("%d: wrong %v, want %v", n, wrong, tt.wrong)
			}
			if got := metricstest.Gather(t, reg)["clock_offset_seconds{}"]; got != tt.ahead.Seconds() {
				t.Errorf("%d: the offset is %v, want %v", n, got, tt.ahead)
			}
		}
	})
}
