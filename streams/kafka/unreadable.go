package kafka

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

// An UnreadableRecord is a record that a Table has not applied, since it could not be decoded or was refused for good.
type UnreadableRecord struct {
	Topic     schemas.Topic
	Partition int32
	Offset    int64
	Key       []byte
	Err       error
}

// Position names the record: topic/partition@offset.
func (u UnreadableRecord) Position() string { return positionName(u.Topic, u.Partition, u.Offset) }

// An UnreadableBatch is a batch that cannot be parsed. The process has stopped to read its partition.
type UnreadableBatch struct {
	Reader    string // a group, or table.TOPIC
	Topic     schemas.Topic
	Partition int32
	Offset    int64 // of the first record that was not read
	Err       error // with what to do
}

// Position names the first record that was not read: topic/partition@offset.
func (u UnreadableBatch) Position() string { return positionName(u.Topic, u.Partition, u.Offset) }

func positionName(topic schemas.Topic, partition int32, offset int64) string {
	return fmt.Sprintf("%s/%d@%d", topic, partition, offset)
}

// Unreadables are the unreadable records of all tables of one process: of those with one key in one partition, the
// newest one, and only while no later record with the key was applied; one that was ignored is none; and the partitions
// that the process has stopped to read. They are safe for concurrent use; a nil *Unreadables keeps nothing. As a
// prometheus.Collector they are counted by topic.
type Unreadables struct {
	count, stopped *prometheus.Desc

	mu         sync.Mutex            // guards the rest
	loading    map[schemas.Topic]int // tables that are being read for the first time
	records    map[partitionKey]UnreadableRecord
	batches    map[readerPartition]UnreadableBatch
	superseded map[string]bool // positions of records that a later one of their key followed
	changed    chan struct{}
}

// A batchAt is a partition as one reader sees it.
type readerPartition struct {
	reader    string
	topic     schemas.Topic
	partition int32
}

// A keyAt is a key in one partition.
type partitionKey struct {
	topic     schemas.Topic
	partition int32
	key       string
}

// NewUnreadables returns Unreadables that hold nothing. Tables whose Config names them fill them.
func NewUnreadables() *Unreadables {
	return &Unreadables{
		count: prometheus.NewDesc("millrace_kafka_table_unreadable",
			"Keys of a table whose newest record cannot be decoded, or is refused for good; an incident names it.",
			[]string{"topic"}, nil),
		stopped: prometheus.NewDesc("millrace_kafka_partitions_stopped",
			"Partitions that this process no longer reads, because a batch cannot be parsed; an incident names it.",
			[]string{"topic"}, nil),
		batches: map[readerPartition]UnreadableBatch{},
		loading: map[schemas.Topic]int{}, records: map[partitionKey]UnreadableRecord{},
		superseded: map[string]bool{}, changed: make(chan struct{}),
	}
}

// List returns the records in the order of topic, partition and offset.
func (u *Unreadables) List() []UnreadableRecord {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.SortedFunc(maps.Values(u.records), func(a, b UnreadableRecord) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
}

// Batches returns the batches that keep partitions from being read, in the order of topic, partition and reader.
func (u *Unreadables) Batches() []UnreadableBatch {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.SortedFunc(maps.Values(u.batches), func(a, b UnreadableBatch) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Reader, b.Reader))
	})
}

// Complete reports whether the process follows topic by a Table, and every such Table has been read to where the topic
// ended when the Table began: then no record is listed that an older one of the topic follows.
func (u *Unreadables) Complete(topic schemas.Topic) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, follows := u.loading[topic]
	return follows && n == 0
}

// Superseded reports whether a record, named by its position, could not be read here, and a later one of its key
// followed. It is false of a record that could be read here: other processes may not be able to.
func (u *Unreadables) Superseded(position string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.superseded[position]
}

// Changed returns a channel that is closed when List, Batches, Complete or Superseded would return something else than
// now.
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

// begin says that a table of topic is being read for the first time, and end that it has been, or that it has ended.
func (u *Unreadables) tableStarted(topic schemas.Topic) { u.addLoading(topic, 1) }

func (u *Unreadables) tableLoaded(topic schemas.Topic) { u.addLoading(topic, -1) }

func (u *Unreadables) addLoading(topic schemas.Topic, n int) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.loading[topic] += n
	u.notify()
}

// note takes what became of a record: nil if it was applied.
func (u *Unreadables) record(topic schemas.Topic, rec *kgo.Record, err error) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil && len(u.records) == 0 { // nearly always
		return
	}
	at := partitionKey{topic, rec.Partition, string(rec.Key)}
	now := UnreadableRecord{Topic: topic, Partition: rec.Partition, Offset: rec.Offset, Key: rec.Key, Err: err}
	held, is := u.records[at]
	switch {
	case is && held.Offset > rec.Offset, err != nil && u.superseded[now.Position()]: // another table of the topic is behind
		return
	case err == nil && !is:
		return
	case err == nil:
		delete(u.records, at)
	default:
		u.records[at] = now
	}
	if is && held.Offset < rec.Offset {
		u.superseded[held.Position()] = true
	}
	u.notify()
}

// stop notes that a partition is not read any further.
func (u *Unreadables) partitionStopped(b UnreadableBatch) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.batches[readerPartition{b.Reader, b.Topic, b.Partition}] = b
	u.notify()
}

// leave notes that it is read on, or by another process.
func (u *Unreadables) partitionResumed(b UnreadableBatch) {
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
