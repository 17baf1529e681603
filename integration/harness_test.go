package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// shortLanes returns delay lanes with short delays for tests.
func shortLanes() []client.Lane {
	return []client.Lane{{Name: "300ms", Delay: 300 * time.Millisecond}, {Name: "1s", Delay: time.Second}}
}

// runner is a component that runs until it is stopped.
type runner interface{ Run(context.Context) error }

// running runs a component until the test ends or stop is called, which returns the error of Run.
func running(t *testing.T, part runner, err error) (stop func() error) {
	t.Helper()
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- part.Run(ctx) }()
	end := sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	asked := false
	t.Cleanup(func() {
		if err := end(); err != nil && !asked {
			t.Error(err)
		}
	})
	return func() error {
		asked = true
		return end()
	}
}

// publish sends messages through a Producer.
func publish(t *testing.T, cfg client.Config, msgs ...schemas.Message) {
	t.Helper()
	p, err := kafka.NewProducer(cfg, "integration")
	must(t, err)
	defer p.Close()
	must(t, p.Publish(t.Context(), msgs...))
}

func TestKafka(t *testing.T) {
	for name, brokers := range map[string]int{"one broker": 1, "three brokers": 3} {
		t.Run(name, func(t *testing.T) {
			if brokers == 1 {
				need.Full(t)
			}
			c := harness.Kafka(t, harness.Options{Brokers: brokers})
			t.Run("classic groups", func(t *testing.T) { chain(t, c, c.Config("classic.")) })
			t.Run("server-side groups", func(t *testing.T) {
				cfg := c.Config("serverside.")
				cfg.ServerSide = true
				chain(t, c, cfg)
				g, err := c.Describe(t.Context(), cfg.Prefix+string(schemas.RolePlanner))
				if err != nil || g.Kind != "consumer" {
					t.Errorf("the planner's group is %+v (%v), want one of kind consumer", g, err)
				}
			})
			t.Run("static members", func(t *testing.T) { staticMember(t, c, c.Config("static.")) })
			t.Run("a slow network, then none", func(t *testing.T) { slowNetwork(t, c) })
		})
	}
}

// TestOldestKafka runs everything except server-side groups with the oldest supported release of Kafka: groups, lanes,
// dead letters, tables, static members, log append time and trimming.
func TestOldestKafka(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1, Oldest: true})
	cfg := c.Config("oldest.")
	cfg.Lanes = shortLanes()
	chain(t, c, cfg)
	t.Run("static members", func(t *testing.T) { staticMember(t, c, c.Config("static.")) })
	t.Run("trimming", func(t *testing.T) {
		lane := schemas.Delay(cfg.Lanes[0].Name)
		a, err := admin.New(cfg)
		must(t, err)
		defer a.Close()
		waited := len(c.Read(t, cfg, lane))
		removed, err := admin.NewTrimmer(a, time.Hour).Trim(t.Context())
		left := len(c.Read(t, cfg, lane)) // the newest of each of 3 partitions at most
		if err != nil || waited <= 3 || left > 3 || removed[lane] != int64(waited-left) {
			t.Errorf("Trim = %v, %v: of %d records in the lane, %d are left", removed, err, waited, left)
		}
	})
	t.Run("the brokers set log append times", func(t *testing.T) {
		r := harness.Encode(t, schemas.Message{Topic: schemas.Admin,
			Body: &pb.AdminAction{Id: schemas.NewID(), Who: "ann", Action: "test", Time: timestamppb.Now()}})
		begun := time.Now()
		r.Timestamp = begun.Add(-24 * time.Hour)
		c.Write(t, cfg, r)
		if all := c.Read(t, cfg, schemas.Admin); len(all) != 1 || all[0].Timestamp.Before(begun.Add(-time.Second)) {
			t.Errorf("records are %v, want one of %v or later", all, begun)
		}
	})
}

