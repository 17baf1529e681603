package app

import (
	"testing"

	"github.com/millrace/millrace/schemas"
)

// The dependencies of each role.
func TestNeeds(t *testing.T) {
	for role, want := range map[schemas.Role]needs{
		schemas.RolePlanner: {policies: true}, schemas.RoleDelayer: {},
		schemas.RoleSteward:  {clickhouse: true, engine: true, policies: true, incidents: true},
		schemas.RoleSweeper:  {clickhouse: true, engine: true, stores: true, policies: true},
		schemas.RoleSink:     {clickhouse: true, engine: true},
		schemas.RoleIngester: {clickhouse: true, stores: true, policies: true},
		schemas.RoleChecker:  {clickhouse: true, engine: true, stores: true, policies: true},
		schemas.RoleCopier:   {clickhouse: true, engine: true, stores: true, policies: true},
		schemas.RoleDeleter:  {clickhouse: true, engine: true, stores: true, policies: true},
	} {
		if got := needsOf([]schemas.Role{role}); got != want {
			t.Errorf("%s: got %+v, want %+v", role, got, want)
		}
	}
	if got, want := needsOf(Roles()), (needs{clickhouse: true, engine: true, stores: true,
		policies: true, incidents: true}); got != want {
		t.Errorf("all: got %+v, want %+v", got, want)
	}
}
