package core

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

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/client"
)

// OffsetsSweep is the sweep name of the checkpoints that hold committed offsets of groups. Their split is the group.
const OffsetsSweep = "positions"

// OffsetsKey is the record key of a group's checkpoint.
func OffsetsKey(group string) string { return schemas.Key(OffsetsSweep, group) }

// SavedOffsets holds the committed offsets of a group in one topic, as saved in a checkpoint. Brokers delete
// the offsets of a group that has had no member for a week (offsets.retention.minutes).
type SavedOffsets struct {
	ID      string          `json:"id"` // topic id, which changes when the topic is deleted and recreated
	Offsets map[int32]int64 `json:"offsets"`
}

// Merge returns the offsets to save for the topic with this id: the committed offsets and, for partitions
// without a commit, the saved ones of the same topic. A group that was restored from its checkpoint commits only
// the partitions in which it handles records.
func (k SavedOffsets) Merge(id string, done map[int32]int64) SavedOffsets {
	all := map[int32]int64{}
	if k.ID == id {
		maps.Copy(all, k.Offsets)
	}
	maps.Copy(all, done)
	return SavedOffsets{id, all}
}

// Equal reports whether k and other are of the same topic and have the same offsets.
func (k SavedOffsets) Equal(other SavedOffsets) bool {
	return k.ID == other.ID && maps.Equal(k.Offsets, other.Offsets)
}

// RestoreOffsets returns the function that sets the start offsets of partitions that are assigned to a member of
// group. For a partition without a commit that is the offset in the group's checkpoint, if the topic is the same
// one, and otherwise the log start. On an error the client retries, and reads nothing until then.
func RestoreOffsets(cfg client.Config, group string) func(
	context.Context, map[string]map[int32]kgo.Offset,
) (map[string]map[int32]kgo.Offset, error) {
	return func(ctx context.Context, at map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
		if !slices.ContainsFunc(slices.Collect(maps.Values(at)), uncommitted) {
			return at, nil
		}
		cl, err := cfg.NewClient("admin")
		if err != nil {
			return nil, err
		}
		defer cl.Close()
		if err := restoreSavedOffsets(ctx, cfg, cl, group, at); err != nil {
			return nil, fmt.Errorf("look up the saved offsets of group %s: %w", group, err)
		}
		return at, nil
	}
}

// restoreSavedOffsets sets the offsets in at for partitions without a commit of group from its checkpoint.
func restoreSavedOffsets(
	ctx context.Context, cfg client.Config, cl *kgo.Client, group string, at map[string]map[int32]kgo.Offset,
) error {
	saved, err := ReadSavedOffsets(ctx, cfg, cl)
	if err != nil {
		return err
	}
	was := map[string]SavedOffsets{}
	for topic, offsets := range at {
		if k, is := saved[OffsetsKey(group)][topic]; is && uncommitted(offsets) {
			was[topic] = k
		}
	}
	if len(was) == 0 {
		return nil
	}
	names := slices.Collect(maps.Keys(was))
	ids, err := TopicIDs(ctx, cl, names...)
	if err != nil {
		return err
	}
	starts, _, err := Bounds(ctx, kadm.NewClient(cl), names...)
	if err != nil {
		return err
	}
	for topic, k := range was {
		log := cfg.Logger().With("group", group, "topic", topic)
		switch now := ids[topic]; {
		case now == (TopicID{}): // this broker does not know the topic yet
			return fmt.Errorf("look up topic %s: %w", topic, kerr.UnknownTopicOrPartition)
		case now.Err != nil:
			return now.Err
		case now.ID != k.ID:
			log.Warn("read recreated topic from its start")
			continue
		}
		for id, o := range at[topic] {
			if from, ok := k.Offsets[id]; ok && o.EpochOffset().Offset < 0 {
				if client.IsPassThrough(cfg.SchemaTopic(topic)) { // trimmed up to the commit, which may be after the checkpoint
					from = max(from, starts[topic][id])
				}
				at[topic][id] = kgo.NewOffset().At(from)
				log.Warn("restore offset of a group from its checkpoint", "partition", id, "offset", from)
			}
		}
	}
	return nil
}

// uncommitted reports whether a group has committed nothing for some partition of a topic.
func uncommitted(offsets map[int32]kgo.Offset) bool {
	for _, o := range offsets {
		if o.EpochOffset().Offset < 0 {
			return true
		}
	}
	return false
}

// ReadSavedOffsets returns the offsets in the latest checkpoint of each group, by key and topic. A checkpoint
// that cannot be read is skipped, and the one before it counts: the group then handles some records again, and no
// operator has to intervene.
func ReadSavedOffsets(
	ctx context.Context, cfg client.Config, cl *kgo.Client,
) (map[string]map[string]SavedOffsets, error) {
	name := cfg.Topic(schemas.Checkpoints)
	ids, err := TopicIDs(ctx, cl, name)
	switch there := ids[name]; {
	case err != nil:
		return nil, err
	case there == (TopicID{}): // no checkpoints yet
		return nil, nil
	case there.Err != nil && !errors.Is(there.Err, errNoTopicIDs):
		return nil, there.Err
	}
	parts, err := TopicRanges(ctx, kadm.NewClient(cl), name)
	if err != nil {
		return nil, err
	}
	saved := map[string]map[string]SavedOffsets{}
	log := cfg.Logger().With("topic", name)
	s := Scanner{Config: cfg, Topic: name, onSkip: func(id int32, batch Range, err error) {
		log.Error("skip unreadable batch of checkpoints: groups without offsets restart from older offsets",
			"partition", id, "offset", batch.From, "next", batch.To, "err", err)
	}}
	err = s.Scan(ctx, parts, func(rec *kgo.Record, _ uint32) error {
		key := string(rec.Key)
		if !strings.HasPrefix(key, OffsetsKey("")) {
			return nil
		}
		var of map[string]SavedOffsets
		if rec.Value != nil {
			body, err := schemas.Decode(schemas.Checkpoints, HeadersOf(rec), rec.Value)
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
