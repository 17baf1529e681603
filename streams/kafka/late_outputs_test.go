package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// A result that is acknowledged more than a minute after its publication is too late, by the monotonic clock or, after
// the machine was suspended, by the wall clock. Other outputs are never too late.
func TestResultsThatAreAcknowledgedLate(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		made time.Time // zero: without an age
		err  error
		late bool
		sent bool // again
	}{
		"in time":                            {made: now},
		"after 59 s":                         {made: now.Add(-59 * time.Second)},
		"after 61 s":                         {made: now.Add(-61 * time.Second), late: true},
		"after 61 s of the wall clock":       {made: now.Add(-61 * time.Second).Round(0), late: true},
		"a Change, after hours":              {},
		"not acknowledged":                   {made: now, err: kgo.ErrRecordTimeout, late: true},
		"a Change that is not":               {err: kgo.ErrRecordTimeout, sent: true},
		"the topic was created anew":         {made: now, err: kerr.UnknownTopicID, sent: true},
		"the topic was created anew, 2 m on": {made: now.Add(-2 * time.Minute), err: kerr.UnknownTopicID, late: true},
		"refused for good":                   {made: now, err: kerr.MessageTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			cl, err := kgo.NewClient()
			must(t, err)
			defer cl.Close()
			s := newOutputs(t.Context(), core.NewRouter(client.Config{}, schemas.RoleChecker, 0), cl)
			var got []error
			part := &assignment{fetcher: &fetcher{metrics: uncounted()}}
			o := &output{rec: &kgo.Record{Topic: "fixity.results"}, part: part, made: tt.made,
				done: func(err error) { got = append(got, err) }}
			key := topicKey{"fixity.results", ""}
			s.queues[key] = &sendQueue{sent: []*output{o}, unanswered: 1}
			s.onAck(key, s.queues[key], o, o.rec, tt.err)
			if sent := len(got) == 0; sent != tt.sent || sent == (len(s.queues) == 0) {
				t.Fatalf("settled %v, empty %v", got, len(s.queues) == 0)
			}
			if !tt.sent && (errors.Is(got[0], errNotInTime) != tt.late || !tt.late && (got[0] == nil) != (tt.err == nil)) {
				t.Errorf("settled with %v", got[0])
			}
		})
	}
}
