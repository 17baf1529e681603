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

// positionsSweep is the sweep name of the checkpoints that hold positions of groups. Their morsel is the group.
const positionsSweep = "positions"

// positionsKey is the record key of a group's checkpoint.
func positionsKey(group string) string { return schemas.Key(positionsSweep, group) }

// topicPositions holds the committed offsets of a group in one topic, as saved in a checkpoint. Brokers delete
// the offsets of a group that has had no member for a week (offsets.retention.minutes).
type topicPositions struct {
	ID      string          `json:"id"` // topic id, which changes when the topic is deleted and recreated
	Offsets map[int32]int64 `json:"offsets"`
}

// merge returns the positions to save for the topic with this id: the committed offsets and, for partitions
// without a commit, the saved ones of the same topic. A group that was restored from its checkpoint commits only
// the partitions in which it handles records.
func (k topicPositions) merge(id string, done map[int32]int64) topicPositions {
	all := map[int32]int64{}
	if k.ID == id {
		maps.Copy(all, k.Offsets)
	}
	maps.Copy(all, done)
	return topicPositions{id, all}
}

// Positions returns a checkpoint for each group of the catalogue that has moved since its latest checkpoint.
func (a *Admin) Positions(ctx context.Context) ([]schemas.Message, error) {
	saved, err := a.savedPositions(ctx)
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
				k := saved[positionsKey(group)][topic]
				if t := before[topic]; t.err == nil {
					k = k.merge(t.id, done[topic])
				} // otherwise the saved positions stay
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
		maps.DeleteFunc(now[group], func(topic string, k topicPositions) bool { // recreated meanwhile
			return after[topic].err == nil && after[topic].id != k.ID
		})
		if maps.EqualFunc(now[group], saved[positionsKey(group)], topicPositions.equal) {
			continue
		}
		cursor, err := json.Marshal(now[group])
		if err != nil {
			return nil, fmt.Errorf("encode the positions of group %s: %w", group, err)
		}
		all = append(all, schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{
			Id:    schemas.ID("checkpoint", positionsSweep, group, string(cursor)),
			Sweep: positionsSweep, Morsel: group, Cursor: cursor,
			Time: timestamppb.Now(),
		}})
	}
	return all, nil
}

func (k topicPositions) equal(other topicPositions) bool {
	return k.ID == other.ID && maps.Equal(k.Offsets, other.Offsets)
}

// readerRoles returns the roles that read a topic of the catalogue or a foreign topic.
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

// A topicID is the id of the topic with some name. An empty id without an error means that there is no such topic.
type topicID struct {
	id  string
	err error
}

// errNoTopicIDs is returned for brokers without topic ids: Kafka before 2.8, and some other implementations.
var errNoTopicIDs = errors.New("the brokers report no topic ids")

// topicIDs returns the ids of topics. It asks for them by name: a list of all topics leaves out those that the
// client may not describe, and kadm answers from a cache that may be seconds old.
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
		ids[name] = topicID{err: fmt.Errorf("look up topic %s: it is missing in the response", name)}
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

// restoreOffsets returns the function that sets the start offsets of partitions that are assigned to a member of
// group. For a partition without a commit that is the offset in the group's checkpoint, if the topic is the same
// one, and otherwise the log start. On an error the client retries, and reads nothing until then.
func (c Config) restoreOffsets(group string) func(
	context.Context, map[string]map[int32]kgo.Offset,
) (map[string]map[int32]kgo.Offset, error) {
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
			return nil, fmt.Errorf("look up the saved positions of group %s: %w", group, err)
		}
		return at, nil
	}
}

// restorePositions sets the offsets in at for partitions without a commit of group from its checkpoint.
func (a *Admin) restorePositions(ctx context.Context, group string, at map[string]map[int32]kgo.Offset) error {
	saved, err := a.savedPositions(ctx)
	if err != nil {
		return err
	}
	was := map[string]topicPositions{}
	for topic, offsets := range at {
		if k, is := saved[positionsKey(group)][topic]; is && uncommitted(offsets) {
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
		case now == (topicID{}): // this broker does not know the topic yet
			return fmt.Errorf("look up topic %s: %w", topic, kerr.UnknownTopicOrPartition)
		case now.err != nil:
			return now.err
		case now.id != k.ID:
			log.Warn("read recreated topic from its start")
			continue
		}
		for id, o := range at[topic] {
			if from, ok := k.Offsets[id]; ok && o.EpochOffset().Offset < 0 {
				if isPassThrough(a.cfg.schemaTopic(topic)) { // trimmed up to the commit, which may be after the checkpoint
					from = max(from, starts[topic][id])
				}
				at[topic][id] = kgo.NewOffset().At(from)
				log.Warn("restore position of a group from its checkpoint", "partition", id, "offset", from)
			}
		}
	}
	return nil
}

// isPassThrough reports whether records only pass through a topic. The trimmer deletes them as soon as they are
// committed.
func isPassThrough(t schemas.Topic) bool { return isAgain(t) || strings.HasPrefix(string(t), "delay.") }

// uncommitted reports whether a group has committed nothing for some partition of a topic.
func uncommitted(offsets map[int32]kgo.Offset) bool {
	for _, o := range offsets {
		if o.EpochOffset().Offset < 0 {
			return true
		}
	}
	return false
}

// savedPositions returns the positions in the latest checkpoint of each group, by key and topic. A checkpoint
// that cannot be read is skipped, and the one before it counts: the group then handles some records again, and no
// operator has to intervene.
func (a *Admin) savedPositions(ctx context.Context) (map[string]map[string]topicPositions, error) {
	name := a.cfg.topic(schemas.Checkpoints)
	ids, err := topicIDs(ctx, a.cl, name)
	switch there := ids[name]; {
	case err != nil:
		return nil, err
	case there == (topicID{}): // no checkpoints yet
		return nil, nil
	case there.err != nil && !errors.Is(there.err, errNoTopicIDs):
		return nil, there.err
	}
	parts, err := topicRanges(ctx, a.adm, name)
	if err != nil {
		return nil, err
	}
	saved := map[string]map[string]topicPositions{}
	log := a.cfg.logger().With("topic", name)
	s := scanner{cfg: a.cfg, topic: name, onSkip: func(id int32, batch offsetRange, err error) {
		log.Error("skip unreadable batch of checkpoints: groups without offsets restart from older positions",
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
				log.Error("skip unreadable checkpoint: its group restarts from an older one if it has no offsets",
					"partition", rec.Partition, "offset", rec.Offset, "key", key, "err", err)
				return nil
			}
		}
		saved[key] = of
		return nil
	})
	return saved, err
}
