package kafka

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
	"github.com/millrace/millrace/streams/retry"
)

// Config is what all parts of one process share: where the brokers are and what the
// topics are called.
type Config struct {
	Brokers  []string // host:port, at least one
	ClientID string   // names the program and its version; it stands in the history of failures
	Prefix   string   // of topics and groups
	TLS      *tls.Config
	SASL     *SASL
	// Dialer, where set, makes the connections; it then does TLS itself.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	Lanes  []Lane // none means 30s, 5m, 1h and 1d
	// Foreign are topics of others that the ingester reads, by their whole names. None of ours is among them.
	Foreign []string
	// Heartbeat is the time between two heartbeats of a group's member; how fast
	// partitions move depends on it [3 s].
	Heartbeat time.Duration
	// SessionTimeout is how long a member may be silent before its partitions move [10 s; with Instance 45 s, in which
	// a process can be started again]. With ServerSide the brokers say so.
	SessionTimeout time.Duration
	// Drain is how long tasks of any role go on when their partitions move. A minute later the brokers share out the
	// partitions without the member [4 min].
	Drain time.Duration
	// Instance, where set, makes members static: who comes back under the same name within
	// SessionTimeout keeps its partitions. It is unique among the processes that run a role.
	Instance string
	// ServerSide has the brokers share out partitions (KIP-848); they must be of Kafka 4.3 or newer.
	ServerSide bool
	// Metrics, Tracer and Controls may be nil: nothing is counted, traced, or ever paused.
	Metrics  *Metrics
	Tracer   trace.Tracer
	Controls *Controls
	// Deleted, where set, has no part commit anything of topics that one of them has found deleted.
	Deleted *DeletedTopics
	// Unreadables, where set, take the records that tables cannot apply.
	Unreadables *Unreadables
	// Waiting, where set, counts the messages that wait for something that is away.
	Waiting *Waiting
	Log     *slog.Logger
}

// SASL is how to log in. Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
type SASL struct {
	Mechanism, User, Password string
}

// String hides the password.
func (s SASL) String() string { return s.Mechanism + " " + s.User + " ***" }

// GoString hides the password.
func (s SASL) GoString() string { return s.String() }

// A Lane is a topic, delay.Name, in which every record waits for the same Delay.
type Lane struct {
	Name  string
	Delay time.Duration
}

// defaultLanes are 30s, 5m, 1h and 1d.
func defaultLanes() []Lane {
	return []Lane{{"30s", 30 * time.Second}, {"5m", 5 * time.Minute}, {"1h", time.Hour}, {"1d", 24 * time.Hour}}
}

// Bounds of one fetch: of all partitions together, and of each. When a Pool pauses a partition, the client drops what
// it has fetched of it, and fetches that again after the pause. partitionBytes is what is dropped at most: with
// 1 MiB a Pool of tasks of 5 ms read records of 75 bytes (compressed) 1.9 times at the default window, with 256 KiB
// 1.2 times. A longer batch comes all the same: brokers return at least one.
const (
	fetchBytes     = 16 << 20
	partitionBytes = 256 << 10
)

// rebalanceTimeout is how long the brokers wait for a member that is alive to let go of its partitions. It is above every
// bound on draining and on holding a poll.
func (c Config) rebalanceTimeout() time.Duration { return cmp.Or(c.Drain, 4*time.Minute) + time.Minute }

