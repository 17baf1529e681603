// Package policy holds the documents that say which spaces of an account are carried
// from where to where, and how deletes are treated. It is pure: documents come in as
// bytes or as records of the topic policies, rules go out.
package policy

import (
	"time"
)

// A Pair is one way that a space's items are carried.
type Pair struct{ Source, Destination string }

// Deletes says what follows from the delete of a source.
type Deletes string

// The ways of treating deletes.
const (
	Propagate Deletes = "propagate"
	KeepCopy  Deletes = "keep"
	Approve   Deletes = "approve"
)

// Rules are what is in force for one space.
type Rules struct {
	Revision int64
	Pairs    []Pair
	Deletes  Deletes
	// Since is when the present rule for deletes came into force.
	Since   time.Time
	Exclude []string // globs on item ids
	MaxSize int64    // bytes; 0: no bound
	Low     bool     // priority: low: even changes go to the low class
}
