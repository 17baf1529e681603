package kafka_test

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
)

// A login that is refused is reported as such by all that a process does first.
func TestRefusedLogin(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "app", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	with := func(password string) kafka.Config {
		return kafka.Config{Brokers: c.ListenAddrs(), Prefix: "p.", SASL: &kafka.SASL{Mechanism: "PLAIN", User: "app", Password: password}}
	}
	if err := kafka.EnsureTopics(t.Context(), with("wrong"), kafka.TopicOptions{}); !errors.Is(err, kafka.ErrLogin) {
		t.Errorf("make topics: got %v", err)
	}
	if _, err := kafka.MissingTopics(t.Context(), with("wrong")); !errors.Is(err, kafka.ErrLogin) {
		t.Errorf("look for topics: got %v", err)
	}
	admin, err := kafka.NewAdmin(with("wrong"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	if _, err := admin.Lags(t.Context(), schemas.RolePlanner); !errors.Is(err, kafka.ErrLogin) {
		t.Errorf("ask for the lag: got %v", err)
	}
	if missing, err := kafka.MissingTopics(t.Context(), with("secret")); err != nil || len(missing) == 0 {
		t.Errorf("with the password: got %q, %v", missing, err)
	}
}
