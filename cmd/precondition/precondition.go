// Package precondition marks errors that an operator must resolve before a retry, such as a state
// directory that is in use, or a store without its marker. A command that ends with one has an exit
// code of its own.
package precondition

import (
	"errors"
	"fmt"
)

// Err is wrapped by errors that an operator must resolve before a retry.
var Err = errors.New("precondition")

// Of returns an error that wraps Err and err, with the text of err.
func Of(err error) error { return marked{err} }

type marked struct{ error }

func (m marked) Unwrap() []error { return []error{Err, m.error} }

// Join joins errs and wraps Err; nil if there are none.
func Join(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", Err, errors.Join(errs...))
}
