// Package schemas defines what is on the wire: every message of millrace, its topic,
// its key and its form as a Kafka record.
//
// A message is Protobuf (millrace/v1) with CloudEvents headers in binary mode; the
// JSON mapping of Protobuf is read everywhere too. Ids are functions of what a message
// says, so a message that is made twice is one message. The package imports nothing
// of millrace, and everything else may import it.
package schemas

import (
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A Body is one of the messages of millrace/v1.
type Body interface {
	proto.Message
	GetId() string
}

// A Message is a body on its way to a topic.
type Message struct {
	Topic Topic
	Body  Body
	// Due, where it is set, keeps the message in the delay lanes until then; it comes
	// back to the reader of Topic through that reader's again topic.
	Due time.Time
	// Source is who sends it, as ce_source says; empty: DefaultSource.
	Source string
	// Key and Value are set, and Body is nil, where Topic is a foreign one: bytes for the ingester, which gets
	// them as if it had read them there.
	Key, Value []byte
}

// DefaultSource is the ce_source of messages that name none.
const DefaultSource = "millrace"

// A Header is one header of a Kafka record.
type Header struct {
	Key   string
	Value []byte
}

// A Record is an encoded message: what a Kafka record holds.
type Record struct {
	Topic   Topic
	Key     []byte
	Value   []byte
	Headers []Header
}

// A Delivery is one record as a reader got it.
type Delivery struct {
	// Topic is the topic that the message was first sent to, also where it came back
	// through the delay lanes.
	Topic Topic
	// From is the topic that it was read from: Topic or an again topic.
	From Topic
	// Incarnation is a hash of the id of the topic it was read from: it tells a topic
	// that was deleted and made again from its predecessor.
	Incarnation uint32
	Partition   int32
	Offset      int64
	// Timestamp is the record's own, in milliseconds.
	Timestamp time.Time
	Key       []byte
	// Value is set, and Body nil, for topics that hold other topics' bytes (dead), and for those of others (Foreign).
	Value   []byte
	Headers []Header
	Body    Body
	// Hash is Hash of the record's value, whatever Value holds; 0: not known.
	Hash uint64
	// Attempt counts deliveries that were tried, this one included: 1 at first.
	Attempt int
	// Waits counts deliveries that ended in class wait, WaitsBy those of them that have a cause.
	Waits   int
	WaitsBy map[string]int
	// Last says that another failure makes a dead letter of it.
	Last bool
	// Behind is the newest message that the same process will handle after this one, since it has the same key; nil if
	// none is known. Neither is committed.
	Behind Body
}

// MaxCauses bounds WaitsBy.
const MaxCauses = 8

// WaitsFor returns how many deliveries ended in class wait for one cause. If more causes than can be told apart were
// waited for, it is at most all waits.
func (d *Delivery) WaitsFor(cause string) int {
	n, ok := d.WaitsBy[cause]
	if !ok && len(d.WaitsBy) >= MaxCauses {
		return d.Waits
	}
	return n
}

// Hash returns the hash of a record's value by which a row says of which bytes it was made: XXH64 with seed 0, of
// which 0 counts as 1.
func Hash(value []byte) uint64 { return max(1, xxhash.Sum64(value)) }

// An Extent is the range of offsets that each partition of a topic holds at one moment.
type Extent struct {
	// Incarnation differs for a topic of the same name that was deleted before.
	Incarnation uint32
	// Starts and Ends are by partition. An offset of Ends is the next that will be written.
	Starts, Ends map[int32]int64
}

// A Progress says how far a group has handled one partition of a topic.
type Progress struct {
	Topic       Topic
	Incarnation uint32
	Partition   int32
	// Start is where the records start that the group ever read: where the log does, or 0 if the group has committed some.
	// From is where the member that reports it began to read; 0 in a report on the whole group. Next is the offset of the first record that is not handled.
	Start, From, Next int64
}

// A Copy names one item in one store.
type Copy struct {
	Account, Store, Space, Item string
}

// CopyOf returns the copy that a message is about.
func CopyOf(m interface {
	GetAccount() string
	GetStore() string
	GetSpace() string
	GetItem() string
}) Copy {
	return Copy{Account: m.GetAccount(), Store: m.GetStore(), Space: m.GetSpace(), Item: m.GetItem()}
}

// A KnownCopy is a copy with what is on record of it.
type KnownCopy struct {
	Copy
	Record *pb.CopyRecord
}
