package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	s.fill(t, "photos", items)
	s.serve(t, "sink")
	ended := func() bool { return len(s.reports(t, "reconcile")) > 0 }
	s.interrupt(t, kills, schemas.Changes, ended)
	s.await(t, ended)
	s.checkImport(t, items)
	s.sweeper.stop(t)
}

// TestImportInterrupted interrupts the command that takes in a store that exists. The same command goes on with the
// round: each file has one Change, each interruption repeats a page at most, and the one report has all files.
func TestImportInterrupted(t *testing.T) {
	need.Full(t)
	items, signals := need.Amount(60_000, 60_000, 200_000), need.Amount(2, 2, 8)
	s := newSwept(t, func(c *config.Config) {
		c.Sweep.MaxBacklog = 10_000_000
		c.Reconcile.Settle = 1
		c.Policies.Folder = "" // so that --wait waits for no copy
	})
	s.fill(t, "photos", items)
	s.serve(t, "planner,checker,copier,sink")
	command := func() *process {
		return startProgram(t, "sweep", exec.Command(binaries(t), "sweep", "start", "reconcile", "--account", "acme",
			"--store", "1", "--space", "photos", "--wait", "-o", "json", "--config", s.file))
	}
	for range signals {
		p, from := command(), s.published(t, schemas.Changes)
		for begun := time.Now(); s.published(t, schemas.Changes) == from; wait(t, 5*time.Millisecond) {
			if time.Since(begun) > 2*time.Minute {
				t.Fatal("no page is published")
			}
		}
		p.signal(t, os.Interrupt)
		<-p.exited
		if code := p.cmd.ProcessState.ExitCode(); code != 130 {
			t.Fatalf("an interrupted command has exit code %d, want 130", code)
		}
		s.interrupted++
		if n := len(s.reports(t, "reconcile")); n != 0 {
			t.Fatalf("the round had ended after %d interruptions", s.interrupted)
		}
	}
	p := command()
	<-p.exited
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the last command has exit code %d", code)
	}
	s.checkImport(t, items)
}

// fill writes n files into a space of store 1, as another program does.
func (s *swept) fill(t *testing.T, space string, n int) {
	t.Helper()
	for i := range n {
		dir := filepath.Join(s.cfg.Accounts[0].Stores[0].Root, space, fmt.Sprintf("%03d", i/1000))
		if i%1000 == 0 {
			must(t, os.MkdirAll(dir, 0o755))
		}
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d", i)), []byte("an item"), 0o644))
	}
}

// checkImport checks that each of n files has one Change, that each interruption has repeated a page at most, and that
// there was one round, with a report of all files.
func (s *swept) checkImport(t *testing.T, n int) {
	t.Helper()
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
	t.Logf("%d interruptions, %d changes of %d files", s.interrupted, total, n)
	if most := n + s.interrupted*reconcile.DefaultPage; len(ids) != n || total > most {
		t.Errorf("%d changes of %d files, want %d files and at most %d changes", total, len(ids), n, most)
	}
	reports := s.reports(t, "reconcile")
	for _, r := range reports {
		// A file whose page was repeated may be on record by then.
		if n := r.GetCounts(); !r.GetComplete() || n["adopted"]+n["equal"] != int64(len(ids)) {
			t.Errorf("the report is %v, want %d files", r, len(ids))
		}
	}
	rounds := map[string]bool{}
	s.read(t, schemas.Checkpoints, func(b schemas.Body) {
		c, ok := b.(*pb.Checkpoint)
		if ok && strings.HasPrefix(c.GetSweep(), reconcile.Name) && c.GetSplit() == schemas.Key("acme", "1", "photos") {
			rounds[c.GetRound()] = true
		}
	})
	if len(reports) != 1 || len(rounds) != 1 {
		t.Errorf("%d rounds, of which %d have reports, want 1", len(rounds), len(reports))
	}
}
