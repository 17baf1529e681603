package deadletter_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A dead letter of a compacted topic does not set its key back to an older value.
func TestRedriveToACompactedTopic(t *testing.T) {
	t.Parallel()
	record := func(item, kind string) kafkatest.Record {
		i := &pb.Incident{Id: schemas.ID(item), Account: "acme", Store: "2", Space: "maps", Item: item,
			Kind: kind, State: pb.IncidentState_INCIDENT_STATE_OPEN}
		r, err := schemas.Encode(schemas.Message{Topic: schemas.Incidents, Body: i})
		must(t, err)
		return kafkatest.Record{Record: r, Partition: -1}
	}
	gone := record("a", "k")
	gone.Value = nil
	message := func(item, state string) []byte {
		return []byte(`{"id":"` + schemas.ID(item) + `","account":"acme","store":"2","space":"maps","item":"` + item +
			`","kind":"k","state":"INCIDENT_STATE_` + state + `"}`)
	}
	other, same := message("b", "OPEN"), message("a", "CLOSED")
	for name, tt := range map[string]struct {
		topic   []kafkatest.Record // records of the topic; the first is the one of the letters
		letters []int              // offsets of the letters in their partition
		value   []byte
		compact bool
		sent    int
		refused int
	}{
		"the newest": {[]kafkatest.Record{record("a", "k")}, []int{0}, nil, false, 1, 0},
		"another key is newer": {[]kafkatest.Record{record("a", "k"), record("b", "k"), record("a", "other")},
			[]int{0}, nil, false, 1, 0},
		"overtaken":                {[]kafkatest.Record{record("a", "k"), record("a", "k")}, []int{0}, nil, false, 0, 1},
		"overtaken, and gone":      {[]kafkatest.Record{record("a", "k"), gone}, []int{0}, nil, false, 0, 1},
		"overtaken, and compacted": {[]kafkatest.Record{record("a", "k"), record("a", "k")}, []int{0}, nil, true, 0, 1},
		"two letters: the newer one": {[]kafkatest.Record{record("a", "k"), record("a", "k")},
			[]int{0, 1}, nil, false, 1, 1},
		"edited": {[]kafkatest.Record{record("a", "k")}, []int{0}, same, false, 1, 0},
		"edited, and overtaken": {[]kafkatest.Record{record("a", "k"), record("a", "k")},
			[]int{0}, same, false, 0, 1},
		"edited to another's key": {[]kafkatest.Record{record("a", "k"), record("b", "k")},
			[]int{0}, other, false, 0, 1},
		"edited to a key that is free":  {[]kafkatest.Record{record("a", "k")}, []int{0}, other, false, 1, 0},
		"of a topic that was made anew": {nil, []int{7}, nil, false, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				var of []kafkatest.Record
				for _, r := range tt.topic {
					b.Write(r)
				}
				key := record("a", "k").Key
				for _, r := range b.Read(schemas.Incidents) {
					if string(r.Key) == string(key) {
						of = append(of, r)
					}
				}
				if tt.compact {
					b.Compact()
				}
				var ids []string
				for n, at := range tt.letters {
					letter := record("a", "k")
					letter.Topic, letter.Partition = schemas.Dead, 0
					partition, offset := int32(0), int64(at)
					if at < len(of) {
						partition, offset = of[at].Partition, of[at].Offset
					}
					letter.Headers = append(letter.Headers, mark(schemas.HeaderRole, "sink"),
						mark(schemas.HeaderOriginTopic, "incidents"),
						mark(schemas.HeaderOriginPartition, strconv.Itoa(int(partition))),
						mark(schemas.HeaderOriginOffset, fmt.Sprint(offset)))
					b.Write(letter)
					ids = append(ids, fmt.Sprintf("0-%d", n))
				}
				before := len(b.Read(schemas.Incidents))
				o := order()
				o.Value = tt.value
				got, err := deadLetters(t, b).Redrive(t.Context(), deadletter.Query{IDs: slices.Clone(ids)}, o)
				must(t, err)
				if got.Done != tt.sent || got.Refused != tt.refused || tt.refused > 0 &&
					!strings.Contains(fmt.Sprint(got.FirstRefusal), "incidents holds a newer record") {
					t.Errorf("got %+v, want %d sent and %d refused", got, tt.sent, tt.refused)
				}
				if n := len(b.Read(schemas.Incidents)) - before; n != tt.sent {
					t.Errorf("%d records more, want %d", n, tt.sent)
				}
			})
		})
	}
}

// If the latest record is unknown, the letter is neither sent nor refused.
func TestRedriveToUnreadableCompactedTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		i := &pb.Incident{Id: schemas.ID("a"), Account: "acme", Store: "2", Space: "maps", Item: "a",
			Kind: "k", State: pb.IncidentState_INCIDENT_STATE_OPEN}
		b.Send(schemas.Message{Topic: schemas.Incidents, Body: i})
		r, err := schemas.Encode(schemas.Message{Topic: schemas.Incidents, Body: i})
		must(t, err)
		r.Topic = schemas.Dead
		r.Headers = append(r.Headers, mark(schemas.HeaderRole, "sink"), mark(schemas.HeaderOriginTopic, "incidents"))
		b.Write(kafkatest.Record{Record: r})
		defer b.FailFetch(schemas.Incidents, kafkatest.Refused, -1)()
		got, err := deadLetters(t, b).Redrive(t.Context(), deadletter.Query{IDs: []string{"0-0"}}, order())
		if err == nil || got.Done+got.Refused != 0 {
			t.Errorf("got %+v, %v, want an error", got, err)
		}
		if n := len(b.Read(schemas.Admin)); n != 0 {
			t.Errorf("%d decisions on record", n)
		}
	})
}

func mark(key, value string) schemas.Header { return schemas.Header{Key: key, Value: []byte(value)} }
