package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

// TopicOptions are the settings of topics that EnsureTopics creates. Zero values take the defaults in brackets.
type TopicOptions struct {
	// Partitions of each topic [12]. Topics of the catalogue with FixedPartitions always have 4.
	Partitions  int32
	Replication int16 // [the brokers' default]
	// MinInSync is min.insync.replicas: the replicas that must hold a record before it is acknowledged [the brokers'
	// default].
	MinInSync int
	// Roles that the process runs [all]. Unequal partition counts are an error for these, and only logged for other roles.
	Roles []schemas.Role
}

const (
	defaultPartitions = 12
	fixedPartitions   = 4
)

// coPartitioned lists groups of topics that must have the same number of partitions. One member of the group that
// reads the first topic then owns all records of a key, in all topics of the row.
var coPartitioned = [][]schemas.Topic{
	{schemas.Deletions, schemas.Again(schemas.RoleDeleter), schemas.Backlog(schemas.RoleDeleter, schemas.High)},
	{schemas.FixityResults, schemas.DuplicationResults, schemas.Admin, schemas.Again(schemas.RoleSteward)},
}

// Names of topic configurations.
const (
	cleanupPolicy  = "cleanup.policy"
	retentionMS    = "retention.ms"
	retentionBytes = "retention.bytes"
	maxBytes       = "max.message.bytes"
	timestampType  = "message.timestamp.type"
	minInSync      = "min.insync.replicas"
	compactionLag  = "min.compaction.lag.ms"
)

// logAppendTime is the value of message.timestamp.type with which the broker, not the producer, sets the
// timestamp of a record.
const logAppendTime = "LogAppendTime"

// EnsureTopics creates the topics of the catalogue that do not exist, and checks those that do. Its error lists
// every difference from the catalogue. It changes no existing topic.
func EnsureTopics(ctx context.Context, cfg client.Config, o TopicOptions) error {
	if o.Partitions <= 0 {
		o.Partitions = defaultPartitions
	}
	cl, err := cfg.NewClient("topics")
	if err != nil {
		return err
	}
	defer cl.Close()
	e := ensurer{cfg: cfg, o: o, cl: cl, adm: kadm.NewClient(cl), entries: schemas.Catalogue(cfg.LaneNames()...)}
	if err := e.create(ctx); err != nil {
		return fmt.Errorf("create topics: %w", client.Explain(err))
	}
	if err := e.check(ctx); err != nil {
		return fmt.Errorf("check topics: %w", err)
	}
	return nil
}

// MissingTopics returns the names of the topics that EnsureTopics would create, in the order of the catalogue. Its
// error wraps ErrTopics if the cluster has too few brokers for them.
func MissingTopics(ctx context.Context, cfg client.Config, o TopicOptions) ([]string, error) {
	cl, err := cfg.NewClient("topics")
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	e := ensurer{cfg: cfg, o: o, cl: cl, entries: schemas.Catalogue(cfg.LaneNames()...)}
	existing, err := e.list(ctx)
	if err != nil {
		return nil, client.Explain(err)
	}
	var missing []string
	for _, name := range e.names() {
		switch err := existing[name].err; {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			missing = append(missing, name)
		case err != nil:
			return nil, client.Refused(fmt.Errorf("%s: %w", name, err), "Describe", name, "")
		}
	}
	return missing, e.checkBrokers(len(missing))
}

type ensurer struct {
	cfg     client.Config
	o       TopicOptions
	cl      *kgo.Client
	adm     *kadm.Client
	entries []schemas.Entry
	brokers int              // in the last answer of list
	few     map[int][]string // topics with fewer replicas than o.Replication, by their number
}

func (e *ensurer) names() (names []string) {
	for _, entry := range e.entries {
		names = append(names, e.cfg.Topic(entry.Topic))
	}
	return names
}

// create creates the missing topics in one request.
func (e *ensurer) create(ctx context.Context) error {
	existing, err := e.list(ctx)
	if err != nil {
		return err
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 15_000
	for _, entry := range e.entries {
		if name := e.cfg.Topic(entry.Topic); existing[name].err != nil {
			req.Topics = append(req.Topics, e.request(name, entry))
		}
	}
	if err := e.checkBrokers(len(req.Topics)); err != nil || len(req.Topics) == 0 {
		return err
	}
	resp, err := req.RequestWith(ctx, e.cl)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			if t.ErrorMessage != nil {
				err = fmt.Errorf("%w: %s", err, *t.ErrorMessage)
			}
			errs = append(errs, client.Refused(fmt.Errorf("%s: %w", t.Topic, err), "Create", t.Topic, ""))
		}
	}
	return errors.Join(errs...)
}

