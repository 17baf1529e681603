package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A Sink stores the records of the log topics in their tables. Delivery is at least once; the views show each record
// once, however often it was stored.
//
// A row carries the Kafka offset of its record. Before an insert, the Sink reads from the table which rows it has,
// and inserts only the missing ones. It skips the read only if it is certain that no row of the batch is stored.
// That is never certain for the first batch of a partition, for a batch that does not start at the expected offset,
// after an error, and if the table already had rows of the previous batch.
//
// Store may run for several partitions at the same time, but not twice for the same partition.
type Sink struct {
	db     *DB
	log    *slog.Logger
	tables map[schemas.Topic][]topicTable
	// positions moves the positions in the tables that hold them.
	positions *positionWriter

	mu    sync.Mutex
	parts map[topicPartition]progress // guarded by mu
}

type topicPartition struct {
	topic     schemas.Topic
	partition int32
}

// A source is the log that a batch comes from: one partition of one incarnation of a topic.
type source struct {
	topicPartition
	incarnation uint32
}

// progress is the offset up to which a partition is certainly stored.
type progress struct {
	incarnation uint32
	next        int64
}

// NewSink returns a Sink that writes to db.
func NewSink(db *DB) *Sink {
	return &Sink{
		db: db, log: db.Log().With("part", "sink"), tables: topicTables(), parts: map[topicPartition]progress{},
		positions: newPositionWriter(db, schemas.RoleSink),
	}
}

// Topics returns the topics that the Sink stores.
func (s *Sink) Topics() []schemas.Topic {
	var topics []schemas.Topic
	for _, e := range schemas.Catalogue() {
		if s.tables[e.Topic] != nil {
			topics = append(topics, e.Topic)
		}
	}
	return topics
}

// Store stores records of one partition, in the order of their offsets. If a record cannot become a row, Store
// stores nothing and returns a *RowError of class permanent. Every other error is of class unavailable: the caller
// must store the same records again.
func (s *Sink) Store(ctx context.Context, records []*schemas.Delivery) error {
	if len(records) == 0 {
		return nil
	}
	topic, from := records[0].Topic, source{topicPartition{records[0].From, records[0].Partition}, records[0].Incarnation}
	first, last := records[0].Offset, records[len(records)-1].Offset
	tables := s.tables[topic]
	if tables == nil {
		return retry.Permanent(fmt.Errorf("store records of %s: no table stores the topic", topic))
	}
	batches := make([]batch, len(tables))
	defer func() {
		for _, b := range batches {
			if b.release != nil {
				b.release()
			}
		}
	}()
	for i, f := range tables {
		var err error
		if batches[i], err = f.encode(records); err != nil {
			return err
		}
	}
	allNew := true
	failed := func(table string, err error) error {
		return Classify(fmt.Errorf("store %s/%d@%d-%d in %s: %w", from.topic, from.partition, first, last, table, err))
	}
	if !s.takeProgress(from.topicPartition, progress{from.incarnation, first}) {
		for i, f := range tables {
			missing, err := s.missing(ctx, &batches[i], from, records)
			if err != nil {
				return failed(f.table, err)
			}
			if len(missing) == len(records) {
				continue
			}
			allNew = false
			batches[i].release()
			if batches[i], err = f.encode(missing); err != nil {
				return err
			}
		}
	}
	// From here on nothing holds the messages: the blocks hold all their values in less memory.
	for i := range batches {
		if err := s.insert(ctx, &batches[i], from); err != nil {
			return failed(batches[i].table, err)
		}
	}
	if allNew && ctx.Err() == nil { // otherwise the partition may have been revoked meanwhile
		s.mu.Lock()
		defer s.mu.Unlock()
		s.parts[from.topicPartition] = progress{from.incarnation, last + 1}
	}
	return nil
}

// Table returns the table that stores a topic. If several do, it is the one that stores no other topic.
func (s *Sink) Table(topic schemas.Topic) string {
	if tables := s.tables[topic]; len(tables) > 0 {
		return tables[0].table
	}
	return ""
}

// Mark moves the positions of partitions to the offsets that were handled.
func (s *Sink) Mark(ctx context.Context, done []schemas.Progress) error {
	return s.positions.advance(ctx, done)
}

