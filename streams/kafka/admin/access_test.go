package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// Every first request of a process reports a rejected login as ErrLoginRejected.
func TestRefusedLogin(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "app", "secret"))
	must(t, err)
	t.Cleanup(c.Close)
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) { // as brokers answer
		c.KeepControl()
		resp := req.(*kmsg.SASLAuthenticateRequest).ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return resp, nil, true
	})
	cfg := client.Config{Brokers: c.ListenAddrs(), Prefix: "p.",
		SASL: &client.SASL{Mechanism: "PLAIN", User: "app", Password: "wrong"}}
	if err := admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{}); !errors.Is(err, client.ErrLoginRejected) {
		t.Errorf("make topics: got %v", err)
	}
	if _, err := admin.MissingTopics(t.Context(), cfg, admin.TopicOptions{}); !errors.Is(err, client.ErrLoginRejected) {
		t.Errorf("look for topics: got %v", err)
	}
	a, err := admin.New(cfg)
	must(t, err)
	t.Cleanup(a.Close)
	for _, role := range []schemas.Role{schemas.RolePlanner, schemas.RoleSweeper} { // the latter reads no topic
		if _, err := a.Lags(t.Context(), role); !errors.Is(err, client.ErrLoginRejected) {
			t.Errorf("ask for the lag of %s: got %v", role, err)
		}
	}
}

// A single partition that is refused is an error that names the group, the partition and the right.
func TestLagsOfARefusedPartition(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(c.Close)
	cfg := client.Config{Brokers: c.ListenAddrs(), Prefix: "p."}
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 3}))
	cl, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...))
	must(t, err)
	t.Cleanup(cl.Close)
	topics, err := kadm.NewClient(cl).ListTopics(t.Context(), "p.changes")
	must(t, err)
	c.ControlKey(int16(kmsg.OffsetFetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
		for _, g := range req.(*kmsg.OffsetFetchRequest).Groups {
			resp.Groups = append(resp.Groups, kmsg.OffsetFetchResponseGroup{Group: g.Group,
				Topics: []kmsg.OffsetFetchResponseGroupTopic{{Topic: "p.changes", TopicID: topics["p.changes"].ID,
					Partitions: []kmsg.OffsetFetchResponseGroupTopicPartition{{
						Partition: 2, Offset: -1, ErrorCode: kerr.TopicAuthorizationFailed.Code}}}}})
		}
		return resp, nil, true
	})
	a, err := admin.New(cfg)
	must(t, err)
	t.Cleanup(a.Close)
	const want = "access refused by the brokers: the login lacks Describe on topic p.changes: " +
		"fetch offsets of group p.planner: p.changes/2: TOPIC_AUTHORIZATION_FAILED: "
	if _, err := a.Lags(t.Context(), schemas.RolePlanner); !errors.Is(err, client.ErrAccess) ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Topics that the login may not describe are logged once, and once more when it may again.
func TestWatchTopicsWithoutTheRight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		var said logtest.Lines
		cfg := b.Config()
		cfg.Log = said.Log()
		adm, err := admin.New(cfg)
		must(t, err)
		defer adm.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		time.AfterFunc(2*time.Minute, func() {
			grant := b.FailMetadata(schemas.Policies, kafkatest.Refused, -1)
			time.AfterFunc(4*time.Minute, grant)
		})
		if err := adm.WatchTopics(ctx); err != nil {
			t.Errorf("ended: %v", err)
		}
		const lost, back = `level=WARN msg="stop watching topics: the login lacks Describe on them, and a deleted one is ` +
			`not noticed" topics=millrace.policies`, `level=INFO msg="watch topics again" topics=millrace.policies`
		if said.Count("topics=") != 2 || said.Count(lost) != 1 || said.Count(back) != 1 {
			t.Errorf("got\n%s", said.String())
		}
	})
}
