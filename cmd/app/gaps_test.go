package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// Comparisons that fail are logged once for each outage, and once when it is over. Only results are reported.
func TestWatchPositions(t *testing.T) {
	const failed, over = `level=WARN msg="compare positions with committed offsets" retry_after=30s err="no answer"`,
		`level=INFO msg="compare positions with committed offsets again"`
	for name, tt := range map[string]struct {
		fails                   []bool // the comparisons in order; later ones succeed
		failed, over, successes int
	}{
		"no outage":         {nil, 0, 0, 10},
		"an outage":         {[]bool{false, true, true, true}, 1, 1, 7},
		"two outages":       {[]bool{true, false, true, true, false}, 2, 2, 7},
		"an outage to stop": {[]bool{false, true, true, true, true, true, true, true, true, true}, 1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said logtest.Lines
				n, reported := 0, 0
				ctx, cancel := context.WithTimeout(t.Context(), 10*positionsEvery+time.Second)
				defer cancel()
				err := watchPositions(ctx, func(context.Context) ([]clickhouse.Gap, error) {
					n++
					if n <= len(tt.fails) && tt.fails[n-1] {
						return nil, errors.New("no answer")
					}
					return nil, nil
				}, func(context.Context, []clickhouse.Gap) { reported++ }, said.Log())
				if err != nil || reported != tt.successes {
					t.Errorf("got %v, and %d results, want %d", err, reported, tt.successes)
				}
				if said.Count(failed) != tt.failed || said.Count(over) != tt.over || said.Count("\n") != tt.failed+tt.over {
					t.Errorf("want %d failures and %d ends in\n%s", tt.failed, tt.over, said.String())
				}
			})
		})
	}
}
