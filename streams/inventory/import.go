package inventory

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

const (
	// importBatch is the number of Changes that are published, and acknowledged, at a time.
	importBatch = 1000
	// maxContradicted is the maximum number of items with contradicting rows for which SkipFaulty
	// works.
	maxContradicted = 1 << 20
)

// An Import publishes the rows of listings of one store as Changes of origin import. It reads and
// checks all rows before it publishes any. Both readings return the same rows in the same order.
type Import struct {
	Listings []*Listing
	// Target is the store and space of the copies. Its Default is the time of rows without one; zero:
	// the modification time of their listing.
	Target Target
	// From is the number of the first row to publish, counted over all listings from 1.
	From int64
	// SkipFaulty publishes the sound rows if others have faults. Without it nothing is published if
	// there is a fault.
	SkipFaulty bool
	// Strict treats oddities as faults: an item that is listed twice alike, a row without a digest, a
	// column that is not read.
	Strict bool
	// Faults and Show limit the number of faults and first rows that Check returns.
	Faults, Show int

	temp string // directory for the external comparison of rows; empty: the system's directory for temporary files
}

// A Check is the result of checking the listings.
type Check struct {
	Rows       int64
	Faulty     int64 // number of all faults; Faults has the first of them
	Skipped    int64 // rows that cannot be published: faulty ones, and contradicting rows of an item
	Repeated   int64 // items that are listed more than once with the same values
	NoDigest   int64 // rows
	NoSize     int64
	NoTime     int64
	PassedOver map[string]int64 // rows by kind
	Unread     []string         // columns that are not read
	Faults     []*Fault
	First      []*pb.Change

	contradicted map[string]struct{} // keys of items
}

// errFaulty reports that the listings have faults and nothing was published.
var errFaulty = errors.New("the listings have faults")

// Check reads the listings to their ends. The result holds the faults of rows. The error reports a
// listing that cannot be read or has another format than it claims.
func (i *Import) Check(ctx context.Context) (_ *Check, err error) {
	c := &Check{PassedOver: map[string]int64{}, contradicted: map[string]struct{}{}}
	repeats := newRepeats(i.temp)
	defer func() { err = errors.Join(err, repeats.Close()) }()
	err = i.read(ctx, func(_ int64, r importRow) error {
		c.Rows++
		if r.change == nil {
			c.Skipped++
			i.fault(c, r.err)
			return nil
		}
		i.count(c, r)
		return repeats.Add(r.item(), r.entry)
	}, func(l *Listing, rows int64) {
		for kind, n := range l.Skipped() {
			c.PassedOver[kind] += n
		}
		c.Unread = append(c.Unread, l.UnreadColumns()...)
		if i.Strict {
			for _, column := range l.UnreadColumns() {
				i.fault(c, &Fault{Position{File: l.Path()}, fmt.Sprintf("column %q is not read", column)})
			}
		}
		if rows == 0 {
			i.fault(c, &Fault{Position{File: l.Path()}, "it lists nothing"})
		}
	})
	if err != nil {
		return nil, err
	}
	return c, repeats.Find(ctx, func(r repeat) error { return i.repeat(c, r) })
}

func (i *Import) fault(c *Check, f *Fault) {
	c.Faulty++
	if len(c.Faults) < i.Faults {
		c.Faults = append(c.Faults, f)
	}
}

func (i *Import) count(c *Check, r importRow) {
	if len(c.First) < i.Show {
		c.First = append(c.First, r.change)
	}
	if len(r.entry.Digests) == 0 {
		c.NoDigest++
		if i.Strict {
			i.fault(c, &Fault{At: r.entry.At, Reason: fmt.Sprintf("%q has no digest", r.entry.Item)})
		}
	}
	if r.entry.Size < 0 {
		c.NoSize++
	}
	if r.entry.Time.IsZero() {
		c.NoTime++
	}
}

func (i *Import) repeat(c *Check, r repeat) error {
	if r.Differs == "" {
		c.Repeated++
		if i.Strict {
			i.fault(c, &Fault{At: r.Again, Reason: fmt.Sprintf("item %s is listed again: see %s", r.Item, r.First)})
		}
		return nil
	}
	if len(c.contradicted) == maxContradicted {
		return fmt.Errorf("%w: they contradict themselves about more than %d items", ErrInvalid, maxContradicted)
	}
	c.contradicted[r.Item] = struct{}{}
	c.Skipped += r.Rows
	i.fault(c, &Fault{At: r.Again,
		Reason: fmt.Sprintf("item %s is listed again, with another %s than at %s", r.Item, r.Differs, r.First)})
	return nil
}

// An importRow is an entry and its Change, or its fault.
type importRow struct {
	entry  Entry
	change *pb.Change
	err    *Fault
}

// item returns the key of the item of the Change.
func (r importRow) item() string {
	return schemas.ItemKey(r.change.GetAccount(), r.change.GetSpace(), r.change.GetItem())
}

// read calls row for every row of every listing, with its number, and ended at the end of each
// listing.
func (i *Import) read(
	ctx context.Context, row func(n int64, r importRow) error, ended func(l *Listing, rows int64),
) error {
	target, n := i.Target, int64(0)
	for _, l := range i.Listings {
		if i.Target.Default.IsZero() {
			target.Default = l.Modified()
		}
		before := n
		for e, err := range l.Entries() {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n++
			r := importRow{entry: e}
			if err == nil {
				r.change, err = target.Change(e)
			}
			if err != nil && !errors.As(err, &r.err) {
				return err
			}
			if err := row(n, r); err != nil {
				return err
			}
		}
		ended(l, n-before)
	}
	return nil
}

// A Progress is the progress of publishing.
type Progress struct {
	Published int64
	Skipped   int64 // rows that were faulty or contradicted
	// Next is the row to continue with: all rows before it are published or skipped.
	Next int64
}

// Publish publishes the sound rows of c in order and waits for their acknowledgement. Repeating it
// has no effect, since ids are functions of the rows. It calls progress after each batch.
func (i *Import) Publish(
	ctx context.Context, to schemas.Publisher, c *Check, progress func(Progress),
) (done Progress, err error) {
	done.Next = max(i.From, 1)
	if c.Faulty > 0 && !i.SkipFaulty {
		return done, errFaulty
	}
	var (
		batch   []schemas.Message
		skipped int64
	)
	flush := func(next int64) error {
		if err := to.Publish(ctx, batch...); err != nil {
			return err
		}
		done.Published, done.Skipped, done.Next = done.Published+int64(len(batch)), done.Skipped+skipped, next
		batch, skipped = batch[:0], 0
		progress(done)
		return nil
	}
	last := int64(0)
	err = i.read(ctx, func(n int64, r importRow) error {
		last = n
		switch {
		case n < i.From:
			return nil
		case i.skips(c, r):
			skipped++
		default:
			batch = append(batch, schemas.Message{Topic: schemas.Changes, Body: r.change})
		}
		if len(batch) == importBatch {
			return flush(n + 1)
		}
		return nil
	}, func(*Listing, int64) {})
	switch {
	case err != nil:
		return done, err
	case last != c.Rows:
		return done, fmt.Errorf("%w: they had %d rows when they were checked and have %d now",
			ErrInvalid, c.Rows, last)
	}
	return done, flush(max(last+1, done.Next))
}

func (i *Import) skips(c *Check, r importRow) bool {
	if r.change == nil {
		return true
	}
	_, ok := c.contradicted[r.item()]
	return ok
}

// Sound returns the number of rows that can be published.
func (c *Check) Sound() int64 { return c.Rows - c.Skipped }
