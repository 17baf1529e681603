package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// scanStall is how long a poll may return nothing before a scan checks whether records remain at all.
	scanStall = 2 * time.Second
	// scanMaxStalls is the number of such checks in a row that may fail.
	scanMaxStalls = 15
	// scanFetchBytes is the maximum size of a fetch response, compressed; it is the client's default.
	scanFetchBytes = 50 << 20
)

// An offsetRange is a range of offsets in a partition: from from on, up to but not including to.
type offsetRange struct{ from, to int64 }

// topicRanges returns the current offset ranges of all partitions of a topic.
func topicRanges(ctx context.Context, adm *kadm.Client, topic string) (map[int32]offsetRange, error) {
	starts, ends, err := bounds(ctx, adm, topic)
	if err != nil {
		return nil, err
	}
	if len(ends[topic]) == 0 {
		return nil, fmt.Errorf("topic %s does not exist", topic)
	}
	out := map[int32]offsetRange{}
	for id, end := range ends[topic] {
		out[id] = offsetRange{starts[topic][id], end}
	}
	return out, nil
}

// A scanner reads ranges of a topic once, without a consumer group.
type scanner struct {
	cfg       client.Config
	topic     string
	fetch     int32                 // maximum bytes of a fetch, compressed; 0: scanFetchBytes, and 1 MiB per partition
	remaining map[int32]offsetRange // not yet read, by partition
	// onSkip, if set, is called for each batch that cannot be read, with its range, and the scan continues after the
	// batch. If nil, such a batch ends the scan with an error.
	onSkip func(id int32, batch offsetRange, err error)
	tries  map[int32]int // of the current batch, by partition
}

// scan calls f for the records of a topic in parts, one call at a time, and in order within a partition. The
// incarnation identifies the topic: it changes when the topic is recreated.
func scan(
	ctx context.Context, cfg client.Config, topic string, parts map[int32]offsetRange,
	f func(rec *kgo.Record, incarnation uint32) error,
) error {
	return (&scanner{cfg: cfg, topic: topic}).scan(ctx, parts, f)
}

func (s *scanner) scan(ctx context.Context, parts map[int32]offsetRange, f func(*kgo.Record, uint32) error) error {
	s.remaining, s.tries = map[int32]offsetRange{}, map[int32]int{}
	for id, p := range parts {
		if p.from < p.to {
			s.remaining[id] = p
		}
	}
	for len(s.remaining) > 0 {
		if err := s.read(ctx, f); err != nil {
			return fmt.Errorf("read %s: %w", s.topic, err)
		}
	}
	return nil
}

// read reads the remaining ranges, up to a batch that cannot be read.
func (s *scanner) read(ctx context.Context, f func(*kgo.Record, uint32) error) error {
	from := map[int32]kgo.Offset{}
	for id, p := range s.remaining {
		from[id] = kgo.NewOffset().At(p.from)
	}
	opts, err := s.cfg.Options("scan",
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.topic: from}),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // removed records are skipped
		kgo.FetchMaxPartitionBytes(cmp.Or(s.fetch, 1<<20)), kgo.FetchMaxBytes(cmp.Or(s.fetch, scanFetchBytes)))
	if err != nil {
		return err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("kafka: new client: %w", err)
	}
	defer cl.Close()
	err = s.run(ctx, cl, f)
	if bad := (*damagedError)(nil); s.onSkip != nil && errors.As(err, &bad) {
		return s.skipBatch(ctx, cl, bad)
	}
	return err
}

// skipBatch skips a batch that cannot be read, after damageTries attempts. If the start of the next batch is
// unknown, it skips the rest of the partition.
func (s *scanner) skipBatch(ctx context.Context, cl *kgo.Client, bad *damagedError) error {
	id := bad.at.id
	p, is := s.remaining[id]
	if !is {
		return nil
	}
	if s.tries[id]++; s.tries[id] < damageTries {
		return retry.Sleep(ctx, damageRetry().Backoff(s.tries[id]))
	}
	next, err := offsetAfterBatch(ctx, cl, bad.at, p.from)
	switch {
	case errors.Is(err, errNextBatchUnknown):
		next = p.to
	case err != nil:
		return err
	}
	s.onSkip(id, offsetRange{p.from, next}, bad.err)
	s.advance(id, next)
	return nil
}

func (s *scanner) run(ctx context.Context, cl *kgo.Client, f func(*kgo.Record, uint32) error) error {
	for stalls := 0; len(s.remaining) > 0; {
		pctx, cancel := context.WithTimeout(ctx, scanStall)
		fetches := cl.PollRecords(pctx, 1000)
		stalled := pctx.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := pollError(fetches, s.cfg.Logger()); err != nil {
			return err
		}
		for _, fetch := range fetches {
			for _, t := range fetch.Topics {
				for _, p := range t.Partitions {
					if err := s.handle(p.Records, incarnation(t.TopicID), f); err != nil {
						return err
					}
				}
			}
		}
		if fetches.NumRecords() > 0 || !stalled {
			stalls = 0
			continue
		}
		stalls++
		err := s.skipEmpty(ctx, cl)
		if bad := (*damagedError)(nil); err != nil && (stalls >= scanMaxStalls || s.onSkip != nil && errors.As(err, &bad)) {
			return err
		}
	}
	return nil
}

func (s *scanner) handle(recs []*kgo.Record, inc uint32, f func(*kgo.Record, uint32) error) error {
	for _, rec := range recs {
		p, ok := s.remaining[rec.Partition]
		if !ok {
			return nil
		}
		if rec.Offset < p.to && !rec.Attrs.IsControl() {
			if err := f(rec, inc); err != nil {
				return err
			}
		}
		s.advance(rec.Partition, rec.Offset+1)
	}
	return nil
}

func (s *scanner) advance(id int32, next int64) {
	delete(s.tries, id)
	p := s.remaining[id]
	if p.from = next; p.from >= p.to {
		delete(s.remaining, id)
		return
	}
	s.remaining[id] = p
}

// skipEmpty advances the ranges past offsets without records: the end of a range may hold none, and a poll does
// not report that. It fails if a log ends before its range: the log was truncated, or the topic was recreated.
func (s *scanner) skipEmpty(ctx context.Context, cl *kgo.Client) error {
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopics(ctx, s.topic)
	if err != nil {
		return fmt.Errorf("list topic: %w", err)
	}
	starts, ends, err := bounds(ctx, adm, s.topic)
	if err != nil {
		return err
	}
	var errs []error
	for id, p := range s.remaining {
		next, err := max(p.from, starts[s.topic][id]), error(nil)
		if next < p.to {
			next, err = firstRecordOffset(ctx, cl, topics[s.topic], id, next)
		}
		if errors.Is(err, kerr.CorruptMessage) { // the client retries this error without reporting it
			err = &damagedError{partition{s.topic, id}, err}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("partition %d: %w", id, err))
		} else if next >= p.to {
			s.advance(id, next)
		} else if end := ends[s.topic][id]; end < p.to {
			errs = append(errs, fmt.Errorf("partition %d: the log ends at %d, but ended at %d before", id, end, p.to))
		}
	}
	return errors.Join(errs...)
}
