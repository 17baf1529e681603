// Package client has the settings of Kafka clients, and the state that the parts of a process share: pauses, deleted
// topics, unreadable records, and messages that wait for unavailable stores. Every client of package kafka and of the
// packages below it is made with Config.Options. It reads committed records only.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// Config holds the settings that all parts of a process share: brokers, names of topics and groups, and client options.
type Config struct {
	Brokers  []string // host:port, at least one
	ClientID string   // program and version; recorded in failure histories
	Prefix   string   // of topic and group names
	TLS      *tls.Config
	SASL     *SASL
	// Dialer, if set, opens the connections, TLS included.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	Lanes  []Lane // [30s, 5m, 1h, 1d]
	// Foreign lists topics of other systems that the ingester reads, by their full names.
	Foreign []string
	NoTrim  bool // nothing trims work topics, so that no right to is needed
	// Heartbeat is the interval between heartbeats of a group member [3 s]. Rebalances take about that long.
	Heartbeat time.Duration
	// SessionTimeout is how long a member may send no heartbeat before its partitions are reassigned [10 s; with
	// Instance 45 s, so that a process can restart]. With ServerSide the default is that of the brokers.
	SessionTimeout time.Duration
	// Drain is the longest drain time of any role when its partitions are revoked [4 min]. The rebalance timeout is
	// one minute longer.
	Drain time.Duration
	// Instance, if set, makes members static: a process that restarts with the same Instance within SessionTimeout
	// keeps its partitions. It must be unique among the processes that run a role.
	Instance string
	// ServerSide makes the brokers assign partitions (KIP-848). It requires Kafka 4.3 or newer.
	ServerSide bool
	// Metrics, Tracer and Controls may be nil: then nothing is counted, traced or paused.
	Metrics  *metrics.Metrics
	Tracer   trace.Tracer
	Controls *Controls
	// Clock, if set, is Kafka's clock. Parts that publish read it once a minute.
	Clock *Clock
	// Deleted, if set, collects deleted topics. No part of the process commits offsets of them.
	Deleted *DeletedTopics
	// Unreadables, if set, collects the records that tables cannot apply.
	Unreadables *Unreadables
	// Unavailable, if set, counts the messages that wait for unavailable stores.
	Unavailable *UnavailableCounts
	Log         *slog.Logger
}

// SASL holds login credentials. Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
type SASL struct {
	Mechanism, User, Password string
}

// String omits the password.
func (s SASL) String() string { return s.Mechanism + " " + s.User + " ***" }

// GoString omits the password.
func (s SASL) GoString() string { return s.String() }

// A Lane is a delay lane: topic delay.Name, in which every record waits for Delay.
type Lane struct {
	Name  string
	Delay time.Duration
}

// defaultLanes returns the lanes of a Config that names none.
func defaultLanes() []Lane {
	return []Lane{{"30s", 30 * time.Second}, {"5m", 5 * time.Minute}, {"1h", time.Hour}, {"1d", 24 * time.Hour}}
}

func (c Config) check() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("no brokers"))
	}
	names := map[string]bool{}
	for _, l := range c.Lanes {
		if l.Name == "" || l.Delay <= 0 || names[l.Name] {
			errs = append(errs, fmt.Errorf("lane %q: needs a unique name and a positive delay", l.Name))
		}
		names[l.Name] = true
	}
	for _, name := range c.Foreign {
		if t, ok := strings.CutPrefix(name, c.Prefix); ok && InCatalogue(schemas.Topic(t)) {
			errs = append(errs, fmt.Errorf("foreign topic %q is one of millrace's own", name))
		}
	}
	if c.SASL != nil {
		if _, err := c.SASL.mechanism(); err != nil {
			errs = append(errs, err)
		}
	}
	if c.TLS != nil && c.Dialer != nil {
		errs = append(errs, errors.New("TLS and Dialer exclude each other"))
	}
	return errors.Join(errs...)
}

func (s SASL) mechanism() (sasl.Mechanism, error) {
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("unknown SASL mechanism %q", s.Mechanism)
}

// Topic returns the name of t on the brokers.
func (c Config) Topic(t schemas.Topic) string {
	if name, ok := t.Foreign(); ok {
		return name
	}
	return c.Prefix + string(t)
}

// SchemaTopic is the inverse of topic.
func (c Config) SchemaTopic(name string) schemas.Topic {
	if slices.Contains(c.Foreign, name) {
		return schemas.Foreign(name)
	}
	return schemas.Topic(strings.TrimPrefix(name, c.Prefix))
}

// InCatalogue reports whether a topic is in the catalogue, delay lanes included.
func InCatalogue(t schemas.Topic) bool {
	_, ok := schemas.Lookup(t)
	return ok || strings.HasPrefix(string(t), string(schemas.Delay("")))
}

// Group returns the consumer group in which role reads topics of a class. A role that is not the first reader of
// a topic reads it in the group of class high.
func (c Config) Group(role schemas.Role, class schemas.Class) string {
	if class == schemas.High || class == "" {
		return c.Prefix + string(role)
	}
	return c.Prefix + string(role) + "." + string(class)
}

