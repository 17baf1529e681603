// Package harness starts real Kafka brokers and S3 servers for integration tests and injects faults into them.
//
// Kafka uses the first available of these: the servers in the environment variable EnvKafka; containers, if a Docker
// daemon answers and the image exists or can be built from files of this machine (nothing is pulled); processes on this
// machine with a JDK. It logs which one it uses. If none is available, the test is skipped, or fails if CI is set.
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
	"github.com/millrace/millrace/streams/kafka/client"
)

// EnvKafka is the environment variable with the addresses of running brokers: host:port, host:port, ...
const EnvKafka = "MILLRACE_TEST_KAFKA"

// Form is a way to run brokers.
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

// Options describes the brokers that a test needs.
type Options struct {
	Brokers int  // 1 or 3 [3]
	Secure  bool // clients log in over TLS as User with Password
	Oldest  bool // the oldest supported release of Kafka instead of the newest
	// Users log in with PasswordOf over PLAIN and have no rights but those of Grant. The client of the harness has all.
	// Excludes Secure.
	Users []string
	// Form, if not empty, is the only form to use.
	Form Form
	// Properties override the harness's settings of every broker.
	Properties map[string]string
}

// node is one broker. A Cluster calls its methods one at a time.
type node interface {
	start(context.Context) error
	// stop shuts down gracefully.
	stop(context.Context) error
	kill(context.Context) error
	freeze(context.Context) error
	thaw(context.Context) error
}

// Cluster is a set of brokers that runs until its test ends.
type Cluster struct {
	Form      Form
	addrs     []string
	nodes     []node // nil: named servers, which tests must not break
	runPrefix string // starts the prefix of topics and groups on named servers, which may be shared
	base      client.Config
}

// errUnavailable is wrapped by the reason why a form is not available.
var errUnavailable = errors.New("not available")

func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errUnavailable, fmt.Errorf(format, args...))
}

// Kafka starts brokers that run until t ends. It skips or fails t if no form is available.
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
		text := fmt.Sprintf("Kafka with %d brokers as %s (%s), ready after %v",
			o.Brokers, f.form, how, time.Since(begun).Round(100*time.Millisecond))
		t.Log(text)
		fmt.Fprintf(os.Stderr, "harness: %s: %s\n", t.Name(), text)
		return c
	}
	thing := need.Kafka()
	if o.Form == Containers {
		thing = need.Docker()
	}
	need.Missing(t, thing, errors.Join(reasons...))
	return nil
}

// named uses the servers of EnvKafka.
func named(_ context.Context, _ testing.TB, o Options) (*Cluster, string, error) {
	list := os.Getenv(EnvKafka)
	switch {
	case list == "":
		return nil, "", unavailable("%s is not set", EnvKafka)
	case o.Secure || o.Oldest || len(o.Users)+len(o.Properties) > 0:
		return nil, "", unavailable("named servers have fixed settings and a fixed release")
	}
	c := &Cluster{runPrefix: "t" + strconv.FormatInt(time.Now().UnixNano(), 36) + "."}
	for addr := range strings.SplitSeq(list, ",") {
		c.addrs = append(c.addrs, strings.TrimSpace(addr))
	}
	c.base = client.Config{Brokers: c.addrs}
	return c, list, nil
}

// ready waits for the brokers, and registers the cleanup of named servers.
func (c *Cluster) ready(ctx context.Context, t testing.TB, o Options) {
	t.Helper()
	if err := c.awaitBrokers(ctx, o.Brokers); err != nil {
		t.Fatal(err)
	}
	if err := c.awaitAnswers(ctx); err != nil {
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

// Config returns a configuration for the brokers with a prefix for topics and groups. Session timeouts are short, so
// that groups detect a lost member within seconds.
func (c *Cluster) Config(prefix string) client.Config {
	cfg := c.base
	cfg.ClientID, cfg.Prefix = "integration", c.runPrefix+prefix
	cfg.Heartbeat, cfg.SessionTimeout = 500*time.Millisecond, 6*time.Second
	return cfg
}

// Brokers returns the number of brokers.
func (c *Cluster) Brokers() int { return len(c.addrs) }

// Kill kills broker i at once, as if its machine was lost. The first broker is 0.
func (c *Cluster) Kill(t testing.TB, i int) { t.Helper(); c.call(t, "kill", i, node.kill) }

// Stop shuts broker i down gracefully: it first moves its partition leaders.
func (c *Cluster) Stop(t testing.TB, i int) { t.Helper(); c.call(t, "stop", i, node.stop) }

// Start restarts broker i after Kill or Stop.
func (c *Cluster) Start(t testing.TB, i int) { t.Helper(); c.call(t, "start", i, node.start) }

// Freeze suspends broker i. Its connections stay open.
func (c *Cluster) Freeze(t testing.TB, i int) { t.Helper(); c.call(t, "freeze", i, node.freeze) }

// Thaw resumes broker i after Freeze.
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

// Breakable skips t if the brokers are named servers, which tests must not break.
func (c *Cluster) Breakable(t testing.TB) {
	t.Helper()
	if c.nodes == nil {
		need.Missing(t, need.Server(), EnvKafka+" names brokers that others may use")
	}
}
