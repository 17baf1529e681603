// Package policy reads policy documents, validates them and derives the rules in force. A document defines for each
// space of an account between which stores its items are copied, and whether deletes are propagated. The package does
// not publish: documents come in as bytes or as records of the topic policies.
//
// A document is valid as a whole or not at all. Validation reports all faults at once, and the faults of one account do
// not affect others. All readers of the topic derive the same revisions and rules, even if they know different stores.
// As long as the newest document cannot be read, deletes are not propagated (KeepCopy).
package policy

import (
	"time"
)

// A Pair is a source store and a destination store. The items of a space are copied from one to the other.
type Pair struct {
	Source      string `json:"srcStoreId"`
	Destination string `json:"destStoreId"`
}

// Deletes is the rule for copies of a deleted source.
type Deletes string

// The rules for deletes.
const (
	Propagate Deletes = "propagate" // delete the copy
	KeepCopy  Deletes = "keep"      // keep the copy
	// Approve keeps the copy, because approvals are not implemented. New documents must not contain it.
	Approve Deletes = "approve"
)

// Rules are the rules in force for one space.
type Rules struct {
	Revision int64
	Pairs    []Pair
	Deletes  Deletes
	// Since is when the current rule for deletes took effect.
	Since time.Time
	// Added is when each of Pairs took effect. Deletes of a source before that time do not apply to the destination.
	Added   map[Pair]time.Time
	Exclude []string // globs on item ids
	MaxSize int64    // largest size in bytes; 0 means no limit
	Low     bool     // all commands, even those for changes, go to class low
}