// Forget drops the progress of a partition that was revoked, or that will be read again from another offset.
func (s *Sink) Forget(topic schemas.Topic, partition int32) {
	s.positions.forget(topicPartition{topic, partition})
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.parts, topicPartition{topic, partition})
}

// takeProgress reports whether it is certain that no row from this offset on is stored. It removes the progress:
// nothing is certain again until the batch is stored.
func (s *Sink) takeProgress(at topicPartition, from progress) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.parts[at]
	delete(s.parts, at)
	return ok && known == from
}

// insert stores the rows of a batch. Its parts, one for each year, are committed one by one: after an error any of them
// may be stored.
func (s *Sink) insert(ctx context.Context, b *batch, from source) error {
	if len(b.rows) == 0 {
		return nil
	}
	first, end := int64(b.rows[0].off), int64(b.rows[len(b.rows)-1].off)+1
	return s.db.Insert(ctx, Insertion{
		Name:    insertName(s.db, b.table, from.topicPartition, first, end),
		Into:    s.db.Name(b.into),
		Columns: b.block,
		// Keep equal rows apart: the view merges them, and storedIDs must find each offset.
		Settings: append(insertSettings(), proto.Setting{Key: "optimize_on_insert", Value: "0"}),
	})
}

// missing reads the table and returns the records of a batch without those whose rows it has.
func (s *Sink) missing(
	ctx context.Context, b *batch, from source, records []*schemas.Delivery,
) ([]*schemas.Delivery, error) {
	if len(b.rows) == 0 {
		return records, nil
	}
	stored, err := storedIDs(ctx, s.db, b, from)
	if err != nil {
		return nil, err
	}
	has := map[int64]bool{}
	for _, r := range b.rows {
		ids, used := stored[r.off]
		has[int64(r.off)] = ids[r.id]
		if used && !ids[r.id] {
			s.log.Error("detect reused offset", "cause", "the broker lost the end of its log and used the offset again",
				"table", b.table, "topic", from.topic, "partition", from.partition, "offset", r.off)
		}
	}
	return slices.DeleteFunc(slices.Clone(records), func(d *schemas.Delivery) bool { return has[d.Offset] }), nil
}

// insertName returns the prefix of the query ids of an insert of the rows [first, end) of a partition.
func insertName(db *DB, table string, from topicPartition, first, end int64) string {
	return fmt.Sprintf("millrace/%s.%s/%s/%d/%d-%d", db.Config().Database, table, from.topic, from.partition, first, end)
}

// insertSettings turn off the server's deduplication of inserts, which could drop a row as a duplicate. The settings
// have different names in different versions; a server ignores the names that it does not know. receive_timeout ends
// an insert 30 s after its client has vanished, so that retries do not pile up.
func insertSettings() []proto.Setting {
	return []proto.Setting{
		{Key: "async_insert", Value: "0"},
		{Key: "deduplicate_insert", Value: "disable"},
		{Key: "insert_deduplicate", Value: "0"},
		{Key: "receive_timeout", Value: "30"},
		{Key: "max_partitions_per_insert_block", Value: "100"}, // a table has 44
		{Key: "send_logs_level", Value: "none"},
	}
}

// storedIDs returns the ids that the table has at the offsets of a batch.
func storedIDs(ctx context.Context, db *DB, b *batch, from source) (map[uint64]map[[16]byte]bool, error) {
	rows, err := db.Writer().Query(ctx, db.Name("SELECT off, id FROM {db}."+b.table)+
		" WHERE topic = ? AND inc = ? AND part = ? AND off BETWEEN ? AND ?"+
		" AND ts BETWEEN fromUnixTimestamp64Milli(?, 'UTC') AND fromUnixTimestamp64Milli(?, 'UTC')",
		string(from.topic), from.incarnation, uint16(from.partition),
		b.rows[0].off, b.rows[len(b.rows)-1].off, b.min, b.max)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	stored := map[uint64]map[[16]byte]bool{}
	for rows.Next() {
		var off uint64
		var raw string
		if err := rows.Scan(&off, &raw); err != nil {
			return nil, err
		}
		var id [16]byte
		if copy(id[:], raw) != len(id) {
			return nil, errors.New("read stored rows: an id is not 16 bytes long")
		}
		if stored[off] == nil {
			stored[off] = map[[16]byte]bool{}
		}
		stored[off][id] = true
	}
	return stored, rows.Err()
}
