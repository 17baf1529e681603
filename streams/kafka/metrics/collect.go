package metrics

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"

	"github.com/millrace/millrace/schemas"
)

// A RoleState is the state of one class of one role in this process.
type RoleState struct {
	Role  schemas.Role
	Class schemas.Class
	// Member reports that the process is in the consumer group, with or without partitions.
	Member bool
	// Owned are the assigned partitions by topic, with the prefix of the topic names.
	Owned map[string]map[int32]bool
	// InFlight is the number of messages read and not settled, and Held the number of those that a pause holds
	// back. Busy is the number of handler calls that run, and Parked of those that wait without a worker. Stuck
	// is the number of tasks that ignore their cancellation.
	InFlight, Held, Busy, Parked, Stuck int64
	// Active is when a message was last settled, with any result, or a task last reported progress. Success is
	// when a message was last done. Zero means never.
	Active, Success time.Time
	// Refused is since when the brokers have refused outputs. Zero means that they accept them.
	Refused time.Time
}

// State returns the state of each class of each role of this process.
func (m *Metrics) State() (states []RoleState) {
	for _, r := range m.sortedRoles() {
		s := RoleState{
			Role: r.at.role, Class: r.at.class, Owned: map[string]map[int32]bool{},
			InFlight: r.records.Load(), Held: r.held.Load(), Busy: r.busy.Load(),
			Parked: r.parked.Load(), Stuck: r.stuck.Load(),
			Active: r.timeOf(r.lastActive.Load()), Success: r.timeOf(r.lastSuccess.Load()),
		}
		r.mu.Lock()
		s.Member, s.Refused = r.member, r.refusedSince
		for topic, ids := range r.owned {
			if len(ids) > 0 {
				s.Owned[topic] = maps.Clone(ids)
			}
		}
		r.mu.Unlock()
		states = append(states, s)
	}
	return states
}

// timeOf is the inverse of time.Since(r.base).
func (r *Role) timeOf(since int64) time.Time {
	if since == 0 {
		return time.Time{}
	}
	return r.base.Add(time.Duration(since))
}

func (m *Metrics) sortedRoles() (roles []*Role) {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.roles {
		roles = append(roles, r)
	}
	slices.SortFunc(roles, func(a, b *Role) int {
		return cmp.Or(cmp.Compare(a.at.role, b.at.role), cmp.Compare(a.at.class, b.at.class))
	})
	return roles
}

type descriptions struct {
	records, bytes, busy, parked, held, stuck, partitions, task, message, success *prometheus.Desc
}

func newDescriptions() descriptions {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_kafka_"+name, help, []string{"role", "class"}, nil)
	}
	return descriptions{
		records:    desc("in_flight_messages", "Messages read and not settled."),
		bytes:      desc("in_flight_bytes", "Bytes of messages read and not settled."),
		busy:       desc("working_tasks", "Running calls of the handler."),
		parked:     desc("parked_tasks", "Calls of the handler that wait without a worker."),
		held:       desc("paused_messages", "Messages in flight that a pause holds back."),
		stuck:      desc("stuck_tasks", "Tasks that ignore their cancellation."),
		partitions: desc("assigned_partitions", "Partitions that this process owns."),
		task:       desc("oldest_task_seconds", "Run time of the oldest task; 0 without one."),
		message:    desc("oldest_message_seconds", "Age of the oldest message in flight; 0 without one."),
		success:    desc("last_success_timestamp_seconds", "When a message was last done; absent before the first."),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	d := m.descs
	for _, one := range []*prometheus.Desc{
		d.records, d.bytes, d.busy, d.parked, d.held, d.stuck, d.partitions, d.task, d.message, d.success,
	} {
		ch <- one
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	d, now := m.descs, time.Now()
	for _, r := range m.sortedRoles() {
		gauge := func(desc *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, string(r.at.role), string(r.at.class))
		}
		age := func(desc *prometheus.Desc, t time.Time) {
			if t.IsZero() {
				t = now
			}
			gauge(desc, max(now.Sub(t).Seconds(), 0))
		}
		gauge(d.records, float64(r.records.Load()))
		gauge(d.bytes, float64(r.bytes.Load()))
		gauge(d.busy, float64(r.busy.Load()))
		gauge(d.parked, float64(r.parked.Load()))
		gauge(d.held, float64(r.held.Load()))
		gauge(d.stuck, float64(r.stuck.Load()))
		r.mu.Lock()
		owned := 0
		for _, ids := range r.owned {
			owned += len(ids)
		}
		r.mu.Unlock()
		gauge(d.partitions, float64(owned))
		o := r.oldest()
		age(d.task, o.Task)
		age(d.message, o.Message)
		if t := r.timeOf(r.lastSuccess.Load()); !t.IsZero() {
			gauge(d.success, float64(t.UnixMilli())/1e3)
		}
	}
}

// A topicSize is a number of records of a topic, and their size in the log.
type topicSize struct{ records, bytes int64 }

// MeanRecordBytes returns the mean size of a record of topic, named with its prefix. ok is false if none was
// read.
func (m *Metrics) MeanRecordBytes(topic string) (bytes float64, ok bool) {
	if m == nil {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sizes[topic]
	if s.records == 0 {
		return 0, false
	}
	return float64(s.bytes) / float64(s.records), true
}

// clientMetrics counts for one client. Its label client is unique among the open clients of the process,
// because kprom cannot distinguish clients with the same labels.
type clientMetrics struct {
	*kprom.Metrics
	m           *Metrics
	name, label string
}

var (
	_ kgo.HookNewClient      = (*clientMetrics)(nil)
	_ kgo.HookClientClosed   = (*clientMetrics)(nil)
	_ kgo.HookFetchBatchRead = (*clientMetrics)(nil)
)

// Hooks returns the options that count for the client called name.
func (m *Metrics) Hooks(name string) []kgo.Opt {
	if m == nil {
		return nil
	}
	return []kgo.Opt{kgo.WithHooks(&clientMetrics{m: m, name: name})}
}

// OnNewClient implements kgo.HookNewClient. The client calls it first.
func (c *clientMetrics) OnNewClient(cl *kgo.Client) {
	c.m.mu.Lock()
	c.label = c.name
	for n := 2; c.m.clients[c.label]; n++ {
		c.label = fmt.Sprintf("%s#%d", c.name, n)
	}
	c.m.clients[c.label] = true
	c.m.mu.Unlock()
	c.Metrics = kprom.NewMetrics("millrace_kafka_client", kprom.Registry(nil), kprom.NativeBucketFactor(1),
		kprom.WithStaticLabel(prometheus.Labels{"client": c.label}),
		kprom.FetchAndProduceDetail(
			kprom.ByTopic, kprom.Batches, kprom.Records, kprom.CompressedBytes, kprom.UncompressedBytes))
	c.Metrics.OnNewClient(cl)
	c.m.reg.MustRegister(c.Metrics)
}

// OnClientClosed implements kgo.HookClientClosed.
func (c *clientMetrics) OnClientClosed(*kgo.Client) {
	c.m.reg.Unregister(c.Metrics)
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	delete(c.m.clients, c.label)
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (c *clientMetrics) OnFetchBatchRead(meta kgo.BrokerMetadata, topic string, id int32, b kgo.FetchBatchMetrics) {
	c.Metrics.OnFetchBatchRead(meta, topic, id, b)
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	s := c.m.sizes[topic]
	c.m.sizes[topic] = topicSize{s.records + int64(b.NumRecords), s.bytes + int64(b.CompressedBytes)}
}
