package held

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// EarlierWaits is the cause of what is held only because something of its kind waits already.
const EarlierWaits = "an earlier one waits for a decision"

// A Standing is what a decision says about an effect; the zero value if there is none.
type Standing struct {
	Kept     string // why the copy is kept
	Approved string // the approved list that has it
}

// EffectID returns the id of an effect on an object, for a reason.
func EffectID(reason, object string) string { return reason + "-" + schemas.ID("object", object) }

// ReasonOf returns the reason in the id of an effect. A decision that keeps a copy keeps it from all effects for the
// same reason: a repair of the copy changes the object.
func ReasonOf(effect string) string {
	reason, _, _ := strings.Cut(effect, "-")
	return reason
}

// A Place is where the topic duplication.results says that an effect was held.
type Place struct {
	schemas.Coordinates
	Kind   Kind
	Effect string
}

// Lists holds effects on copies for a decision, and knows the decisions. It is safe for concurrent use.
type Lists interface {
	// Hold opens the incident of the list that takes effects of a kind now, if it is not open, and returns the name of
	// the list. An effect is on it when its result is published.
	Hold(ctx context.Context, at schemas.Copy, k Kind, cause string) (list string, err error)
	// Wait reports whether effects of a kind wait for a decision in the space of a copy, so that all further ones do.
	Wait(ctx context.Context, at schemas.Copy, k Kind) (bool, error)
	// Decided returns what was decided about an effect that was held.
	Decided(ctx context.Context, at schemas.Copy, act Act, effect string) (Standing, error)
	// Refused returns an error of class unavailable while a refusal is being carried out in the space of a copy, since
	// the copies are the sources of the restores.
	Refused(at schemas.Copy) error
}

// An Effect is one on a copy that may wait for a decision.
type Effect struct {
	At       schemas.Copy
	Kind     Kind
	ID       string
	Approved string // the list whose command brings it about; empty if it was not approved
}

// Ask returns what was decided about an effect, and whether effects of its kind wait in the space. An error is of class
// unavailable.
func Ask(ctx context.Context, l Lists, e Effect) (s Standing, wait bool, err error) {
	at := e.At
	if err := l.Refused(at); err != nil {
		return s, false, err
	}
	if e.Approved == "" { // first what waits: a decision that ends that is known afterwards
		if wait, err = l.Wait(ctx, at, e.Kind); err != nil {
			return s, false, retry.Unavailable(fmt.Errorf("read what waits in the space of %s: %w", at, err))
		}
	}
	if s, err = l.Decided(ctx, at, e.Kind.Act(), e.ID); err != nil {
		return s, false, retry.Unavailable(fmt.Errorf("read the decisions about %s: %w", at, err))
	}
	if s.Kept == "" && e.Approved != "" { // its command does not know whether a list of another kind keeps it
		s.Approved = e.Approved
	}
	return s, wait, nil
}
