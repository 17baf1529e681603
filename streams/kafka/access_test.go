package kafka_test

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
)

// Every first request of a process reports a rejected login as ErrLoginRejected.
func TestRefusedLogin(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "app", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) { // as brokers answer
		c.KeepControl()
		resp := req.(*kmsg.SASLAuthenticateRequest).ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return resp, nil, true
	})
	cfg := client.Config{Brokers: c.ListenAddrs(), Prefix: "p.",
		SASL: &client.SASL{Mechanism: "PLAIN", User: "app", Password: "wrong"}}
	if err := kafka.EnsureTopics(t.Context(), cfg, kafka.TopicOptions{}); !errors.Is(err, client.ErrLoginRejected) {
		t.Errorf("make topics: got %v", err)
	}
	if _, err := kafka.MissingTopics(t.Context(), cfg); !errors.Is(err, client.ErrLoginRejected) {
		t.Errorf("look for topics: got %v", err)
	}
	admin, err := kafka.NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	if _, err := admin.Lags(t.Context(), schemas.RolePlanner); !errors.Is(err, client.ErrLoginRejected) {
		t.Errorf("ask for the lag: got %v", err)
	}
}
