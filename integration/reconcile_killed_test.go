package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// TestImportKilled kills the process that takes in a store that exists, at random times, and suspends it once beyond
// its session while another one takes over. Each file has one Change, each interruption repeats a page at most, and the
// report of the one round has all files.
func TestImportKilled(t *testing.T) {
	need.Full(t)
	items, kills := need.Amount(60_000, 60_000, 300_000), need.Amount(5, 5, 50)
	s := newSwept(t, func(c *config.Config) {
		c.Sweep.MaxBacklog = 10_000_000 // no planner runs
		c.Reconcile.Settle = 1
		c.Sweep.Fixity, c.Sweep.Duplication, c.Sweep.Stats = schedule.Schedule{}, schedule.Schedule{}, schedule.Schedule{}
	})
	space := filepath.Join(s.cfg.Accounts[0].Stores[0].Root, "photos")
	for i := range items {
		dir := filepath.Join(space, fmt.Sprintf("%03d", i/1000))
		if i%1000 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d", i)), []byte("an item"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.serve(t, "sink")
	ended := func() bool { return len(s.reports(t, "reconcile")) > 0 }
	s.interrupt(t, kills, schemas.Changes, ended)
	s.await(t, ended)
	ids, total := map[string]string{}, 0
	s.read(t, schemas.Changes, func(b schemas.Body) {
		c := b.(*pb.Change)
		if c.GetItem() == "" || c.GetSpace() != "photos" { // of the space itself
			return
		}
		total++
		if was, again := ids[c.GetItem()]; again && was != c.GetId() {
			t.Errorf("%s has the changes %s and %s", c.GetItem(), was, c.GetId())
		}
		ids[c.GetItem()] = c.GetId()
	})
	t.Logf("%d interruptions, %d changes of %d files", s.interrupted, total, items)
	if most := items + s.interrupted*reconcile.DefaultPage; len(ids) != items || total > most {
		t.Errorf("%d changes of %d files, want %d files and at most %d changes", total, len(ids), items, most)
	}
	reports := s.reports(t, "reconcile")
	for _, r := range reports {
		// A file whose page was repeated may be on record by then.
		if n := r.GetCounts(); !r.GetComplete() || n["adopted"]+n["equal"] != int64(items) {
			t.Errorf("the report is %v, want %d files", r, items)
		}
	}
	if len(reports) != 1 {
		t.Errorf("%d rounds have reports, want 1", len(reports))
	}
	s.sweeper.stop(t)
}
