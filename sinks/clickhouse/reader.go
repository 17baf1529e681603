package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A Watermark knows how far the tables have come.
type Watermark interface {
	// Wait notes the ends of all partitions of changes as they are now and returns nil once the
	// groups of the log and of the state have committed them. Every error means that it
	// is not known whether they have.
	Wait(ctx context.Context) error
}

// ReaderConfig is how a Reader works. Zero fields take their defaults.
type ReaderConfig struct {
	Wait time.Duration // for the watermark; default 30 s
	// Gone returns when a person declared a space gone; zero: nobody has. nil: nobody ever has.
	Gone func(account, store, space string) time.Time

	maxBatch int           // copies a query
	linger   time.Duration // how long the first caller waits for others
}

// A Reader tells what is on record of copies: no less than everything that was in
// Kafka when it was asked. Callers who ask at one time are answered by one read.
type Reader struct {
	db   *DB
	mark Watermark
	cfg  ReaderConfig
	asks chan *ask
}

type ask struct {
	copies []schemas.Copy
	answer chan answer // of capacity 1
}

type answer struct {
	records []*pb.CopyRecord
	err     error
}

// NewReader returns a Reader; it answers while Run runs.
func NewReader(db *DB, mark Watermark, cfg ReaderConfig) *Reader {
	if cfg.Wait <= 0 {
		cfg.Wait = 30 * time.Second
	}
	if cfg.Gone == nil {
		cfg.Gone = func(string, string, string) time.Time { return time.Time{} }
	}
	if cfg.maxBatch == 0 {
		cfg.maxBatch = 1000
	}
	if cfg.linger == 0 {
		cfg.linger = 20 * time.Millisecond
	}
	return &Reader{db: db, mark: mark, cfg: cfg, asks: make(chan *ask)}
}

// Fresh returns what is on record of each copy, in their order. A place without a row
// says state NONE. Of a space, a copy without an item, the manifest says LIVE if it is
// expected, else NONE. Every error is of class unavailable, or the end of ctx: nothing is known
// then. The records may be shared with other callers and must not be changed.
func (r *Reader) Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	if len(copies) == 0 {
		return nil, nil
	}
	a := &ask{copies, make(chan answer, 1)}
	select {
	case r.asks <- a:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case got := <-a.answer:
		return got.records, got.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Run answers until ctx is done.
func (r *Reader) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case first := <-r.asks:
			r.answer(ctx, r.gather(ctx, first))
		}
	}
}

// gather returns the asks that come within the linger, or make a full batch.
func (r *Reader) gather(ctx context.Context, first *ask) []*ask {
	batch, n := []*ask{first}, len(first.copies)
	t := time.NewTimer(r.cfg.linger)
	defer t.Stop()
	for n < r.cfg.maxBatch {
		select {
		case a := <-r.asks:
			batch = append(batch, a)
			n += len(a.copies)
		case <-t.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

func (r *Reader) answer(ctx context.Context, batch []*ask) {
	known, err := r.read(ctx, batch)
	for _, a := range batch {
		if err != nil {
			a.answer <- answer{nil, err}
			continue
		}
		records := make([]*pb.CopyRecord, len(a.copies))
		for i, c := range a.copies {
			records[i] = known[c]
		}
		a.answer <- answer{records, nil}
	}
}

var errLate = errors.New("the tables have not come as far as Kafka within the time allowed")

func (r *Reader) read(ctx context.Context, batch []*ask) (map[schemas.Copy]*pb.CopyRecord, error) {
	wait, cancel := context.WithTimeoutCause(ctx, r.cfg.Wait, errLate)
	defer cancel()
	if err := r.mark.Wait(wait); err != nil {
		if wait.Err() != nil {
			err = context.Cause(wait)
		}
		return nil, retry.Unavailable(fmt.Errorf("read manifest and audit log afresh: %w", err))
	}
	known := map[schemas.Copy]*pb.CopyRecord{}
	var copies, spaces []schemas.Copy
	for _, a := range batch {
		for _, c := range a.copies {
			if _, ok := known[c]; ok {
				continue
			}
			known[c] = nil
			if c.Item == "" {
				spaces = append(spaces, c)
			} else {
				copies = append(copies, c)
			}
		}
	}
	ctx, cancelRead := context.WithTimeout(ctx, r.cfg.Wait)
	defer cancelRead()
	for len(copies) > 0 {
		n := min(len(copies), r.cfg.maxBatch)
		if err := r.db.records(ctx, copies[:n], known); err != nil {
			return nil, retry.Unavailable(err)
		}
		copies = copies[n:]
	}
	for _, c := range spaces {
		r, err := r.db.space(ctx, c, r.cfg.Gone(c.Account, c.Store, c.Space))
		if err != nil {
			return nil, retry.Unavailable(err)
		}
		known[c] = r
	}
	return known, nil
}
