package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/retry"
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

// Due copies are unknown while tables lack records, and not none.
func TestDueCopiesOfAnEmptiedTable(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	r.work(0, 3)
	c := someChange(0)
	q := schemas.DueQuery{Account: c.GetAccount(), Store: c.GetStore(), Space: c.GetSpace()}
	copies, _, err := r.app.due().Due(t.Context(), q)
	if err != nil || len(copies) == 0 {
		t.Fatalf("%d copies, %v", len(copies), err)
	}
	r.empty("copy_state")
	if copies, _, err = r.app.due().Due(t.Context(), q); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("of an emptied table: %d copies, %v, want an error of class unavailable", len(copies), err)
	}
}
