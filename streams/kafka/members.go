package kafka

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/schemas"
)

// Unserved returns those of roles that no process runs: none of their groups has a member. A process that was killed
// counts until its session has timed out.
func (a *Admin) Unserved(ctx context.Context, roles ...schemas.Role) ([]schemas.Role, error) {
	listed, err := a.adm.ListGroups(ctx)
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	var unserved []schemas.Role
	for _, role := range roles {
		served := false
		for _, e := range a.catalogue(role) {
			state := listed[a.cfg.group(role, classOf(e, role))].State // empty: there is no such group
			served = served || state != "" && state != "Empty" && state != "Dead"
		}
		if !served {
			unserved = append(unserved, role)
		}
	}
	return unserved, nil
}

// Outstanding notes where the topics that roles read end now, and returns a function that counts how many of the
// records below these ends the roles' groups have not committed.
func (a *Admin) Outstanding(ctx context.Context, roles ...schemas.Role) (func(context.Context) (int64, error), error) {
	topics := map[schemas.Role][]string{}
	var all []string
	for _, role := range roles {
		for _, e := range a.catalogue(role) {
			topics[role] = append(topics[role], a.cfg.topic(e.Topic))
		}
		all = append(all, topics[role]...)
	}
	slices.Sort(all)
	starts, ends, err := bounds(ctx, a.adm, slices.Compact(all)...)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (n int64, err error) {
		for role, read := range topics {
			done, err := a.committed(ctx, role, read...)
			if err != nil {
				return 0, err
			}
			for _, topic := range read {
				n += behind(starts, offsets{topic: ends[topic]}, done)
			}
		}
		return n, nil
	}, nil
}
