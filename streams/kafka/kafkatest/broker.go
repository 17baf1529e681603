// Package kafkatest runs a Kafka broker in memory for tests, and makes it fail on request. Its network is in
// memory too, so it also works in the fake time of testing/synctest.
//
// The broker is kfake: it supports consumer groups, rebalances, compaction and log-append time as real brokers do.
package kafkatest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/embedded"
)

// Options configures the broker that New starts. The zero value has two partitions per topic and the default
// delay lanes.
type Options struct {
	Partitions int32
	Lanes      []client.Lane
	// RealTime is for tests outside of synctest: the heartbeat interval is 100 ms, not 3 s.
	RealTime bool
	// ShortFetches is for tests in fake time that depend on what happens within a second. Fetches without records return
	// after the wait that the client asks for, so a resumed partition is read soon.
	ShortFetches bool
	// Loopback makes the broker listen on a port of 127.0.0.1, for tests in real time with other processes or much data.
	Loopback bool
	// Before42 makes the broker behave as Kafka 4.1: commits name topics by name, not by id.
	Before42 bool
	// NoTopics leaves out the topics of the catalogue.
	NoTopics bool
	// Behind is by how much the clock of the broker is behind.
	Behind time.Duration
	// Foreign lists foreign topics to create.
	Foreign []string
}

// A Broker is a running broker. It stops when its test ends.
type Broker struct {
	t       testing.TB
	cluster *kfake.Cluster
	cfg     client.Config
	conns   *connections
}