// chain runs a complete pipeline: a producer, the planner's Pool, the copier's Pool with waiting and rejected tasks,
// the lanes, a sink and a table.
func chain(t *testing.T, c *harness.Cluster, cfg client.Config) {
	cfg.Lanes = shortLanes()
	o := admin.TopicOptions{Partitions: 3, Replication: int16(c.Brokers()), MinInSync: max(1, c.Brokers()-1)}
	for range 2 { // the second time they exist
		must(t, admin.EnsureTopics(t.Context(), cfg, o))
	}
	const n, items = 300, 20
	g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
		plan)
	running(t, g, err)
	p, err := kafka.NewPool(cfg,
		kafka.PoolConfig{Role: schemas.RoleCopier, Topics: []schemas.Topic{schemas.DuplicationHigh}}, copying)
	running(t, p, err)
	d, err := kafka.NewDelayer(cfg)
	running(t, d, err)
	rows := &rows{ids: map[string]int{}}
	b, err := kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink,
		Topics: []schemas.Topic{schemas.DuplicationResults}, MaxAge: 100 * time.Millisecond}, rows)
	running(t, b, err)

	l := newLedger(t, c, cfg)
	publish(t, cfg, changes(n, items)...)
	l.close(t, time.Minute)
	if len(l.done) != n || len(l.inputs) != n {
		t.Errorf("%d inputs, %d with outputs, want %d of each", len(l.inputs), len(l.done), n)
	}
	// Items 3 and 13 wait in a lane once; item 7 is refused.
	const refused = n / items
	harness.Eventually(t, time.Minute, "store every result", func(context.Context) error {
		if got := rows.distinct(); got != n-refused {
			return fmt.Errorf("%d results, want %d", got, n-refused)
		}
		return nil
	})
	dead := c.Read(t, cfg, schemas.Dead)
	for _, r := range dead {
		if got, want := string(r.Key), schemas.ItemKey("acme", "maps", "item-7"); got != want {
			t.Errorf("dead letter of %q, want those of %q", got, want)
		}
	}
	if len(dead) != refused {
		t.Errorf("%d dead letters, want %d", len(dead), refused)
	}
	awaitDrained(t, cfg)
	table(t, cfg)
}

// copying is the copier of chain.
func copying(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	c := d.Body.(*pb.DuplicationCommand)
	switch {
	case c.GetItem() == "item-7":
		return nil, retry.Permanent(errors.New("refused"))
	case strings.HasSuffix(c.GetItem(), "3") && d.Waits == 0:
		return nil, retry.Wait(errors.New("not yet"), time.Now().Add(300*time.Millisecond))
	}
	return []schemas.Message{{Topic: schemas.DuplicationResults, Body: &pb.DuplicationResult{
		Id: schemas.ID("result", c.GetId()), Command: c.GetId(), Cause: c.GetCause(), Account: c.GetAccount(),
		Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: "1", DestinationStore: "2", Reason: c.GetReason(), Result: "copied", Decision: "C1",
		Outcome: pb.Outcome_OUTCOME_DONE, Finished: timestamppb.New(time.UnixMilli(1_700_000_000_000)),
	}}}, nil
}

// rows is a sink that counts rows.
type rows struct {
	mu  sync.Mutex
	ids map[string]int
}

func (r *rows) Store(_ context.Context, batch []*schemas.Delivery) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range batch {
		r.ids[d.Body.(*pb.DuplicationResult).GetId()]++
	}
	return nil
}

func (r *rows) Table(topic schemas.Topic) string               { return string(topic) }
func (r *rows) Mark(context.Context, []schemas.Progress) error { return nil }
func (r *rows) Forget(schemas.Topic, int32)                    {}

func (r *rows) distinct() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ids)
}

