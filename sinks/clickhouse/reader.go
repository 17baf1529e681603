package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A Watermark knows how far the tables have come.
type Watermark interface {
	// Wait notes the ends of all partitions of changes as they are now and returns once the
	// groups of the log and of the state have committed them, with all that these groups have committed of the topics
	// of Positions. Every error means that it is not known whether they have.
	Wait(ctx context.Context) (map[schemas.Role][]schemas.Progress, error)
}

// ReaderConfig is how a Reader works. Zero fields take their defaults.
type ReaderConfig struct {
	Wait time.Duration // for the watermark; default 30 s
	// Gaps is called, if it is not nil, with what each read found the tables to lack; none: they have all that was
	// committed.
	Gaps func(context.Context, []Gap)
	// Gone returns when a person declared a space gone; zero: nobody has. nil: nobody ever has.
	Gone func(account, store, space string) time.Time

	maxBatch int           // copies a query
	linger   time.Duration // how long the first caller waits for others
}

const (
	// readBatches are answered at one time. Most of the time of each goes by until its watermark is reached.
	maxConcurrentBatches = 4
	// readLooks is how often copies are read whose manifest and audit log disagree, before they are unknown.
	maxReads = 4
)

// A Reader reports what is on record of copies: no less than everything that was in Kafka when it was asked, of
// manifest and audit log alike. Callers who ask at one time are answered by one read.
type Reader struct {
	db        *DB
	watermark Watermark
	cfg       ReaderConfig
	requests  chan *request
}

type request struct {
	copies []schemas.Copy
	reply  chan response // of capacity 1
}

type response struct {
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
	return &Reader{db: db, watermark: mark, cfg: cfg, requests: make(chan *request)}
}

// Fresh returns what is on record of each copy, in their order. A place without a row says
// state NONE. Of the audit log a record has the state, the time, the id of the change, the
// digests and their provenance, on which decisions rest; DB.Records returns all of it. Of a
// space, a copy without an item, the manifest says LIVE if it is expected, else NONE. Every
// error is of class unavailable, or the end of ctx: nothing is known then. The records may be
// shared with other callers and must not be changed.
func (r *Reader) Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	if len(copies) == 0 {
		return nil, nil
	}
	a := &request{copies, make(chan response, 1)}
	select {
	case r.requests <- a:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case got := <-a.reply:
		return got.records, got.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Run answers until ctx is done.
func (r *Reader) Run(ctx context.Context) error {
	var g errgroup.Group
	slots := make(chan struct{}, maxConcurrentBatches)
	for {
		select {
		case <-ctx.Done():
			return g.Wait()
		case slots <- struct{}{}:
		}
		select {
		case <-ctx.Done():
			return g.Wait()
		case first := <-r.requests:
			batch := r.collect(ctx, first)
			g.Go(func() error {
				defer func() { <-slots }()
				r.answer(ctx, batch)
				return nil
			})
		}
	}
}

// gather returns the asks that come within the linger, or make a full batch.
func (r *Reader) collect(ctx context.Context, first *request) []*request {
	batch, n := []*request{first}, len(first.copies)
	t := time.NewTimer(r.cfg.linger)
	defer t.Stop()
	for n < r.cfg.maxBatch {
		select {
		case a := <-r.requests:
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

// answer answers a batch. Log and state are written by two groups and read one after the other, so that a record that
// comes meanwhile may be in one of them alone. A copy of which they disagree is read again, behind a later watermark:
// if neither has changed, they disagree indeed.
func (r *Reader) answer(ctx context.Context, batch []*request) {
	var before map[schemas.Copy]*pb.CopyRecord
	for look := 1; len(batch) > 0; look++ {
		known, err := r.read(ctx, batch)
		var torn []*request
		for _, a := range batch {
			switch {
			case err != nil:
				a.reply <- response{nil, err}
			case slices.ContainsFunc(a.copies, func(c schemas.Copy) bool { return !consistent(c, known[c], before[c]) }):
				if look == maxReads {
					a.reply <- response{nil, retry.Unavailable(errChanging)}
					continue
				}
				torn = append(torn, a)
			default:
				records := make([]*pb.CopyRecord, len(a.copies))
				for i, c := range a.copies {
					records[i] = known[c]
				}
				a.reply <- response{records, nil}
			}
		}
		before, batch = known, torn
	}
}

// whole reports whether the record of c is of one time: manifest and audit log agree, or say what they said before. Of a
// space there is one of the manifest alone.
func consistent(c schemas.Copy, r, before *pb.CopyRecord) bool {
	m, a := r.GetManifest(), r.GetAudit()
	return c.Item == "" || sameContent(m, a) || before != nil && proto.Equal(m, before.GetManifest()) && proto.Equal(a, before.GetAudit())
}

// alike reports whether manifest and audit log have the same newest change, with digests that do not contradict each
// other.
func sameContent(m, a *pb.Record) bool {
	if m.GetState() != a.GetState() || m.GetChangeId() != a.GetChangeId() {
		return false
	}
	if len(m.GetDigests()) == 0 || len(a.GetDigests()) == 0 {
		return len(m.GetDigests()) == len(a.GetDigests())
	}
	shared := false
	for algorithm, digest := range m.GetDigests() {
		if other, ok := a.GetDigests()[algorithm]; ok {
			if other != digest {
				return false
			}
			shared = true
		}
	}
	return shared
}

var (
	errBehind   = errors.New("the tables have not come as far as Kafka within the time allowed")
	errChanging = errors.New("read manifest and audit log afresh: they change while they are read")
)

func (r *Reader) read(ctx context.Context, batch []*request) (map[schemas.Copy]*pb.CopyRecord, error) {
	wait, cancel := context.WithTimeoutCause(ctx, r.cfg.Wait, errBehind)
	defer cancel()
	committed, err := r.watermark.Wait(wait)
	if err != nil {
		if wait.Err() != nil {
			err = context.Cause(wait)
		}
		return nil, retry.Unavailable(fmt.Errorf("read manifest and audit log afresh: %w", err))
	}
	// Before the read: a table that lacks something may be filled while it is read, and then no gap says so.
	if gaps, err := r.db.Gaps(ctx, committed); err != nil {
		return nil, retry.Unavailable(err)
	} else if Known(gaps) != nil {
		return nil, retry.Unavailable(r.reportGaps(ctx, gaps))
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
		states, err := r.db.records(ctx, copies[:n], r.db.evidence, known)
		if err == nil {
			err = r.db.describeProperties(ctx, states, known)
		}
		if err != nil {
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
	// And behind it: a table that was emptied or restored meanwhile has lost its position, too.
	gaps, err := r.db.Gaps(ctx, committed)
	if err == nil {
		err = r.reportGaps(ctx, gaps)
	}
	if err != nil {
		return nil, retry.Unavailable(err)
	}
	return known, nil
}

// report reports what the tables lack, and returns an error if what is read of them is unknown for it.
func (r *Reader) reportGaps(ctx context.Context, gaps []Gap) error {
	if r.cfg.Gaps != nil {
		r.cfg.Gaps(ctx, gaps)
	}
	if err := Known(gaps); err != nil {
		return fmt.Errorf("read manifest and audit log afresh: %w", err)
	}
	return nil
}