// A topicInfo is the metadata of one topic. err is set if the topic does not exist or has no leader yet.
type topicInfo struct {
	partitions int
	replicas   int // the fewest of a partition
	err        error
}

// list reads the metadata of the topics from a broker.
func (e *ensurer) list(ctx context.Context) (map[string]topicInfo, error) {
	resp, err := core.Metadata(ctx, e.cl, e.names()...)
	if err != nil {
		return nil, err
	}
	e.brokers = len(resp.Brokers)
	existing := map[string]topicInfo{}
	for _, t := range resp.Topics {
		f := topicInfo{partitions: len(t.Partitions), err: kerr.ErrorForCode(t.ErrorCode)}
		for i, p := range t.Partitions {
			if n := len(p.Replicas); i == 0 || n < f.replicas {
				f.replicas = n
			}
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil && f.err == nil {
				f.err = err
			}
		}
		existing[*t.Topic] = f
	}
	for _, name := range e.names() {
		if _, ok := existing[name]; !ok {
			existing[name] = topicInfo{err: kerr.UnknownTopicOrPartition}
		}
	}
	return existing, nil
}

// waitKnown waits until the broker has metadata of all topics. New topics take a while to reach every broker.
func (e *ensurer) waitKnown(ctx context.Context) (existing map[string]topicInfo, err error) {
	_, err = metadataRetry().Do(ctx, func() error {
		if existing, err = e.list(ctx); err != nil {
			return retry.Permanent(err) // the client has retried already
		}
		var errs []error
		for _, name := range e.names() {
			if err := existing[name].err; err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
		return errors.Join(errs...)
	}, nil)
	return existing, err
}

// metadataRetry bounds the wait for topics that were just created to be known by every broker.
func metadataRetry() retry.Policy {
	return retry.Policy{Wait: 50 * time.Millisecond, MaxWait: time.Second, Elapsed: 15 * time.Second}
}

// settings reads the configurations of all topics. The broker that answers may not know a new topic yet.
func (e *ensurer) settings(ctx context.Context) (configs kadm.ResourceConfigs, err error) {
	_, err = metadataRetry().Do(ctx, func() error {
		if configs, err = e.adm.DescribeTopicConfigs(ctx, e.names()...); err != nil {
			return retry.Permanent(fmt.Errorf("describe topics: %w", err))
		}
		for _, c := range configs {
			if errors.Is(c.Err, kerr.UnknownTopicOrPartition) {
				return fmt.Errorf("%s: describe: %w", c.Name, c.Err)
			}
		}
		return nil
	}, nil)
	return configs, err
}

func (e *ensurer) request(name string, entry schemas.Entry) kmsg.CreateTopicsRequestTopic {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, e.partitions(entry), -1
	if e.o.Replication > 0 {
		t.ReplicationFactor = e.o.Replication
	}
	set := func(key, value string) {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = key, &value
		t.Configs = append(t.Configs, c)
	}
	set(maxBytes, strconv.Itoa(int(client.MaxBatch(entry.Topic))))
	if entry.Cleanup == schemas.Compact {
		set(cleanupPolicy, "compact")
	} else {
		set(cleanupPolicy, "delete")
		set(retentionMS, "-1")
		set(retentionBytes, "-1")
	}
	set(timestampType, logAppendTime)
	if lag := entry.CompactionLag(); lag > 0 {
		set(compactionLag, strconv.FormatInt(lag.Milliseconds(), 10))
	}
	if e.o.MinInSync > 0 {
		set(minInSync, strconv.Itoa(e.o.MinInSync))
	}
	return t
}

func (e *ensurer) partitions(entry schemas.Entry) int32 {
	if entry.FixedPartitions {
		return fixedPartitions
	}
	return e.o.Partitions
}

// check compares the topics with the catalogue.
func (e *ensurer) check(ctx context.Context) error {
	existing, err := e.waitKnown(ctx)
	if err != nil {
		return err
	}
	configs, err := e.settings(ctx)
	if err != nil {
		return err
	}
	var (
		errs   []error
		differ differences
	)
	for _, entry := range e.entries {
		name := e.cfg.Topic(entry.Topic)
		c, err := configs.On(name, nil)
		if err == nil {
			err = c.Err
		}
		if err != nil {
			errs = append(errs, client.Refused(fmt.Errorf("%s: describe: %w", name, err), "DescribeConfigs", name, ""))
			continue
		}
		for _, mismatch := range e.mismatches(entry, existing[name].partitions, c) {
			differ.add(name, mismatch)
		}
		if mismatch := e.fewReplicas(name, existing[name].replicas); mismatch != "" {
			differ.add(name, mismatch)
		}
	}
	if contradictions := append(differ.errs(), e.unequalPartitions(existing)...); len(contradictions) > 0 {
		return fmt.Errorf("%w: %w", ErrTopics, errors.Join(append(errs, contradictions...)...))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	e.warnFewReplicas()
	return nil
}

// unequalPartitions returns an error for each topic whose number of partitions differs from that of the topics with
// which it is co-partitioned. If this process has
// roles, but not the one that reads them, it logs a warning instead.
func (e *ensurer) unequalPartitions(existing map[string]topicInfo) (errs []error) {
	for _, topics := range coPartitioned {
		want := e.cfg.Topic(topics[0])
		first, _ := schemas.Lookup(topics[0])
		if n := existing[want].partitions; topics[0] == schemas.FixityResults && n > int(e.o.Partitions) {
			e.cfg.Logger().Warn("find more partitions than kafka.partitions: the steward's topics must never get more",
				"topic", want, "partitions", n, "configured", e.o.Partitions)
		}
		for _, t := range topics[1:] {
			name := e.cfg.Topic(t)
			a, b := existing[want].partitions, existing[name].partitions
			if a == b {
				continue
			}
			mismatch := fmt.Errorf("%s: has %d partitions, but %s has %d: they must have the same number", name, b, want, a)
			if role := first.Readers[0]; len(e.o.Roles) == 0 || slices.Contains(e.o.Roles, role) {
				errs = append(errs, mismatch)
			} else {
				e.cfg.Logger().Warn("find unequal partitions: processes with the role refuse to start",
					"role", role, "err", mismatch)
			}
		}
	}
	return errs
}

// mismatches lists the differences between a topic and its catalogue entry.
func (e *ensurer) mismatches(entry schemas.Entry, partitions int, c kadm.ResourceConfig) (mismatches []string) {
	add := func(format string, args ...any) { mismatches = append(mismatches, fmt.Sprintf(format, args...)) }
	cleanup, _ := setting(c, cleanupPolicy)
	switch {
	case entry.Cleanup == schemas.Compact && cleanup != "compact":
		add("%s is %s, want compact", cleanupPolicy, cleanup)
	case entry.Cleanup != schemas.Compact && cleanup != "delete":
		add("%s is %s, want delete: compaction would remove records that are needed", cleanupPolicy, cleanup)
	}
	for _, key := range []string{retentionMS, retentionBytes} {
		v, from := setting(c, key)
		// An operator may set a retention on a topic that is kept. The brokers' default must not.
		chosen := entry.Cleanup == schemas.Keep && from == kmsg.ConfigSourceDynamicTopicConfig
		if entry.Cleanup != schemas.Compact && v != "-1" && !chosen {
			add("%s is %s, want -1: unread records would be deleted", key, v)
		}
	}
	least := func(key string, want int, remedy string) {
		if v, _ := setting(c, key); want > 0 {
			if n, err := strconv.Atoi(v); err != nil || n < want {
				add("%s is %s, want at least %d%s", key, v, want, remedy)
			}
		}
	}
	least(maxBytes, int(client.MaxBatch(entry.Topic)), "")
	least(compactionLag, int(entry.CompactionLag().Milliseconds()), "")
	if v, _ := setting(c, timestampType); v != logAppendTime {
		add("%s is %s, want %s: the brokers date its records", timestampType, v, logAppendTime)
	}
	least(minInSync, e.o.MinInSync, " (kafka.min_insync): raise it with kafka-configs.sh, or correct the configuration")
	if entry.FixedPartitions && partitions != fixedPartitions {
		add("has %d partitions, want %d: their number is fixed", partitions, fixedPartitions)
	}
	return mismatches
}

// setting returns the value of a topic configuration and its source.
func setting(c kadm.ResourceConfig, key string) (value string, from kmsg.ConfigSource) {
	if i := slices.IndexFunc(c.Configs, func(c kadm.Config) bool { return c.Key == key }); i >= 0 {
		return c.Configs[i].MaybeValue(), c.Configs[i].Source
	}
	return "unknown", kmsg.ConfigSourceUnknown
}
