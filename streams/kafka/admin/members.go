package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// Unserved returns the roles that no process runs: their groups have no members. A process that was killed
// counts as a member until its session times out.
func (a *Admin) Unserved(ctx context.Context, roles ...schemas.Role) ([]schemas.Role, error) {
	listed, err := a.adm.ListGroups(ctx)
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	var unserved []schemas.Role
	for _, role := range roles {
		served := false
		for _, group := range a.groups(role) {
			state := listed[group].State // empty: no such group
			served = served || state != "" && state != "Empty" && state != "Dead"
		}
		if !served {
			unserved = append(unserved, role)
		}
	}
	return unserved, nil
}

// groups returns the consumer groups of a role. The sweeper reads no topic, and has the group of kafka.Ownership.
func (a *Admin) groups(role schemas.Role) (groups []string) {
	if role == schemas.RoleSweeper {
		return []string{a.cfg.Group(role, schemas.High)}
	}
	for _, e := range a.entries(role) {
		groups = append(groups, a.cfg.Group(role, client.ClassOf(e, role)))
	}
	return groups
}

// A JoinWait describes the groups that a process waits to join while they have other members.
type JoinWait struct {
	Groups, Hosts []string // sorted; Hosts are the hosts of the other members
	// Session is the session timeout: how long a member that was killed holds up the group. 0: set by the brokers.
	Session time.Duration
}

// JoinWait returns those groups of states that this process has not joined and that have other members.
func (a *Admin) JoinWait(ctx context.Context, states []metrics.RoleState) (JoinWait, error) {
	w := JoinWait{Session: a.cfg.Session()}
	var groups []string
	for _, s := range states {
		if group := a.cfg.Group(s.Role, s.Class); !s.Member && slices.Contains(a.groups(s.Role), group) {
			groups = append(groups, group)
		}
	}
	if len(groups) == 0 {
		return w, nil
	}
	hosts, err := a.hosts(ctx, groups)
	if err != nil {
		return w, fmt.Errorf("describe groups: %w", err)
	}
	for group, of := range hosts {
		if len(of) > 0 {
			w.Groups = append(w.Groups, group)
			w.Hosts = append(w.Hosts, of...)
		}
	}
	slices.Sort(w.Groups)
	slices.Sort(w.Hosts)
	w.Hosts = slices.Compact(w.Hosts)
	return w, nil
}

// hosts returns the hosts of the members of groups. A group that does not exist has none.
func (a *Admin) hosts(ctx context.Context, groups []string) (map[string][]string, error) {
	hosts := map[string][]string{}
	if a.cfg.ServerSide {
		described, err := a.adm.DescribeConsumerGroups(ctx, groups...)
		for _, g := range described {
			for _, m := range g.Members {
				hosts[g.Group] = append(hosts[g.Group], m.ClientHost)
			}
		}
		return hosts, err
	}
	described, err := a.adm.DescribeGroups(ctx, groups...)
	for _, g := range described {
		for _, m := range g.Members {
			hosts[g.Group] = append(hosts[g.Group], m.ClientHost)
		}
	}
	return hosts, err
}

// Outstanding reads the current ends of the topics that roles read. It returns a function that counts the records
// below these ends that the groups of roles have not committed.
func (a *Admin) Outstanding(ctx context.Context, roles ...schemas.Role) (func(context.Context) (int64, error), error) {
	topics := map[schemas.Role][]string{}
	var all []string
	for _, role := range roles {
		topics[role] = a.topicsOf(role)
		all = append(all, topics[role]...)
	}
	slices.Sort(all)
	starts, ends, err := core.Bounds(ctx, a.adm, slices.Compact(all)...)
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
				n += totalLag(starts, core.Offsets{topic: ends[topic]}, done)
			}
		}
		return n, nil
	}, nil
}
