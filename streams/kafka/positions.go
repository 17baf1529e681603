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
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// keptSweep is the name under which the positions of groups are in the topic checkpoints; the morsel is the group.
const positionsSweep = "positions"

// keptKey is the key of a group's checkpoint.
func positionsKey(group string) string { return schemas.Key(positionsSweep, group) }

// A keptTopic is how far a group was in a topic, as its checkpoint says: the brokers forget what a group has committed
// that has had no member for a week (offsets.retention.minutes).
type topicPositions struct {
	ID      string          `json:"id"` // of the topic: one of the same name that is made again has another
	Offsets map[int32]int64 `json:"offsets"`
}

// merge returns what is kept of the topic id: what a group has committed and, of partitions without a commit, what was kept
// of the same topic. A group that goes on from its checkpoint commits only partitions of which it handles something.
func (k topicPositions) merge(id string, done map[int32]int64) topicPositions {
	all := map[int32]int64{}
	if k.ID == id {
		maps.Copy(all, k.Offsets)
	}
	maps.Copy(all, done)
	return topicPositions{id, all}
}

// Positions returns a checkpoint for each group of the catalogue that is not where its newest checkpoint says.
func (a *Admin) Positions(ctx context.Context) ([]schemas.Message, error) {
	kept, err := a.savedPositions(ctx)
	if err != nil {
		return nil, err
	}
	names := a.allTopicNames()
	before, err := topicIDs(ctx, a.cl, names...)
	if err != nil {
		return nil, err
	}
	now := map[string]map[string]topicPositions{} // by group and topic
	for _, role := range a.readerRoles() {
		var topics []string
		for _, e := range a.entries(role) {
			topics = append(topics, a.cfg.topic(e.Topic))
		}
		done, err := a.committed(ctx, role, topics...)
		if err != nil {
			return nil, err
		}
		for group, topics := range a.groupTopics(role, topics) {
			now[group] = map[string]topicPositions{}
			for _, topic := range topics {
				k := kept[positionsKey(group)][topic]
				if t := before[topic]; t.err == nil {
					k = k.merge(t.id, done[topic])
				} // else it stays what it was
				if k.ID != "" && len(k.Offsets) > 0 {
					now[group][topic] = k
				}
			}
		}
	}
	after, err := topicIDs(ctx, a.cl, names...)
	if err != nil {
		return nil, err
	}
	var all []schemas.Message
	for _, group := range slices.Sorted(maps.Keys(now)) {
		maps.DeleteFunc(now[group], func(topic string, k topicPositions) bool { // made again meanwhile
			return after[topic].err == nil && after[topic].id != k.ID
		})
		if maps.EqualFunc(now[group], kept[positionsKey(group)], topicPositions.equal) {
			continue
		}
		cursor, err := json.Marshal(now[group])
		if err != nil {
			return nil, fmt.Errorf("encode the positions of group %s: %w", group, err)
		}
		all = append(all, schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{
			Id: schemas.ID("checkpoint", positionsSweep, group, string(cursor)), Sweep: positionsSweep, Morsel: group, Cursor: cursor,
			Time: timestamppb.Now(),
		}})
	}
	return all, nil
}

func (k topicPositions) equal(other topicPositions) bool {
	return k.ID == other.ID && maps.Equal(k.Offsets, other.Offsets)
}

// readers returns the roles that read a topic of the catalogue or of others.
func (a *Admin) readerRoles() []schemas.Role {
	roles := map[schemas.Role]bool{schemas.RoleIngester: len(a.cfg.Foreign) > 0}
	for _, e := range schemas.Catalogue(a.cfg.laneNames()...) {
		for _, role := range e.Readers {
			roles[role] = true
		}
	}
	maps.DeleteFunc(roles, func(_ schemas.Role, reads bool) bool { return !reads })
	return slices.Sorted(maps.Keys(roles))
}

// A topicID says which topic has a name: "" without an error is none.
type topicID struct {
	id  string
	err error
}

// errNoID is the error of brokers, older than Kafka 2.8 or others, that have no ids of topics.
var errNoTopicIDs = errors.New("the brokers name no id of the topic")

// topicIDs asks the brokers for topics by name: a list of all topics leaves out those that this client may not describe,
// and kadm's lists may be a few seconds old.
func topicIDs(ctx context.Context, cl *kgo.Client, names ...string) (map[string]topicID, error) {
	req := kmsg.NewPtrMetadataRequest()
	for i := range names {
		req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{Topic: &names[i]})
	}
	if len(req.Topics) == 0 {
		return nil, nil
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, fmt.Errorf("look up topics: %w", err)
	}
	ids := map[string]topicID{}
	for _, name := range names {
		ids[name] = topicID{err: fmt.Errorf("look up topic %s: the brokers say nothing of it", name)}
	}
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			ids[*t.Topic] = topicID{}
		case err != nil:
			ids[*t.Topic] = topicID{err: fmt.Errorf("look up topic %s: %w", *t.Topic, err)}
		case t.TopicID == [16]byte{}:
			ids[*t.Topic] = topicID{err: fmt.Errorf("look up topic %s: %w", *t.Topic, errNoTopicIDs)}
		default:
			ids[*t.Topic] = topicID{id: kadm.TopicID(t.TopicID).String()}
		}
	}
	return ids, nil
}

