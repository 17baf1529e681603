// Package harness gives integration tests real Kafka, with ways to break it.
//
// Kafka takes, in this order: the servers that the environment names (EnvKafka), containers
// where a Docker daemon answers and the image is there or can be built of this machine's
// files (nothing is pulled), processes of this machine under a JDK. It says which. Where
// none can be had a test is skipped on a person's machine, and fails where CI is set.
package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/kafka"
)

// EnvKafka names brokers that are already there: host:port, host:port, ...
const EnvKafka = "MILLRACE_TEST_KAFKA"

// A Form is a way in which brokers run.
type Form string

// The forms.
const (
	Named      Form = "named servers"
	Containers Form = "containers"
	Processes  Form = "processes"
)

const (
	startLimit = 2 * time.Minute
	callLimit  = 30 * time.Second
)

// Options says which brokers a test needs.
type Options struct {
	Brokers int  // 1 or 3 [3]
	Secure  bool // clients log in, over TLS, as User with Password
	Oldest  bool // of the oldest release that we promise to work with, not the newest
	// Form, if it is set, is the only one that is taken.
	Form Form
	// Properties are settings of every broker, over those of the harness.
	Properties map[string]string
}

// A node is one broker, whose methods a Cluster calls one at a time.
type node interface {
	start(context.Context) error
	// stop shuts down in order.
	stop(context.Context) error
	kill(context.Context) error
	freeze(context.Context) error
	thaw(context.Context) error
}

// A Cluster is a set of brokers that runs until its test ends.
type Cluster struct {
	Form      Form
	addrs     []string
	nodes     []node // nil: named servers, which cannot be broken
	runPrefix string // begins the prefix of all topics and groups, on servers that others use too
	base      kafka.Config
}

// errAbsent wraps the reason why a form cannot be had.
var errUnavailable = errors.New("not to be had")

func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errUnavailable, fmt.Errorf(format, args...))
}

// Kafka starts brokers for the rest of t's life, skips t, or fails it.
func Kafka(t testing.TB, o Options) *Cluster {
	t.Helper()
	need.Integration(t)
	o.Brokers = cmp.Or(o.Brokers, 3)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	var reasons []error
	for _, f := range []struct {
		form  Form
		start func(context.Context, testing.TB, Options) (*Cluster, string, error)
	}{{Named, named}, {Containers, containers}, {Processes, processes}} {
		if o.Form != "" && o.Form != f.form {
			continue
		}
		begun := time.Now()
		c, how, err := f.start(ctx, t, o)
		if errors.Is(err, errUnavailable) {
			reasons = append(reasons, fmt.Errorf("%s: %w", f.form, err))
			continue
		}
		if err != nil {
			t.Fatalf("start Kafka, as %s: %v", f.form, err)
		}
		c.Form = f.form
		c.ready(ctx, t, o)
		said := fmt.Sprintf("Kafka with %d brokers as %s (%s), ready after %v", o.Brokers, f.form, how, time.Since(begun).Round(100*time.Millisecond))
		t.Log(said)
		fmt.Fprintf(os.Stderr, "harness: %s: %s\n", t.Name(), said)
		return c
	}
	thing := need.Kafka()
	if o.Form == Containers {
		thing = need.Docker()
	}
	need.Missing(t, thing, errors.Join(reasons...))
	return nil
}

// named takes the servers of EnvKafka.
func named(_ context.Context, _ testing.TB, o Options) (*Cluster, string, error) {
	list := os.Getenv(EnvKafka)
	switch {
	case list == "":
		return nil, "", unavailable("%s is not set", EnvKafka)
	case o.Secure || o.Oldest || len(o.Properties) > 0:
		return nil, "", unavailable("the settings and the release of named servers are not ours")
	}
	c := &Cluster{runPrefix: "t" + strconv.FormatInt(time.Now().UnixNano(), 36) + "."}
	for addr := range strings.SplitSeq(list, ",") {
		c.addrs = append(c.addrs, strings.TrimSpace(addr))
	}
	c.base = kafka.Config{Brokers: c.addrs}
	return c, list, nil
}

// ready waits for the brokers, and has what tests made on named servers removed.
func (c *Cluster) ready(ctx context.Context, t testing.TB, o Options) {
	t.Helper()
	if err := c.awaitBrokers(ctx, o.Brokers); err != nil {
		t.Fatal(err)
	}
	if o.Secure {
		if err := c.addUser(ctx); err != nil {
			t.Fatalf("add user: %v", err)
		}
	}
	if c.nodes == nil {
		t.Cleanup(func() { c.cleanUp(t) })
	}
}

// Config is what millrace needs to use the brokers, with topics and groups of its own.
// Members of groups miss each other within seconds.
func (c *Cluster) Config(prefix string) kafka.Config {
	cfg := c.base
	cfg.ClientID, cfg.Prefix = "integration", c.runPrefix+prefix
	cfg.Heartbeat, cfg.SessionTimeout = 500*time.Millisecond, 6*time.Second
	return cfg
}

// Brokers is how many there are.
func (c *Cluster) Brokers() int { return len(c.addrs) }

// Kill ends broker i at once, as a lost machine does. The first is 0.
func (c *Cluster) Kill(t testing.TB, i int) { t.Helper(); c.call(t, "kill", i, node.kill) }

// Stop shuts broker i down in order: it hands its partitions over first.
func (c *Cluster) Stop(t testing.TB, i int) { t.Helper(); c.call(t, "stop", i, node.stop) }

// Start starts broker i again, which was killed or stopped.
func (c *Cluster) Start(t testing.TB, i int) { t.Helper(); c.call(t, "start", i, node.start) }

// Freeze has broker i do nothing, with its connections open.
func (c *Cluster) Freeze(t testing.TB, i int) { t.Helper(); c.call(t, "freeze", i, node.freeze) }

// Thaw ends that.
func (c *Cluster) Thaw(t testing.TB, i int) { t.Helper(); c.call(t, "thaw", i, node.thaw) }

func (c *Cluster) call(t testing.TB, what string, i int, f func(node, context.Context) error) {
	t.Helper()
	c.Breakable(t)
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	if err := f(c.nodes[i], ctx); err != nil {
		t.Fatalf("%s broker %d: %v", what, i, err)
	}
}

// Breakable skips a test that breaks brokers where they are not ours.
func (c *Cluster) Breakable(t testing.TB) {
	t.Helper()
	if c.nodes == nil {
		need.Missing(t, need.Server(), EnvKafka+" names brokers that others may use")
	}
}
