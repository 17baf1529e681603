package schemas

import "time"

// A DueCopy is a copy that is due for a check.
type DueCopy struct {
	KnownCopy
	// Retried is set if a check of its current content was made since its last pass, and did not pass. What a pass is
	// depends on the query.
	Retried bool
}

// A DueQuery selects live copies of one space in one store that are due for a check, in the order of DueCursor.
type DueQuery struct {
	Account, Store, Space string
	// Prefix selects the items that begin with it; empty: all.
	Prefix string
	// PassedBefore selects the copies without a passed check of their current content since then; zero selects all.
	PassedBefore time.Time
	// Asserted lets passes count, too, that rest on what the store asserts. Otherwise only those of the bytes count.
	Asserted bool
	// AttemptedBefore leaves out the copies whose newest check did not pass and began at this time or later; zero: none.
	AttemptedBefore time.Time
	// Begun and Period make the time between the attempts of a copy that does not pass grow: a copy whose newest check
	// did not pass is left out, too, if it began less long before Begun than the copy had been failing then, and at
	// PassedBefore or later. A copy fails since a Period after its last pass, or since its content was written. With a
	// Period of 0 the time does not grow.
	Begun  time.Time
	Period time.Duration
	// After is the cursor of the previous page; zero for the first page.
	After DueCursor
	Limit int // default 1,000
}

// A DueCursor is the position of a copy in the order of checks: by the last pass, copies without one first, then by
// the bytes of the item. The cursor of a page is the position at which its last copy was selected; a check of
// the copy may have passed since. Checkpoints of sweeps hold it as JSON.
type DueCursor struct {
	LastPass time.Time `json:"LastPass"` // zero: never
	Item     string    `json:"Item"`
}