// resume returns the function that says where a member of group begins to read partitions that were assigned to it.
// Where the group has committed nothing, that is where its checkpoint says that it was, in the same topic; else the start
// of the log. An error has the member ask again: while it is not known, nothing is read.
func (c Config) restoreOffsets(group string) func(context.Context, map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	return func(ctx context.Context, at map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
		if !slices.ContainsFunc(slices.Collect(maps.Values(at)), uncommitted) {
			return at, nil
		}
		a, err := NewAdmin(c)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		if err := a.restorePositions(ctx, group, at); err != nil {
			return nil, fmt.Errorf("look up where group %s was: %w", group, err)
		}
		return at, nil
	}
}

// goOn sets in at, of partitions of which group has committed nothing, where its checkpoint says that it was.
func (a *Admin) restorePositions(ctx context.Context, group string, at map[string]map[int32]kgo.Offset) error {
	kept, err := a.savedPositions(ctx)
	if err != nil {
		return err
	}
	was := map[string]topicPositions{}
	for topic, offsets := range at {
		if k, is := kept[positionsKey(group)][topic]; is && uncommitted(offsets) {
			was[topic] = k
		}
	}
	if len(was) == 0 {
		return nil
	}
	names := slices.Collect(maps.Keys(was))
	ids, err := topicIDs(ctx, a.cl, names...)
	if err != nil {
		return err
	}
	starts, _, err := bounds(ctx, a.adm, names...)
	if err != nil {
		return err
	}
	for topic, k := range was {
		log := a.cfg.logger().With("group", group, "topic", topic)
		switch now := ids[topic]; {
		case now == (topicID{}): // a broker does not know yet what another one has assigned
			return fmt.Errorf("look up topic %s: %w", topic, kerr.UnknownTopicOrPartition)
		case now.err != nil:
			return now.err
		case now.id != k.ID:
			log.Warn("read a topic from its start: it was made again since the group read it")
			continue
		}
		for id, o := range at[topic] {
			if from, ok := k.Offsets[id]; ok && o.EpochOffset().Offset < 0 {
				if isPassThrough(a.cfg.schemaTopic(topic)) { // what the group has committed since the checkpoint is removed at once
					from = max(from, starts[topic][id])
				}
				at[topic][id] = kgo.NewOffset().At(from)
				log.Warn("go on from a checkpoint: the brokers have no offset of the group", "partition", id, "offset", from)
			}
		}
	}
	return nil
}

// passing reports whether the records of a topic come and go: the trimmer keeps none that its readers have committed.
func isPassThrough(t schemas.Topic) bool { return isAgain(t) || strings.HasPrefix(string(t), "delay.") }

// uncommitted reports whether a group has committed nothing of a partition of a topic.
func uncommitted(offsets map[int32]kgo.Offset) bool {
	for _, o := range offsets {
		if o.EpochOffset().Offset < 0 {
			return true
		}
	}
	return false
}

// kept returns what the newest checkpoints of all groups say, by key and topic. One that cannot be read is passed over, and
// the one before counts: groups then handle again what they have handled since, and need no person to go on.
func (a *Admin) savedPositions(ctx context.Context) (map[string]map[string]topicPositions, error) {
	name := a.cfg.topic(schemas.Checkpoints)
	ids, err := topicIDs(ctx, a.cl, name)
	switch there := ids[name]; {
	case err != nil:
		return nil, err
	case there == (topicID{}): // nothing is kept
		return nil, nil
	case there.err != nil && !errors.Is(there.err, errNoTopicIDs):
		return nil, there.err
	}
	parts, err := topicRanges(ctx, a.adm, name)
	if err != nil {
		return nil, err
	}
	kept := map[string]map[string]topicPositions{}
	log := a.cfg.logger().With("topic", name)
	s := scanner{cfg: a.cfg, topic: name, onSkip: func(id int32, batch offsetRange, err error) {
		log.Error("pass over a batch of checkpoints that cannot be read: groups without offsets go on from older positions, or from the start",
			"partition", id, "offset", batch.from, "next", batch.to, "err", err)
	}}
	err = s.scan(ctx, parts, func(rec *kgo.Record, _ uint32) error {
		key := string(rec.Key)
		if !strings.HasPrefix(key, positionsKey("")) {
			return nil
		}
		var of map[string]topicPositions
		if rec.Value != nil {
			body, err := schemas.Decode(schemas.Checkpoints, headersOf(rec), rec.Value)
			if err == nil {
				err = json.Unmarshal(body.(*pb.Checkpoint).GetCursor(), &of)
			}
			if err != nil {
				log.Error("pass over a checkpoint that cannot be read: its group goes on from an older one, if it has to",
					"partition", rec.Partition, "offset", rec.Offset, "key", key, "err", err)
				return nil
			}
		}
		kept[key] = of
		return nil
	})
	return kept, err
}
