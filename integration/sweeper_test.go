package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
)

const (
	// sweptPage is the number of commands or tasks of a page of a sweep.
	sweptPage = 1000
	// sweptPairs is the number of pairs of the policy, whose rounds run at the same time.
	sweptPairs = 2
)

// A swept is a setup in which the process that runs the sweeps is interrupted.
type swept struct {
	*setup
	admin       *admin.Admin
	random      *rand.Rand
	sweeper     *process
	members     []string // of the sweeper's group at the last interruption
	interrupted int
}

// newSwept returns a setup with initialised stores, of which edit changes the configuration.
func newSwept(t *testing.T, edit func(*config.Config)) *swept {
	t.Helper()
	s := &swept{setup: newSetup(t, edit)}
	t.Cleanup(func() { s.engine.revive(t) }) // libchdb may abort when its clients are killed
	s.want(t, 0, "applied", "migrate")
	for _, id := range []string{"1", "2", "3"} {
		s.want(t, 0, "has its marker", "store", "init", "acme/"+id)
	}
	var err error
	s.admin, err = admin.New(client.Config{Brokers: s.cfg.Kafka.Brokers, Prefix: s.cfg.Kafka.TopicPrefix,
		ClientID: "test"})
	must(t, err)
	t.Cleanup(s.admin.Close)
	seed, given := givenSeed(t)
	if !given {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d: %s=%d repeats this run", seed, seedEnv, seed)
	s.random = rand.New(rand.NewPCG(seed, 0))
	return s
}

// start starts a process with roles, which the test may kill.
func (s *swept) start(t *testing.T, roles string) *process {
	t.Helper()
	return startProgram(t, roles, exec.Command(binaries(t), "run", "--config", s.file, "--roles", roles))
}

// published returns the number of records in a topic.
func (s *swept) published(t *testing.T, topic schemas.Topic) (n int) {
	t.Helper()
	ends, err := s.admin.EndOffsets(t.Context(), topic)
	must(t, err)
	for _, end := range ends {
		n += int(end)
	}
	return n
}

// goOn waits until a new sweeper has published records in a topic, and then a random time. It returns true if the
// rounds have ended.
func (s *swept) goOn(t *testing.T, topic schemas.Topic, ended func() bool) bool {
	t.Helper()
	s.awaitMember(t.Context(), t)
	for from, begun := s.published(t, topic), time.Now(); s.published(t, topic) == from; wait(t, 5*time.Millisecond) {
		if ended() {
			return true
		}
		if time.Since(begun) > 2*time.Minute {
			t.Fatalf("no round goes on: %d records in %s", from, topic)
		}
		s.engine.revive(t)
	}
	wait(t, time.Duration(s.random.IntN(60))*time.Millisecond)
	return false
}

// awaitMember waits until the group of the sweeper is stable with a member that it did not have at the last
// interruption. The embedded broker may keep a member forever that is killed while it joins.
func (s *swept) awaitMember(ctx context.Context, t *testing.T) {
	t.Helper()
	before := s.members
	for begun := time.Now(); time.Since(begun) < hookLimit; {
		g, err := harness.Existing(s.cfg.Kafka.Brokers...).Describe(ctx, s.cfg.Kafka.TopicPrefix+string(schemas.RoleSweeper))
		s.members = nil
		for _, m := range g.Members {
			s.members = append(s.members, m.ID)
		}
		isNew := func(id string) bool { return !slices.Contains(before, id) }
		if err == nil && g.State == "Stable" && slices.ContainsFunc(s.members, isNew) {
			return
		}
		if retry.Sleep(ctx, 300*time.Millisecond) != nil {
			return
		}
	}
	t.Logf("the new sweeper has not joined its group within %v", hookLimit)
}

// interrupt starts a sweeper and kills it, each time after it has published records in a topic, and suspends it at last
// beyond its session while another one takes over.
func (s *swept) interrupt(t *testing.T, kills int, topic schemas.Topic, ended func() bool) {
	t.Helper()
	s.sweeper = s.start(t, "sweeper")
	for s.interrupted < kills && !s.goOn(t, topic, ended) {
		s.kill(t)
	}
	if s.interrupted < kills {
		t.Logf("the rounds had ended after %d interruptions", s.interrupted)
	} else if !s.goOn(t, topic, ended) {
		suspended := s.sweeper
		suspended.signal(t, syscall.SIGSTOP)
		s.interrupted++
		s.sweeper = s.start(t, "sweeper")
		s.goOn(t, topic, ended)
		suspended.signal(t, syscall.SIGCONT)
		suspended.stop(t)
	}
	if s.interrupted == 0 {
		t.Error("the rounds had ended before the first interruption")
	}
}

// kill kills the sweeper, and starts another one.
func (s *swept) kill(t *testing.T) {
	t.Helper()
	s.sweeper.kill()
	s.interrupted++
	s.sweeper = s.start(t, "sweeper")
}

// await waits until the rounds have ended.
func (s *swept) await(t *testing.T, ended func() bool) {
	t.Helper()
	for begun := time.Now(); !ended(); wait(t, 100*time.Millisecond) {
		if time.Since(begun) > 3*time.Minute {
			t.Fatal("the rounds have not ended")
		}
		s.engine.revive(t)
	}
}

// read calls each with the messages of a topic.
func (s *swept) read(t *testing.T, topic schemas.Topic, each func(schemas.Body)) {
	t.Helper()
	e, err := s.admin.Extent(t.Context(), topic)
	must(t, err)
	err = s.admin.Read(t.Context(), topic, e, func(d *schemas.Delivery, unreadable error) error {
		if unreadable == nil {
			each(d.Body)
		}
		return unreadable
	})
	must(t, err)
}

// reports returns the reports of a kind by their ids. Those that were published again must have the same counts.
func (s *swept) reports(t *testing.T, kind string) map[string]*pb.Report {
	t.Helper()
	all := map[string]*pb.Report{}
	s.read(t, schemas.Reports, func(b schemas.Body) {
		r, ok := b.(*pb.Report)
		if !ok || r.GetKind() != kind || r.GetSpace() != "photos" {
			return
		}
		if was := all[r.GetId()]; was != nil && !maps.Equal(was.GetCounts(), r.GetCounts()) {
			t.Errorf("report %s has the counts %v and %v", r.GetId(), was.GetCounts(), r.GetCounts())
		}
		all[r.GetId()] = r
	})
	return all
}

// checkOnce checks that each of n copies has one id of a command or task, and that each interruption has repeated a
// page of each round at most. ids has the ids by copy, and total counts the repeated ones, too.
func (s *swept) checkOnce(t *testing.T, ids map[string]string, n, total, rounds int) {
	t.Helper()
	most := n + s.interrupted*rounds*sweptPage
	t.Logf("%d interruptions, %d messages for %d copies", s.interrupted, total, n)
	if len(ids) != n || total > most {
		t.Errorf("%d messages for %d copies, want %d copies and at most %d messages", total, len(ids), n, most)
	}
}

// TestSweeperKilled kills the process that runs the rounds of the duplication sweep at random times, and suspends it
// once beyond its session while another one takes over. Each item that is missing has a command for each pair, each
// interruption repeats a page of each pair at most, and each round has one report.
func TestSweeperKilled(t *testing.T) {
	need.Full(t)
	items, kills := need.Amount(10_000, 10_000, 40_000), need.Amount(5, 5, 50)
	s := newSwept(t, func(c *config.Config) {
		c.Sweep.MaxBacklog = 10_000_000 // no copier runs
		c.Sweep.Fixity, c.Sweep.Reconcile, c.Sweep.Stats = schedule.Schedule{}, schedule.Schedule{}, schedule.Schedule{}
		c.Sweep.Groups = schedule.Schedule{}
	})
	space := filepath.Join(s.cfg.Accounts[0].Stores[0].Root, "photos")
	must(t, os.Mkdir(space, 0o755))
	for i := range items {
		must(t, os.WriteFile(filepath.Join(space, fmt.Sprintf("%06d", i)), []byte("an item"), 0o644))
	}
	s.serve(t, "planner,sink")
	ended := func() bool { return len(s.reports(t, "pair")) >= sweptPairs }
	s.interrupt(t, kills, schemas.DuplicationLow, ended)
	s.await(t, ended)
	ids, total := map[string]string{}, 0
	s.read(t, schemas.DuplicationLow, func(b schemas.Body) {
		c, ok := b.(*pb.DuplicationCommand)
		if !ok || c.GetItem() == "" { // of the space itself
			return
		}
		total++
		key := c.GetDestinationStore() + "/" + c.GetItem()
		if was, again := ids[key]; again && was != c.GetId() {
			t.Errorf("%s has the commands %s and %s", key, was, c.GetId())
		}
		ids[key] = c.GetId()
	})
	s.checkOnce(t, ids, sweptPairs*items, total, sweptPairs)
	if n := len(s.reports(t, "pair")); n != sweptPairs {
		t.Errorf("%d rounds have reports, want %d", n, sweptPairs)
	}
	s.sweeper.stop(t)
}

// TestFixityRoundKilled kills the process that runs a fixity round at random times while it requests checks, and once
// while it waits for their results. Each copy has one task, and the report has the result of each.
func TestFixityRoundKilled(t *testing.T) {
	need.Full(t)
	items, kills := need.Amount(10_000, 10_000, 60_000), need.Amount(5, 5, 50)
	s := newSwept(t, func(c *config.Config) {
		c.Sweep.MaxBacklog = 10_000_000 // no checker runs at first
		c.Sweep.Duplication, c.Sweep.Reconcile, c.Sweep.Stats = schedule.Schedule{}, schedule.Schedule{}, schedule.Schedule{}
		c.Sweep.Groups = schedule.Schedule{}
	})
	s.serve(t, "sink")
	s.put(t, items)
	waits := func() (is bool) {
		s.read(t, schemas.Checkpoints, func(b schemas.Body) {
			if c, ok := b.(*pb.Checkpoint); ok && c.GetSweep() == sweep.FixitySweep {
				is = sweep.OnlyWaits(c)
			}
		})
		return is
	}
	s.interrupt(t, kills, schemas.FixityLow, waits)
	s.await(t, waits)
	s.kill(t)
	s.serve(t, "checker,delayer")
	s.await(t, func() bool { return len(s.reports(t, "fixity")) > 0 })

	ids, total := map[string]string{}, 0
	s.read(t, schemas.FixityLow, func(b schemas.Body) {
		task := b.(*pb.FixityTask)
		total++
		if was, again := ids[task.GetItem()]; again && was != task.GetId() {
			t.Errorf("%s has the tasks %s and %s", task.GetItem(), was, task.GetId())
		}
		ids[task.GetItem()] = task.GetId()
	})
	s.checkOnce(t, ids, items, total, 1)
	reports := s.reports(t, "fixity")
	for _, r := range reports {
		n := r.GetCounts()
		if all := int64(items); !r.GetComplete() || n["pass"] != all || n["live"] != all || n["verified"] != all {
			t.Errorf("the report is %v, want %d copies that have passed", r, items)
		}
	}
	if len(reports) != 1 {
		t.Errorf("%d rounds have reports, want 1", len(reports))
	}
	s.sweeper.stop(t)
}

// put puts items into space photos of the primary store, and waits until they are on record.
func (s *swept) put(t *testing.T, items int) {
	t.Helper()
	ctx := t.Context()
	a, store := s.openClient(t)
	must(t, store.CreateSpace(ctx, storage.Space{Name: "photos"}))
	var g errgroup.Group
	g.SetLimit(16)
	for i := range items {
		g.Go(func() error {
			_, err := store.Put(ctx, "photos", fmt.Sprintf("%06d", i), strings.NewReader("an item"),
				storage.PutOptions{Size: storage.UnknownSize})
			return err
		})
	}
	must(t, g.Wait())
	harness.Eventually(t, time.Minute, "record the items", func(ctx context.Context) error {
		s.engine.revive(t)
		counts, err := read.CopyCounts(ctx, a.DB(), "acme")
		if err == nil && (len(counts) != 1 || counts[0].Live != uint64(items)) {
			err = errors.New(fmt.Sprint(counts))
		}
		return err
	})
}
