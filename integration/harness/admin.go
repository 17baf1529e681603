package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// pollInterval is the time between two calls of a condition.
const pollInterval = 100 * time.Millisecond

// Eventually calls check until it returns nil. After limit it fails t with the last error of check.
func Eventually(t testing.TB, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := eventually(ctx, check); err != nil {
		t.Fatalf("%s: not within %v: %v", what, limit, err)
	}
}

func eventually(ctx context.Context, check func(context.Context) error) error {
	var last error
	for {
		try, cancel := context.WithTimeout(ctx, callLimit)
		err := check(try)
		cancel()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // keep the last error that the timeout did not cause
		}
		if retry.Sleep(ctx, pollInterval) != nil {
			return last
		}
	}
}

// Existing returns a Cluster for administrative requests to brokers that the harness did not start.
func Existing(brokers ...string) *Cluster { return &Cluster{addrs: brokers} }

// client returns a client with short timeouts, without a consumer group.
func (c *Cluster) client(more ...kgo.Opt) (*kgo.Client, error) {
	opts := append([]kgo.Opt{
		kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics(), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.DialTimeout(2 * time.Second), kgo.RequestTimeoutOverhead(3 * time.Second), kgo.RetryTimeout(callLimit),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}, more...)
	if c.base.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.base.TLS))
	}
	if c.base.SASL != nil {
		opts = append(opts, kgo.SASL(plain.Auth{User: User, Pass: Password}.AsMechanism()))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("new client: %w", err)
	}
	return cl, nil
}

// admin calls f with an admin client.
func (c *Cluster) admin(f func(*kadm.Client) error) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(kadm.NewClient(cl))
}

// awaitBrokers waits until exactly n brokers are registered and a controller is elected. It sends a metadata request
// each time, because kadm caches metadata.
func (c *Cluster) awaitBrokers(ctx context.Context, n int) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	return eventually(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{}
		m, err := req.RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		if len(m.Brokers) != n || m.ControllerID <= 0 {
			return fmt.Errorf("%d brokers are registered, want %d; the controller is %d", len(m.Brokers), n, m.ControllerID)
		}
		return nil
	})
}

// awaitAnswers waits until each broker answers at its address. A broker is registered before that, and Docker accepts
// connections even before the broker does.
func (c *Cluster) awaitAnswers(ctx context.Context) error {
	for _, addr := range c.addrs {
		cl, err := (&Cluster{addrs: []string{addr}, base: c.base}).client()
		if err != nil {
			return err
		}
		err = eventually(ctx, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return cl.Ping(ctx)
		})
		cl.Close()
		if err != nil {
			return fmt.Errorf("wait for broker %s: %w", addr, err)
		}
	}
	return nil
}

// WaitBrokers waits until exactly n brokers are registered. A killed or frozen broker stays registered until its
// session times out.
func (c *Cluster) WaitBrokers(t testing.TB, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	if err := c.awaitBrokers(ctx, n); err != nil {
		t.Fatal(err)
	}
}

// topics returns the topics with cfg's prefix.
func topics(ctx context.Context, adm *kadm.Client, cfg client.Config) (kadm.TopicDetails, error) {
	all, err := adm.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	if err := all.Error(); err != nil {
		return nil, err
	}
	for name := range all {
		if !strings.HasPrefix(name, cfg.Prefix) {
			delete(all, name)
		}
	}
	return all, nil
}

