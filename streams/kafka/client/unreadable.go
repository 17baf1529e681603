package client

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// An UnreadableRecord is a record that a Table did not apply, because it could not be decoded or was rejected for good.
type UnreadableRecord struct {
	Topic     schemas.Topic
	Partition int32
	Offset    int64
	Key       []byte
	Err       error
}

// Coordinates returns topic/partition@offset of the record.
func (u UnreadableRecord) Coordinates() string { return coordinates(u.Topic, u.Partition, u.Offset) }

// An UnreadableBatch is a batch that cannot be parsed. The process has stopped reading its partition.
type UnreadableBatch struct {
	Reader    string // a consumer group, or table.TOPIC
	Topic     schemas.Topic
	Partition int32
	Offset    int64 // of the first unread record
	Err       error // includes the remedy
}

// Coordinates returns topic/partition@offset of the first unread record.
func (u UnreadableBatch) Coordinates() string { return coordinates(u.Topic, u.Partition, u.Offset) }

func coordinates(topic schemas.Topic, partition int32, offset int64) string {
	return fmt.Sprintf("%s/%d@%d", topic, partition, offset)
}

// Unreadables holds the unreadable records of all tables of a process, and the partitions that the process has
// stopped reading. For each key of a partition it keeps the latest unreadable record, until a later record of the
// key is applied. Ignored records are not added. It is safe for concurrent use. A nil *Unreadables stores
// nothing. As a prometheus.Collector it exports counts by topic.
type Unreadables struct {
	count, stopped *prometheus.Desc

	mu         sync.Mutex            // guards the rest
	loading    map[schemas.Topic]int // number of tables in their first read
	records    map[partitionKey]UnreadableRecord
	batches    map[readerPartition]UnreadableBatch
	superseded map[string]bool // coordinates of unreadable records that a later record of their key followed
	changed    chan struct{}
}

// A readerPartition is a partition as read by one reader.
type readerPartition struct {
	reader    string
	topic     schemas.Topic
	partition int32
}

// A partitionKey is a record key in one partition.
type partitionKey struct {
	topic     schemas.Topic
	partition int32
	key       string
}

// NewUnreadables returns empty Unreadables. Tables add to those that their Config names.
func NewUnreadables() *Unreadables {
	return &Unreadables{
		count: prometheus.NewDesc("millrace_kafka_table_unreadable",
			"Keys of a table with a latest record that cannot be decoded or was rejected for good; an incident names it.",
			[]string{"topic"}, nil),
		stopped: prometheus.NewDesc("millrace_kafka_partitions_stopped",
			"Partitions that this process no longer reads, because a batch cannot be parsed; an incident names it.",
			[]string{"topic"}, nil),
		batches: map[readerPartition]UnreadableBatch{},
		loading: map[schemas.Topic]int{}, records: map[partitionKey]UnreadableRecord{},
		superseded: map[string]bool{}, changed: make(chan struct{}),
	}
}

// List returns the unreadable records, ordered by topic, partition and offset.
func (u *Unreadables) List() []UnreadableRecord {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.SortedFunc(maps.Values(u.records), func(a, b UnreadableRecord) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
}

// Batches returns the unreadable batches that stop partitions, ordered by topic, partition and reader.
func (u *Unreadables) Batches() []UnreadableBatch {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.SortedFunc(maps.Values(u.batches), func(a, b UnreadableBatch) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Reader, b.Reader))
	})
}

// Complete reports whether the process has a Table of topic, and every such Table has been read to the end that
// the topic had when it started. Until then List may return records that later records of the topic supersede.
func (u *Unreadables) Complete(topic schemas.Topic) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, follows := u.loading[topic]
	return follows && n == 0
}

// Superseded reports whether the record at these coordinates was unreadable to this process and a later record of its
// key followed. It is false for a record that this process could read; other processes may not be able to.
func (u *Unreadables) Superseded(at string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.superseded[at]
}

// Changed returns a channel that is closed when a result of List, Batches, Complete or Superseded may have changed.
func (u *Unreadables) Changed() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.changed
}

// Describe implements prometheus.Collector.
func (u *Unreadables) Describe(out chan<- *prometheus.Desc) {
	out <- u.count
	out <- u.stopped
}

// Collect implements prometheus.Collector.
func (u *Unreadables) Collect(out chan<- prometheus.Metric) {
	u.mu.Lock()
	counts := map[schemas.Topic]int{}
	for topic := range u.loading {
		counts[topic] = 0
	}
	for at := range u.records {
		counts[at.topic]++
	}
	stopped := map[schemas.Topic]int{}
	for at := range u.batches {
		stopped[at.topic]++
	}
	u.mu.Unlock()
	for topic, n := range stopped {
		out <- prometheus.MustNewConstMetric(u.stopped, prometheus.GaugeValue, float64(n), string(topic))
	}
	for topic, n := range counts {
		out <- prometheus.MustNewConstMetric(u.count, prometheus.GaugeValue, float64(n), string(topic))
	}
}

// TableStarted records that a table begins its first read of topic. tableLoaded records its end, or the end of
// the table.
func (u *Unreadables) TableStarted(topic schemas.Topic) { u.addLoading(topic, 1) }

// TableLoaded records the end of that read, or the end of the table.
func (u *Unreadables) TableLoaded(topic schemas.Topic) { u.addLoading(topic, -1) }

func (u *Unreadables) addLoading(topic schemas.Topic, n int) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.loading[topic] += n
	u.notify()
}

// Record updates the unreadable record of a key with the result of applying rec; err is nil if it was applied.
func (u *Unreadables) Record(topic schemas.Topic, rec *kgo.Record, err error) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil && len(u.records) == 0 { // the usual case
		return
	}
	at := partitionKey{topic, rec.Partition, string(rec.Key)}
	now := UnreadableRecord{Topic: topic, Partition: rec.Partition, Offset: rec.Offset, Key: rec.Key, Err: err}
	held, is := u.records[at]
	switch {
	case is && held.Offset > rec.Offset, err != nil && u.superseded[now.Coordinates()]: // this table is behind another one
		return
	case err == nil && !is:
		return
	case err == nil:
		delete(u.records, at)
	default:
		u.records[at] = now
	}
	if is && held.Offset < rec.Offset {
		u.superseded[held.Coordinates()] = true
	}
	u.notify()
}

// PartitionStopped records that a reader has stopped reading a partition.
func (u *Unreadables) PartitionStopped(b UnreadableBatch) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.batches[readerPartition{b.Reader, b.Topic, b.Partition}] = b
	u.notify()
}

// PartitionResumed records that the partition is read again, or has moved to another process.
func (u *Unreadables) PartitionResumed(b UnreadableBatch) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.batches, readerPartition{b.Reader, b.Topic, b.Partition})
	u.notify()
}

func (u *Unreadables) notify() {
	close(u.changed)
	u.changed = make(chan struct{})
}
