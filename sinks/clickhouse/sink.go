package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A Sink stores the log topics in their tables: each record in each table that its
// topic feeds, once in the views however often it is stored.
//
// A record's row carries its place in Kafka. If it is not certain that nothing of a batch has
// landed (a partition's first batch, a batch out of line, any error before, some of the batch
// before had landed), the Sink reads from the table which rows it has and inserts only the rest: those that may be on
// fewer replicas than they must be, too.
// Store may be called for several partitions at once, not twice for one.
type Sink struct {
	// Behind is as State.Behind.
	Behind func(context.Context, []Gap)

	db     *DB
	log    *slog.Logger
	tables map[schemas.Topic][]topicTable
	// marker moves the positions of those tables that have some.
	positions *positionWriter

	mu    sync.Mutex
	parts map[topicPartition]progress // guarded by mu
}

type topicPartition struct {
	topic     schemas.Topic
	partition int32
}

// origin is where a batch comes from.
type source struct {
	topicPartition
	incarnation uint32
}

// progress is how far a partition has certainly been stored.
type progress struct {
	incarnation uint32
	next        int64
}

// NewSink returns a Sink on db.
func NewSink(db *DB) *Sink {
	return &Sink{db: db, log: db.log.With("part", "sink"), tables: topicTables(), parts: map[topicPartition]progress{}, positions: newPositionWriter(db, schemas.RoleSink)}
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

// Store stores records of one partition, in the order of their offsets. A record that
// cannot become a row makes it return a *RowError of class permanent before anything is
// stored; every other error is of class unavailable, and the same records must be stored again.
func (s *Sink) Store(ctx context.Context, batch []*schemas.Delivery) error {
	if len(batch) == 0 {
		return nil
	}
	topic, from := batch[0].Topic, source{topicPartition{batch[0].From, batch[0].Partition}, batch[0].Incarnation}
	first, last := batch[0].Offset, batch[len(batch)-1].Offset
	feeds := s.tables[topic]
	if feeds == nil {
		return retry.Permanent(fmt.Errorf("store records of %s: no table is fed by the topic", topic))
	}
	var chunks []monthBatch
	for _, f := range feeds {
		more, err := f.batches(batch)
		if err != nil {
			return err
		}
		chunks = append(chunks, more...)
	}
	certain := s.takeProgress(from.topicPartition, progress{from.incarnation, first})
	allNew := true
	defer func() {
		for _, c := range chunks {
			c.release()
		}
	}()
	for i := range chunks {
		isNew, err := s.insert(ctx, &chunks[i], from, certain)
		if err != nil {
			return translate(fmt.Errorf("store %s/%d@%d-%d in %s: %w",
				from.topic, from.partition, first, last, chunks[i].table, err))
		}
		allNew = allNew && isNew
	}
	if allNew && ctx.Err() == nil { // or the partition may have moved meanwhile
		s.mu.Lock()
		defer s.mu.Unlock()
		s.parts[from.topicPartition] = progress{from.incarnation, last + 1}
	}
	return nil
}

// Table returns the table that the rows of a topic land in: of several, the one that is of the topic alone.
func (s *Sink) Table(topic schemas.Topic) string {
	if feeds := s.tables[topic]; len(feeds) > 0 {
		return feeds[0].table
	}
	return ""
}

// Mark records how far partitions are handled.
func (s *Sink) Mark(ctx context.Context, done []schemas.Progress) error {
	return s.positions.advance(ctx, done, s.Behind)
}

// Forget says that a partition has moved away, or is read again from elsewhere.
func (s *Sink) Forget(topic schemas.Topic, partition int32) {
	s.positions.forget(topicPartition{topic, partition})
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.parts, topicPartition{topic, partition})
}

// begin says whether it is certain that nothing from here on has landed. It is not
// certain any more until the batch is stored.
func (s *Sink) takeProgress(at topicPartition, from progress) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.parts[at]
	delete(s.parts, at)
	return ok && known == from
}

