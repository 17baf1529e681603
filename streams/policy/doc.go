// Package policy reads policy documents, validates them and derives the rules in force. A document defines for each
// space of an account between which stores its items are copied, and whether deletes are propagated. The package does
// not publish: documents come in as bytes or as records of the topic policies.
//
// A document is valid as a whole or not at all. Validation reports all faults at once, and the faults of one account do
// not affect others. All readers of the topic derive the same revisions and rules, even if they know different stores.
// As long as the newest document cannot be read, deletes are not propagated (KeepCopy).
package policy

import (
	"fmt"
	"strings"
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
	Approve   Deletes = "approve"   // delete the copy after an operator has approved it
)

// Rules are the rules in force for one space.
type Rules struct {
	Revision int64
	Pairs    []Pair
	Deletes  Deletes
	// Since is when the rule for deletes took effect; a change between Approve and Propagate is no new rule. Propagated is
	// when Approve last became Propagate after that: older deletes need approval. It is zero if that never happened.
	Since, Propagated time.Time
	// Added is when each of Pairs took effect. Deletes of a source before that time do not apply to the destination.
	Added   map[Pair]time.Time
	Exclude []string // globs on item ids
	// ExcludeLists are lists of items that are not copied. Loading them is the caller's work.
	ExcludeLists []ExcludeList
	MaxSize      int64     // largest size in bytes; 0 means no limit
	MinSize      int64     // smallest size in bytes
	Start        time.Time // contents that are older are not copied; zero: all are
	Holds        []Hold
	Brake        Brake
	Low          bool // all commands, even those for changes, go to class low
}

// An ExcludeList is a list of items that are not copied, one per line. It is identified by its digest.
type ExcludeList struct {
	URL    string `json:"url"`    // https, or file
	SHA256 string `json:"sha256"` // hex, lower case
	Of     string `json:"of"`     // OfIDs or OfDigests
}

// What the lines of an ExcludeList are.
const (
	OfIDs     = "ids"
	OfDigests = "digests" // MD5 or SHA-256, hex
)

// A Hold protects the copies of a space at all destinations.
type Hold struct {
	Prefix string    `json:"prefix,omitempty"` // of the held items; empty: all
	Until  time.Time `json:"until,omitzero"`   // zero: for ever
	Reason string    `json:"reason,omitempty"`
}

// String describes a hold that is in force, as results do.
func (h Hold) String() string {
	until := "without end"
	if !h.Until.IsZero() {
		until = "until " + h.Until.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("hold of prefix %q %s: %s", h.Prefix, until, h.Reason)
}

// Brake are the limits of deletes and rewrites of copies.
type Brake struct{ Deletes, Rewrites Limits }

// Limits are the limits of one brake. A zero field means the configured default.
type Limits struct {
	MaxShare float64 // of the copies of the space at a destination; at most 1
	MaxCount int64
}

// Hold returns the hold in force for an item at the time now, the one that ends last; false if there is none.
func (r Rules) Hold(item string, now time.Time) (Hold, bool) {
	var held Hold
	found := false
	for _, h := range r.Holds {
		if !strings.HasPrefix(item, h.Prefix) || !h.Until.IsZero() && !now.Before(h.Until) {
			continue
		}
		if !found || !held.Until.IsZero() && (h.Until.IsZero() || h.Until.After(held.Until)) {
			held, found = h, true
		}
	}
	return held, found
}
