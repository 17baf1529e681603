package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/streams/kafka/metrics/metricstest"
)

// A wrong clock is reported when it becomes wrong.
func TestClockOffset(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	for n, tt := range []struct {
		ahead time.Duration
		wrong bool // newly
	}{
		{0, false}, {time.Minute, false}, {61 * time.Second, true}, {-2 * time.Hour, false}, {-time.Minute, false},
		{-61 * time.Second, true},
	} {
		if wrong := m.SetClockOffset(tt.ahead); wrong != tt.wrong {
			t.Errorf("%d: wrong %v, want %v", n, wrong, tt.wrong)
		}
		if got := metricstest.Gather(t, reg)["clock_offset_seconds{}"]; got != tt.ahead.Seconds() {
			t.Errorf("%d: the offset is %v, want %v", n, got, tt.ahead)
		}
	}
}
