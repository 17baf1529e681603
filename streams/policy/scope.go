package policy

import (
	"slices"
	"strings"
)

// A Scope is the part of a document that gives a space its pairs.
type Scope string

// The scopes, in the order in which they are tried.
const (
	ScopeReserved Scope = "reserved" // the name begins with x-: no pairs
	ScopeIgnored  Scope = "ignored"  // it is in the list of ignored spaces: no pairs
	ScopeOwn      Scope = "own"      // its own pairs
	ScopeDefault  Scope = "default"  // those for all other spaces; there may be none
)

// Scope returns the scope of a space.
func (d Document) Scope(space string) Scope {
	switch {
	case strings.HasPrefix(space, "x-"):
		return ScopeReserved
	case slices.Contains(d.Ignore, space):
		return ScopeIgnored
	case len(d.Spaces[space]) > 0:
		return ScopeOwn
	}
	return ScopeDefault
}
