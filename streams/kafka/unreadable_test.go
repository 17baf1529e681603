package kafka_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// A record that cannot be read counts until a later one of its key can be, or its key is gone.
func TestUnreadables(t *testing.T) {
	t.Parallel()
	garbage := func(key string) kafkatest.Record {
		return kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints, Key: []byte(key), Value: []byte("poison")}, Partition: -1}
	}
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(checkpoint("a", "1"), checkpoint("refused", "1"))
		b.Write(garbage("a/"), garbage("x"))
		cfg := b.Config()
		cfg.Unreadables = kafka.NewUnreadables()
		tb, err := kafka.NewTable(cfg, schemas.Checkpoints, func(key []byte, _ *schemas.Delivery) error {
			if string(key) == "refused/" {
				return retry.Permanent(errors.New("no such sweep"))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Unreadables.Complete(schemas.Checkpoints) || cfg.Unreadables.Complete(schemas.Admin) {
			t.Error("is complete before it was read")
		}
		background(t, tb)
		if err := tb.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !cfg.Unreadables.Complete(schemas.Checkpoints) {
			t.Error("was read, and is not complete")
		}
		check := func(want ...string) {
			t.Helper()
			var got []string
			for _, u := range cfg.Unreadables.List() {
				got = append(got, string(u.Key))
				if !strings.HasPrefix(u.Position(), "checkpoints/") || u.Err == nil {
					t.Errorf("%s: %v", u.Position(), u.Err)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("unreadable are %q, want %q", got, want)
			}
		}
		check("a/", "refused/", "x")
		changed := cfg.Unreadables.Changed()
		b.Send(checkpoint("a", "2"), checkpoint("b", "1"))
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints, Key: []byte("x")}, Partition: -1})
		if err := tb.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		check("refused/")
		select {
		case <-changed:
		default:
			t.Error("nothing says that they have changed")
		}
		reg := prometheus.NewRegistry()
		reg.MustRegister(cfg.Unreadables)
		got, err := reg.Gather()
		if err != nil || len(got) != 1 || got[0].GetMetric()[0].GetGauge().GetValue() != 1 ||
			got[0].GetMetric()[0].GetLabel()[0].GetValue() != "checkpoints" {
			t.Errorf("gathered %v, %v", got, err)
		}
	})
}
