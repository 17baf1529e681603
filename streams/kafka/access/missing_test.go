package access_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/access"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

func grant(t *testing.T, adm *kadm.Client, user string, r access.Right) {
	t.Helper()
	made, err := adm.CreateACLs(t.Context(), kafkatest.ACL(t, user, r))
	if err != nil || len(made) != 1 || made[0].Err != nil {
		t.Fatalf("grant %s: %v, %v", r, made, err)
	}
}

func withdraw(t *testing.T, adm *kadm.Client, user string, r access.Right) {
	t.Helper()
	gone, err := adm.DeleteACLs(t.Context(), kafkatest.ACL(t, user, r).DenyHosts().Deny())
	if err != nil {
		t.Fatalf("withdraw %s: %v", r, err)
	}
	n := 0
	for _, d := range gone {
		n += len(d.Deleted)
	}
	if n != 1 {
		t.Fatalf("withdraw %s: %d were removed", r, n)
	}
}

// brokerWithACLs returns an admin client and the configuration of each login, which has all its rights.
func brokerWithACLs(t *testing.T) (*kadm.Client, map[schemas.Role]client.Config) {
	t.Helper()
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "root", "p")}
	for _, login := range logins {
		opts = append(opts, kfake.User("PLAIN", string(login), "p"))
	}
	c, err := kfake.NewCluster(opts...)
	must(t, err)
	t.Cleanup(c.Close)
	as := func(user string) client.Config {
		return client.Config{Brokers: c.ListenAddrs(), Prefix: "p.",
			SASL: &client.SASL{Mechanism: "PLAIN", User: user, Password: "p"}}
	}
	must(t, admin.EnsureTopics(t.Context(), as("root"), admin.TopicOptions{Partitions: 1}))
	root := plain.Auth{User: "root", Pass: "p"}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.SASL(root.AsMechanism()))
	must(t, err)
	t.Cleanup(cl.Close)
	adm, configs := kadm.NewClient(cl), map[schemas.Role]client.Config{}
	for _, login := range logins {
		configs[login] = as(string(login))
		for _, r := range access.Rights(configs[login], login) {
			grant(t, adm, string(login), r)
		}
	}
	return adm, configs
}

// Every login with its rights passes, and with one right fewer that right is named, and no other.
func TestCheckNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	adm, logins := brokerWithACLs(t)
	for login, cfg := range logins {
		rights := access.Rights(cfg, login)
		if err := access.Check(t.Context(), cfg, rights); err != nil {
			t.Errorf("%s with all rights: %v", login, err)
		}
		for _, r := range rights {
			withdraw(t, adm, string(login), r)
			err := access.Check(t.Context(), cfg, rights)
			lacks := (*access.MissingError)(nil)
			if !errors.As(err, &lacks) || len(lacks.Rights) != 1 || lacks.Rights[0] != r {
				t.Errorf("%s without %s: got %v", login, r, err)
			}
			grant(t, adm, string(login), r)
		}
	}
}

func TestMissingError(t *testing.T) {
	t.Parallel()
	adm, logins := brokerWithACLs(t)
	cfg := logins[schemas.RoleCopier]
	for _, r := range access.Rights(cfg, schemas.RoleCopier) {
		if r.Name == "p.fixity.high" || r.Name == "p.copier" || r.Name == "p.delay." {
			withdraw(t, adm, "copier", r)
		}
	}
	err := access.Check(t.Context(), cfg, access.Rights(cfg, schemas.RoleCopier))
	const want = `user copier lacks these Kafka rights: Write on all topics that begin with "p.delay.", ` +
		"Write on topic p.fixity.high, Read on group p.copier (such as kafka-acls.sh --add " +
		"--allow-principal User:copier --operation Write --resource-pattern-type prefixed --topic p.delay.)"
	if err == nil || err.Error() != want || !errors.Is(err, client.ErrAccess) {
		t.Errorf("got %v", err)
	}
	cfg.Brokers = []string{"127.0.0.1:1"}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := access.Check(ctx, cfg, access.Rights(cfg, schemas.RoleCopier)); err == nil ||
		errors.Is(err, client.ErrAccess) {
		t.Errorf("without brokers: %v", err)
	}
}

func TestMissingErrorOfNoPrefix(t *testing.T) {
	t.Parallel()
	err := &access.MissingError{User: "u", Rights: access.Rights(client.Config{}, access.Viewer)}
	const want = `user u lacks these Kafka rights: Read on all topics that begin with "", ` +
		`Describe on all groups that begin with ""`
	if err.Error() != want {
		t.Errorf("got %v", err)
	}
}

// What the configuration turns off needs no rights, and migrate does not check what it may never need.
func TestRightsThatAreNotNeeded(t *testing.T) {
	t.Parallel()
	cfg := client.Config{Prefix: "p."}
	for name, tc := range map[string]struct {
		all, fewer []access.Right
		operations []string // of which fewer has none
	}{
		"no trimming": {access.Rights(cfg, schemas.RoleSweeper),
			access.Rights(client.Config{Prefix: "p.", NoTrim: true}, schemas.RoleSweeper), []string{access.Delete}},
		"migrate": {access.Rights(cfg, access.Migrate), access.MigrateCheck(cfg), []string{access.Create}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, o := range tc.operations {
				has := func(r access.Right) bool { return r.Operation == o }
				if !slices.ContainsFunc(tc.all, has) || slices.ContainsFunc(tc.fewer, has) {
					t.Errorf("%s: got %v", o, tc.fewer)
				}
			}
			if len(tc.fewer) == 0 {
				t.Error("nothing is left")
			}
		})
	}
}

