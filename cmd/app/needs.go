package app

import (
	"slices"

	"github.com/millrace/millrace/schemas"
)

// needs are the dependencies of a process's roles besides Kafka.
type needs struct {
	clickhouse bool
	engine     bool // not ready without ClickHouse; the ingester accepts events, and claims wait
	stores     bool // access to the stores, not only their configuration
	policies   bool
	incidents  bool // incidents of copies, not only those that this process opens
}

func needsOf(roles []schemas.Role) needs {
	return needs{slices.ContainsFunc(roles, readsClickHouse),
		slices.ContainsFunc(roles, func(r schemas.Role) bool { return r != schemas.RoleIngester && readsClickHouse(r) }),
		slices.ContainsFunc(roles, touchesStores),
		slices.ContainsFunc(roles, appliesPolicies), slices.Contains(roles, schemas.RoleSteward)}
}

// table reports whether the roles depend on every record of the table of a topic.
func (n needs) table(topic schemas.Topic) bool {
	switch topic {
	case schemas.Policies:
		return n.policies
	case schemas.Accounts:
		return n.stores || n.policies
	case schemas.Incidents:
		return n.incidents
	case schemas.Checkpoints: // what is lost is counted, or done, again
		return false
	}
	return true
}

// readsClickHouse reports whether a role reads or writes ClickHouse.
func readsClickHouse(role schemas.Role) bool {
	return touchesStores(role) || slices.Contains(
		[]schemas.Role{schemas.RoleSteward, schemas.RoleSink, schemas.RoleState}, role)
}

// touchesStores reports whether a role reads or writes in stores.
func touchesStores(role schemas.Role) bool {
	return slices.Contains([]schemas.Role{schemas.RoleIngester, schemas.RoleCopier, schemas.RoleDeleter,
		schemas.RoleChecker, schemas.RoleSweeper}, role)
}

// appliesPolicies reports whether a role depends on policies.
func appliesPolicies(role schemas.Role) bool {
	return touchesStores(role) || role == schemas.RolePlanner || role == schemas.RoleSteward
}
