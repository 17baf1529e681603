package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/retry"
)

const (
	// damageTries is how often a batch that cannot be parsed is fetched before its partition is stopped.
	damageTries = 5
	// lookAgain bounds a look at the brokers because of the errors of a poll, and is the wait after such a look that
	// found nothing: the next poll has the same errors at once.
	lookupTimeout = 10 * time.Second
	lookupPause   = time.Second
	// unknownTries is how many polls find that the id of a topic is not known before it is examined: of a new topic some
	// brokers learn later than others.
	unknownTries = 3
	// warnEvery is the time between two warnings of what keeps a partition from being read for now.
	warnEvery = time.Minute
)

// damageRetry is the wait between two fetches of a batch that cannot be parsed. No partition of the client is read
// meanwhile, 3 s in all.
func damageRetry() retry.Policy {
	return retry.Policy{Wait: 250 * time.Millisecond, MaxWait: time.Second}
}

// A reader judges what the polls of one client return, in the loop that polls.
type pollChecker struct {
	router  *router
	commits *commits // nil: the client is in no group
	// next returns the offset from which a partition is read; nil: the client's group says it.
	nextOffset func(partition) int64
	// pattern: topics are matched by one, and the client itself forgets those that are deleted.
	byPattern bool

	unknownPolls map[string]int          // topics: polls that found their ids unknown; only check uses it
	warned       map[partition]time.Time // of what passes; only check uses it

	mu      sync.Mutex                  // guards the rest
	damaged map[partition]*damagedBatch // partitions of which a batch cannot be parsed
}

// A damage is what is known of a batch that cannot be parsed.
type damagedBatch struct {
	tries   int
	stopped *UnreadableBatch // nil: it is tried again
}

func newPollChecker(r *router, c *commits) *pollChecker {
	return &pollChecker{
		router: r, commits: c, unknownPolls: map[string]int{}, warned: map[partition]time.Time{}, damaged: map[partition]*damagedBatch{},
	}
}

// pollFaults are the errors of a poll that are not just logged.
type pollFaults struct {
	fatal     error
	unknown   map[string][16]byte // topics whose ids the brokers do not know: as the client knows them
	damaged   map[partition]error // partitions of which a batch cannot be parsed, by the client or by the broker, or is too long
	transient map[partition]error // partitions, or -1 for a topic, that the broker asked does not give out for now
}

// faultsOf returns the errors of a poll by what follows from them, and logs the others.
func faultsOf(fetches kgo.Fetches, log *slog.Logger) pollFaults {
	var (
		out    outOfRange
		faults = pollFaults{unknown: map[string][16]byte{}, damaged: map[partition]error{}, transient: map[partition]error{}}
	)
	fetches.EachTopic(func(t kgo.FetchTopic) {
		t.EachPartition(func(p kgo.FetchPartition) {
			if p.Err == nil {
				return
			}
			var (
				loss *kgo.ErrDataLoss
				code *kerr.Error
				at   = partition{t.Topic, p.Partition}
				err  = p.Err
			)
			switch {
			case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
				return // the poll's own, or that of a request which is made again
			case errors.As(err, &loss):
				log.Error("the broker lost records, or the topic was made again", "topic", at.topic, "partition", at.id, "err", err)
			case decompressTooLarge(err) != nil:
				faults.damaged[at] = err
			case errors.Is(err, kerr.OffsetOutOfRange):
				out.parts = append(out.parts, at)
			case errors.Is(err, kerr.UnknownTopicID):
				faults.unknown[at.topic] = t.TopicID
			case errors.Is(err, kgo.ErrClientClosed), errors.As(err, &code) && !code.Retriable && !groupMovedOn(code):
				if faults.fatal == nil {
					faults.fatal = fmt.Errorf("poll %s: %w", at, err)
				}
			case errors.Is(err, kerr.CorruptMessage), code == nil && p.HighWatermark > 0: // it has answered with records
				faults.damaged[at] = err
			case code != nil && code.Retriable:
				faults.transient[at] = err
			default:
				log.Warn("poll", "topic", at.topic, "partition", at.id, "err", err)
			}
		})
	})
	if faults.fatal == nil && len(out.parts) > 0 {
		faults.fatal = &out
	}
	return faults
}

// pollError returns the first error of a poll of a client that reads once.
func pollError(fetches kgo.Fetches, log *slog.Logger) error {
	faults := faultsOf(fetches, log)
	switch {
	case faults.fatal != nil:
		return faults.fatal
	case len(faults.unknown) > 0:
		return fmt.Errorf("poll %v: %w", slices.Sorted(maps.Keys(faults.unknown)), kerr.UnknownTopicID)
	}
	for at, err := range faults.transient {
		log.Warn("poll", "topic", at.topic, "partition", at.id, "err", err)
	}
	for at, err := range faults.damaged {
		return &damagedError{at, err}
	}
	return nil
}

