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

// ErrFault is what a Fault without an error of its own returns.
var ErrFault = errors.New("scripted fault")

// A Fault is what goes wrong with the calls that it matches. Empty strings match all.
type Fault struct {
	Method, Space, Item string
	// Skip lets so many matching calls through first.
	Skip int
	// Times is how many calls fail: 0 means one, a negative number all.
	Times int
	// Chance is with what probability a matching call meets the fault, by Faulty.Seed; 0: always.
	Chance float64

	// Err is what the caller gets; nil: ErrFault, or success where a quiet fault is set.
	Err error
	// Done has the call carried out before its failure is reported; otherwise it is
	// not carried out at all.
	Done bool
	// Panic has the call panic with Err instead of returning it.
	Panic bool
	// Mid has a stream fail after After bytes (Open: what is read; Put: what is put) or
	// after After entries (List, Spaces), instead of the call.
	Mid   bool
	After int

	// What follows are the quiet faults: nobody is told of them.

	// Then is called once the call has been carried out, before it returns.
	Then func()

	// Delay is waited, or until ctx is done, before the call, or with Mid before what comes after After.
	Delay time.Duration
	// Lie reports success of a mutation that is not carried out.
	Lie bool
	// Cut ends a stream or listing after After bytes or entries as if that were all.
	Cut bool
	// Flip changes one bit of the byte after After (Open, Put).
	Flip bool
	// Repeat tells the entry after After twice, Omit leaves it out (List).
	Repeat, Omit bool
	// Stale has List tell of these instead, which Snapshot has taken.
	Stale []storage.Object
}

// quiet reports whether something happens but an error.
func (x Fault) quiet() bool {
	return x.Then != nil || x.Delay > 0 || x.Lie || x.Cut || x.Flip || x.Repeat || x.Omit || x.Stale != nil
}

// Snapshot returns what a space lists now, for Fault.Stale; never nil.
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

// leave returns what a call returns that was carried out with err.
func (x Fault) leave(err error) error {
	if x.Then != nil {
		x.Then()
	}
	if x.Err == nil || !x.Done {
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

// drawn reports whether a call meets the fault.
func (x Fault) drawn(r *rand.Rand) bool {
	return x.Chance == 0 || r.Float64() < x.Chance
}

// stream returns r as the fault leaves it.
func (x Fault) stream(ctx context.Context, r io.Reader) io.Reader {
	if x.Flip {
		r = &flipped{r: r, at: x.After}
	}
	if x.Cut {
		r = io.LimitReader(r, int64(x.After))
	}
	if !x.Mid {
		return r
	}
	first := io.LimitReader(r, int64(x.After))
	if x.Delay > 0 {
		first = io.MultiReader(first, waits{ctx, x.Delay})
	}
	if x.Err != nil {
		return &failingReader{first, x.Err}
	}
	return io.MultiReader(first, r)
}

// body is stream for what Open opened.
func (x Fault) body(ctx context.Context, r io.ReadCloser) io.ReadCloser {
	if !x.Mid && !x.Flip && !x.Cut {
		return r
	}
	return struct {
		io.Reader
		io.Closer
	}{x.stream(ctx, r), r}
}

// waits is a stream of nothing that ends after a while.
type waits struct {
	ctx context.Context
	d   time.Duration
}

func (w waits) Read([]byte) (int, error) {
	if err := retry.Sleep(w.ctx, w.d); err != nil {
		return 0, err
	}
	return 0, io.EOF
}

// flipped changes a bit of the byte at an offset.
type flipped struct {
	r  io.Reader
	at int // from here on; negative when it has come
}

func (f *flipped) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if f.at >= 0 && f.at < n {
		p[f.at] ^= 1
	}
	f.at -= n
	return n, err
}

// sequence returns a listing as the fault leaves it; err is of its beginning.
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
			yield(zero, x.Err)
		}
	}
}

// stale is a listing of what was.
func stale(all []storage.Object, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		for _, o := range all {
			if o.Item > after && !yield(o, nil) {
				return
			}
		}
	}
}
