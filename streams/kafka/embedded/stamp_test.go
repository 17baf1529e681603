package embedded_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/embedded"
)

// Records of a topic with LogAppendTime have the broker's time, also after a restart. A topic without
// it has the producer's time.
func TestRecordTimestamps(t *testing.T) {
	dir := t.TempDir()
	var b *embedded.Broker
	restart := func() (cl *kgo.Client) {
		t.Helper()
		if b != nil {
			b.Close()
		}
		var err error
		if b, err = embedded.StartBroker(embedded.BrokerConfig{Dir: dir}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		cl, err = kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.ConsumeTopics("changes", "foreign"),
			kgo.DisableClientMetrics())
		must(t, err)
		t.Cleanup(cl.Close)
		return cl
	}
	cl := restart()
	cfg := client.Config{Brokers: []string{b.Addr()}}
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1}))
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, "foreign"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now().Truncate(time.Millisecond)
	written := map[string]time.Time{"slow": begun.AddDate(-1, 0, 0), "fast": begun.AddDate(1, 0, 0)}
	for writer, at := range written {
		for _, topic := range []string{"changes", "foreign"} {
			r := &kgo.Record{Topic: topic, Key: []byte(writer), Value: []byte("x"), Timestamp: at}
			must(t, cl.ProduceSync(t.Context(), r).FirstErr())
		}
	}
	check := func(cl *kgo.Client) {
		t.Helper()
		for n := 0; n < 2*len(written); {
			fetches := cl.PollFetches(t.Context())
			must(t, fetches.Err())
			fetches.EachRecord(func(r *kgo.Record) {
				n++
				want := written[string(r.Key)]
				if r.Topic == "changes" {
					want = begun
				}
				if off := r.Timestamp.Sub(want); off < 0 || off > time.Minute {
					t.Errorf("%s of a %s writer is dated %v, want %v", r.Topic, r.Key, r.Timestamp, want)
				}
			})
		}
	}
	check(cl)
	check(restart())
}
