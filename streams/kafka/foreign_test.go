package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

const events = "s3.events" // a foreign topic

func ingester(
	t *testing.T, b *kafkatest.Broker, describe func(*schemas.Delivery) kafka.Work, h kafka.Handler,
) *kafka.Pool {
	t.Helper()
	p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleIngester, DescribeValue: describe,
		Topics: []schemas.Topic{schemas.Foreign(events), schemas.Again(schemas.RoleIngester)}}, h)
	must(t, err)
	return p
}

func raw(key, value string) kafkatest.Record {
	return kafkatest.Record{Partition: -1, Record: schemas.Record{
		Topic: schemas.Foreign(events), Key: []byte(key), Value: []byte(value),
		Headers: []schemas.Header{{Key: "own", Value: []byte("1")}}}}
}

// The ingester gets the bytes of a foreign topic unchanged. They wait in lanes as other messages do, and become
// dead letters that can be redriven, also edited. Nothing is written to the foreign topic.
func TestForeign(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Lanes: parttest.QuickLanes(), Foreign: []string{events}})
		b.Write(raw("a", "good"), raw("b", "unavailable once"), raw("c", "never"))
		type sight struct {
			value, topic, from string
			attempt            int
		}
		var mu sync.Mutex
		got := map[string][]sight{}
		p := ingester(t, b, nil, func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			k := string(d.Key)
			got[k] = append(got[k], sight{string(d.Value), string(d.Topic), string(d.From), d.Attempt})
			switch {
			case d.Body != nil:
				return nil, retry.Permanent(errors.New("it was decoded"))
			case string(d.Value) == "never":
				return nil, retry.Permanent(errors.New("no such bucket"))
			case k == "b" && len(got[k]) == 1:
				return nil, retry.Unavailable(errors.New("store unavailable"))
			}
			return []schemas.Message{parttest.Change(k)}, nil
		})
		parttest.Background(t, parttest.Delayer(t, b))
		parttest.Background(t, p)
		time.Sleep(time.Minute)
		d, err := deadletter.New(b.Config())
		must(t, err)
		t.Cleanup(d.Close)
		var l []*deadletter.Letter
		q := deadletter.Query{Topic: schemas.Foreign(events)}
		must(t, d.Each(t.Context(), q, func(one *deadletter.Letter) error { l = append(l, one); return nil }))
		if len(l) != 1 || l[0].Role != schemas.RoleIngester || string(l[0].Value) != "never" || l[0].Class != "permanent" {
			t.Fatalf("letters %+v", l)
		}
		o := deadletter.Order{Who: "ann", Reason: "mended", From: "cli", Value: []byte("mended")}
		if r, err := d.Redrive(t.Context(), deadletter.Query{IDs: []string{l[0].ID}}, o); err != nil || r.Done != 1 {
			t.Fatalf("got %+v, %v", r, err)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		for k, want := range map[string][]sight{
			"a": {{"good", "foreign:s3.events", "foreign:s3.events", 1}},
			"b": {{"unavailable once", "foreign:s3.events", "foreign:s3.events", 1},
				{"unavailable once", "foreign:s3.events", "again.ingester", 1}},
			"c": {{"never", "foreign:s3.events", "foreign:s3.events", 1}, {"mended", "foreign:s3.events", "again.ingester", 1}},
		} {
			if !slices.Equal(got[k], want) {
				t.Errorf("%s: got %v, want %v", k, got[k], want)
			}
		}
		if n, m := len(b.Read(schemas.Foreign(events))), len(b.Read(schemas.Changes)); n != 3 || m != 3 {
			t.Errorf("%d records of others, %d changes: want 3 and 3", n, m)
		}
		if n := parttest.Sum(b.Committed(schemas.RoleIngester, schemas.Foreign(events))); n != 3 {
			t.Errorf("committed %d, want 3", n)
		}
	})
}

