// Package schemas defines the wire format: every message of millrace, its topic, its key and its encoding as a Kafka
// record.
//
// A message is Protobuf (millrace/v1) with CloudEvents headers in binary mode. Readers also accept the JSON mapping of
// Protobuf. The id of a message is a function of its content, so that producing a message twice gives the same id.
// Messages that describe one execution have a random id instead. The package imports no other package of millrace;
// every other package may import it.
package schemas

import (
	"context"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"
)

// A Body is one of the messages of millrace/v1.
type Body interface {
	proto.Message
	GetId() string
}

// A Message is a body with the topic to publish it to.
type Message struct {
	Topic Topic
	Body  Body
	// Due, if set, keeps the message in the delay lanes until then. The handler of Topic then reads it from its again
	// topic.
	Due time.Time
	// Source is the header ce_source; empty means DefaultSource.
	Source string
	// Key and Value are set, and Body is nil, if Topic is foreign. The ingester receives these bytes as if it had read
	// them from that topic.
	Key, Value []byte
}

// A Publisher publishes messages. *kafka.Producer implements it.
type Publisher interface {
	// Publish returns nil only when all messages are acknowledged. After an error some of them may be published: the
	// caller publishes all of them again, unless the error is permanent (retry.Permanent).
	Publish(ctx context.Context, messages ...Message) error
}

// DefaultSource is the ce_source of messages without a Source.
const DefaultSource = "millrace"

// A Header is one header of a Kafka record.
type Header struct {
	Key   string
	Value []byte
}

// A Record is an encoded message: the content of a Kafka record.
type Record struct {
	Topic   Topic
	Key     []byte
	Value   []byte
	Headers []Header
}

// A Delivery is one record that a reader received.
type Delivery struct {
	// Topic is the topic that the message was first published to, even if it has passed through the delay lanes.
	Topic Topic
	// From is the topic that the record was read from: Topic or an again topic.
	From Topic
	// Incarnation is a hash of the id of the topic that the record was read from. It differs between a topic and a
	// deleted topic of the same name.
	Incarnation uint32
	Partition   int32
	Offset      int64
	// Timestamp is the timestamp of the record, in milliseconds.
	Timestamp time.Time
	Key       []byte
	// Value is set, and Body is nil, for raw topics (Dead) and for foreign topics (Foreign).
	Value   []byte
	Headers []Header
	Body    Body
	// Attempt counts the attempts, this one included. It begins at 1.
	Attempt int
	// Waits counts the deliveries that ended in class wait. WaitsBy counts those that have a cause, by cause.
	Waits   int
	WaitsBy map[string]int
	// Last reports that another failure makes the record a dead letter.
	Last bool
	// Successor is the newest message with the same key that this process will handle after this one; nil if none is
	// known. Neither message is committed.
	Successor Body
}

// MaxCauses is the largest number of causes in WaitsBy.
const MaxCauses = 8

// WaitsFor returns the number of deliveries that ended in class wait because of one cause. If WaitsBy is full and lacks
// the cause, it returns the number of all waits, which is an upper bound.
func (d *Delivery) WaitsFor(cause string) int {
	n, ok := d.WaitsBy[cause]
	if !ok && len(d.WaitsBy) >= MaxCauses {
		return d.Waits
	}
	return n
}

// Hash returns a hash that is never 0: XXH64 with seed 0, and 1 instead of 0.
func Hash(value []byte) uint64 { return max(1, xxhash.Sum64(value)) }

// An OffsetRange is the range of offsets that each partition of a topic holds at one moment.
type OffsetRange struct {
	// Incarnation differs between a topic and a deleted topic of the same name.
	Incarnation uint32
	// Starts and Ends are by partition. An end is the offset of the next record to be written.
	Starts, Ends map[int32]int64
}

// A Progress is how far a consumer group has handled one partition of a topic.
type Progress struct {
	Topic       Topic
	Incarnation uint32
	Partition   int32
	// Start is the first offset that the group has ever read: the log start offset, or 0 if the group has a commit.
	// From is the first offset that the reporting member read, or 0 in a report on the whole group. Next is the offset
	// of the first record that is not handled.
	Start, From, Next int64
}
