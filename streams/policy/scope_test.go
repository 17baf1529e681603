package policy

import "testing"

// The scope of a space agrees with its rules.
func TestScope(t *testing.T) {
	own, others := []Pair{{"1", "2"}}, []Pair{{"1", "3"}}
	d := Document{Spaces: map[string][]Pair{"photos": own, "x-photos": own, "scratch": own, "none": {}},
		Default: others, Ignore: []string{"scratch"}}
	for space, tt := range map[string]struct {
		scope Scope
		pairs []Pair
	}{
		"photos":   {ScopeOwn, own},
		"x-photos": {ScopeReserved, nil},
		"scratch":  {ScopeIgnored, nil},
		"none":     {ScopeDefault, others},
		"new":      {ScopeDefault, others},
	} {
		pairs := d.Rules(space).Pairs
		if got := d.Scope(space); got != tt.scope || len(pairs) != len(tt.pairs) ||
			len(pairs) > 0 && pairs[0] != tt.pairs[0] {
			t.Errorf("%s: got %s, %v, want %s, %v", space, got, pairs, tt.scope, tt.pairs)
		}
	}
}
