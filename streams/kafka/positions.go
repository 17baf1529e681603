package kafka

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Positions returns a checkpoint for each group of the catalogue that has moved since its latest checkpoint.
func (a *Admin) Positions(ctx context.Context) ([]schemas.Message, error) {
	saved, err := savedPositions(ctx, a.cfg, a.cl)
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
			topics = append(topics, a.cfg.Topic(e.Topic))
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