// A damagedError is the error of a poll for a batch that cannot be parsed.
type damagedError struct {
	at  partition
	err error
}

func (e *damagedError) Error() string { return fmt.Sprintf("poll %s: %v", e.at, e.err) }

func (e *damagedError) Unwrap() error { return e.err }

// check returns an error of a poll that ends the loop, if there is one. It waits for as long as the client is not to
// be polled again.
func (r *pollChecker) check(ctx context.Context, cl *kgo.Client, fetches kgo.Fetches) error {
	faults := faultsOf(fetches, r.router.log)
	if faults.fatal != nil {
		return faults.fatal
	}
	for name := range faults.unknown {
		if r.unknownPolls[name]++; r.unknownPolls[name] < unknownTries {
			faults.transient[partition{name, -1}] = kerr.UnknownTopicID
			delete(faults.unknown, name)
		}
	}
	if len(faults.unknown) > 0 {
		if err := r.checkUnknownTopics(ctx, cl, faults.unknown); err != nil {
			return err
		}
	}
	r.retryDamaged(ctx, cl, fetches, faults.damaged)
	r.warnTransient(ctx, fetches, faults.transient)
	return nil
}

// pass warns of partitions that the broker asked does not give out for now. The client asks again with the next poll, so
// a poll that has nothing else is followed by a wait.
func (r *pollChecker) warnTransient(ctx context.Context, fetches kgo.Fetches, passing map[partition]error) {
	for at, err := range passing {
		if time.Since(r.warned[at]) >= warnEvery {
			r.warned[at] = time.Now()
			r.router.log.Warn("poll", "topic", at.topic, "partition", at.id, "err", err)
		}
	}
	if len(passing) > 0 && fetches.NumRecords() == 0 {
		_ = retry.Sleep(ctx, lookupPause) // only ctx ends it early
	}
}

// unknown returns an error if topics are not there any more under the ids that the client knows. The client does not
// adopt a new id: what is in memory is of the old topic.
func (r *pollChecker) checkUnknownTopics(ctx context.Context, cl *kgo.Client, known map[string][16]byte) error {
	lctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ids, err := topicIDs(lctx, cl, slices.Sorted(maps.Keys(known))...)
	if err != nil {
		r.router.log.Warn("look again whether topics were made again", "wait", lookupPause, "err", err)
		_ = retry.Sleep(ctx, lookupPause) // only ctx ends it early
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		now := ids[name]
		switch gone := now == (topicID{}); {
		case gone && r.byPattern:
			r.router.log.Warn("a topic was deleted", "topic", name)
		case gone || now.err == nil && now.id != kadm.TopicID(known[name]).String():
			if r.commits != nil {
				r.commits.deleted.add(name)
			}
			errs = append(errs, remade(name, !gone))
		default: // a broker that does not know yet what another one knows
			r.router.log.Warn("poll", "topic", name, "err", errors.Join(kerr.UnknownTopicID, now.err))
		}
	}
	if len(errs) == 0 {
		_ = retry.Sleep(ctx, lookupPause) // only ctx ends it early
	}
	return errors.Join(errs...)
}

// damage tries the partitions of bad again a few times, and stops them then.
func (r *pollChecker) retryDamaged(ctx context.Context, cl *kgo.Client, fetches kgo.Fetches, bad map[partition]error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(bad)+len(r.damaged) == 0 { // nearly always
		return
	}
	wait := time.Duration(0)
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		at := partition{p.Topic, p.Partition}
		if len(p.Records) > 0 {
			r.drop(at)
		}
		err, is := bad[at]
		if !is {
			return
		}
		d := r.damaged[at]
		if d == nil {
			d = &damagedBatch{}
			r.damaged[at] = d
		}
		switch d.tries++; {
		case d.stopped != nil: // somebody has resumed it
			cl.PauseFetchPartitions(at.asMap())
		case d.tries < damageTries && decompressTooLarge(err) == nil:
			backoff := damageRetry().Backoff(d.tries)
			wait = max(wait, backoff)
			r.router.log.Warn("fetch a batch again that cannot be parsed", "topic", at.topic, "partition", at.id,
				"attempt", d.tries, "wait", backoff, "err", err)
		default:
			cl.PauseFetchPartitions(at.asMap())
			d.stopped = r.describeDamage(ctx, cl, at, p.FetchPartition, err)
			r.router.log.Error("stop reading a partition", "topic", at.topic, "partition", at.id, "err", d.stopped.Err)
			r.router.cfg.Unreadables.stop(*d.stopped)
		}
	})
	_ = retry.Sleep(ctx, wait) // only ctx ends it early
}