// WaitInSync waits until all replicas of every partition are in sync.
func (c *Cluster) WaitInSync(t testing.TB) {
	t.Helper()
	err := c.admin(func(adm *kadm.Client) error {
		Eventually(t, startLimit, "wait for replicas", func(ctx context.Context) error {
			all, err := adm.ListTopicsWithInternal(ctx)
			if err != nil {
				return err
			}
			var out []string
			all.EachPartition(func(p kadm.PartitionDetail) {
				if p.Err != nil || len(p.ISR) < len(p.Replicas) {
					out = append(out, fmt.Sprintf("%s/%d", p.Topic, p.Partition))
				}
			})
			if len(out) > 0 {
				return fmt.Errorf("%d partitions are out of sync, %s first", len(out), out[0])
			}
			return nil
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// MoveLeaders moves the leader of every partition of cfg's topics to its next replica.
func (c *Cluster) MoveLeaders(t testing.TB, cfg client.Config) {
	t.Helper()
	err := c.admin(func(adm *kadm.Client) error {
		ctx, cancel := context.WithTimeout(t.Context(), callLimit)
		defer cancel()
		all, err := topics(ctx, adm, cfg)
		if err != nil {
			return err
		}
		want := kadm.AlterPartitionAssignmentsReq{}
		all.EachPartition(func(p kadm.PartitionDetail) {
			i := slices.Index(p.Replicas, p.Leader) + 1
			want.Assign(p.Topic, p.Partition, slices.Concat(p.Replicas[i:], p.Replicas[:i]))
		})
		altered, err := adm.AlterPartitionAssignments(ctx, want)
		if err != nil {
			return err
		}
		if err := altered.Error(); err != nil {
			return err
		}
		elected, err := adm.ElectLeaders(ctx, kadm.ElectPreferredReplica, all.TopicsSet())
		if err != nil {
			return err
		}
		for topic, ps := range elected {
			for id, p := range ps {
				if p.Err != nil && !errors.Is(p.Err, kerr.ElectionNotNeeded) {
					return fmt.Errorf("%s/%d: %w", topic, id, p.Err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("move leaders: %v", err)
	}
}

// Leader returns the index of the broker that leads the most partitions of cfg's topics.
func (c *Cluster) Leader(t testing.TB, cfg client.Config) int {
	t.Helper()
	leads := make([]int, len(c.addrs)+1) // by broker id, which starts at 1
	err := c.admin(func(adm *kadm.Client) error {
		all, err := topics(t.Context(), adm, cfg)
		all.EachPartition(func(p kadm.PartitionDetail) {
			if int(p.Leader) < len(leads) {
				leads[max(p.Leader, 0)]++
			}
		})
		return err
	})
	if err != nil {
		t.Fatalf("find leaders: %v", err)
	}
	return slices.Index(leads[1:], slices.Max(leads[1:]))
}

// SetTopicConfig sets one configuration key of a topic, given by its full name with prefix.
func (c *Cluster) SetTopicConfig(t testing.TB, topic, key, value string) {
	t.Helper()
	err := c.admin(func(adm *kadm.Client) error {
		set, err := adm.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}},
			topic)
		if err != nil {
			return err
		}
		for _, r := range set {
			err = errors.Join(err, r.Err)
		}
		return err
	})
	if err != nil {
		t.Fatalf("set %s of %s: %v", key, topic, err)
	}
}

// addUser creates the SCRAM user of a secure cluster.
func (c *Cluster) addUser(ctx context.Context) error {
	return c.admin(func(adm *kadm.Client) error {
		made, err := adm.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{
			{User: User, Mechanism: kadm.ScramSha256, Iterations: 4096, Password: Password},
		})
		if err != nil {
			return err
		}
		return made[User].Err
	})
}

// cleanUp deletes the topics and groups of the test from named servers.
func (c *Cluster) cleanUp(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), callLimit)
	defer cancel()
	err := c.admin(func(adm *kadm.Client) error {
		all, err := topics(ctx, adm, client.Config{Prefix: c.runPrefix})
		if err != nil {
			return err
		}
		groups, err := adm.ListGroups(ctx)
		if err != nil {
			return err
		}
		ours := slices.DeleteFunc(groups.Groups(), func(g string) bool { return !strings.HasPrefix(g, c.runPrefix) })
		_, err = adm.DeleteGroups(ctx, ours...)
		_, topicsErr := adm.DeleteTopics(ctx, all.Names()...)
		return errors.Join(err, topicsErr)
	})
	if err != nil {
		t.Errorf("delete topics and groups of the test: %v", err)
	}
}

// CreateTopics creates only the given topics, with their settings from the catalogue, and waits until every broker
// knows them. Fewer topics make a broker restart faster, because it checks every partition.
func (c *Cluster) CreateTopics(t testing.TB, cfg client.Config, partitions int32, topics ...schemas.Topic) {
	t.Helper()
	lanes := make([]string, len(cfg.Lanes))
	for i, l := range cfg.Lanes {
		lanes[i] = l.Name
	}
	var names []string
	err := c.admin(func(adm *kadm.Client) error {
		for _, e := range schemas.Catalogue(lanes...) {
			if !slices.Contains(topics, e.Topic) {
				continue
			}
			names = append(names, cfg.Prefix+string(e.Topic))
			most := 8 * schemas.MaxBytes
			if e.Topic == schemas.Dead {
				most = 64 << 20
			}
			settings := map[string]*string{
				"max.message.bytes":      kadm.StringPtr(strconv.Itoa(most)),
				"message.timestamp.type": kadm.StringPtr("LogAppendTime"),
			}
			// The client retries a request if the response is lost, so the first attempt may have created the topic.
			_, err := adm.CreateTopic(t.Context(), partitions, -1, settings, cfg.Prefix+string(e.Topic))
			if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
				return fmt.Errorf("create topic %s: %w", e.Topic, err)
			}
		}
		return nil
	})
	if err == nil {
		err = c.awaitTopics(t.Context(), names)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitTopics waits until every broker knows the topics and their leaders. The controller answers before the other
// brokers have the metadata, and a busy broker may get it so late that a producer has given up.
func (c *Cluster) awaitTopics(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	cl, err := c.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range names {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
	}
	return eventually(ctx, func(ctx context.Context) error {
		m, err := req.RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		for _, b := range m.Brokers {
			kresp, err := cl.Broker(int(b.NodeID)).Request(ctx, req)
			if err != nil {
				return fmt.Errorf("broker %d: %w", b.NodeID, err)
			}
			for _, topic := range kresp.(*kmsg.MetadataResponse).Topics {
				err := kerr.ErrorForCode(topic.ErrorCode)
				for _, p := range topic.Partitions {
					err = cmp.Or(err, kerr.ErrorForCode(p.ErrorCode))
				}
				if err != nil {
					return fmt.Errorf("broker %d: topic %s: %w", b.NodeID, *topic.Topic, err)
				}
			}
		}
		return nil
	})
}

// AddPartitions adds n partitions to a topic.
func (c *Cluster) AddPartitions(t testing.TB, cfg client.Config, n int, topic schemas.Topic) {
	t.Helper()
	err := c.admin(func(adm *kadm.Client) error {
		all, err := adm.CreatePartitions(t.Context(), n, cfg.Prefix+string(topic))
		return cmp.Or(err, all.Error())
	})
	if err != nil {
		t.Fatalf("add partitions to %s: %v", topic, err)
	}
}

// CreateTopic creates a topic that is not in the catalogue.
func (c *Cluster) CreateTopic(t testing.TB, cfg client.Config, topic schemas.Topic, partitions int32) {
	t.Helper()
	err := c.admin(func(adm *kadm.Client) error {
		_, err := adm.CreateTopic(t.Context(), partitions, int16(len(c.addrs)), nil, cfg.Prefix+string(topic))
		return err
	})
	if err == nil {
		err = c.awaitTopics(t.Context(), []string{cfg.Prefix + string(topic)})
	}
	if err != nil {
		t.Fatalf("create topic %s: %v", topic, err)
	}
}

// DeleteTopic deletes a topic with all its records.
func (c *Cluster) DeleteTopic(t testing.TB, cfg client.Config, topic schemas.Topic) {
	t.Helper()
	err := c.admin(func(adm *kadm.Client) error {
		_, err := adm.DeleteTopic(t.Context(), cfg.Prefix+string(topic))
		return err
	})
	if err != nil {
		t.Fatalf("delete topic %s: %v", topic, err)
	}
}