func (c Config) check() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("no brokers"))
	}
	names := map[string]bool{}
	for _, l := range c.Lanes {
		if l.Name == "" || l.Delay <= 0 || names[l.Name] {
			errs = append(errs, fmt.Errorf("lane %q: wants a name of its own and a positive delay", l.Name))
		}
		names[l.Name] = true
	}
	for _, name := range c.Foreign {
		if t, ok := strings.CutPrefix(name, c.Prefix); ok && ours(schemas.Topic(t)) {
			errs = append(errs, fmt.Errorf("foreign topic %q: is one of our own", name))
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

// topic is what the brokers call t.
func (c Config) topic(t schemas.Topic) string {
	if name, ok := t.Foreign(); ok {
		return name
	}
	return c.Prefix + string(t)
}

// bare is the inverse of topic.
func (c Config) bare(name string) schemas.Topic {
	if slices.Contains(c.Foreign, name) {
		return schemas.Foreign(name)
	}
	return schemas.Topic(strings.TrimPrefix(name, c.Prefix))
}

// ours says whether a topic is of the catalogue, lanes included.
func ours(t schemas.Topic) bool {
	_, ok := schemas.Lookup(t)
	return ok || strings.HasPrefix(string(t), string(schemas.Delay("")))
}

// group names the consumer group in which role reads topics of a class. A role that is not
// the first reader of a topic reads all topics in one.
func (c Config) group(role schemas.Role, class schemas.Class) string {
	if class == schemas.High || class == "" {
		return c.Prefix + string(role)
	}
	return c.Prefix + string(role) + "." + string(class)
}

// classOf is the class in which role reads a topic.
func classOf(e schemas.Entry, role schemas.Role) schemas.Class {
	if len(e.Readers) > 0 && e.Readers[0] == role {
		return e.Class
	}
	return schemas.High
}

// lanes returns the lanes, shortest first.
func (c Config) lanes() []Lane {
	if len(c.Lanes) == 0 {
		return defaultLanes()
	}
	return slices.SortedFunc(slices.Values(c.Lanes), func(a, b Lane) int { return cmp.Compare(a.Delay, b.Delay) })
}

func (c Config) laneNames() []string {
	var names []string
	for _, l := range c.lanes() {
		names = append(names, l.Name)
	}
	return names
}

func (c Config) logger() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}

// options returns those of every client. name says whose client it is. Every client reads what is committed: what a
// transaction that was aborted holds never happened. It is handed the markers by which transactions end, so that what it
// has read reaches the end of a partition.
func (c Config) options(name string, more ...kgo.Opt) ([]kgo.Opt, error) {
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
		kgo.WithLogger(clientLog{c.logger().With("client", name)}),
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
	opts = append(append(opts, c.Metrics.hooks(name)...), more...)
	if err := kgo.ValidateOpts(opts...); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return opts, nil
}

// produce returns the options of a client that publishes. A record that is not
// acknowledged within limit is given up, so that no call hangs for ever; it may have
// been written all the same.
func (c Config) produce(limit, linger time.Duration) []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(backlogPartitioner{
			kgo.StickyKeyPartitioner(nil), // murmur2: Java's default
			func(topic string) bool { return isBacklog(c.bare(topic)) },
		}),
		kgo.WithCompressor(newCompressor()),
		kgo.ProducerLinger(linger),
		kgo.RecordDeliveryTimeout(limit),
		kgo.AllowIdempotentProduceCancellation(),
		kgo.ProduceRequestTimeout(10 * time.Second),
		kgo.MaxBufferedRecords(50_000),
		kgo.MaxBufferedBytes(128 << 20),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return batchBytes(c.bare(topic)) }),
	}
}

// batchBytes bounds a batch of a topic's records, before it is compressed as after: several
// messages of the greatest size, and in topics of other topics' records twice that, so that they
// fit with their history.
//
// Brokers know only how long a batch is when it is compressed, so others may write records that are far
// longer than any message. Those are malformed, and go nowhere but to dead: that topic takes all
// that a member of a group reads.
func batchBytes(t schemas.Topic) int32 {
	switch {
	case t == schemas.Dead:
		return deadBytes
	case passing(t):
		return 8 * schemas.MaxBytes
	}
	return 4 * schemas.MaxBytes
}

const (
	// deadBytes is what brokers take in one request, with room to spare.
	deadBytes = 64 << 20
	// readBytes bounds a batch that is read, when it is no longer compressed: one that is longer could not
	// even become a dead letter, with its history.
	readBytes = deadBytes - 1<<20
)

// fits returns nil if rec can wait in a lane and come back, with its history. A record that cannot is no
// message of ours, and its error is permanent.
func fits(rec *kgo.Record) error {
	n := schemas.Record{Key: rec.Key, Value: rec.Value, Headers: headersOf(rec)}.Size()
	if n > 2*schemas.MaxBytes {
		return retry.Permanent(fmt.Errorf("key, value and headers are %d bytes, at most %d: %w", n, 2*schemas.MaxBytes, schemas.ErrMalformed))
	}
	return nil
}

// A member is one client in one of a role's groups.
type member struct {
	role   schemas.Role
	class  schemas.Class
	topics []string
	// together has one member own the same partitions of all topics.
	together bool
	// settles: it lets go of partitions only when its outputs are published.
	settles bool
}

