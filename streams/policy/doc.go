// Package policy holds the documents that say which spaces of an account are carried
// from where to where, and how deletes are treated. It is pure: documents come in as
// bytes or as records of the topic policies, rules go out.
//
// A document is published whole or not at all, every fault of it is named at once, and one
// account's faults never touch another's. All readers of one topic hold the same revisions,
// and the same rules, whichever stores they know. The rule for deletes is KeepCopy for as
// long as the newest document cannot be read.
package policy

import (
	"time"
)

// A Pair is one way that a space's items are carried.
type Pair struct {
	Source      string `json:"srcStoreId"`
	Destination string `json:"destStoreId"`
}

// Deletes says what follows from the delete of a source.
type Deletes string

// The ways of treating deletes.
const (
	Propagate Deletes = "propagate"
	KeepCopy  Deletes = "keep"
	// Approve deletes nothing as long as there are no approvals. No document with it is published any more.
	Approve Deletes = "approve"
)

// Rules are what is in force for one space.
type Rules struct {
	Revision int64
	Pairs    []Pair
	Deletes  Deletes
	// Since is when the present rule for deletes came into force.
	Since time.Time
	// Added is when each of Pairs came into force: what was deleted before that says
	// nothing about its destination.
	Added   map[Pair]time.Time
	Exclude []string // globs on item ids
	MaxSize int64    // bytes; 0: no bound
	Low     bool     // priority: low: even changes go to the low class
}
