package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// OffsetCheckpoints returns a checkpoint for each group of the catalogue that has moved since its latest checkpoint.
func (a *Admin) OffsetCheckpoints(ctx context.Context) ([]schemas.Message, error) {
	saved, err := core.ReadSavedOffsets(ctx, a.cfg, a.cl)
	if err != nil {
		return nil, err
	}
	names := append(a.catalogueNames(), a.cfg.Foreign...)
	before, err := core.TopicIDs(ctx, a.cl, names...)
	if err != nil {
		return nil, err
	}
	now := map[string]map[string]core.SavedOffsets{} // by group and topic
	for _, role := range a.readerRoles() {
		topics := a.topicsOf(role)
		done, err := a.committed(ctx, role, topics...)
		if err != nil {
			return nil, err
		}
		for group, topics := range a.groupTopics(role, topics) {
			now[group] = map[string]core.SavedOffsets{}
			for _, topic := range topics {
				k := saved[core.OffsetsKey(group)][topic]
				if t := before[topic]; t.Err == nil {
					k = k.Merge(t.ID, done[topic])
				} // otherwise the saved offsets stay
				if k.ID != "" && len(k.Offsets) > 0 {
					now[group][topic] = k
				}
			}
		}
	}
	after, err := core.TopicIDs(ctx, a.cl, names...)
	if err != nil {
		return nil, err
	}
	var all []schemas.Message
	for _, group := range slices.Sorted(maps.Keys(now)) {
		maps.DeleteFunc(now[group], func(topic string, k core.SavedOffsets) bool { // recreated meanwhile
			return after[topic].Err == nil && after[topic].ID != k.ID
		})
		if maps.EqualFunc(now[group], saved[core.OffsetsKey(group)], core.SavedOffsets.Equal) {
			continue
		}
		cursor, err := json.Marshal(now[group])
		if err != nil {
			return nil, fmt.Errorf("encode the offsets of group %s: %w", group, err)
		}
		all = append(all, schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{
			Id:    schemas.ID("checkpoint", core.OffsetsSweep, group, string(cursor)),
			Sweep: core.OffsetsSweep, Split: group, Cursor: cursor,
			Time: timestamppb.Now(),
		}})
	}
	return all, nil
}

// readerRoles returns the roles that read a topic of the catalogue or a foreign topic.
func (a *Admin) readerRoles() []schemas.Role {
	roles := map[schemas.Role]bool{schemas.RoleIngester: len(a.cfg.Foreign) > 0}
	for _, e := range schemas.Catalogue(a.cfg.LaneNames()...) {
		for _, role := range e.Readers {
			roles[role] = true
		}
	}
	maps.DeleteFunc(roles, func(_ schemas.Role, reads bool) bool { return !reads })
	return slices.Sorted(maps.Keys(roles))
}
