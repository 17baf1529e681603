package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// An Admin answers questions about topics and groups. It changes nothing.
type Admin struct {
	cfg Config
	cl  *kgo.Client
	adm *kadm.Client

	pace      pace
	undecided openTransactions
}

// NewAdmin returns an Admin. Nothing reaches the network before its methods are
// called. The caller closes it.
func NewAdmin(cfg Config) (*Admin, error) {
	opts, err := cfg.options("admin")
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: new client: %w", err)
	}
	return &Admin{cfg: cfg, cl: cl, adm: kadm.NewClient(cl)}, nil
}

// Close ends the connections.
func (a *Admin) Close() { a.cl.Close() }

// offsets is topic, partition, offset.
type offsets map[string]map[int32]int64

// bounds returns where the partitions of topics start and end: at the last stable offset, behind which no reader is
// handed a record while a transaction is open. A topic that is not there has none.
func bounds(ctx context.Context, adm *kadm.Client, topics ...string) (starts, ends offsets, err error) {
	if starts, err = listed(adm.ListStartOffsets(ctx, topics...)); err != nil {
		return nil, nil, fmt.Errorf("list start offsets: %w", err)
	}
	if ends, err = listed(adm.ListCommittedOffsets(ctx, topics...)); err != nil {
		return nil, nil, fmt.Errorf("list end offsets: %w", err)
	}
	return starts, ends, nil
}

// listed returns the offsets of an answer, or its first error. Topics that are not there are left out.
func listed(answer kadm.ListedOffsets, err error) (offsets, error) {
	if err != nil {
		return nil, err
	}
	out := offsets{}
	for topic, ps := range answer {
		for id, l := range ps {
			if errors.Is(l.Err, kerr.UnknownTopicOrPartition) {
				continue
			}
			if l.Err != nil {
				return nil, fmt.Errorf("%s: %w", partition{topic, id}, l.Err)
			}
			if out[topic] == nil {
				out[topic] = map[int32]int64{}
			}
			out[topic][id] = l.Offset
		}
	}
	return out, nil
}

// committed returns what a role's groups have committed of topics. A group that is not
// there has committed nothing.
func (a *Admin) committed(ctx context.Context, role schemas.Role, topics ...string) (offsets, error) {
	out := offsets{}
	for group, topics := range a.groups(role, topics) {
		resp, err := a.adm.FetchOffsets(ctx, group)
		if errors.Is(err, kerr.GroupIDNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("fetch offsets of group %s: %w", group, err)
		}
		for topic, ps := range resp {
			if !slices.Contains(topics, topic) {
				continue
			}
			for id, r := range ps {
				if errors.Is(r.Err, kerr.UnknownTopicOrPartition) {
					continue
				}
				if r.Err != nil {
					return nil, fmt.Errorf("fetch offsets of group %s: %s: %w", group, partition{topic, id}, r.Err)
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

// groups returns in which group a role reads which of topics.
func (a *Admin) groups(role schemas.Role, topics []string) map[string][]string {
	groups := map[string][]string{}
	for _, topic := range topics {
		class := schemas.High
		if e, ok := schemas.Lookup(a.cfg.bare(topic)); ok {
			class = classOf(e, role)
		}
		group := a.cfg.group(role, class)
		groups[group] = append(groups[group], topic)
	}
	return groups
}

// catalogue returns the entries that a role reads, those of foreign topics too.
func (a *Admin) catalogue(role schemas.Role) (entries []schemas.Entry) {
	for _, e := range schemas.Catalogue(a.cfg.laneNames()...) {
		if e.Reads(role) {
			entries = append(entries, e)
		}
	}
	for _, name := range a.cfg.Foreign {
		if role == schemas.RoleIngester {
			entries = append(entries, schemas.Entry{Topic: schemas.Foreign(name), Class: schemas.High, Readers: []schemas.Role{role}})
		}
	}
	return entries
}

// EndOffsets returns, for each partition of topic, the offset that its next record will
// have; while a transaction is open, the offset at which it begins.
func (a *Admin) EndOffsets(ctx context.Context, topic schemas.Topic) (map[int32]int64, error) {
	_, ends, err := bounds(ctx, a.adm, a.cfg.topic(topic))
	if err != nil {
		return nil, err
	}
	return ends[a.cfg.topic(topic)], nil
}

// Lag returns for each role how many offsets lie between what its group has committed and
// the ends of all topics that the catalogue has it read; where it has committed
// nothing, from the start of the log. Offsets that hold no record count too, until
// the group has gone past them. What waits in a delay lane is not lag of the role that
// it comes back to, but of the delayer.
func (a *Admin) Lag(ctx context.Context, roles ...schemas.Role) (map[schemas.Role]int64, error) {
	lag := map[schemas.Role]int64{}
	for _, role := range roles {
		var topics []string
		for _, e := range a.catalogue(role) {
			topics = append(topics, a.cfg.topic(e.Topic))
		}
		if lag[role] = 0; len(topics) == 0 {
			continue
		}
		// First what was committed: what is committed meanwhile must not hide what was not.
		done, err := a.committed(ctx, role, topics...)
		if err != nil {
			return nil, err
		}
		starts, ends, err := bounds(ctx, a.adm, topics...)
		if err != nil {
			return nil, err
		}
		lag[role] = behind(starts, ends, done)
	}
	return lag, nil
}

// behind returns how many offsets lie between done, or starts where there is none, and ends.
func behind(starts, ends, done offsets) (n int64) {
	for topic, ps := range ends {
		at := positions(starts[topic], ps, done[topic])
		for id, end := range ps {
			n += max(end-at[id], 0)
		}
	}
	return n
}
