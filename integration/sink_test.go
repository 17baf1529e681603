package integration

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/streams/child"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// TestSinkFaults injects faults of sinks and their engine. 'millrace verify' must find each message in one row and the
// state of copies consistent with the logs, and only bad messages may be dead letters.
func TestSinkFaults(t *testing.T) {
	c := harness.Kafka(t, harness.Options{Brokers: 3})
	for name, test := range map[string]struct {
		prefix string
		fault  func(*testing.T, *sinkSetup)
		full   bool
	}{
		"sink and engine are killed at random times": {prefix: "killed", fault: killedSinks},
		"a sink resumes after its session":           {prefix: "woken", fault: resumedSink, full: true},
		"the engine is unavailable for long":         {prefix: "unavailable", fault: engineUnavailable, full: true},
		"read again from the start":                  {prefix: "again", fault: readAgain, full: true},
		"one bad row among good rows":                {prefix: "bad", fault: badRow, full: true},
		"partitions are added":                       {prefix: "more", fault: morePartitions, full: true},
		"the topic is recreated":                     {prefix: "anew", fault: anotherTopic},
		"the tables are emptied":                     {prefix: "emptied", fault: emptied, full: true},
	} {
		t.Run(name, func(t *testing.T) {
			if test.full {
				need.Full(t)
			}
			test.fault(t, newSinkSetup(t, c, test.prefix))
		})
	}
}

// sinkSetup has its own topics and engine, and a configuration for sinks in child processes.
type sinkSetup struct {
	setup
	c      *harness.Cluster
	kafka  client.Config
	engine *engine
	sent   int
}

func newSinkSetup(t *testing.T, c *harness.Cluster, name string) *sinkSetup {
	t.Helper()
	dir := t.TempDir()
	m := &sinkSetup{c: c, kafka: c.Config("sink." + name + "."), engine: newEngine(t, dir)}
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Kafka.TopicPrefix = m.kafka.Brokers, m.kafka.Prefix
	cfg.Kafka.Partitions, cfg.Kafka.Replication, cfg.Kafka.MinInSync = 3, c.Brokers(), c.Brokers()-1
	cfg.Kafka.SessionTimeout = 6 * time.Second
	cfg.Delay.Lanes = []config.Lane{{Name: "1s", Delay: time.Second}}
	cfg.ClickHouse.Addresses = []string{m.engine.server.Addr()}
	cfg.Sink.Age, cfg.Sink.Rows = 100*time.Millisecond, 5000
	m.cfg, m.file = &cfg, filepath.Join(dir, "millrace.yaml")
	var text bytes.Buffer
	must(t, config.Print(&text, &cfg, nil))
	m.write(t, "millrace.yaml", text.String())
	m.binary(t)
	m.want(t, 0, "applied", "migrate")
	return m
}

// binary builds the commands before anything is timed.
func (m *sinkSetup) binary(t *testing.T) {
	t.Helper()
	t.Setenv("PATH", filepath.Dir(binaries(t))+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func freePort(t *testing.T) int {
	t.Helper()
	ports, err := child.FreePorts(1)
	must(t, err)
	return ports[0]
}

// sink starts a sink in a child process. A sink that restarts with the name of a killed one gets its partitions at
// once; one without a name leaves its groups when it stops.
func (m *sinkSetup) sink(t *testing.T, name string) *process {
	t.Helper()
	var env []string
	if name != "" {
		env = append(env, "MILLRACE_KAFKA__INSTANCE="+name)
	}
	return startProgram(t, "sink "+name, exec.Command(binaries(t), "run", "--config", m.file, "--roles", "sink"), env...)
}

// resident returns the resident memory of p in bytes.
func (p *process) resident(t *testing.T) (bytes int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		need.Missing(t, need.Kernel("/proc"), err)
	}
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &bytes); err == nil {
			return bytes << 10
		}
	}
	t.Fatalf("no VmRSS in %s", status)
	return 0
}

// send publishes n changes of as many items, over all partitions.
func (m *sinkSetup) send(t *testing.T, n int) {
	t.Helper()
	p, err := kafka.NewProducer(m.kafka, "integration")
	must(t, err)
	defer p.Close()
	for n > 0 {
		var msgs []schemas.Message
		for range min(n, 1000) {
			msgs = append(msgs, change(fmt.Sprintf("item-%06d", m.sent), 1))
			m.sent++
		}
		for p.Publish(t.Context(), msgs...) != nil { // again, as the ingester does
			must(t, retry.Sleep(t.Context(), 100*time.Millisecond))
		}
		n -= len(msgs)
	}
}

// awaitCommitted waits until both groups of the sink have committed all records of a topic.
func (m *sinkSetup) awaitCommitted(t *testing.T, limit time.Duration) {
	t.Helper()
	a, err := admin.New(m.kafka)
	must(t, err)
	defer a.Close()
	harness.Eventually(t, limit, "commit all records in both groups of the sink", func(ctx context.Context) error {
		m.engine.revive(t)
		e, err := a.Extent(ctx, schemas.Changes)
		if err != nil {
			return err
		}
		for _, role := range []schemas.Role{schemas.RoleSink, schemas.RoleState} {
			committed, err := a.Committed(ctx, role, schemas.Changes)
			if err != nil {
				return err
			}
			for id, end := range e.Ends {
				if end > e.Starts[id] && committed[id] < end {
					return fmt.Errorf("%s is at %d of %d in partition %d", role, committed[id], end, id)
				}
			}
		}
		return nil
	})
}

