package storage

import (
	"fmt"

	"github.com/millrace/millrace/streams/digest"
)

// Check returns the error of a write under c if the item is in the given state: nil, or an error that wraps
// ErrExists, ErrNotFound or ErrChanged.
func (c Condition) Check(o Object, present bool) error {
	switch {
	case c.Absent && present:
		return fmt.Errorf("item must be absent: %w", ErrExists)
	case c.Version != "" && !present:
		return fmt.Errorf("item must be in version %q: %w", c.Version, ErrNotFound)
	case c.Version != "" && c.Version != o.Version:
		return fmt.Errorf("item must be in version %q and is in %q: %w", c.Version, o.Version, ErrChanged)
	}
	return nil
}

// Algorithms returns the algorithms that a driver computes under o: its own, those of Compute, and those of
// Digests that millrace can compute. The error wraps ErrUnsupported if Compute names an unknown algorithm.
func (o PutOptions) Algorithms(own []string) ([]string, error) {
	algs := append(make([]string, 0, len(own)+len(o.Compute)+len(o.Digests)), own...)
	for _, alg := range o.Compute {
		if !digest.Known(alg) {
			return nil, fmt.Errorf("compute %q: %w", alg, ErrUnsupported)
		}
		algs = append(algs, alg)
	}
	for alg := range o.Digests {
		if digest.Known(alg) {
			algs = append(algs, alg)
		}
	}
	return algs, nil
}

// Accept verifies a stream with the digests and size that a driver has computed, before it becomes visible,
// and returns the digests to store: the computed ones, and the declared ones of other algorithms. The error
// wraps ErrDigest if they disagree, ErrUnsupported if no digest can be compared, or is that of Verify.
func (o PutOptions) Accept(sum digest.Set, size int64) (digest.Set, error) {
	if o.Size >= 0 && o.Size != size {
		return nil, fmt.Errorf("got %d bytes, want %d: %w", size, o.Size, ErrDigest)
	}
	if len(o.Digests) > 0 {
		switch o.Digests.Compare(sum) {
		case digest.Disagree:
			return nil, fmt.Errorf("got digests %v, want %v: %w", sum, o.Digests, ErrDigest)
		case digest.Incomparable:
			return nil, fmt.Errorf("verify %v: %w", o.Digests.Algorithms(), ErrUnsupported)
		}
	}
	if o.Verify != nil {
		if err := o.Verify(sum, size); err != nil {
			return nil, err
		}
	}
	return sum.Union(o.Digests), nil
}
