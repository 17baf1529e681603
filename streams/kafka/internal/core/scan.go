package core

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

// A Range is a range of offsets in a partition: from from on, up to but not including to.
type Range struct{ From, To int64 }

// TopicRanges returns the current offset ranges of all partitions of a topic.
func TopicRanges(ctx context.Context, adm *kadm.Client, topic string) (map[int32]Range, error) {
	starts, ends, err := Bounds(ctx, adm, topic)
	if err != nil {
		return nil, err
	}
	if len(ends[topic]) == 0 {
		return nil, fmt.Errorf("topic %s does not exist", topic)
	}
	out := map[int32]Range{}
	for id, end := range ends[topic] {
		out[id] = Range{starts[topic][id], end}
	}
	return out, nil
}

// A Scanner reads ranges of a topic once, without a consumer group.
type Scanner struct {
	Config    client.Config
	Topic     string
	Fetch     int32           // maximum bytes of a fetch, compressed; 0: scanFetchBytes, and 1 MiB per partition
	remaining map[int32]Range // not yet read, by partition
	// onSkip, if set, is called for each batch that cannot be read, with its range, and the scan continues after the
	// batch. If nil, such a batch ends the scan with an error.
	onSkip func(id int32, batch Range, err error)
	tries  map[int32]int // of the current batch, by partition
}

// Scan calls f for the records of a topic in parts, one call at a time, and in order within a partition. The
// incarnation identifies the topic: it changes when the topic is recreated.
func Scan(
	ctx context.Context, cfg client.Config, topic string, parts map[int32]Range,
	f func(rec *kgo.Record, incarnation uint32) error,
) error {
	return (&Scanner{Config: cfg, Topic: topic}).Scan(ctx, parts, f)
}

// Scan calls f for the records of the topic in parts, one call at a time, and in order within a partition.
func (s *Scanner) Scan(ctx context.Context, parts map[int32]Range, f func(*kgo.Record, uint32) error) error {
	s.remaining, s.tries = map[int32]Range{}, map[int32]int{}
	for id, p := range parts {
		if p.From < p.To {
			s.remaining[id] = p
		}
	}
	for len(s.remaining) > 0 {
		if err := s.read(ctx, f); err != nil {
			return fmt.Errorf("read %s: %w", s.Topic, err)
		}
	}
	return nil
}

// read reads the remaining ranges, up to a batch that cannot be read.
func (s *Scanner) read(ctx context.Context, f func(*kgo.Record, uint32) error) error {
	from := map[int32]kgo.Offset{}
	for id, p := range s.remaining {
		from[id] = kgo.NewOffset().At(p.From)
	}
	cl, err := s.Config.NewClient("scan",
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.Topic: from}),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // removed records are skipped
		kgo.FetchMaxPartitionBytes(cmp.Or(s.Fetch, 1<<20)), kgo.FetchMaxBytes(cmp.Or(s.Fetch, scanFetchBytes)))
	if err != nil {
		return err
	}
	defer cl.Close()
	err = s.run(ctx, cl, f)
	if bad := (*damagedError)(nil); s.onSkip != nil && errors.As(err, &bad) {
		return s.skipBatch(ctx, cl, bad)
	}
	return err
}

// skipBatch skips a batch that cannot be read, after DamageTries attempts. If the start of the next batch is
// unknown, it skips the rest of the partition.
func (s *Scanner) skipBatch(ctx context.Context, cl *kgo.Client, bad *damagedError) error {
	id := bad.at.ID
	p, is := s.remaining[id]
	if !is {
		return nil
	}
	if s.tries[id]++; s.tries[id] < DamageTries {
		return retry.Sleep(ctx, DamageRetry().Backoff(s.tries[id]))
	}
	next, err := OffsetAfterBatch(ctx, cl, bad.at, p.From)
	switch {
	case errors.Is(err, errNextBatchUnknown):
		next = p.To
	case err != nil:
		return err
	}
	s.onSkip(id, Range{p.From, next}, bad.err)
	s.advance(id, next)
	return nil
}

func (s *Scanner) run(ctx context.Context, cl *kgo.Client, f func(*kgo.Record, uint32) error) error {
	for stalls := 0; len(s.remaining) > 0; {
		pctx, cancel := context.WithTimeout(ctx, scanStall)
		fetches := cl.PollRecords(pctx, 1000)
		stalled := pctx.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := pollError(fetches, s.Config.Logger()); err != nil {
			return err
		}
		for _, fetch := range fetches {
			for _, t := range fetch.Topics {
				for _, p := range t.Partitions {
					if err := s.handle(p.Records, Incarnation(t.TopicID), f); err != nil {
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

func (s *Scanner) handle(recs []*kgo.Record, inc uint32, f func(*kgo.Record, uint32) error) error {
	for _, rec := range recs {
		p, ok := s.remaining[rec.Partition]
		if !ok {
			return nil
		}
		if rec.Offset < p.To && !rec.Attrs.IsControl() {
			if err := f(rec, inc); err != nil {
				return err
			}
		}
		s.advance(rec.Partition, rec.Offset+1)
	}
	return nil
}

func (s *Scanner) advance(id int32, next int64) {
	delete(s.tries, id)
	p := s.remaining[id]
	if p.From = next; p.From >= p.To {
		delete(s.remaining, id)
		return
	}
	s.remaining[id] = p
}

// skipEmpty advances the ranges past offsets without records: the end of a range may hold none, and a poll does
// not report that. It fails if a log ends before its range: the log was truncated, or the topic was recreated.
func (s *Scanner) skipEmpty(ctx context.Context, cl *kgo.Client) error {
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopics(ctx, s.Topic)
	if err != nil {
		return fmt.Errorf("list topic: %w", err)
	}
	starts, ends, err := Bounds(ctx, adm, s.Topic)
	if err != nil {
		return err
	}
	var errs []error
	for id, p := range s.remaining {
		next, err := max(p.From, starts[s.Topic][id]), error(nil)
		if next < p.To {
			next, err = FirstRecordOffset(ctx, cl, topics[s.Topic], id, next)
		}
		if errors.Is(err, kerr.CorruptMessage) { // the client retries this error without reporting it
			err = &damagedError{Partition{s.Topic, id}, err}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("partition %d: %w", id, err))
		} else if next >= p.To {
			s.advance(id, next)
		} else if end := ends[s.Topic][id]; end < p.To {
			errs = append(errs, fmt.Errorf("partition %d: the log ends at %d, but ended at %d before", id, end, p.To))
		}
	}
	return errors.Join(errs...)
}