// The sweeper describes the groups of all roles: in one request to each broker, after one that finds their
// coordinators.
func TestCheckRequests(t *testing.T) {
	t.Parallel()
	for _, brokers := range []int{1, 3} {
		c, err := kfake.NewCluster(kfake.NumBrokers(brokers))
		must(t, err)
		t.Cleanup(c.Close)
		cfg := client.Config{Brokers: c.ListenAddrs(), Prefix: "p."}
		must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1}))
		var mu sync.Mutex
		requests := map[string]int{}
		c.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			mu.Lock()
			defer mu.Unlock()
			requests[kmsg.NameForKey(req.Key())]++
			return nil, nil, false
		})
		must(t, access.Check(t.Context(), cfg, access.Rights(cfg, schemas.RoleSweeper)))
		mu.Lock()
		if requests["FindCoordinator"] != 1 || requests["DescribeGroups"] > brokers || requests["Metadata"] > 3 {
			t.Errorf("%d brokers: got %v", brokers, requests)
		}
		mu.Unlock()
	}
}

// While the brokers prepare their offsets topic, the rights on topics are checked, and the error names the groups that
// are not.
func TestCheckWithoutCoordinators(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(c.Close)
	cfg := client.Config{Brokers: c.ListenAddrs(), Prefix: "p."}
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1}))
	refused := map[string]*kerr.Error{}
	c.ControlKey(int16(kmsg.FindCoordinator), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.FindCoordinatorRequest)
		resp := r.ResponseKind().(*kmsg.FindCoordinatorResponse)
		for _, key := range r.CoordinatorKeys {
			code := kerr.CoordinatorNotAvailable.Code
			if e := refused[key]; e != nil {
				code = e.Code
			}
			resp.Coordinators = append(resp.Coordinators, kmsg.FindCoordinatorResponseCoordinator{Key: key, ErrorCode: code})
		}
		return resp, nil, true
	})
	rights := access.Rights(cfg, schemas.RoleCopier)
	unchecked := (*access.GroupsUncheckedError)(nil)
	err = access.Check(t.Context(), cfg, rights)
	want := []string{"p.copier", "p.copier.large", "p.copier.low", "p.sink", "p.state"}
	if !errors.As(err, &unchecked) || !slices.Equal(unchecked.Groups, want) || !errors.Is(err, client.ErrOffsetsNotReady) {
		t.Errorf("got %v, want the groups %v", err, want)
	}
	// A right that is known to be missing is named all the same.
	refused["p.copier"] = kerr.GroupAuthorizationFailed
	lacks := (*access.MissingError)(nil)
	if err := access.Check(t.Context(), cfg, rights); !errors.As(err, &lacks) || len(lacks.Rights) != 1 ||
		lacks.Rights[0].Name != "p.copier" {
		t.Errorf("got %v, want Read on p.copier", err)
	}
	// Another failure is not that of a new cluster.
	refused["p.copier"] = kerr.UnknownServerError
	if err := access.Check(t.Context(), cfg, rights); !errors.As(err, &unchecked) ||
		errors.Is(err, client.ErrOffsetsNotReady) {
		t.Errorf("got %v, want another error than ErrOffsetsNotReady", err)
	}
}

// An operator may send every dead letter back: to the role that failed, or to its original topic.
func TestOperatorMayRedrive(t *testing.T) {
	t.Parallel()
	cfg := client.Config{Prefix: "p."}
	rights := access.Rights(cfg, access.Operator)
	for _, e := range schemas.Catalogue() {
		if e.Raw {
			continue // the records name another topic
		}
		for _, role := range e.Readers {
			for _, to := range []schemas.Topic{e.Topic, schemas.AgainOf(role, e.Topic)} {
				has := func(r access.Right) bool { return r.Name == cfg.Topic(to) && r.Operation == access.Write }
				if _, ok := schemas.Lookup(to); ok && !slices.ContainsFunc(rights, has) {
					t.Errorf("%s of %s: no Write on %s", role, e.Topic, to)
				}
			}
		}
	}
}

// Brokers without an authorizer, and topics that do not exist, lack nothing.
func TestCheckOfNothing(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(c.Close)
	cfg := client.Config{Brokers: c.ListenAddrs(), Prefix: "p."}
	all := access.Rights(cfg, logins...)
	if err := access.Check(t.Context(), cfg, all); err != nil {
		t.Errorf("without topics: %v", err)
	}
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1}))
	if err := access.Check(t.Context(), cfg, all); err != nil {
		t.Errorf("without an authorizer: %v", err)
	}
	for what, bits := range map[string]int32{"unknown": -1 << 31, "none": 0} {
		c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			m := req.(*kmsg.MetadataRequest)
			if !m.IncludeTopicAuthorizedOperations {
				return nil, nil, false
			}
			resp := m.ResponseKind().(*kmsg.MetadataResponse)
			for _, t := range m.Topics {
				st := kmsg.NewMetadataResponseTopic()
				st.Topic, st.AuthorizedOperations = t.Topic, bits
				resp.Topics = append(resp.Topics, st)
			}
			return resp, nil, true
		})
		if err := access.Check(t.Context(), cfg, all); err != nil && strings.Contains(err.Error(), "on topic") {
			t.Errorf("operations %s: %v", what, err)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