// forget drops what is known of a partition: it is read on, or is no longer ours.
func (r *pollChecker) forget(at partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(at)
}

// drop is forget with r.mu held.
func (r *pollChecker) drop(at partition) {
	if d := r.damaged[at]; d != nil && d.stopped != nil {
		r.router.cfg.Unreadables.leave(*d.stopped)
	}
	delete(r.damaged, at)
}

// position is the offset from which the client reads a partition of which p was fetched.
func (r *pollChecker) position(cl *kgo.Client, at partition, p kgo.FetchPartition) int64 {
	if n := len(p.Records); n > 0 {
		return p.Records[n-1].Offset + 1
	}
	if r.nextOffset != nil {
		return max(r.nextOffset(at), p.LogStartOffset)
	}
	for _, offsets := range []map[string]map[int32]kgo.EpochOffset{cl.UncommittedOffsets(), cl.CommittedOffsets()} {
		if o, ok := offsets[at.topic][at.id]; ok && o.Offset >= 0 {
			return o.Offset
		}
	}
	return max(p.LogStartOffset, 0)
}

// tooLong returns the error of a batch that is longer, when it is decompressed, than the client may read; nil: it is
// another one. The client does not fetch such a batch again.
func decompressTooLarge(err error) *kgo.ErrDecompressTooLarge {
	bomb := (*kgo.ErrDecompressTooLarge)(nil)
	_ = errors.As(err, &bomb)
	return bomb
}

// examine says where a batch is that cannot be parsed, and what to do. p is what was fetched of its partition.
func (r *pollChecker) describeDamage(ctx context.Context, cl *kgo.Client, at partition, p kgo.FetchPartition, cause error) *UnreadableBatch {
	offset := r.position(cl, at, p)
	u := &UnreadableBatch{Topic: r.router.cfg.bare(at.topic), Partition: at.id, Offset: offset}
	what := fmt.Sprintf("%s: the batch at offset %d cannot be parsed, so the partition is not read any further: "+
		"its bytes are damaged on the broker that leads the partition. Have a replica lead it whose bytes are whole "+
		"(kafka-leader-election.sh), or restore them, and start this process again", at, offset)
	if decompressTooLarge(cause) != nil {
		what = fmt.Sprintf("%s: the batch at offset %d is longer when it is decompressed than any message may be, "+
			"so the partition is not read any further", at, offset)
	}
	if r.commits == nil {
		u.Reader = string(r.router.role)
		u.Err = fmt.Errorf("%s: %w", what, cause)
		return u
	}
	u.Reader, _ = cl.OptValue(kgo.ConsumerGroup).(string)
	// A commit before the batch is of records that are still at work: the command would skip them.
	done := offset <= p.LogStartOffset || cl.CommittedOffsets()[at.topic][at.id].Offset == offset
	u.Err = fmt.Errorf("%s. %s: %w", what, r.skipCommand(u.Reader, at, offset, nextBatchOffset(ctx, cl, at, offset, cause), done), cause)
	return u
}

// nextOf returns the offset behind the batch that cannot be read because of cause; 0: it is not known.
func nextBatchOffset(ctx context.Context, cl *kgo.Client, at partition, offset int64, cause error) int64 {
	if bomb := decompressTooLarge(cause); bomb != nil {
		return bomb.NextOffset
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	next, err := afterBatch(ctx, cl, at, offset)
	if err != nil {
		return 0
	}
	return next
}

// goOn is how an operator has a group go on at next, without the batch at offset. done: the group has finished all
// records before it.
func (r *pollChecker) skipCommand(group string, at partition, offset, next int64, done bool) string {
	brokers := r.router.cfg.Brokers
	without, to := fmt.Sprintf("the records from offset %d to %d", offset, next-1), strconv.FormatInt(next, 10)
	if next == 0 {
		without = fmt.Sprintf("the records from offset %d on, up to the next batch (kafka-dump-log.sh shows its offset, NEXT)", offset)
		to = "NEXT"
	}
	first := ""
	if !done {
		first = fmt.Sprintf("let the group finish those before them, until kafka-consumer-groups.sh --bootstrap-server %s "+
			"--describe --group %s shows CURRENT-OFFSET %d for it. Then ", strings.Join(brokers, ","), group, offset)
	}
	return "To go on without " + without + ", " + first + resetGroup(brokers, group, at, "--to-offset "+to)
}

// resetGroup is the command by which an operator moves a group.
func resetGroup(brokers []string, group string, at partition, to string) string {
	return fmt.Sprintf("stop the role in every process and run: "+
		"kafka-consumer-groups.sh --bootstrap-server %s --group %s --topic %s:%d --reset-offsets %s --execute",
		strings.Join(brokers, ","), group, at.topic, at.id, to)
}
