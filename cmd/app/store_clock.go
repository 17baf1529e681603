package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxStoreClockOffset is how much the clock of a store may differ from that of this process without a warning.
const maxStoreClockOffset = time.Minute

// newStoreClocks returns the metric of the clocks of stores. A store that has not answered yet is absent.
func newStoreClocks() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "millrace_store_clock_offset_seconds",
		Help: "How far the clock of a store's service is ahead of that of this process, by its last response.",
	}, []string{"account", "store"})
}

// clockOf returns the function that the driver of a store calls with how far the clock of its service is ahead. The
// first offset of more than a minute is logged: the store dates content by this clock. A store that is gone has none.
func (s *Stores) clockOf(account, store string) func(ahead time.Duration) {
	name := StoreName{account, store}
	return func(ahead time.Duration) {
		if s.of(name).Store == nil {
			return
		}
		s.clocks.WithLabelValues(account, store).Set(ahead.Seconds())
		if ahead.Abs() <= maxStoreClockOffset {
			return
		}
		if _, named := s.wrongClocks.LoadOrStore(name, true); !named {
			s.log.Warn("the clocks of store and process differ", "account", account, "store", store, "ahead", ahead,
				"remedy", "check the time services of both; millrace_kafka_clock_offset_seconds says if the process is wrong")
		}
	}
}
