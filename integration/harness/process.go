package harness

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/streams/child"
	"github.com/millrace/millrace/streams/kafka/client"
)

// processes starts brokers as child processes. They end when this process ends.
func processes(ctx context.Context, t testing.TB, o Options) (*Cluster, string, error) {
	java, version, err := findJava(ctx)
	if err != nil {
		return nil, "", err
	}
	jars, err := kafkaJars(ctx, o.release())
	if err != nil {
		return nil, "", err
	}
	dir := t.TempDir()
	ports, err := freePorts(3 * o.Brokers)
	if err != nil {
		return nil, "", err
	}
	var specs []brokerSpec
	for i := range o.Brokers {
		p := brokerSpec{id: i + 1, data: filepath.Join(dir, fmt.Sprint("broker-", i+1))}
		for j, e := range []*endpoint{&p.client, &p.peer, &p.controller} {
			e.bind, e.advertised = ports[3*i+j], ports[3*i+j]
		}
		specs = append(specs, p)
	}
	c := &Cluster{}
	more := []map[string]string{o.accessProperties(), o.Properties}
	c.base.SASL = o.login()
	if o.Secure {
		s, err := newTLSFiles()
		if err != nil {
			return nil, "", err
		}
		if err := s.write(dir); err != nil {
			return nil, "", err
		}
		more = append(more, s.properties(dir))
		c.base.TLS, c.base.SASL = s.client, &client.SASL{Mechanism: "PLAIN", User: User, Password: Password}
	}
	var starting errgroup.Group
	for _, p := range specs {
		b := &processBroker{config: p.data + ".properties", log: p.data + ".log", java: []string{
			java, "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(jars, "*"),
		}}
		c.addrs, c.nodes = append(c.addrs, p.client.advertised), append(c.nodes, b)
		t.Cleanup(func() {
			if err := b.kill(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("end of the log of broker %d:\n%s", p.id, b.logTail())
			}
		})
		starting.Go(func() error {
			if err := b.format(ctx, properties(settings(p, specs, more...))); err != nil {
				return err
			}
			return b.start(ctx)
		})
	}
	c.base.Brokers = c.addrs
	return c, fmt.Sprintf("Kafka %s, Java %s", o.release().version, version), starting.Wait()
}

// processBroker is a broker in a child process.
type processBroker struct {
	config, log string
	java        []string

	mu     sync.Mutex // guards the rest
	cmd    *exec.Cmd
	exited <-chan struct{} // closed when cmd has ended
	ended  string          // exit status, if the harness did not end it
}

// format writes the broker's settings and formats its data directory.
func (p *processBroker) format(ctx context.Context, text string) error {
	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	args := append(slices.Clone(p.java[1:]), "kafka.tools.StorageTool", "format", "--cluster-id", clusterID, "--config",
		p.config)
	if out, err := exec.CommandContext(ctx, p.java[0], args...).CombinedOutput(); err != nil {
		return fmt.Errorf("format data directory: %w\n%s", err, out)
	}
	return nil
}

func (p *processBroker) start(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return errors.New("broker is running")
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.java[0], append(slices.Clone(p.java[1:]), "kafka.Kafka", p.config)...)
	cmd.Stdout, cmd.Stderr = log, log
	exited, err := child.Start(cmd)
	if err != nil {
		return err
	}
	p.cmd, p.exited = cmd, exited
	return nil
}

// running reports whether the process runs. The caller holds mu.
func (p *processBroker) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// end sends a signal and waits until the process has exited.
func (p *processBroker) end(ctx context.Context, s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		if p.cmd != nil {
			p.ended = p.cmd.ProcessState.String() + ", by itself"
		}
		return nil
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *processBroker) kill(ctx context.Context) error { return p.end(ctx, syscall.SIGKILL) }

func (p *processBroker) stop(ctx context.Context) error { return p.end(ctx, syscall.SIGTERM) }

func (p *processBroker) signal(s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return os.ErrProcessDone
	}
	return p.cmd.Process.Signal(s)
}

func (p *processBroker) freeze(context.Context) error { return p.signal(syscall.SIGSTOP) }

func (p *processBroker) thaw(context.Context) error { return p.signal(syscall.SIGCONT) }

// logTail returns the last errors in the log of a broker, and its exit status if it exited by itself.
func (p *processBroker) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	var errs []string // without the many warnings that injected faults cause
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, " WARN ") && !strings.HasPrefix(line, "\tat ") {
			errs = append(errs, line)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(errs[max(0, len(errs)-20):], "") + p.ended
}

// freePorts returns n free loopback addresses below the ephemeral port range, so that no outgoing connection takes the
// port of a broker while it is down.
func freePorts(n int) (addrs []string, err error) {
	var held []net.Listener // held until all are found, so that no port is returned twice
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for tries := 0; len(addrs) < n; tries++ {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(10_000+rand.IntN(20_000)))
		l, err := net.Listen("tcp", addr)
		if err != nil && tries < 100*n {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find free ports: %w", err)
		}
		held, addrs = append(held, l), append(addrs, addr)
	}
	return addrs, nil
}

// CorruptBatch corrupts the batch that contains an offset, in the log file of the first broker that has the partition:
// the last byte of the batch, or the length in its header if head is set. The brokers must be processes.
func (c *Cluster) CorruptBatch(t testing.TB, topic string, partition int32, offset int64, head bool) {
	t.Helper()
	for _, n := range c.nodes {
		p, ok := n.(*processBroker)
		if !ok {
			t.Fatalf("%T has no log files on this machine", n)
		}
		name := filepath.Join(strings.TrimSuffix(p.config, ".properties"), fmt.Sprintf("%s-%d", topic, partition),
			fmt.Sprintf("%020d.log", 0))
		log, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		from, end := batchRange(log, offset)
		if end == 0 {
			t.Fatalf("%s has no batch with offset %d", name, offset)
		}
		at, corrupt := end-1, []byte{log[end-1] ^ 0xff}
		if head {
			at, corrupt = from+8, make([]byte, 4)
		}
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(corrupt, int64(at))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no broker has %s-%d", topic, partition)
}

// batchRange returns the range of the batch in log that contains offset, or zeros if there is none.
func batchRange(log []byte, offset int64) (at, end int) {
	for at+27 <= len(log) { // header: base offset (8 bytes), length (4), ..., last offset delta at 23
		first, end := int64(binary.BigEndian.Uint64(log[at:])), at+12+int(binary.BigEndian.Uint32(log[at+8:]))
		if offset <= first+int64(binary.BigEndian.Uint32(log[at+23:])) {
			return at, end
		}
		at = end
	}
	return 0, 0
}
