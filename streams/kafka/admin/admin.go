// Package admin reads the state of topics and consumer groups: lags, extents, members, offsets and watermarks. It
// creates the topics of the catalogue, and trims topics up to what every reader has committed. An offset that cannot be
// read is an error, never zero.
package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// An Admin reads the state of topics and consumer groups. It changes nothing.
type Admin struct {
	cfg client.Config
	cl  *kgo.Client
	adm *kadm.Client

	rates        rateTracker
	transactions openTransactions
}

// New returns an Admin. It connects when a method is called. The caller must call Close.
func New(cfg client.Config) (*Admin, error) {
	cl, err := cfg.NewClient("admin")
	if err != nil {
		return nil, err
	}
	return &Admin{cfg: cfg, cl: cl, adm: kadm.NewClient(cl)}, nil
}

// Close closes the connections.
func (a *Admin) Close() { a.cl.Close() }

// committed returns the offsets that a role's groups have committed for topics. A group that does not exist has
// committed nothing.
func (a *Admin) committed(ctx context.Context, role schemas.Role, topics ...string) (core.Offsets, error) {
	out := core.Offsets{}
	groups := a.groupTopics(role, topics)
	// Not kadm's FetchOffsets: its errors of single partitions do not name them.
	fetched := a.adm.FetchManyOffsets(ctx, slices.Sorted(maps.Keys(groups))...)
	for group, topics := range groups {
		resp, ok := fetched[group]
		switch {
		case !ok:
			return nil, fmt.Errorf("fetch offsets of group %s: it is missing in the response", group)
		case errors.Is(resp.Err, kerr.GroupIDNotFound):
			continue
		case resp.Err != nil:
			return nil, client.Refused(fmt.Errorf("fetch offsets of group %s: %w", group, resp.Err), "Describe", "", group)
		}
		for topic, ps := range resp.Fetched {
			if !slices.Contains(topics, topic) {
				continue
			}
			for id, r := range ps {
				if errors.Is(r.Err, kerr.UnknownTopicOrPartition) {
					continue
				}
				if r.Err != nil {
					err := fmt.Errorf("fetch offsets of group %s: %s: %w", group, core.Partition{Topic: topic, ID: id}, r.Err)
					return nil, client.Refused(err, "Describe", topic, group)
				}
				if r.At >= 0 {
					if out[topic] == nil {
						out[topic] = map[int32]int64{}
					}
					out[topic][id] = r.At
				}
			}
		}
	}
	return out, nil
}

// groupTopics maps each consumer group of a role to those of topics that it reads.
func (a *Admin) groupTopics(role schemas.Role, topics []string) map[string][]string {
	groups := map[string][]string{}
	for _, topic := range topics {
		class := schemas.High
		if e, ok := schemas.Lookup(a.cfg.SchemaTopic(topic)); ok {
			class = client.ClassOf(e, role)
		}
		group := a.cfg.Group(role, class)
		groups[group] = append(groups[group], topic)
	}
	return groups
}

// entries returns the catalogue entries of the topics that a role reads, foreign topics included.
func (a *Admin) entries(role schemas.Role) (entries []schemas.Entry) {
	for _, e := range schemas.Catalogue(a.cfg.LaneNames()...) {
		if e.Reads(role) {
			entries = append(entries, e)
		}
	}
	for _, name := range a.cfg.Foreign {
		if role == schemas.RoleIngester {
			entries = append(entries, schemas.Entry{
				Topic: schemas.Foreign(name), Class: schemas.High, Readers: []schemas.Role{role},
			})
		}
	}
	return entries
}

// topicsOf returns the names of the topics that a role reads.
func (a *Admin) topicsOf(role schemas.Role) (names []string) {
	for _, e := range a.entries(role) {
		names = append(names, a.cfg.Topic(e.Topic))
	}
	return names
}

// EndOffsets returns the end offset of each partition of topic: the offset of the next record or, while a
// transaction is open, the offset at which the transaction begins.
func (a *Admin) EndOffsets(ctx context.Context, topic schemas.Topic) (map[int32]int64, error) {
	_, ends, err := core.Bounds(ctx, a.adm, a.cfg.Topic(topic))
	if err != nil {
		return nil, err
	}
	return ends[a.cfg.Topic(topic)], nil
}

// Lag returns, for each role, the number of offsets between the committed offset and the end, summed over all
// topics that the role reads. Partitions without a commit count from the log start. Offsets without a record
// count until the group has committed past them. Records in a delay lane are lag of the delayer, not of the role
// to which they return.
func (a *Admin) Lag(ctx context.Context, roles ...schemas.Role) (map[schemas.Role]int64, error) {
	lag := map[schemas.Role]int64{}
	for _, role := range roles {
		topics := a.topicsOf(role)
		if lag[role] = 0; len(topics) == 0 {
			continue
		}
		// Read commits before ends: a commit made in between would hide lag.
		done, err := a.committed(ctx, role, topics...)
		if err != nil {
			return nil, err
		}
		starts, ends, err := core.Bounds(ctx, a.adm, topics...)
		if err != nil {
			return nil, err
		}
		lag[role] = totalLag(starts, ends, done)
	}
	return lag, nil
}
