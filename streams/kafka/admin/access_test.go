package admin_test

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
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
	if err := admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{}); !errors.Is(err, client.ErrLoginRejected) {
		t.Errorf("make topics: got %v", err)
	}
	if _, err := admin.MissingTopics(t.Context(), cfg, admin.TopicOptions{}); !errors.Is(err, client.ErrLoginRejected) {
		t.Errorf("look for topics: got %v", err)
	}
	a, err := admin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	for _, role := range []schemas.Role{schemas.RolePlanner, schemas.RoleSweeper} { // the latter reads no topic
		if _, err := a.Lags(t.Context(), role); !errors.Is(err, client.ErrLoginRejected) {
			t.Errorf("ask for the lag of %s: got %v", role, err)
		}
	}
}