// insert stores what of a chunk has not landed; isNew says that this was all of it. Where
// some had landed, what follows may have landed too.
func (s *Sink) insert(ctx context.Context, c *monthBatch, from source, certain bool) (isNew bool, err error) {
	block, isNew := c.block, true
	if !certain {
		missing, n, err := s.missingRows(ctx, c, from)
		if err != nil || n == 0 {
			return false, err
		}
		if n < len(c.rows) {
			isNew = false
			var release func()
			if block, release, err = c.only(missing); err != nil {
				return false, err
			}
			defer release()
		}
	}
	c.only = nil // the block says it all, and takes less than the messages, which nobody else holds here
	first, end := int64(c.rows[0].off), int64(c.rows[len(c.rows)-1].off)+1
	return isNew, s.db.write(ctx, insertion{
		name:    s.db.insertName(c.table, from.topicPartition, first, end),
		into:    s.db.name(c.into),
		columns: block,
		// Rows that are equal stay two: the view makes them one, and what has landed can be told.
		settings: append(insertSettings(), proto.Setting{Key: "optimize_on_insert", Value: "0"}),
	})
}

// missing asks the table which rows of a chunk have not landed.
func (s *Sink) missingRows(ctx context.Context, c *monthBatch, from source) (missing []bool, n int, err error) {
	there, err := s.db.storedIDs(ctx, c, from)
	if err != nil {
		return nil, 0, err
	}
	quorate, err := s.db.quorumOffset(ctx, c.table, from)
	if err != nil {
		return nil, 0, err
	}
	missing = make([]bool, len(c.rows))
	for i, r := range c.rows {
		id, taken := there[r.off]
		if taken && id[r.id] && r.off < quorate {
			continue
		}
		if taken && !id[r.id] {
			s.log.Error("an offset holds another message than the table has: the broker has lost its end and used it again",
				"table", c.table, "topic", from.topic, "partition", from.partition, "offset", r.off)
		}
		missing[i] = true
		n++
	}
	return missing, n, nil
}

// insertName names an insert of the rows [first, end) of a partition.
func (db *DB) insertName(table string, of topicPartition, first, end int64) string {
	return fmt.Sprintf("millrace/%s.%s/%s/%d/%d-%d", db.cfg.Database, table, of.topic, of.partition, first, end)
}

// insertSettings switch off what could take a row for one that it has seen. They
// bear different names in different versions; a server ignores those it does not know.
// An insert whose client is gone without a word ends after half a minute, so that repeats do not pile up.
func insertSettings() []proto.Setting {
	return []proto.Setting{
		{Key: "async_insert", Value: "0"},
		{Key: "deduplicate_insert", Value: "disable"},
		{Key: "insert_deduplicate", Value: "0"},
		{Key: "receive_timeout", Value: "30"},
		{Key: "send_logs_level", Value: "none"},
	}
}

// landed returns the ids that the table has at the offsets of a chunk.
func (db *DB) storedIDs(ctx context.Context, c *monthBatch, from source) (map[uint64]map[[16]byte]bool, error) {
	rows, err := db.conn.Query(ctx, db.name("SELECT off, id FROM {db}."+c.table)+" WHERE topic = ? AND inc = ? AND part = ?"+
		" AND off BETWEEN ? AND ? AND ts BETWEEN fromUnixTimestamp64Milli(?, 'UTC') AND fromUnixTimestamp64Milli(?, 'UTC')",
		string(from.topic), from.incarnation, uint16(from.partition), c.rows[0].off, c.rows[len(c.rows)-1].off, c.min, c.max)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	there := map[uint64]map[[16]byte]bool{}
	for rows.Next() {
		var off uint64
		var raw string
		if err := rows.Scan(&off, &raw); err != nil {
			return nil, err
		}
		var id [16]byte
		if copy(id[:], raw) != len(id) {
			return nil, errors.New("read landed rows: an id has not 16 bytes")
		}
		if there[off] == nil {
			there[off] = map[[16]byte]bool{}
		}
		there[off][id] = true
	}
	return there, rows.Err()
}
