package clickhouse

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A deadLetter holds the headers of a record of topic dead, and the subject of its message.
type deadLetter struct {
	id, duplication string // derived from the offset of the record in topic dead
	topic           schemas.Topic
	partition       int64
	offset          int64
	time            *timestamppb.Timestamp
	role            string
	class, err      string
	attempts        int64
	waits           int64
	unavailable     int64
	history         string
	message, kind   string
	subject         subject
}

// A subject is the item of a dead letter, as far as its message can be decoded.
type subject struct {
	account, space, item, source, destination, cause string
	reason                                           pb.DuplicationReason
	changed                                          *timestamppb.Timestamp
	dryRun                                           bool
}

// readDead reads the headers of a dead letter. It leaves out headers that it cannot parse: every dead letter is
// stored.
func readDead(d *schemas.Delivery) deadLetter {
	where := []string{strconv.Itoa(int(d.Incarnation)), strconv.Itoa(int(d.Partition)), strconv.FormatInt(d.Offset, 10)}
	l := deadLetter{
		id:          schemas.ID(append([]string{"dead letter"}, where...)...),
		duplication: schemas.ID(append([]string{"dead letter's result"}, where...)...),
		partition:   -1, offset: -1,
	}
	for _, h := range d.Headers {
		v := string(h.Value)
		switch h.Key {
		case schemas.HeaderID:
			l.message = v
		case schemas.HeaderType:
			l.kind = v
		case schemas.HeaderOriginTopic:
			l.topic = schemas.Topic(v)
		case schemas.HeaderOriginPartition:
			l.partition = parseNumber(v, -1)
		case schemas.HeaderOriginOffset:
			l.offset = parseNumber(v, -1)
		case schemas.HeaderOriginTimestamp:
			if ms, err := strconv.ParseInt(v, 10, 64); err == nil && ms >= MinMillis && ms <= MaxMillis {
				l.time = timestamppb.New(time.UnixMilli(ms))
			}
		case schemas.HeaderRole:
			l.role = v
		case schemas.HeaderClass:
			l.class = v
		case schemas.HeaderError:
			l.err = strings.ToValidUTF8(v, "�")
		case schemas.HeaderAttempts:
			l.attempts = parseNumber(v, 0)
		case schemas.HeaderWaits:
			l.waits = parseNumber(v, 0)
		case schemas.HeaderUnavailable:
			l.unavailable = parseNumber(v, 0)
		case schemas.HeaderHistory:
			l.history = v
		}
	}
	if body, err := schemas.Decode(l.topic, d.Headers, d.Value); err == nil {
		l.subject = subjectOf(body)
	}
	return l
}

func parseNumber(s string, otherwise int64) int64 {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	return otherwise
}

func subjectOf(body schemas.Body) subject {
	switch m := body.(type) {
	case *pb.DuplicationCommand:
		return subject{m.GetAccount(), m.GetSpace(), m.GetItem(), m.GetSourceStore(), m.GetDestinationStore(), m.GetCause(),
			m.GetReason(), m.GetChangeTime(), m.GetDryRun()}
	case *pb.DeletionCommand: // its result has the command that ordered the delete as its cause
		return subject{m.GetAccount(), m.GetSpace(), m.GetItem(), m.GetSourceStore(), m.GetDestinationStore(),
			m.GetCommand(), m.GetReason(), nil, m.GetDryRun()}
	case interface {
		GetAccount() string
		GetSpace() string
		GetItem() string
	}:
		return subject{account: m.GetAccount(), space: m.GetSpace(), item: m.GetItem()}
	}
	return subject{}
}

// isCommand reports whether the dead letter is a duplication or deletion command, which ended by becoming one.
func (l deadLetter) isCommand() bool {
	return l.subject.destination != "" &&
		(l.topic == schemas.Deletions || strings.HasPrefix(string(l.topic), "duplication."))
}

// result returns the duplication result with which a dead command ends.
func (l deadLetter) result(d *schemas.Delivery) *pb.DuplicationResult {
	r := &pb.DuplicationResult{
		Id: l.duplication, Command: l.message, Cause: l.subject.cause, Account: l.subject.account,
		Space: l.subject.space, Item: l.subject.item, SourceStore: l.subject.source, DestinationStore: l.subject.destination,
		Reason: l.subject.reason, Decision: "dead", Result: "dead", Outcome: pb.Outcome_OUTCOME_FAILED,
		Finished: timestamppb.New(d.Timestamp), Attempt: int32(l.attempts), ErrorClass: l.class, Error: l.err,
		ChangeTime: l.subject.changed,
	}
	if l.subject.dryRun {
		r.Result, r.WouldBe = "dry-run", r.Result
	}
	return r
}

// deadLetters is the table dead_letters.
func deadLetters() *table[deadLetter] {
	type r = row[deadLetter]
	headers := func(x r) ([]schemas.Header, error) { return x.Headers, nil }
	return newTable("dead_letters",
		func(x r) string { return x.m.id },
		func(x r) *timestamppb.Timestamp { return timestamppb.New(x.Timestamp) },
		lowCard("origin_topic", func(x r) string { return string(x.m.topic) }),
		int32s("origin_part", func(x r) int32 { return int32(x.m.partition) }),
		int64s("origin_off", func(x r) int64 { return x.m.offset }),
		nullableTime("origin_time", func(x r) *timestamppb.Timestamp { return x.m.time }),
		lowCard("role", func(x r) string { return x.m.role }),
		lowCard("class", func(x r) string { return x.m.class }),
		text("error", func(x r) string { return x.m.err }),
		int32s("attempts", func(x r) int32 { return int32(x.m.attempts) }),
		int32s("waits", func(x r) int32 { return int32(x.m.waits) }),
		int32s("unavailable", func(x r) int32 { return int32(x.m.unavailable) }),
		text("history", func(x r) string { return x.m.history }),
		text("message", func(x r) string { return x.m.message }),
		lowCard("type", func(x r) string { return x.m.kind }),
		lowCard("account", func(x r) string { return x.m.subject.account }),
		text("space", func(x r) string { return x.m.subject.space }),
		text("item", func(x r) string { return x.m.subject.item }),
		text("key", func(x r) string { return string(x.Key) }),
		text("value", func(x r) string { return string(x.Value) }),
		arrayOf("header.name", "Array(LowCardinality(String))", newLowCardinality, headers,
			func(h schemas.Header) string { return h.Key }),
		arrayOf("header.value", "Array(String)", newText, headers,
			func(h schemas.Header) string { return string(h.Value) }),
	)
}

// deadTopicTables returns the tables that store topic dead: dead_letters, and duplication_log for commands.
func deadTopicTables() []topicTable {
	letters, results := deadLetters(), duplicationLog()
	return []topicTable{
		{letters.name, letters.columnTypes(), func(records []*schemas.Delivery) (batch, error) {
			rows := make([]row[deadLetter], len(records))
			for i, d := range records {
				rows[i] = row[deadLetter]{d, readDead(d)}
			}
			return letters.batch(rows)
		}},
		{results.name, results.columnTypes(), func(records []*schemas.Delivery) (batch, error) {
			var rows []row[*pb.DuplicationResult]
			for _, d := range records {
				if l := readDead(d); l.isCommand() {
					rows = append(rows, row[*pb.DuplicationResult]{d, l.result(d)})
				}
			}
			return results.batch(rows)
		}},
	}
}
