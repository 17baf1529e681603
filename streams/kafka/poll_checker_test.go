package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// fetchesOf returns the poll of one partition.
func fetchesOf(p kgo.FetchPartition) kgo.Fetches {
	return kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "t", TopicID: [16]byte{7}, Partitions: []kgo.FetchPartition{p}}}}}
}

// Which errors of a poll are fatal, which are examined, and which are transient.
func TestFaultsOf(t *testing.T) {
	const nothing, ends, outside, other, damaged, passes = "nothing", "ends", "out of range", "unknown id", "damaged",
		"passes"
	for name, tt := range map[string]struct {
		err       error
		watermark int64
		want      string
	}{
		"no error":                        {nil, 5, nothing},
		"the poll's end":                  {context.DeadlineExceeded, 0, nothing},
		"a repeated request":              {fmt.Errorf("fetch: %w", context.Canceled), 5, nothing},
		"a log that lost its end":         {&kgo.ErrDataLoss{}, 0, nothing},
		"longer than may be":              {&kgo.ErrDecompressTooLarge{}, 5, damaged},
		"out of range":                    {kerr.OffsetOutOfRange, 5, outside},
		"another topic":                   {kerr.UnknownTopicID, -1, other},
		"refused":                         {kerr.TopicAuthorizationFailed, 0, ends},
		"the client is closed":            {kgo.ErrClientClosed, 0, ends},
		"a leader that moved":             {kerr.NotLeaderForPartition, -1, passes},
		"a disk that fails":               {kerr.KafkaStorageError, -1, passes},
		"a group that moved on":           {kerr.IllegalGeneration, 0, nothing},
		"a checksum that does not match":  {errors.New("encoded crc 1 does not match calculated crc 2"), 5, damaged},
		"a batch that the broker rejects": {kerr.CorruptMessage, -1, damaged},
		"an error of the client's own":    {errors.New("the group session was lost"), 0, nothing},
	} {
		got := nothing
		f := core.FaultsOf(fetchesOf(kgo.FetchPartition{Partition: 3, HighWatermark: tt.watermark, Err: tt.err}),
			slog.New(slog.DiscardHandler))
		out := (*core.OutOfRangeError)(nil)
		switch {
		case errors.As(f.Fatal, &out):
			got = outside
		case f.Fatal != nil:
			got = ends
		case f.Unknown["t"] == [16]byte{7}:
			got = other
		case f.Damaged[core.Partition{Topic: "t", ID: 3}] != nil:
			got = damaged
		case f.Transient[core.Partition{Topic: "t", ID: 3}] != nil:
			got = passes
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// A batch that can be parsed later stops nothing, however often that happens.
func TestTransientDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := client.NewUnreadables()
		r := newPollChecker(core.NewRouter(client.Config{Unreadables: u}, "planner", 0), newCommits(nil))
		bad := fetchesOf(kgo.FetchPartition{HighWatermark: 9, Err: io.ErrUnexpectedEOF})
		good := fetchesOf(kgo.FetchPartition{HighWatermark: 9, Records: []*kgo.Record{{Topic: "t"}}})
		for range 3 {
			for range core.DamageTries - 1 {
				must(t, r.check(t.Context(), nil, bad))
			}
			must(t, r.check(t.Context(), nil, good))
		}
		if len(u.Batches())+len(r.damaged) > 0 {
			t.Errorf("stopped %v, not forgotten %v", u.Batches(), r.damaged)
		}
	})
}
