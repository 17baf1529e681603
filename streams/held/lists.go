package held

import (
	"context"

	"github.com/millrace/millrace/schemas"
)

// EarlierWaits is the cause of what is held only because something of its kind waits already.
const EarlierWaits = "an earlier one waits for a decision"

// A Standing is what a decision says about an effect; the zero value if there is none.
type Standing struct {
	Kept     string // why the copy is kept
	Approved string // the list that is being carried out, and that has it
}

// Lists holds effects on copies for a decision, and knows the decisions. It is safe for concurrent use.
type Lists interface {
	// Hold opens the incident of the list that takes effects of a kind now, if it is not open, and returns the name of
	// the list. An effect is on it when its result is published.
	Hold(ctx context.Context, at schemas.Copy, k Kind, cause string) (list string, err error)
	// Wait reports whether effects of a kind wait for a decision in the space of a copy, so that all further ones do.
	Wait(ctx context.Context, at schemas.Copy, k Kind) (bool, error)
	// Decided returns what was decided about an effect that was held.
	Decided(ctx context.Context, at schemas.Copy, rewrite bool, effect string) (Standing, error)
	// Refused returns an error of class unavailable while a refusal is being carried out in the space of a copy, since
	// the copies are the sources of the restores.
	Refused(at schemas.Copy) error
}
