package admin_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// WatchTopics reports deleted topics, whether or not the reader is paused.
func TestWatchTopics(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*kafkatest.Broker)
		says   string
		roles  []schemas.Role
	}{
		"made again": {func(b *kafkatest.Broker) { b.Recreate(schemas.Policies, 1) },
			"topic millrace.policies was deleted and recreated: ", nil},
		"deleted": {func(b *kafkatest.Broker) { b.Delete(schemas.Policies) },
			"topic millrace.policies was deleted: this process holds state of the deleted topic. " +
				"Create it again, then start the process", nil},
		"deleted while another may not be described": {func(b *kafkatest.Broker) {
			b.FailMetadata(schemas.Changes, kafkatest.Refused, -1)
			b.Delete(schemas.Policies)
		}, "topic millrace.policies was deleted: ", nil},
		"foreign, and an ingester": {func(b *kafkatest.Broker) { b.Delete(schemas.Foreign("events")) },
			"topic events was deleted", []schemas.Role{schemas.RoleCopier, schemas.RoleIngester}},
		"foreign, and no ingester": {func(b *kafkatest.Broker) { b.Delete(schemas.Foreign("events")) }, "",
			[]schemas.Role{schemas.RoleCopier}},
		"another": {func(b *kafkatest.Broker) { b.MakeTopic("of.another", 1, nil) }, "", nil},
		"out of reach for a while": {func(b *kafkatest.Broker) {
			mend := b.Disconnect()
			time.AfterFunc(time.Minute, mend)
		}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Foreign: []string{"events"}})
				adm, err := admin.New(b.Config())
				must(t, err)
				defer adm.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				time.AfterFunc(time.Minute, func() { tt.change(b) })
				begun := time.Now()
				err = adm.WatchTopics(ctx, tt.roles...)
				if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
					t.Errorf("ended: %v", err)
				}
				if took := time.Since(begun); err != nil && took > 2*time.Minute {
					t.Errorf("after %v", took)
				}
			})
		})
	}
}