// consume returns the options of m.
func (c Config) consume(m member) []kgo.Opt {
	heartbeat := 3 * time.Second
	if c.Heartbeat > 0 {
		heartbeat = c.Heartbeat
	}
	most := readBytes
	if slices.Contains(m.topics, c.topic(schemas.Dead)) {
		most = deadBytes
	}
	timeout := c.rebalanceTimeout()
	if m.settles {
		timeout += runtimeLimit
	}
	opts := []kgo.Opt{
		kgo.ConsumerGroup(c.group(m.role, m.class)),
		kgo.HeartbeatInterval(heartbeat),
		kgo.ConsumeTopics(m.topics...),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // we only ever commit what we still own
		kgo.RebalanceTimeout(timeout),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // records that are gone are never skipped in silence
		kgo.FetchMaxWait(250 * time.Millisecond),    // a resumed partition waits for the fetch of the others
		kgo.MetadataMaxAge(partitionLook),
		kgo.FetchMaxBytes(fetchBytes),
		kgo.FetchMaxPartitionBytes(partitionBytes),
		kgo.MaxDecompressBatchBytes(most),
		kgo.KeepRetryableFetchErrors(), // else the client asks again at once, for ever, and reports nothing
		kgo.AdjustFetchOffsetsFn(c.resume(c.group(m.role, m.class))),
	}
	opts = append(opts, c.balance(m.together)...)
	if c.ServerSide {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	if session := c.session(); session > 0 {
		opts = append(opts, kgo.SessionTimeout(session))
	}
	if c.Instance != "" {
		opts = append(opts, kgo.InstanceID(c.Instance+"/"+string(m.role)+"/"+string(m.class)))
	}
	return opts
}

// session is how long the session of a member lasts without a heartbeat; 0: the brokers know.
func (c Config) session() time.Duration {
	switch {
	case c.SessionTimeout > 0 || c.ServerSide:
		return c.SessionTimeout
	case c.Instance != "":
		return 45 * time.Second
	}
	return 10 * time.Second
}

// partitionLook is how long a partition that was added may stay unseen.
const partitionLook = 20 * time.Second

// balance returns the options of a client whose group moves as few partitions as can be. The brokers
// know no cooperative way, but move partitions one by one whatever they are asked for.
func (c Config) balance(together bool) []kgo.Opt {
	switch {
	case together:
		return []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}
	case c.ServerSide:
		return []kgo.Opt{kgo.Balancers(kgo.StickyBalancer())}
	}
	m := newMembership()
	return []kgo.Opt{kgo.Balancers(m), kgo.WithHooks(m)}
}

// topics returns the names of a role's topics: those given, and those through which
// its own messages come back.
func (c Config) topics(role schemas.Role, given []schemas.Topic) ([]string, error) {
	if role == "" || len(given) == 0 {
		return nil, errors.New("kafka: Role and Topics must be set")
	}
	all := slices.Clone(given)
	for _, t := range append([]schemas.Topic{""}, given...) { // "": what is of no class
		again := schemas.AgainOf(role, t)
		if _, ok := schemas.Lookup(again); ok && !slices.Contains(all, again) {
			all = append(all, again)
		}
	}
	var names []string
	for _, t := range all {
		if !c.reads(role, t) {
			return nil, fmt.Errorf("kafka: role %s: topic %s is not in the catalogue", role, t)
		}
		names = append(names, c.topic(t))
	}
	return names, nil
}

// reads says whether a role may read a topic: any of the catalogue, and the ingester those of others.
func (c Config) reads(role schemas.Role, t schemas.Topic) bool {
	if name, ok := t.Foreign(); ok {
		return role == schemas.RoleIngester && slices.Contains(c.Foreign, name)
	}
	_, ok := schemas.Lookup(t)
	return ok
}

// isAgain reports whether records of a topic were moved there from others.
func isAgain(t schemas.Topic) bool {
	return strings.HasPrefix(string(t), "again.") || isBacklog(t)
}

func isBacklog(t schemas.Topic) bool { return strings.HasPrefix(string(t), "backlog.") }

// clientLog passes on what the client says when something is wrong.
type clientLog struct{ log *slog.Logger }

func (clientLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l clientLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	switch level {
	case kgo.LogLevelError:
		l.log.Error(msg, keyvals...)
	case kgo.LogLevelWarn:
		l.log.Warn(msg, keyvals...)
	}
}
