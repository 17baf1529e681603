package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/inventory"
	"github.com/millrace/millrace/streams/kafka"
)

const (
	// importBatch is how many Changes are published, and waited for, at a time.
	importBatch = 1000
	// maxContradicted is how many items a listing may contradict itself about and still be skipped faulty.
	maxContradicted = 1 << 20
)

// An Import takes what listings claim of the copies of one store as Changes of origin import. Everything is read and
// checked before anything is published; both readings give the same rows in the same order.
type Import struct {
	Listings []*inventory.Listing
	// Target says which copies they are. Its Default is for rows without a time; zero: when their listing was
	// written last.
	Target inventory.Target
	// From is the first row to be published, counted over all listings from 1.
	From int64
	// SkipFaulty publishes what is sound; else nothing is where there is a fault.
	SkipFaulty bool
	// Strict takes what is only odd for a fault: an item listed twice alike, a row without a digest, a column
	// that is not read.
	Strict bool
	// Faults and Show bound how many faults and first rows are kept.
	Faults, Show int

	temp string // directory of what is listed until it is compared; empty: that of the system for temporary files
}

// An ImportCheck is what was found in the listings.
type ImportCheck struct {
	Rows       int64
	Faulty     int64 // all faults; those of Faults are the first
	Skipped    int64 // rows that cannot be published: faulty, or of an item that another row contradicts
	Repeated   int64 // items that are listed more than once, alike
	NoDigest   int64 // rows
	NoSize     int64
	NoTime     int64
	PassedOver map[string]int64 // rows by kind
	Unread     []string         // columns
	Faults     []*inventory.Fault
	First      []*pb.Change

	contradicted map[string]struct{} // keys of items
}

// errFaulty is wrapped where listings have faults, and nothing is published.
var errFaulty = errors.New("the listings have faults")

// Check reads the listings to their ends. What is wrong with rows is in its answer; an error says that a listing
// cannot be read, or is not what it says it is.
func (i *Import) Check(ctx context.Context) (_ *ImportCheck, err error) {
	c := &ImportCheck{PassedOver: map[string]int64{}, contradicted: map[string]struct{}{}}
	repeats := inventory.NewRepeats(i.temp)
	defer func() { err = errors.Join(err, repeats.Close()) }()
	err = i.read(ctx, func(_ int64, r importRow) error {
		c.Rows++
		if r.change == nil {
			c.Skipped++
			i.fault(c, r.err)
			return nil
		}
		i.count(c, r)
		return repeats.Add(schemas.ItemKey(r.change.GetAccount(), r.change.GetSpace(), r.change.GetItem()), r.entry)
	}, func(l *inventory.Listing, rows int64) {
		for kind, n := range l.PassedOver() {
			c.PassedOver[kind] += n
		}
		c.Unread = append(c.Unread, l.Unread()...)
		if i.Strict {
			for _, column := range l.Unread() {
				i.fault(c, &inventory.Fault{At: inventory.Place{File: l.Path()}, Reason: fmt.Sprintf("column %q is not read", column)})
			}
		}
		if rows == 0 {
			i.fault(c, &inventory.Fault{At: inventory.Place{File: l.Path()}, Reason: "it lists nothing"})
		}
	})
	if err != nil {
		return nil, err
	}
	return c, repeats.Find(ctx, func(r inventory.Repeat) error { return i.repeat(c, r) })
}

func (i *Import) fault(c *ImportCheck, f *inventory.Fault) {
	c.Faulty++
	if len(c.Faults) < i.Faults {
		c.Faults = append(c.Faults, f)
	}
}

func (i *Import) count(c *ImportCheck, r importRow) {
	if len(c.First) < i.Show {
		c.First = append(c.First, r.change)
	}
	if len(r.entry.Digests) == 0 {
		c.NoDigest++
		if i.Strict {
			i.fault(c, &inventory.Fault{At: r.entry.At, Reason: fmt.Sprintf("%q has no digest", r.entry.Item)})
		}
	}
	if r.entry.Size < 0 {
		c.NoSize++
	}
	if r.entry.Time.IsZero() {
		c.NoTime++
	}
}

func (i *Import) repeat(c *ImportCheck, r inventory.Repeat) error {
	if r.Differs == "" {
		c.Repeated++
		if i.Strict {
			i.fault(c, &inventory.Fault{At: r.Again, Reason: fmt.Sprintf("item %s is listed again: see %s", r.Item, r.First)})
		}
		return nil
	}
	if len(c.contradicted) == maxContradicted {
		return fmt.Errorf("%w: they contradict themselves about more than %d items", inventory.ErrInvalid, maxContradicted)
	}
	c.contradicted[r.Item] = struct{}{}
	c.Skipped += r.Rows
	i.fault(c, &inventory.Fault{At: r.Again, Reason: fmt.Sprintf("item %s is listed again, with another %s than at %s", r.Item, r.Differs, r.First)})
	return nil
}

// An importRow is an entry and its Change, or what is wrong with it.
type importRow struct {
	entry  inventory.Entry
	change *pb.Change
	err    *inventory.Fault
}

// read hands over every row of every listing with its number, and each listing when it has ended.
func (i *Import) read(ctx context.Context, row func(n int64, r importRow) error, ended func(l *inventory.Listing, rows int64)) error {
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

// An ImportDone is how far publishing has come.
type ImportDone struct {
	Published int64
	Skipped   int64 // faulty, or contradicted
	// Next is the row to go on with: all before it are published, or skipped.
	Next int64
}

// importPublisher is where Changes go.
type importPublisher interface {
	Publish(ctx context.Context, msgs ...schemas.Message) error
}

// Publish publishes what c has found to be sound, in order, and waits for it. Publishing it again changes nothing,
// since ids are functions of the rows. told is told of every step.
func (i *Import) Publish(ctx context.Context, to importPublisher, c *ImportCheck, told func(ImportDone)) (done ImportDone, err error) {
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
		told(done)
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
	}, func(*inventory.Listing, int64) {})
	switch {
	case err != nil:
		return done, err
	case last != c.Rows:
		return done, fmt.Errorf("%w: they had %d rows when they were checked, and %d now", inventory.ErrInvalid, c.Rows, last)
	}
	return done, flush(max(last+1, done.Next))
}

func (i *Import) skips(c *ImportCheck, r importRow) bool {
	if r.change == nil {
		return true
	}
	_, ok := c.contradicted[schemas.ItemKey(r.change.GetAccount(), r.change.GetSpace(), r.change.GetItem())]
	return ok
}

// Sound is how many rows can be published.
func (c *ImportCheck) Sound() int64 { return c.Rows - c.Skipped }

// CheckStore says whether the configuration has a store.
func CheckStore(cfg *config.Config, account, store string) error {
	for _, a := range cfg.Accounts {
		for _, s := range a.Stores {
			if a.ID == account && s.ID == store {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: the configuration has no store %s/%s", ErrPrecondition, account, store)
}

// OpenProducer opens a producer alone, whose messages say that they come from source. The caller closes it.
func OpenProducer(ctx context.Context, cfg *config.Config, log *slog.Logger, source string) (*kafka.Producer, error) {
	k, err := kafkaConfig(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	return kafka.NewProducer(k, source)
}