// Bytes published under the name of a foreign topic come to the ingester as if they were from there, with their
// key. They are ordered by the key of the work that they describe.
func TestForeignPublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Foreign: []string{events}, Behind: 2 * time.Hour})
		out, err := kafka.NewProducer(b.Config(), "test")
		must(t, err)
		defer out.Close()
		hook := schemas.Foreign("webhook/acme")
		must(t, out.Publish(t.Context(), schemas.Message{Topic: hook, Key: []byte("k"), Value: []byte("v")}))
		for name, m := range map[string]schemas.Message{
			"no bytes":  {Topic: hook},
			"due":       {Topic: hook, Value: []byte("v"), Due: time.Now().Add(time.Hour)},
			"too large": {Topic: hook, Value: make([]byte, 2*schemas.MaxBytes)},
		} {
			if err := out.Publish(t.Context(), m); !retry.IsPermanent(err) {
				t.Errorf("%s: got %v, want a permanent error", name, err)
			}
		}
		var got []string
		p := ingester(t, b, func(d *schemas.Delivery) kafka.Work {
			return kafka.Work{Key: "one", Account: string(d.Value)}
		}, func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if d.Topic == hook && time.Since(d.Timestamp) < time.Hour {
				t.Errorf("%s is dated %v by the clock of a process", d.Value, d.Timestamp)
			}
			got = append(got, string(d.Topic)+" "+string(d.Key)+" "+string(d.Value)) // calls are in order: there is one key
			return nil, nil
		})
		b.Write(raw("", "x"), raw("", "y"))
		must(t, parttest.Run(t, 20*time.Second, p))
		slices.Sort(got)
		parttest.SameLines(t, "deliveries", got, "foreign:s3.events  x", "foreign:s3.events  y", "foreign:webhook/acme k v")
	})
}

func TestForeignLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Foreign: []string{events}})
		b.Write(raw("a", "1"), raw("b", "2"))
		a := parttest.NewAdmin(t, b.Config())
		got := parttest.Lags(t, a, schemas.RoleIngester)
		if !slices.ContainsFunc(got, func(l string) bool {
			return strings.HasPrefix(l, "ingester high millrace.ingester foreign:s3.events: 2 of 2 due")
		}) {
			t.Errorf("got %q", got)
		}
		n, err := a.Lag(t.Context(), schemas.RoleIngester)
		if err != nil || n[schemas.RoleIngester] != 2 {
			t.Errorf("got %v, %v", n, err)
		}
		if got := parttest.Lags(t, a, schemas.RolePlanner); slices.ContainsFunc(got,
			func(l string) bool { return strings.Contains(l, "foreign") }) {
			t.Errorf("the planner has %q", got)
		}
	})
}

// Only the ingester reads foreign topics, and only those that are configured.
func TestForeignRefused(t *testing.T) {
	h := func(context.Context, *schemas.Delivery) ([]schemas.Message, error) { return nil, nil }
	for name, tt := range map[string]struct {
		foreign []string
		role    schemas.Role
		topic   schemas.Topic
		want    string // "": no error
	}{
		"named":                 {[]string{events}, schemas.RoleIngester, schemas.Foreign(events), ""},
		"not named":             {nil, schemas.RoleIngester, schemas.Foreign(events), "not in the catalogue"},
		"another role":          {[]string{events}, schemas.RolePlanner, schemas.Foreign(events), "not in the catalogue"},
		"one of ours":           {[]string{"millrace.changes"}, schemas.RoleIngester, schemas.Changes, "millrace's own"},
		"a lane of ours":        {[]string{"millrace.delay.7h"}, schemas.RoleIngester, schemas.Changes, "millrace's own"},
		"ours without a prefix": {[]string{"changes"}, schemas.RoleIngester, schemas.Foreign("changes"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := client.Config{Brokers: []string{"localhost:1"}, Prefix: "millrace.", Foreign: tt.foreign}
			_, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: tt.role, Topics: []schemas.Topic{tt.topic}}, h)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
