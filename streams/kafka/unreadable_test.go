package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// An unreadable record counts until a later record of its key is readable, or its key is deleted.
func TestUnreadables(t *testing.T) {
	t.Parallel()
	garbage := func(key string) kafkatest.Record {
		return kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints, Key: []byte(key), Value: []byte("poison")},
			Partition: -1}
	}
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(checkpoint("a", "1"), checkpoint("refused", "1"))
		b.Write(garbage("a/"), garbage("x"))
		cfg := b.Config()
		cfg.Unreadables = client.NewUnreadables()
		tb, err := kafka.NewTable(cfg, schemas.Checkpoints, func(key []byte, _ *schemas.Delivery) error {
			if string(key) == "refused/" {
				return retry.Permanent(errors.New("no such sweep"))
			}
			return nil
		})
		must(t, err)
		if cfg.Unreadables.Complete(schemas.Checkpoints) || cfg.Unreadables.Complete(schemas.Admin) {
			t.Error("is complete before it was read")
		}
		parttest.Background(t, tb)
		must(t, tb.CatchUp(t.Context()))
		synctest.Wait()
		if !cfg.Unreadables.Complete(schemas.Checkpoints) {
			t.Error("was read, and is not complete")
		}
		check := func(want ...string) {
			t.Helper()
			var got []string
			for _, u := range cfg.Unreadables.List() {
				got = append(got, string(u.Key))
				if !strings.HasPrefix(u.Coordinates(), "checkpoints/") || u.Err == nil {
					t.Errorf("%s: %v", u.Coordinates(), u.Err)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("unreadable are %q, want %q", got, want)
			}
		}
		check("a/", "refused/", "x")
		var unread []string
		for _, u := range cfg.Unreadables.List() {
			unread = append(unread, u.Coordinates())
		}
		changed := cfg.Unreadables.Changed()
		b.Send(checkpoint("a", "2"), checkpoint("b", "1"))
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints, Key: []byte("x")}, Partition: -1})
		must(t, tb.CatchUp(t.Context()))
		check("refused/")
		for _, position := range unread {
			listed := slices.ContainsFunc(cfg.Unreadables.List(),
				func(u client.UnreadableRecord) bool { return u.Coordinates() == position })
			if cfg.Unreadables.Superseded(position) == listed {
				t.Errorf("%s is superseded and listed, or neither", position)
			}
		}
		if cfg.Unreadables.Superseded("checkpoints/0@0") {
			t.Error("a record that can be read is superseded")
		}
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

// A table whose Run ends, at any time, leaves no topic incomplete.
func TestUnreadablesOfEndedTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(checkpoint("a", "1"))
		cfg := b.Config()
		cfg.Unreadables = client.NewUnreadables()
		for range 2 {
			tb, err := kafka.NewTable(cfg, schemas.Checkpoints, func([]byte, *schemas.Delivery) error { return nil })
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- tb.Run(ctx) }()
			<-tb.Ready()
			cancel()
			must(t, <-ended)
			if !cfg.Unreadables.Complete(schemas.Checkpoints) {
				t.Error("is not complete")
			}
		}
	})
}
