package admin

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/metrics/metricstest"
)

// Lags that are no longer set, and values that are unknown, are absent.
func TestLagMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := NewLagMetrics(reg)
		bytes, seconds := int64(70), 3.5
		m.Set([]Lag{
			{Role: schemas.RoleCopier, Class: schemas.Low, Topic: schemas.DuplicationLow, Records: 7,
				Bytes: &bytes, Seconds: &seconds},
			{Role: schemas.RoleSink, Class: schemas.High, Topic: schemas.Changes, Records: 9, Uncommitted: 2, Paused: true},
		})
		metricstest.Lint(t, reg)
		time.Sleep(lagTTL)
		metricstest.Compare(t, metricstest.Gather(t, reg, "lag_"), map[string]float64{
			"lag_records{class=low,role=copier,topic=duplication.low}":                  7,
			"lag_due_records{class=low,role=copier,topic=duplication.low}":              7,
			"lag_open_transaction_records{class=low,role=copier,topic=duplication.low}": 0,
			"lag_bytes{class=low,role=copier,topic=duplication.low}":                    70,
			"lag_seconds{class=low,role=copier,topic=duplication.low}":                  3.5,
			"lag_records{class=high,role=sink,topic=changes}":                           9,
			"lag_due_records{class=high,role=sink,topic=changes}":                       0,
			"lag_open_transaction_records{class=high,role=sink,topic=changes}":          2,
		})
		time.Sleep(time.Nanosecond)
		metricstest.Compare(t, metricstest.Gather(t, reg, "lag_"), map[string]float64{})
	})
}
