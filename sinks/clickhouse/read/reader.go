// Package read queries the logs and the state of every copy. A Reader's reads are fresh: they include every change
// that was in Kafka when they began, and decisions may rely on them. The other queries return what the tables have,
// for display. A query that cannot be answered returns an error, never an empty result.
package read

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
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/retry"
)

// A Watermark waits until the tables have every record that was in Kafka at the time of the call.
type Watermark interface {
	// Wait reads the end offsets of all partitions of changes, and returns after the groups of the log and of the state
	// have committed them. It returns the committed offsets of these groups in the topics of Positions. An error means
	// that it is unknown how far the groups are.
	Wait(ctx context.Context) (map[schemas.Role][]schemas.Progress, error)
}

// ReaderConfig holds the options of a Reader. Zero fields take their defaults.
type ReaderConfig struct {
	Wait time.Duration // timeout for the watermark, and for each read; default 30 s
	// Gaps is called after each read with the gaps of the tables; none: the tables have everything that was committed.
	// It may be nil.
	Gaps func(context.Context, []clickhouse.Gap)
	// DeclaredGone returns the time at which an operator declared a space gone; zero: never. nil: no space ever was.
	DeclaredGone func(account, store, space string) time.Time

	maxBatch int           // copies in a query
	linger   time.Duration // how long the first request of a batch waits for more
}

const (
	// maxConcurrentBatches bounds the batches in flight. Each of them mostly waits for its watermark.
	maxConcurrentBatches = 4
	// maxReads bounds how often a copy is read if its manifest and its audit record disagree. After that it is unknown.
	maxReads = 4
)

// A Reader reads the records of copies. A record reflects every change that was in Kafka when it was requested, in
// the manifest and in the audit log. Concurrent requests share a read.
type Reader struct {
	db        *clickhouse.DB
	watermark Watermark
	cfg       ReaderConfig
	requests  chan *request
}

type request struct {
	copies []schemas.Copy
	reply  chan response // with capacity 1
}

type response struct {
	records []*pb.CopyRecord
	err     error
}

// NewReader returns a Reader. It serves requests while Run runs.
func NewReader(db *clickhouse.DB, mark Watermark, cfg ReaderConfig) *Reader {
	if cfg.Wait <= 0 {
		cfg.Wait = 30 * time.Second
	}
	if cfg.DeclaredGone == nil {
		cfg.DeclaredGone = func(string, string, string) time.Time { return time.Time{} }
	}
	if cfg.maxBatch == 0 {
		cfg.maxBatch = 1000
	}
	if cfg.linger == 0 {
		cfg.linger = 20 * time.Millisecond
	}
	return &Reader{db: db, watermark: mark, cfg: cfg, requests: make(chan *request)}
}

// Fresh returns the record of each copy, in the order of copies. A copy without a row has the state NONE. The audit
// record has only the fields that decisions need: state, time, change id, digests and their provenance. Records
// returns all fields. For a space, which is a copy without an item, the manifest is LIVE if the space is expected,
// otherwise NONE. Its audit record has state, time and origin: LIVE, or TOMBSTONE if it was deleted last.
//
// Every error is of class unavailable, or the cause of ctx: then nothing is known. The records may be shared with
// other callers and must not be changed.
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

// Run serves requests until ctx is done.
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

// collect returns the requests that arrive within linger, or until the batch is full.
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

// answer serves a batch. Two groups write the audit log and the state, and they are read separately, so a new record
// may be in only one of them. Copies for which they disagree are read again behind a later watermark. If neither has
// changed since the previous read, the disagreement is real and is returned.
func (r *Reader) answer(ctx context.Context, batch []*request) {
	var before map[schemas.Copy]*pb.CopyRecord
	for read := 1; len(batch) > 0; read++ {
		known, err := r.read(ctx, batch)
		var inconsistent []*request
		for _, a := range batch {
			switch {
			case err != nil:
				a.reply <- response{nil, err}
			case slices.ContainsFunc(a.copies, func(c schemas.Copy) bool { return !consistent(c, known[c], before[c]) }):
				if read == maxReads {
					a.reply <- response{nil, retry.Unavailable(errChanging)}
					continue
				}
				inconsistent = append(inconsistent, a)
			default:
				records := make([]*pb.CopyRecord, len(a.copies))
				for i, c := range a.copies {
					records[i] = known[c]
				}
				a.reply <- response{records, nil}
			}
		}
		before, batch = known, inconsistent
	}
}

// consistent reports whether manifest and audit record of c are of the same time: they agree, or both are as they
// were in the previous read. A space has only a manifest record.
func consistent(c schemas.Copy, r, before *pb.CopyRecord) bool {
	m, a := r.GetManifest(), r.GetAudit()
	return c.Item == "" || sameContent(m, a) ||
		before != nil && proto.Equal(m, before.GetManifest()) && proto.Equal(a, before.GetAudit())
}

// sameContent reports whether manifest and audit record have the same state and the same newest change, and share a
// digest without contradicting each other in any.
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
	errBehind   = errors.New("the tables did not reach the end offsets of Kafka in time")
	errChanging = errors.New("read manifest and audit log: they changed during each read")
)

func (r *Reader) read(ctx context.Context, batch []*request) (map[schemas.Copy]*pb.CopyRecord, error) {
	wait, cancel := context.WithTimeoutCause(ctx, r.cfg.Wait, errBehind)
	defer cancel()
	committed, err := r.watermark.Wait(wait)
	if err != nil {
		if wait.Err() != nil {
			err = context.Cause(wait)
		}
		return nil, retry.Unavailable(fmt.Errorf("read manifest and audit log: %w", err))
	}
	// Check before the read: a table may be filled during the read, and then a check afterwards finds no gap.
	if gaps, err := clickhouse.Gaps(ctx, r.db, committed); err != nil {
		return nil, retry.Unavailable(err)
	} else if clickhouse.CheckGaps(gaps) != nil {
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
		states, err := readRecords(ctx, r.db, copies[:n], newestEvidence, known)
		if err == nil {
			err = describeProperties(ctx, r.db, states, known)
		}
		if err != nil {
			return nil, retry.Unavailable(err)
		}
		copies = copies[n:]
	}
	for _, c := range spaces {
		r, err := readSpace(ctx, r.db, c, r.cfg.DeclaredGone(c.Account, c.Store, c.Space))
		if err != nil {
			return nil, retry.Unavailable(err)
		}
		known[c] = r
	}
	// Check again after the read: a table that was emptied or restored meanwhile has lost its position, too.
	gaps, err := clickhouse.Gaps(ctx, r.db, committed)
	if err == nil {
		err = r.reportGaps(ctx, gaps)
	}
	if err != nil {
		return nil, retry.Unavailable(err)
	}
	return known, nil
}

// reportGaps passes the gaps to the Gaps callback. It returns an error if they make the read records unknown.
func (r *Reader) reportGaps(ctx context.Context, gaps []clickhouse.Gap) error {
	if r.cfg.Gaps != nil {
		r.cfg.Gaps(ctx, gaps)
	}
	if err := clickhouse.CheckGaps(gaps); err != nil {
		return fmt.Errorf("read manifest and audit log: %w", err)
	}
	return nil
}
