package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// keptSweep is the name under which the positions of groups are in the topic checkpoints; the morsel is the group.
const keptSweep = "positions"

// keptKey is the key of a group's checkpoint.
func keptKey(group string) string { return schemas.Key(keptSweep, group) }

// A keptTopic is how far a group was in a topic, as its checkpoint says: the brokers forget what a group has committed
// that has had no member for a week (offsets.retention.minutes).
type keptTopic struct {
	ID      string          `json:"id"` // of the topic: one of the same name that is made again has another
	Offsets map[int32]int64 `json:"offsets"`
}

// merge returns what is kept of the topic id: what a group has committed and, of partitions without a commit, what was kept
// of the same topic. A group that goes on from its checkpoint commits only partitions of which it handles something.
func (k keptTopic) merge(id string, done map[int32]int64) keptTopic {
	all := map[int32]int64{}
	if k.ID == id {
		maps.Copy(all, k.Offsets)
	}
	maps.Copy(all, done)
	return keptTopic{id, all}
}

// Positions returns a checkpoint for each group of the catalogue that is not where its newest checkpoint says.
func (a *Admin) Positions(ctx context.Context) ([]schemas.Message, error) {
	kept, err := a.kept(ctx)
	if err != nil {
		return nil, err
	}
	before, err := a.ids(ctx)
	if err != nil {
		return nil, err
	}
	now := map[string]map[string]keptTopic{} // by group and topic
	for _, role := range a.readers() {
		var topics []string
		for _, e := range a.catalogue(role) {
			topics = append(topics, a.cfg.topic(e.Topic))
		}
		done, err := a.committed(ctx, role, topics...)
		if err != nil {
			return nil, err
		}
		for group, topics := range a.groups(role, topics) {
			now[group] = map[string]keptTopic{}
			for _, topic := range topics {
				if k := kept[keptKey(group)][topic].merge(before[topic], done[topic]); k.ID != "" && len(k.Offsets) > 0 {
					now[group][topic] = k
				}
			}
		}
	}
	after, err := a.ids(ctx)
	if err != nil {
		return nil, err
	}
	var all []schemas.Message
	for _, group := range slices.Sorted(maps.Keys(now)) {
		maps.DeleteFunc(now[group], func(topic string, k keptTopic) bool { return k.ID != after[topic] }) // made again meanwhile
		if maps.EqualFunc(now[group], kept[keptKey(group)], keptTopic.equal) {
			continue
		}
		cursor, err := json.Marshal(now[group])
		if err != nil {
			return nil, fmt.Errorf("encode the positions of group %s: %w", group, err)
		}
		all = append(all, schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{
			Id: schemas.ID("checkpoint", keptSweep, group, string(cursor)), Sweep: keptSweep, Morsel: group, Cursor: cursor,
			Time: timestamppb.Now(),
		}})
	}
	return all, nil
}

func (k keptTopic) equal(other keptTopic) bool {
	return k.ID == other.ID && maps.Equal(k.Offsets, other.Offsets)
}

// readers returns the roles that read a topic of the catalogue or of others.
func (a *Admin) readers() []schemas.Role {
	roles := map[schemas.Role]bool{schemas.RoleIngester: len(a.cfg.Foreign) > 0}
	for _, e := range schemas.Catalogue(a.cfg.laneNames()...) {
		for _, role := range e.Readers {
			roles[role] = true
		}
	}
	maps.DeleteFunc(roles, func(_ schemas.Role, reads bool) bool { return !reads })
	return slices.Sorted(maps.Keys(roles))
}

// ids returns the ids of all topics that are there.
func (a *Admin) ids(ctx context.Context) (map[string]string, error) {
	topics, err := a.adm.ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	ids := map[string]string{}
	for _, t := range topics {
		if t.Err == nil && t.ID != (kadm.TopicID{}) {
			ids[t.Topic] = t.ID.String()
		}
	}
	return ids, nil
}

// resume returns the function that says where a member of group begins to read partitions that were assigned to it.
// Where the group has committed nothing, that is where its checkpoint says that it was, in the same topic; else the start
// of the log. An error has the member ask again: while it is not known, nothing is read.
func (c Config) resume(group string) func(context.Context, map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	return func(ctx context.Context, at map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
		if !slices.ContainsFunc(slices.Collect(maps.Values(at)), uncommitted) {
			return at, nil
		}
		a, err := NewAdmin(c)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		kept, err := a.kept(ctx)
		if err != nil {
			return nil, fmt.Errorf("look up where group %s was: %w", group, err)
		}
		ids, err := a.ids(ctx)
		if err != nil {
			return nil, fmt.Errorf("look up where group %s was: %w", group, err)
		}
		for topic, offsets := range at {
			k, is := kept[keptKey(group)][topic]
			if !is || !uncommitted(offsets) {
				continue
			}
			if k.ID != ids[topic] {
				c.logger().Warn("read a topic from its start: it was made again since the group read it", "group", group, "topic", topic)
				continue
			}
			for id, o := range offsets {
				if was, ok := k.Offsets[id]; ok && o.EpochOffset().Offset < 0 {
					offsets[id] = kgo.NewOffset().At(was)
					c.logger().Warn("go on from a checkpoint: the brokers have no offset of the group", "group", group,
						"topic", topic, "partition", id, "offset", was)
				}
			}
		}
		return at, nil
	}
}

// uncommitted reports whether a group has committed nothing of a partition of a topic.
func uncommitted(offsets map[int32]kgo.Offset) bool {
	for _, o := range offsets {
		if o.EpochOffset().Offset < 0 {
			return true
		}
	}
	return false
}

// kept returns what the newest checkpoints of all groups say, by key and topic.
func (a *Admin) kept(ctx context.Context) (map[string]map[string]keptTopic, error) {
	name := a.cfg.topic(schemas.Checkpoints)
	topics, err := a.adm.ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	if !topics.Has(name) { // nothing is kept
		return nil, nil
	}
	parts, err := spans(ctx, a.adm, name)
	if err != nil {
		return nil, err
	}
	var (
		kept   = map[string]map[string]keptTopic{}
		faulty = map[string]error{}
	)
	err = scan(ctx, a.cfg, name, parts, func(rec *kgo.Record, _ uint32) error {
		key := string(rec.Key)
		if !strings.HasPrefix(key, keptKey("")) {
			return nil
		}
		delete(faulty, key)
		var of map[string]keptTopic
		if rec.Value != nil {
			body, err := schemas.Decode(schemas.Checkpoints, headersOf(rec), rec.Value)
			if err == nil {
				err = json.Unmarshal(body.(*pb.Checkpoint).GetCursor(), &of)
			}
			if err != nil {
				faulty[key] = err
			}
		}
		kept[key] = of
		return nil
	})
	return kept, errors.Join(append(slices.Collect(maps.Values(faulty)), err)...)
}