// awaitDrained waits until all groups have committed everything.
func awaitDrained(t *testing.T, cfg client.Config) {
	t.Helper()
	a, err := admin.New(cfg)
	must(t, err)
	defer a.Close()
	harness.Eventually(t, 30*time.Second, "commit all records", func(ctx context.Context) error {
		for _, role := range []schemas.Role{schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDelayer} {
			lag, err := a.Lag(ctx, role)
			if err != nil || lag[role] != 0 {
				return fmt.Errorf("lag %v: %w", lag, err)
			}
		}
		return nil
	})
}

// table follows a compacted topic.
func table(t *testing.T, cfg client.Config) {
	t.Helper()
	var msgs []schemas.Message
	for i := range 50 {
		msgs = append(msgs, schemas.Message{Topic: schemas.Controls, Body: &pb.Control{
			Id: schemas.ID("control", fmt.Sprint(i)), Store: fmt.Sprint(i % 5), Paused: true, By: "test", Reason: "test",
		}})
	}
	publish(t, cfg, msgs...)
	newest := map[string]string{}
	tb, err := kafka.NewTable(cfg, schemas.Controls, func(_ []byte, d *schemas.Delivery) error {
		c := d.Body.(*pb.Control)
		newest[c.GetStore()] = c.GetId()
		return nil
	})
	stop := running(t, tb, err)
	select {
	case <-tb.Ready():
	case <-time.After(30 * time.Second):
		t.Fatal("the table is not ready")
	}
	if err := stop(); err != nil { // and with it, calls of the function above
		t.Fatal(err)
	}
	for i := range 5 {
		if got, want := newest[fmt.Sprint(i)], schemas.ID("control", fmt.Sprint(45+i)); got != want {
			t.Errorf("newest of store %d: %q, want %q", i, got, want)
		}
	}
	if tb.Malformed() > 0 {
		t.Errorf("%d records could not be read", tb.Malformed())
	}
}

// staticMember checks that a static member that returns under its name causes no rebalance.
func staticMember(t *testing.T, c *harness.Cluster, cfg client.Config) {
	c.CreateTopics(t, cfg, 4, ledgerTopics(cfg)...)
	member := func(instance string) func() error {
		cfg := cfg
		cfg.Instance = instance
		p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
			plan)
		return running(t, p, err)
	}
	members := func(ctx context.Context) (map[string]string, error) {
		g, err := c.Describe(ctx, cfg.Prefix+string(schemas.RolePlanner))
		if err != nil {
			return nil, err
		}
		if g.State != "Stable" || g.Assigned() != 8 || len(g.Members) != 2 { // again.planner has 4 too
			return nil, fmt.Errorf("the group is %+v", g)
		}
		owns := map[string]string{}
		for _, m := range g.Members {
			owns[m.Instance] = strings.Join(m.Partitions, " ")
		}
		return owns, nil
	}
	var before, after map[string]string
	look := func(what string, into *map[string]string) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, what, func(ctx context.Context) (err error) {
			*into, err = members(ctx)
			return err
		})
	}
	member("a")
	stop := member("b")
	look("assign the partitions", &before)
	must(t, stop())
	// A member that is down for less than a session keeps its partitions, and the group does not rebalance.
	if after, err := members(t.Context()); err != nil || !maps.Equal(before, after) {
		t.Errorf("while a member is down: %v (%v), want %v", after, err, before)
	}
	stop = member("b")
	l := newLedger(t, c, cfg)
	publish(t, cfg, changes(80, 20)...)
	l.close(t, 30*time.Second) // which needs both members
	look("read the assignment again", &after)
	if !maps.Equal(before, after) {
		t.Errorf("after a member returned: %v, want %v", after, before)
	}
	must(t, stop())
}