// New starts a broker with the topics of the catalogue.
func New(t testing.TB, o Options) *Broker {
	t.Helper()
	b := &Broker{t: t, conns: &connections{open: map[net.Conn]bool{}}}
	opts := []kfake.Opt{kfake.NumBrokers(1)}
	if o.Before42 {
		opts = append(opts, kfake.MaxVersions(kversion.V4_1_0()))
	}
	if o.Loopback {
		b.conns.dial = new(net.Dialer).DialContext
	} else {
		network := new(kfake.VirtualNetwork)
		opts = append(opts, kfake.Ports(9092), kfake.ListenFn(network.Listen))
		b.conns.dial = network.DialContext
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	b.cluster = cluster
	embedded.SetLogAppendTimes(cluster, func() time.Time { return time.Now().Add(-o.Behind) })
	if !o.RealTime && !o.Loopback && !o.ShortFetches {
		cluster.ControlKey(int16(kmsg.Fetch), waitLonger)
	}
	b.cfg = client.Config{
		Brokers: cluster.ListenAddrs(), ClientID: "test", Prefix: "millrace.",
		Dialer: b.conns.DialContext, Lanes: o.Lanes, Foreign: o.Foreign,
	}
	if o.RealTime {
		b.cfg.Heartbeat = 100 * time.Millisecond
	}
	if o.Partitions == 0 {
		o.Partitions = 2
	}
	if !o.NoTopics {
		if err := admin.EnsureTopics(t.Context(), b.cfg, admin.TopicOptions{Partitions: o.Partitions}); err != nil {
			t.Fatal(err)
		}
	}
	if len(o.Foreign) > 0 {
		cl := b.client()
		defer cl.Close()
		if _, err := kadm.NewClient(cl).CreateTopics(t.Context(), o.Partitions, 1, nil, o.Foreign...); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// idleFetch is how long a fetch without records waits in fake time, in milliseconds. Empty fetches are most of
// the cost of such a test.
const idleFetch = 2000

// waitLonger makes a fetch wait for idleFetch instead of the time that the client asks for. Records that arrive
// end the wait.
func waitLonger(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // as kfake asks for it
	req.(*kmsg.FetchRequest).MaxWaitMillis = idleFetch
	return nil, nil, false
}

// name returns the name of a topic on the broker.
func (b *Broker) name(t schemas.Topic) string {
	if name, ok := t.Foreign(); ok {
		return name
	}
	return b.cfg.Prefix + string(t)
}

// Config returns the configuration of clients of the broker.
func (b *Broker) Config() client.Config { return b.cfg }

func (b *Broker) client(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(b.cfg.Brokers...), kgo.Dialer(b.conns.dial), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
	}, opts...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	return cl
}

// Send publishes messages and waits until they are acknowledged.
func (b *Broker) Send(msgs ...schemas.Message) {
	b.t.Helper()
	recs := make([]Record, len(msgs))
	for i, m := range msgs {
		r, err := schemas.Encode(m)
		if err != nil {
			b.t.Fatal(err)
		}
		recs[i] = Record{Record: r, Partition: -1}
	}
	b.Write(recs...)
}

// A Record is a record to write, or one that was read.
type Record struct {
	schemas.Record
	Partition int32 // to write to; -1: chosen by key
	Offset    int64
	Timestamp time.Time // timestamp to write; zero: now
}

// Header returns the value of a header, or "" if there is none.
func (r Record) Header(key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// Write writes records in order, unchanged.
func (b *Broker) Write(recs ...Record) {
	b.t.Helper()
	write, stop := b.Writer()
	defer stop()
	write(recs...)
}

// Writer returns a function like Write that keeps its connections for many calls, and a function that closes them.
func (b *Broker) Writer() (write func(...Record), stop func()) {
	b.t.Helper()
	cl := b.client(kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(func(topic string) func(*kgo.Record, int) int {
		byKey := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
		return func(r *kgo.Record, n int) int {
			if r.Partition >= 0 {
				return int(r.Partition)
			}
			return byKey.Partition(r, n)
		}
	})))
	return func(recs ...Record) {
		b.t.Helper()
		var out []*kgo.Record
		for _, r := range recs {
			rec := &kgo.Record{
				Topic: b.name(r.Topic), Key: r.Key, Value: r.Value, Partition: r.Partition, Timestamp: r.Timestamp,
			}
			for _, h := range r.Headers {
				rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
			}
			out = append(out, rec)
		}
		if err := cl.ProduceSync(b.t.Context(), out...).FirstErr(); err != nil {
			b.t.Fatal(err)
		}
	}, cl.Close
}

// Read returns all committed records of a topic, by partition.
func (b *Broker) Read(topic schemas.Topic) []Record {
	b.t.Helper()
	name := b.name(topic)
	infos, ends := b.cluster.PartitionInfos(name), map[int32]int64{}
	left := 0
	parts := make([][]Record, len(infos))
	for _, p := range infos {
		if ends[p.Partition] = p.LastStableOffset; p.LogStartOffset < p.LastStableOffset {
			left++
		}
	}
	if left == 0 {
		return nil
	}
	cl := b.client(kgo.ConsumeTopics(name), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	defer cl.Close()
	for left > 0 {
		fetches := cl.PollFetches(b.t.Context())
		if err := fetches.Err(); err != nil {
			b.t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				parts[r.Partition] = append(parts[r.Partition], record(topic, r))
			}
			if r.Offset == ends[r.Partition]-1 {
				left--
			}
		})
	}
	var all []Record
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func record(topic schemas.Topic, r *kgo.Record) Record {
	rec := Record{
		Record:    schemas.Record{Topic: topic, Key: r.Key, Value: r.Value},
		Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp,
	}
	for _, h := range r.Headers {
		rec.Headers = append(rec.Headers, schemas.Header{Key: h.Key, Value: h.Value})
	}
	return rec
}

// Bodies returns the messages of all records of a topic, by partition.
func (b *Broker) Bodies(topic schemas.Topic) []schemas.Body {
	b.t.Helper()
	var bodies []schemas.Body
	for _, r := range b.Read(topic) {
		body, err := schemas.Decode(topic, r.Headers, r.Value)
		if err != nil {
			b.t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// Committed returns the offsets that a role's group has committed for a topic, by partition. Partitions without a
// commit are left out.
func (b *Broker) Committed(role schemas.Role, topic schemas.Topic) map[int32]int64 {
	at := map[int32]int64{}
	if group := b.cluster.GroupInfo(b.group(role, topic)); group != nil {
		for id, c := range group.Commits[b.name(topic)] {
			at[id] = c.Offset
		}
	}
	return at
}

// group returns the consumer group in which role reads topic.
func (b *Broker) group(role schemas.Role, topic schemas.Topic) string {
	group := b.cfg.Prefix + string(role)
	if e, ok := schemas.Lookup(topic); ok && len(e.Readers) > 0 && e.Readers[0] == role && e.Class != schemas.High {
		group += "." + string(e.Class)
	}
	return group
}

// errDisconnected is the dial error after Disconnect.
var errDisconnected = errors.New("connections are cut")

// connections opens the connections of the clients under test, and can cut them.
type connections struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu   sync.Mutex // guards the rest
	cut  bool
	open map[net.Conn]bool
}

func (w *connections) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut {
		return nil, errDisconnected
	}
	c, err := w.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[c] = true
	return c, nil
}
