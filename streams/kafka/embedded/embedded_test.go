package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/embedded"
)

// dirEnv, if set, makes the test binary run a broker on that directory until it is killed.
const dirEnv = "MILLRACE_TEST_BROKER_DIR"

func TestMain(m *testing.M) {
	dir := os.Getenv(dirEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	b, err := embedded.StartBroker(embedded.BrokerConfig{Dir: dir, SyncWrites: true})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(b.Addr())
	select {}
}

// start runs a broker in another process.
func start(t *testing.T, dir string) (cfg client.Config, kill func()) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), dirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	kill = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(kill)
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(addr, "error") {
		t.Fatalf("%s %v", addr, err)
	}
	addr = strings.TrimSpace(addr)
	return client.Config{Brokers: []string{addr}, Prefix: "millrace.", Heartbeat: 100 * time.Millisecond}, kill
}

func job(i int) schemas.Message {
	job := &pb.Job{Id: schemas.ID(fmt.Sprint(i)), Name: fmt.Sprintf("job-%d", i%10)}
	return schemas.Message{Topic: schemas.Jobs, Body: job}
}

// Acknowledged records, topics and committed offsets survive a kill -9; the broker has another port afterwards.
func TestKill(t *testing.T) {
	need.Integration(t)
	dir := t.TempDir()
	const rounds, each = 4, 40
	var mu sync.Mutex // guards handled and n
	handled := map[string]int{}
	for round := range rounds {
		cfg, kill := start(t, dir)
		must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 2}))
		p, err := kafka.NewProducer(cfg, "test")
		must(t, err)
		for i := range each {
			must(t, p.Publish(t.Context(), job(round*each+i)))
		}
		p.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		n := 0
		g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RoleSweeper, Topics: []schemas.Topic{schemas.Jobs}},
			func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				mu.Lock()
				defer mu.Unlock()
				handled[d.Body.GetId()]++
				n++
				return nil, nil
			})
		must(t, err)
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		adm, err := admin.New(cfg)
		must(t, err)
		reads := map[schemas.Role][]schemas.Topic{schemas.RoleSweeper: {schemas.Jobs}}
		if _, err := adm.NewWatermark(schemas.Jobs, reads).Wait(ctx); err != nil {
			t.Fatal(err)
		}
		adm.Close()
		kill()
		cancel()
		if err := <-done; err != nil {
			t.Logf("the group ended with %v", err)
		}
		if n != each {
			t.Errorf("round %d: handled %d, want the %d new ones", round, n, each)
		}
	}
	if len(handled) != rounds*each {
		t.Errorf("handled %d, want %d", len(handled), rounds*each)
	}
}

// Close frees the port and the directory. The broker listens on loopback only.
func TestClose(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		b, err := embedded.StartBroker(embedded.BrokerConfig{Dir: dir})
		must(t, err)
		if host, _, err := net.SplitHostPort(b.Addr()); err != nil || host != "127.0.0.1" {
			t.Errorf("listens on %s", b.Addr())
		}
		cfg := client.Config{Brokers: []string{b.Addr()}}
		must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1}))
		b.Close()
		b.Close()
		if _, err := net.DialTimeout("tcp", b.Addr(), time.Second); err == nil {
			t.Error("still listens")
		}
	}
}

// A group reads new records after its topic was trimmed and the broker was restarted.
func TestTrimAndRestart(t *testing.T) {
	const n = 10
	dir := t.TempDir()
	for range 3 {
		b, err := embedded.StartBroker(embedded.BrokerConfig{Dir: dir, SyncWrites: true})
		must(t, err)
		defer b.Close() // a second time, unless the test fails
		cfg := client.Config{Brokers: []string{b.Addr()}, Prefix: "millrace.", Heartbeat: 100 * time.Millisecond}
		must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1}))
		p, err := kafka.NewProducer(cfg, "test")
		must(t, err)
		for i := range n {
			must(t, p.Publish(t.Context(), job(i)))
		}
		p.Close()
		var handled atomic.Int64
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RoleSink, Topics: []schemas.Topic{schemas.Jobs}},
			func(context.Context, *schemas.Delivery) ([]schemas.Message, error) { handled.Add(1); return nil, nil })
		must(t, err)
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		adm, err := admin.New(cfg)
		must(t, err)
		reads := map[schemas.Role][]schemas.Topic{schemas.RoleSink: {schemas.Jobs}}
		if _, err := adm.NewWatermark(schemas.Jobs, reads).Wait(ctx); err != nil {
			t.Fatal(err)
		}
		// With this age the trimmer considers all records old.
		if removed, err := admin.NewTrimmer(adm, -time.Minute).Trim(ctx); err != nil || removed[schemas.Jobs] < n-1 {
			t.Errorf("trimmed %v, %v", removed, err)
		}
		adm.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := handled.Load(); got != n {
			t.Errorf("the group handled %d records, want the %d new ones", got, n)
		}
		b.Close()
	}
}

func TestStartBrokerFails(t *testing.T) {
	file := t.TempDir() + "/file"
	must(t, os.WriteFile(file, nil, 0o600))
	for name, c := range map[string]embedded.BrokerConfig{
		"no directory":    {},
		"a file":          {Dir: file},
		"below that file": {Dir: file + "/dir"},
	} {
		t.Run(name, func(t *testing.T) {
			if b, err := embedded.StartBroker(c); err == nil {
				b.Close()
				t.Error("no error")
			}
		})
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