// ClassOf returns the class in which role reads a topic.
func ClassOf(e schemas.Entry, role schemas.Role) schemas.Class {
	if len(e.Readers) > 0 && e.Readers[0] == role {
		return e.Class
	}
	return schemas.High
}

// DelayLanes returns the delay lanes, shortest first.
func (c Config) DelayLanes() []Lane {
	if len(c.Lanes) == 0 {
		return defaultLanes()
	}
	return slices.SortedFunc(slices.Values(c.Lanes), func(a, b Lane) int { return cmp.Compare(a.Delay, b.Delay) })
}

// LaneNames returns the names of the delay lanes, shortest delay first.
func (c Config) LaneNames() []string {
	var names []string
	for _, l := range c.DelayLanes() {
		names = append(names, l.Name)
	}
	return names
}

// Logger returns Log, or a logger that discards everything.
func (c Config) Logger() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}

// Options returns the options of all clients, and more. name is the last part of the client id. All clients read
// committed records only. They keep control records, so that their position reaches the end of a partition.
func (c Config) Options(name string, more ...kgo.Opt) ([]kgo.Opt, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	id := "millrace"
	if c.ClientID != "" {
		id = c.ClientID
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(id + "/" + name),
		kgo.DisableClientMetrics(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.WithLogger(clientLog{c.Logger().With("client", name)}),
	}
	if c.Dialer != nil {
		opts = append(opts, kgo.Dialer(c.Dialer))
	}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	}
	if c.SASL != nil {
		m, err := c.SASL.mechanism()
		if err != nil {
			return nil, fmt.Errorf("kafka: %w", err)
		}
		opts = append(opts, kgo.SASL(m))
	}
	opts = append(append(opts, c.Metrics.Hooks(name)...), more...)
	if err := kgo.ValidateOpts(opts...); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return opts, nil
}

// NewClient returns a client with the options of Options. The caller must close it.
func (c Config) NewClient(name string, more ...kgo.Opt) (*kgo.Client, error) {
	opts, err := c.Options(name, more...)
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: new client: %w", err)
	}
	return cl, nil
}

// ProduceOptions returns the options of a client that publishes. The client gives up a record that is not
// acknowledged within limit, so that no call blocks for ever. The record may have been written all the same.
func (c Config) ProduceOptions(limit, linger time.Duration) []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(backlogPartitioner{
			kgo.StickyKeyPartitioner(nil), // murmur2, as in the Java client
			func(topic string) bool { return isBacklog(c.SchemaTopic(topic)) },
		}),
		kgo.WithCompressor(Compressor()),
		kgo.ProducerLinger(linger),
		kgo.RecordDeliveryTimeout(limit),
		kgo.AllowIdempotentProduceCancellation(),
		kgo.ProduceRequestTimeout(10 * time.Second),
		kgo.MaxBufferedRecords(50_000),
		kgo.MaxBufferedBytes(128 << 20),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return MaxBatch(c.SchemaTopic(topic)) }),
	}
}

// MaxBatch returns the maximum size of a batch in a topic, compressed or not. It is several times the maximum
// size of a message. Topics with records of other topics get twice that, since their records have retry headers.
//
// Brokers check only the compressed size of a batch, so other producers may write records that are much larger
// than any message. These are malformed and become dead letters. Topic dead therefore takes any record that a
// group member can read.
func MaxBatch(t schemas.Topic) int32 {
	switch {
	case t == schemas.Dead:
		return MaxDeadBatch
	case IsPassThrough(t):
		return 8 * schemas.MaxBytes
	}
	return 4 * schemas.MaxBytes
}

const (
	// MaxDeadBatch is below the maximum request size of brokers.
	MaxDeadBatch = 64 << 20
	// MaxReadBatch is the maximum decompressed size of a batch that is read. A record in a larger one might not fit
	// into topic dead with its retry headers.
	MaxReadBatch = MaxDeadBatch - 1<<20
)

// Session returns the session timeout of a group member; 0: that of the brokers.
func (c Config) Session() time.Duration {
	switch {
	case c.SessionTimeout > 0 || c.ServerSide:
		return c.SessionTimeout
	case c.Instance != "":
		return 45 * time.Second
	}
	return 10 * time.Second
}

// MetadataInterval is the maximum time until a client sees a new partition.
const MetadataInterval = 20 * time.Second

// IsAgain reports whether a topic holds records that were moved from other topics.
func IsAgain(t schemas.Topic) bool {
	return strings.HasPrefix(string(t), "again.") || isBacklog(t)
}

func isBacklog(t schemas.Topic) bool { return strings.HasPrefix(string(t), "backlog.") }

// clientLog logs warnings and errors of the client.
type clientLog struct{ log *slog.Logger }

// Level implements kgo.Logger.
func (clientLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

// Log implements kgo.Logger.
func (l clientLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	switch level {
	case kgo.LogLevelError:
		l.log.Error(msg, keyvals...)
	case kgo.LogLevelWarn:
		l.log.Warn(msg, keyvals...)
	}
}

// IsPassThrough reports whether records only pass through a topic. The trimmer deletes them as soon as they are
// committed.
func IsPassThrough(t schemas.Topic) bool { return IsAgain(t) || strings.HasPrefix(string(t), "delay.") }
