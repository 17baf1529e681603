package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// keptSweep is the name under which the positions of groups are in the topic checkpoints; the morsel is the group.
const keptSweep = "positions"

// A keptTopic is how far a group was in a topic, as its checkpoint says: the brokers forget what a group has committed
// that has had no member for a week (offsets.retention.minutes).
type keptTopic struct {
	ID      string          `json:"id"` // of the topic: one of the same name that is made again has another
	Offsets map[int32]int64 `json:"offsets"`
}

// Positions returns a checkpoint for each group of the catalogue that has committed anything: where it is in each of its
// topics. Two calls return the same, but for the time, if no group has moved.
func (a *Admin) Positions(ctx context.Context) ([]schemas.Message, error) {
	before, err := a.ids(ctx)
	if err != nil {
		return nil, err
	}
	kept := map[string]map[string]keptTopic{} // by group and topic
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
			for _, topic := range topics {
				if len(done[topic]) == 0 {
					continue
				}
				if kept[group] == nil {
					kept[group] = map[string]keptTopic{}
				}
				kept[group][topic] = keptTopic{before[topic], done[topic]}
			}
		}
	}
	after, err := a.ids(ctx)
	if err != nil {
		return nil, err
	}
	var all []schemas.Message
	for _, group := range slices.Sorted(maps.Keys(kept)) {
		maps.DeleteFunc(kept[group], func(topic string, k keptTopic) bool { return k.ID == "" || k.ID != after[topic] }) // made again meanwhile
		cursor, err := json.Marshal(kept[group])
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
		kept, ids, err := c.kept(ctx, group)
		if err != nil {
			return nil, fmt.Errorf("look up where group %s was: %w", group, err)
		}
		for topic, offsets := range at {
			k, is := kept[topic]
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

// kept returns how far a group was in which topics by its newest checkpoint, and the ids of the topics that are there.
func (c Config) kept(ctx context.Context, group string) (kept map[string]keptTopic, ids map[string]string, err error) {
	a, err := NewAdmin(c)
	if err != nil {
		return nil, nil, err
	}
	defer a.Close()
	if ids, err = a.ids(ctx); err != nil {
		return nil, nil, err
	}
	name := c.topic(schemas.Checkpoints)
	if ids[name] == "" { // nothing is kept
		return nil, nil, nil
	}
	parts, err := spans(ctx, a.adm, name)
	if err != nil {
		return nil, nil, err
	}
	var faulty error
	key := schemas.Key(keptSweep, group)
	err = scan(ctx, c, name, parts, func(rec *kgo.Record, _ uint32) error {
		if string(rec.Key) != key {
			return nil
		}
		kept, faulty = nil, nil
		if rec.Value == nil {
			return nil
		}
		body, err := schemas.Decode(schemas.Checkpoints, headersOf(rec), rec.Value)
		if err == nil {
			err = json.Unmarshal(body.(*pb.Checkpoint).GetCursor(), &kept)
		}
		faulty = err
		return nil
	})
	if err := errors.Join(err, faulty); err != nil {
		return nil, nil, err
	}
	return kept, ids, nil
}