// slowNetwork makes the network to the brokers slow and then unavailable.
func slowNetwork(t *testing.T, c *harness.Cluster) {
	cfg := c.Config("wire.")
	c.CreateTopics(t, cfg, 4, ledgerTopics(cfg)...)
	proxies := c.Proxies(t)
	cfg.Dialer = proxies.Dial
	p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
		plan)
	running(t, p, err)
	for _, p := range proxies {
		defer p.Add(t, `{"name":"slow","type":"latency","stream":"downstream","attributes":{"latency":50,"jitter":20}}`)()
	}
	l := newLedger(t, c, cfg)
	msgs := changes(400, 20)
	publish(t, cfg, msgs[:200]...)
	for _, p := range proxies {
		p.Cut()
	}
	cut, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	pr, err := kafka.NewProducer(cfg, "integration")
	must(t, err)
	defer pr.Close()
	if err := pr.Publish(cut, msgs[200:]...); err == nil {
		t.Error("messages are acknowledged although the network is cut")
	}
	for _, p := range proxies {
		p.Restore(t)
	}
	publish(t, cfg, msgs[200:]...)
	l.close(t, time.Minute)
}

// TestKafkaSecure logs in over TLS with each mechanism, and checks that no access is possible without login.
func TestKafkaSecure(t *testing.T) {
	c := harness.Kafka(t, harness.Options{Brokers: 1, Secure: true})
	good := c.Config("secure.")
	good.Lanes = shortLanes()
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256"} {
		t.Run(mechanism, func(t *testing.T) {
			cfg := good
			cfg.Prefix += mechanism + "."
			cfg.SASL = &client.SASL{Mechanism: mechanism, User: harness.User, Password: harness.Password}
			chain(t, c, cfg)
		})
	}
	for name, cfg := range map[string]client.Config{
		"a wrong password": with(good,
			func(c *client.Config) {
				c.SASL = &client.SASL{Mechanism: "PLAIN", User: harness.User, Password: "wrong"}
			}),
		"a wrong SCRAM password": with(good, func(c *client.Config) {
			c.SASL = &client.SASL{Mechanism: "SCRAM-SHA-256", User: harness.User, Password: "wrong"}
		}),
		"no login":               with(good, func(c *client.Config) { c.SASL = nil }),
		"no TLS":                 with(good, func(c *client.Config) { c.TLS = nil }),
		"an unknown certificate": with(good, func(c *client.Config) { c.TLS = new(tls.Config) }),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := admin.EnsureTopics(ctx, cfg, admin.TopicOptions{Partitions: 1})
			if err == nil {
				t.Error("the brokers accept it")
			}
			t.Log(err)
		})
	}
}

func with(cfg client.Config, change func(*client.Config)) client.Config {
	change(&cfg)
	return cfg
}

// TestKafkaForms runs brokers in each form. The other tests use the first available form. Only containers may be
// missing if CI is set.
func TestKafkaForms(t *testing.T) {
	need.Full(t)
	for _, form := range []harness.Form{harness.Named, harness.Containers, harness.Processes} {
		t.Run(string(form), func(t *testing.T) {
			if form == harness.Named && os.Getenv(harness.EnvKafka) == "" {
				t.Setenv(harness.EnvKafka, strings.Join(harness.Kafka(t, harness.Options{Brokers: 1}).Config("").Brokers, ","))
			}
			c := harness.Kafka(t, harness.Options{Brokers: 1, Form: form})
			if c.Form != form {
				t.Errorf("got %s", c.Form)
			}
			cfg := faultConfig(c, "forms")
			l := newAuditedLedger(t, c, cfg, 2)
			planner(t, cfg, kafka.PoolConfig{}, plan)
			publish(t, cfg, changes(100, 10)...)
			l.close(t, time.Minute)
			t.Run("broken", func(t *testing.T) {
				for _, fault := range []struct{ out, in func(testing.TB, int) }{{c.Kill, c.Start}, {c.Freeze, c.Thaw},
					{c.Stop, c.Start}} {
					fault.out(t, 0)
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					if _, err := c.Committed(ctx, "any", cfg.Prefix+"changes"); err == nil {
						t.Error("a stopped broker answers")
					}
					cancel()
					fault.in(t, 0)
					c.WaitBrokers(t, 1)
				}
				publish(t, cfg, changes(100, 20)...)
				l.close(t, time.Minute)
			})
		})
	}
}