// checkVerified runs 'millrace verify', which compares ids, and compares the number of rows of changes.
func (m *sinkSetup) checkVerified(t *testing.T, rows int) {
	t.Helper()
	m.want(t, 0, "no findings", "verify", "--strict")
	m.want(t, 0, "no findings", "verify", "--manifest")
	m.want(t, 0, fmt.Sprintf(`"rows":%d,`, rows), "verify", "--topic", "changes", "-o", "json")
}

// deadLetters returns the number of dead letters.
func (m *sinkSetup) deadLetters(t *testing.T) int { return len(m.c.Read(t, m.kafka, schemas.Dead)) }

func killedSinks(t *testing.T, m *sinkSetup) {
	records, kills := need.Amount(20_000, 60_000, 300_000), need.Amount(4, 12, 60)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	s := m.sink(t, "one")
	for n := range kills {
		m.send(t, records/kills)
		wait(t, time.Duration(random.IntN(1500))*time.Millisecond)
		switch random.IntN(3) {
		case 0:
			s.kill()
			s = m.sink(t, "one")
		case 1:
			m.engine.kill(t)
			m.engine.start(t)
		default: // both
			s.kill()
			m.engine.kill(t)
			m.engine.start(t)
			s = m.sink(t, "one")
		}
		t.Logf("kill %d", n+1)
	}
	m.awaitCommitted(t, time.Minute)
	m.checkVerified(t, m.sent)
}

func resumedSink(t *testing.T, m *sinkSetup) {
	first := m.sink(t, "one")
	m.send(t, 2000)
	m.awaitCommitted(t, 2*time.Minute) // the others wait for a frozen member longer than a session
	m.sink(t, "two")
	m.send(t, 20_000)
	first.signal(t, syscall.SIGSTOP)
	m.send(t, 20_000)
	m.awaitCommitted(t, 2*time.Minute) // the others wait for a frozen member longer than a session
	first.signal(t, syscall.SIGCONT)
	m.send(t, 2000)
	m.awaitCommitted(t, 2*time.Minute) // the others wait for a frozen member longer than a session
	m.checkVerified(t, m.sent)
	if n := m.deadLetters(t); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func engineUnavailable(t *testing.T, m *sinkSetup) {
	s := m.sink(t, "one")
	m.send(t, 1000)
	m.awaitCommitted(t, time.Minute)
	m.engine.kill(t)
	m.send(t, need.Amount(100_000, 100_000, 500_000))
	m.sink(t, "two") // rebalances happen meanwhile
	wait(t, 10*time.Second)
	if mib := s.resident(t) >> 20; mib > 512 {
		t.Errorf("a sink that waits for its engine uses %d MiB", mib)
	}
	m.engine.start(t)
	m.awaitCommitted(t, 2*time.Minute)
	m.checkVerified(t, m.sent)
	if n := m.deadLetters(t); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func readAgain(t *testing.T, m *sinkSetup) {
	s := m.sink(t, "")
	m.send(t, 10_000)
	m.awaitCommitted(t, time.Minute)
	s.stop(t)
	for _, role := range []schemas.Role{schemas.RoleSink, schemas.RoleState} {
		m.c.DeleteGroup(t, m.kafka, role)
	}
	m.sink(t, "")
	m.awaitCommitted(t, time.Minute)
	m.checkVerified(t, m.sent)
}

func badRow(t *testing.T, m *sinkSetup) {
	good := need.Amount(5000, 5000, 500_000)
	m.sink(t, "one")
	m.send(t, good)
	bad := harness.Encode(t, change("bad", 1)) // a decoded record fits into its row: schemas validates it
	bad.Value = []byte("not what it says")
	m.c.Write(t, m.kafka, bad)
	m.send(t, good)
	m.awaitCommitted(t, 2*time.Minute)
	m.checkVerified(t, m.sent)
	if n := m.deadLetters(t); n != 2 { // one of each group
		t.Errorf("%d dead letters, want 2", n)
	}
}

func morePartitions(t *testing.T, m *sinkSetup) {
	m.sink(t, "one")
	m.send(t, 5000)
	m.c.AddPartitions(t, m.kafka, 2, schemas.Changes)
	m.send(t, 20_000)
	m.awaitCommitted(t, time.Minute)
	m.checkVerified(t, m.sent)
}

func anotherTopic(t *testing.T, m *sinkSetup) {
	s := m.sink(t, "")
	m.send(t, 5000)
	m.awaitCommitted(t, time.Minute)
	s.stop(t)
	m.c.DeleteTopic(t, m.kafka, schemas.Changes)
	m.want(t, 0, "", "migrate")
	m.send(t, 3000)
	m.sink(t, "")
	m.awaitCommitted(t, time.Minute)
	m.checkVerified(t, m.sent)
}

// emptied truncates the tables of changes while a sink runs, checks that this is detected, and refills them.
func emptied(t *testing.T, m *sinkSetup) {
	m.sink(t, "one")
	m.send(t, 5000)
	m.awaitCommitted(t, time.Minute)
	for _, table := range []string{"audit_log", "copy_state"} {
		must(t, clickhousetest.Exec(t.Context(), m.engine.server.Addr(), "TRUNCATE TABLE millrace."+table))
	}
	m.send(t, 5000)
	m.awaitCommitted(t, time.Minute)
	m.want(t, 3, "copy_state lacks offsets 0 to ", "verify")
	m.want(t, 0, "copy_state: stored offsets 0 to ", "rebuild")
	m.send(t, 1000)
	m.awaitCommitted(t, time.Minute)
	m.want(t, 0, "the tables have all committed records", "rebuild")
	m.checkVerified(t, m.sent)
}
