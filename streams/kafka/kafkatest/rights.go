package kafkatest

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/millrace/millrace/streams/kafka/access"
	"github.com/millrace/millrace/streams/kafka/client"
)

// WithoutCoordinators starts a broker that names no group coordinators: it is preparing its offsets topic, or fails in
// another way.
func WithoutCoordinators(t testing.TB, preparing bool) client.Config {
	code := kerr.UnknownServerError.Code
	if preparing {
		code = kerr.CoordinatorNotAvailable.Code
	}
	c := cluster(t)
	c.ControlKey(int16(kmsg.FindCoordinator), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
		for _, key := range req.(*kmsg.FindCoordinatorRequest).CoordinatorKeys {
			resp.Coordinators = append(resp.Coordinators, kmsg.FindCoordinatorResponseCoordinator{Key: key, ErrorCode: code})
		}
		return resp, nil, true
	})
	return client.Config{Brokers: c.ListenAddrs(), Prefix: "millrace."}
}

// WithRights starts a broker without topics on which user, with SASL's PLAIN, has the rights and no other. It returns
// its addresses.
func WithRights(t testing.TB, user, password string, rights []access.Right) []string {
	c := cluster(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "root", password),
		kfake.User("PLAIN", user, password))
	root := plain.Auth{User: "root", Pass: password}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.SASL(root.AsMechanism()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, r := range rights {
		if _, err := kadm.NewClient(cl).CreateACLs(t.Context(), ACL(t, user, r)); err != nil {
			t.Fatal(err)
		}
	}
	return c.ListenAddrs()
}

// ACL returns the access control list of a user with one right.
func ACL(t testing.TB, user string, r access.Right) *kadm.ACLBuilder {
	t.Helper()
	op, err := kmsg.ParseACLOperation(r.Operation)
	if err != nil {
		t.Fatal(err)
	}
	b := kadm.NewACLs().Allow("User:" + user).AllowHosts("*").Operations(op).ResourcePatternType(kadm.ACLPatternLiteral)
	if r.Prefixed {
		b.ResourcePatternType(kadm.ACLPatternPrefixed)
	}
	if r.Resource == access.Topic {
		return b.Topics(r.Name)
	}
	return b.Groups(r.Name)
}

func cluster(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
