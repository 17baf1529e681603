package schemas

import "time"

// A DueQuery selects live copies of one store that are due for a check, in the order of DueCursor.
type DueQuery struct {
	Account, Store string
	Space          string // empty: all
	// PassedBefore selects the copies without a passed check of their current content since then; zero selects all.
	PassedBefore time.Time
	// After is the cursor of the previous page; zero for the first page.
	After DueCursor
	Limit int // default 1,000
}

// A DueCursor is the position of a copy in the order of checks: by the last pass, copies without one first, then by
// the bytes of space and item. The cursor of a page is the position at which its last copy was selected; a check of
// the copy may have passed since. Checkpoints of sweeps hold it as JSON.
type DueCursor struct {
	LastPass time.Time `json:"LastPass"` // zero: never
	Space    string    `json:"Space"`
	Item     string    `json:"Item"`
}
