package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
)

// Group is a consumer group as the brokers describe it.
type Group struct {
	Kind    string // classic or consumer (KIP-848)
	State   string // Stable, Empty, PreparingRebalance, ...
	Members []Member
}

// Member is a member of a group. Members are sorted by Instance, then ID.
type Member struct {
	ID, Instance string
	Partitions   []string // topic/partition, sorted
}

// Assigned returns the number of partitions that are assigned to members.
func (g Group) Assigned() (n int) {
	for _, m := range g.Members {
		n += len(m.Partitions)
	}
	return n
}

// Describe returns a group, given by its full name with prefix.
func (c *Cluster) Describe(ctx context.Context, group string) (g Group, err error) {
	err = c.admin(func(adm *kadm.Client) error {
		g, err = describe(ctx, adm, group)
		return err
	})
	return g, err
}

// Groups returns the groups with a prefix, by their names without it.
func (c *Cluster) Groups(ctx context.Context, prefix string) (map[string]Group, error) {
	groups := map[string]Group{}
	err := c.admin(func(adm *kadm.Client) error {
		listed, err := adm.ListGroups(ctx)
		if err != nil {
			return fmt.Errorf("list groups: %w", err)
		}
		for group := range listed {
			if name, ok := strings.CutPrefix(group, prefix); ok {
				if groups[name], err = describe(ctx, adm, group); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return groups, err
}

func describe(ctx context.Context, adm *kadm.Client, group string) (Group, error) {
	described, err := adm.DescribeConsumerGroups(ctx, group)
	if err != nil {
		return Group{}, fmt.Errorf("describe group %s: %w", group, err)
	}
	if d := described[group]; d.Err == nil {
		g := Group{Kind: "consumer", State: d.State}
		for _, m := range d.Members {
			g.add(m.MemberID, m.InstanceID, m.Assignment)
		}
		return g, nil
	}
	classic, err := adm.DescribeGroups(ctx, group)
	if err != nil {
		return Group{}, fmt.Errorf("describe group %s: %w", group, err)
	}
	d := classic[group]
	g := Group{Kind: "classic", State: d.State}
	for _, m := range d.Members {
		set := kadm.TopicsSet{}
		if a, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range a.Topics {
				set.Add(t.Topic, t.Partitions...)
			}
		}
		g.add(m.MemberID, m.InstanceID, set)
	}
	return g, d.Err
}

func (g *Group) add(id string, instance *string, owns kadm.TopicsSet) {
	m := Member{ID: id}
	if instance != nil {
		m.Instance = *instance
	}
	owns.EachPartitions(func(topic string, ids []int32) {
		for _, id := range ids {
			m.Partitions = append(m.Partitions, fmt.Sprintf("%s/%d", topic, id))
		}
	})
	slices.Sort(m.Partitions)
	g.Members = append(g.Members, m)
	slices.SortFunc(g.Members, func(a, b Member) int { return strings.Compare(a.Instance+" "+a.ID, b.Instance+" "+b.ID) })
}

// Committed returns the committed offsets of a group by partition, without partitions that have none.
func (c *Cluster) Committed(ctx context.Context, group, topic string) (map[int32]int64, error) {
	at := map[int32]int64{}
	err := c.admin(func(adm *kadm.Client) error {
		got, err := adm.FetchOffsetsForTopics(ctx, group, topic)
		if err != nil {
			return fmt.Errorf("fetch offsets of group %s: %w", group, err)
		}
		var first error
		got.Each(func(o kadm.OffsetResponse) {
			if o.Err != nil && first == nil {
				first = fmt.Errorf("fetch offsets of group %s: %s/%d: %w", group, o.Topic, o.Partition, o.Err)
			}
			if o.At >= 0 {
				at[o.Partition] = o.At
			}
		})
		return first
	})
	return at, err
}

// DeleteGroup deletes a role's group, which must have no members, with its committed offsets.
func (c *Cluster) DeleteGroup(t testing.TB, cfg client.Config, role schemas.Role) {
	t.Helper()
	err := c.admin(func(adm *kadm.Client) error {
		_, err := adm.DeleteGroup(t.Context(), cfg.Prefix+string(role))
		return err
	})
	if err != nil {
		t.Fatalf("delete the group of %s: %v", role, err)
	}
}

// Commit commits an offset of a partition for a group without members, as an operator would.
func (c *Cluster) Commit(t testing.TB, group, topic string, partition int32, offset int64) {
	t.Helper()
	err := c.admin(func(adm *kadm.Client) error {
		var to kadm.Offsets
		to.AddOffset(topic, partition, offset, -1)
		return adm.CommitAllOffsets(t.Context(), group, to)
	})
	if err != nil {
		t.Fatalf("commit of group %s: %v", group, err)
	}
}
