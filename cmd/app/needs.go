package app

import (
	"slices"

	"github.com/millrace/millrace/schemas"
)

// needs are what the roles of a process use besides Kafka.
type needs struct {
	clickhouse bool
	stores     bool // the stores' bytes, and not only what the configuration says of them
	policies   bool
	incidents  bool // those of copies, and not only what is observed here
}

func needsOf(roles []schemas.Role) needs {
	return needs{slices.ContainsFunc(roles, readsClickHouse), slices.ContainsFunc(roles, touchesStores),
		slices.ContainsFunc(roles, appliesPolicies), slices.Contains(roles, schemas.RoleSteward)}
}

// table reports whether what the roles do depends on each record of a topic that the process follows by a table.
func (n needs) table(topic schemas.Topic) bool {
	switch topic {
	case schemas.Policies:
		return n.policies
	case schemas.Incidents:
		return n.incidents
	}
	return true
}

// readsClickHouse says whether a role reads or writes ClickHouse.
func readsClickHouse(role schemas.Role) bool {
	switch role {
	case schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleChecker, schemas.RoleSteward, schemas.RoleSweeper,
		schemas.RoleSink, schemas.RoleState:
		return true
	}
	return false
}

// touchesStores says whether a role reads or writes in stores.
func touchesStores(role schemas.Role) bool {
	switch role {
	case schemas.RoleIngester, schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleChecker:
		return true
	}
	return false
}

// appliesPolicies reports whether what a role does depends on policies.
func appliesPolicies(role schemas.Role) bool {
	switch role {
	case schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleSteward, schemas.RoleSweeper:
		return true
	}
	return false
}
