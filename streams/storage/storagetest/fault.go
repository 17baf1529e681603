package storagetest

import (
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// ErrFault is the error of a Fault without Err.
var ErrFault = errors.New("scripted fault")

// A Fault is a failure of the calls that it matches. Empty strings match all.
type Fault struct {
	Method, Space, Item string
	// Skip is the number of matching calls that succeed first.
	Skip int
	// Times is how many calls fail: 0 means one, a negative number all.
	Times int
	// Chance is the probability that a matching call fails, drawn as set by Faulty.Seed; 0: always.
	Chance float64

	// Err is returned to the caller; nil: ErrFault, or success if one of the silent faults is set.
	Err error
	// Applied carries the call out before it fails; otherwise it is not carried out at all.
	Applied bool
	// Panic makes the call panic with Err.
	Panic bool
	// Mid makes a stream fail after After bytes (Open, Put), or a listing after After entries (List, Spaces),
	// instead of the call.
	Mid   bool
	After int

	// The fields below are silent faults: the caller gets no error.

	// Then is called after the call was carried out, before it returns.
	Then func()

	// Delay is a wait before the call or, with Mid, after After bytes or entries; it ends when ctx does.
	Delay time.Duration
	// FalseSuccess reports success of a mutation that is not carried out.
	FalseSuccess bool
	// Cut ends a stream or listing after After bytes or entries without an error.
	Cut bool
	// Flip inverts one bit of the byte at offset After (Open, Put).
	Flip bool
	// Repeat returns the entry at index After twice, Omit skips it (List).
	Repeat, Omit bool
	// Stale is returned by List instead of the current items; Snapshot makes it.
	Stale []storage.Object
}

// silent reports whether one of the silent faults is set.
func (x Fault) silent() bool {
	return x.Then != nil || x.Delay > 0 || x.FalseSuccess || x.Cut || x.Flip || x.Repeat || x.Omit || x.Stale != nil
}

// Snapshot returns the current listing of a space, for Fault.Stale; never nil.
func Snapshot(ctx context.Context, s storage.Store, space string) ([]storage.Object, error) {
	all := []storage.Object{}
	for o, err := range s.List(ctx, space, "") {
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// leave returns the result of a call that was carried out with err.
func (x Fault) leave(err error) error {
	if x.Then != nil {
		x.Then()
	}
	if x.Err == nil || !x.Applied {
		return err
	}
	return x.fail()
}

// fail returns the fault's error, or panics with it.
func (x Fault) fail() error {
	if x.Panic {
		panic(x.Err)
	}
	return x.Err
}

func faulted[T any](x Fault, v T, err error) (T, error) {
	if err = x.leave(err); err != nil {
		var zero T
		return zero, err
	}
	return v, nil
}

// drawn reports whether a call meets the fault, by Chance.
func (x Fault) drawn(r *rand.Rand) bool {
	return x.Chance == 0 || r.Float64() < x.Chance
}

// stream returns r with the fault applied.
func (x Fault) stream(ctx context.Context, r io.Reader) io.Reader {
	if x.Flip {
		r = &flipReader{r: r, at: x.After}
	}
	if x.Cut {
		r = io.LimitReader(r, int64(x.After))
	}
	if !x.Mid {
		return r
	}
	first := io.LimitReader(r, int64(x.After))
	if x.Delay > 0 {
		first = io.MultiReader(first, delayReader{ctx, x.Delay})
	}
	if x.Err != nil {
		return &failingReader{first, x.Err}
	}
	return io.MultiReader(first, r)
}

// body is stream for the reader of Open.
func (x Fault) body(ctx context.Context, r io.ReadCloser) io.ReadCloser {
	if !x.Mid && !x.Flip && !x.Cut {
		return r
	}
	return struct {
		io.Reader
		io.Closer
	}{x.stream(ctx, r), r}
}

// A delayReader returns no bytes and ends after a delay.
type delayReader struct {
	ctx context.Context
	d   time.Duration
}

func (w delayReader) Read([]byte) (int, error) {
	if err := retry.Sleep(w.ctx, w.d); err != nil {
		return 0, err
	}
	return 0, io.EOF
}

// A flipReader inverts a bit of the byte at an offset.
type flipReader struct {
	r  io.Reader
	at int // relative to the next read; negative afterwards
}

func (f *flipReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if f.at >= 0 && f.at < n {
		p[f.at] ^= 1
	}
	f.at -= n
	return n, err
}

// sequence returns a listing with the fault applied; err is the error of its beginning.
func sequence[T any](ctx context.Context, x Fault, err error, inner iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		if err != nil {
			yield(zero, err)
			return
		}
		n := 0
		for v, err := range inner {
			here := n == x.After
			n++
			if here && x.Mid && x.Delay > 0 {
				if err := retry.Sleep(ctx, x.Delay); err != nil {
					yield(zero, err)
					return
				}
			}
			switch {
			case here && x.Cut:
				return
			case here && x.Mid && x.Err != nil:
				yield(zero, x.Err)
				return
			case here && x.Omit:
				continue
			case here && x.Repeat && !yield(v, err), !yield(v, err):
				return
			}
		}
		if x.Err != nil {
			yield(zero, x.fail())
		}
	}
}

// stale returns a listing of all.
func stale(all []storage.Object, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		for _, o := range all {
			if o.Item > after && !yield(o, nil) {
				return
			}
		}
	}
}
