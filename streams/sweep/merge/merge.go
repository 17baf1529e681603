// Package merge pairs the entries of two sorted sequences, as of two listings, or of a listing and the records.
//
// It needs constant memory. It never concludes that an entry is absent from what it could not read: the first error of
// either sequence ends it, and so does an entry that is out of order.
package merge

import (
	"errors"
	"fmt"
	"iter"
	"strings"
)

// ErrOrder reports a sequence whose entries are not in ascending order of distinct keys.
var ErrOrder = errors.New("the entries are not in ascending order")

// A Pair is an entry of the first, of the second, or of both sequences.
type Pair[A, B any] struct {
	Key      string
	First    A
	Second   B
	InFirst  bool
	InSecond bool
}

// Sorted returns the entries of both sequences in the order of their keys, which compare by their bytes. After an
// error, which wraps that of the sequence, there is no further pair.
func Sorted[A, B any](
	first iter.Seq2[A, error], keyOfFirst func(A) string, second iter.Seq2[B, error], keyOfSecond func(B) string,
) iter.Seq2[Pair[A, B], error] {
	return func(yield func(Pair[A, B], error) bool) {
		a, b := pull(first, keyOfFirst), pull(second, keyOfSecond)
		defer a.stop()
		defer b.stop()
		for {
			if err := errors.Join(a.err, b.err); err != nil {
				yield(Pair[A, B]{}, err)
				return
			}
			order := strings.Compare(a.key, b.key)
			switch {
			case !a.ok && !b.ok:
				return
			case !b.ok:
				order = -1
			case !a.ok:
				order = 1
			}
			var p Pair[A, B]
			if order <= 0 {
				p.Key, p.First, p.InFirst = a.key, a.entry, true
				a.advance()
			}
			if order >= 0 {
				p.Key, p.Second, p.InSecond = b.key, b.entry, true
				b.advance()
			}
			if !yield(p, nil) {
				return
			}
		}
	}
}

// A cursor is the next entry of a sequence.
type cursor[E any] struct {
	next  func() (E, error, bool)
	stop  func()
	keyOf func(E) string
	entry E
	key   string
	ok    bool // there is an entry
	err   error
}

func pull[E any](s iter.Seq2[E, error], keyOf func(E) string) *cursor[E] {
	c := &cursor[E]{keyOf: keyOf}
	c.next, c.stop = iter.Pull2(s)
	entry, err, ok := c.next()
	c.set(entry, err, ok)
	return c
}

func (c *cursor[E]) advance() {
	before := c.key
	entry, err, ok := c.next()
	if c.set(entry, err, ok); c.ok && c.key <= before {
		c.ok, c.err = false, fmt.Errorf("%w: %q follows %q", ErrOrder, c.key, before)
	}
}

func (c *cursor[E]) set(entry E, err error, ok bool) {
	c.entry, c.err, c.ok = entry, err, ok && err == nil
	if c.ok {
		c.key = c.keyOf(entry)
	}
}
