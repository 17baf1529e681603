package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// lookupTimeout bounds a request to the brokers about the errors of a poll. lookupPause is the wait after a
	// request without a finding, because the next poll returns the same errors at once.
	lookupTimeout = 10 * time.Second
	lookupPause   = time.Second
	// unknownTries is the number of polls that may report an unknown topic id before the topic is examined: some
	// brokers learn of a new topic later than others.
	unknownTries = 3
	// warnEvery is the time between two warnings that a partition cannot be read for now.
	warnEvery = time.Minute
)

// A pollChecker handles the errors of one client's polls. It is used by the loop that polls.
type pollChecker struct {
	router  *core.Router
	commits *commits // nil: the client is in no group
	// nextOffset returns the offset at which reading of a partition continues; nil: the group knows it.
	nextOffset func(core.Partition) int64
	// byPattern: the client matches topics by a pattern, and drops deleted ones itself.
	byPattern bool

	unknownPolls map[string]int               // number of polls with an unknown id, by topic; only check uses it
	warned       map[core.Partition]time.Time // time of the last warning; only check uses it

	mu      sync.Mutex                       // guards the fields below
	damaged map[core.Partition]*damagedBatch // partitions with a batch that cannot be parsed
}

// A damagedBatch is a batch that cannot be parsed.
type damagedBatch struct {
	tries   int
	stopped *client.UnreadableBatch // nil: it is still fetched again
}

func newPollChecker(r *core.Router, c *commits) *pollChecker {
	return &pollChecker{
		router: r, commits: c, unknownPolls: map[string]int{}, warned: map[core.Partition]time.Time{},
		damaged: map[core.Partition]*damagedBatch{},
	}
}

// check returns the error that must end the poll loop, if there is one. It waits while the client must not be
// polled.
func (r *pollChecker) check(ctx context.Context, cl *kgo.Client, fetches kgo.Fetches) error {
	faults := core.FaultsOf(fetches, r.router.Log)
	if faults.Fatal != nil {
		if errors.Is(faults.Fatal, kerr.GroupAuthorizationFailed) {
			return client.Refused(faults.Fatal, "Read", "", groupOf(cl))
		}
		return faults.Fatal
	}
	for name := range faults.Unknown {
		if r.unknownPolls[name]++; r.unknownPolls[name] < unknownTries {
			faults.Transient[core.Partition{Topic: name, ID: -1}] = kerr.UnknownTopicID
			delete(faults.Unknown, name)
		}
	}
	if len(faults.Unknown) > 0 {
		if err := r.checkUnknownTopics(ctx, cl, faults.Unknown); err != nil {
			return err
		}
	}
	r.retryDamaged(ctx, cl, fetches, faults.Damaged)
	r.warnTransient(ctx, fetches, faults.Transient)
	return nil
}

// groupOf returns the group of a client.
func groupOf(cl *kgo.Client) string {
	group, _ := cl.OptValue(kgo.ConsumerGroup).(string)
	return group
}

// warnTransient logs partitions that the broker does not serve for now. The client repeats the request with
// the next poll, so warnTransient waits if the poll returned no records.
func (r *pollChecker) warnTransient(ctx context.Context, fetches kgo.Fetches, transient map[core.Partition]error) {
	for at, err := range transient {
		if time.Since(r.warned[at]) >= warnEvery {
			r.warned[at] = time.Now()
			r.router.Log.Warn("poll partition", "topic", at.Topic, "partition", at.ID, "err", err)
		}
	}
	if len(transient) > 0 && fetches.NumRecords() == 0 {
		_ = retry.Sleep(ctx, lookupPause) // only ctx ends it early
	}
}

// checkUnknownTopics returns an error if topics no longer exist under the ids that the client knows. The
// client does not adopt a new id, because the records in memory belong to the old topic.
func (r *pollChecker) checkUnknownTopics(ctx context.Context, cl *kgo.Client, known map[string][16]byte) error {
	lctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ids, err := core.TopicIDs(lctx, cl, slices.Sorted(maps.Keys(known))...)
	if err != nil {
		r.router.Log.Warn("retry listing topics", "retry_after", lookupPause, "err", err)
		_ = retry.Sleep(ctx, lookupPause) // only ctx ends it early
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		now := ids[name]
		switch gone := now == (core.TopicID{}); {
		case gone && r.byPattern:
			r.router.Log.Warn("drop deleted topic", "topic", name)
		case gone || now.Err == nil && now.ID != kadm.TopicID(known[name]).String():
			if r.commits != nil {
				r.commits.deleted.Add(name)
			}
			errs = append(errs, client.TopicDeletedError(name, !gone))
		default: // this broker does not know yet what another one knows
			r.router.Log.Warn("poll topic", "topic", name, "err", errors.Join(kerr.UnknownTopicID, now.Err))
		}
	}
	if len(errs) == 0 {
		_ = retry.Sleep(ctx, lookupPause) // only ctx ends it early
	}
	return errors.Join(errs...)
}

// retryDamaged fetches the partitions in bad again a few times, then stops reading them.
func (r *pollChecker) retryDamaged(
	ctx context.Context, cl *kgo.Client, fetches kgo.Fetches, bad map[core.Partition]error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(bad)+len(r.damaged) == 0 { // the common case
		return
	}
	wait := time.Duration(0)
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		at := core.Partition{Topic: p.Topic, ID: p.Partition}
		if len(p.Records) > 0 {
			r.drop(at)
		}
		err, ok := bad[at]
		if !ok {
			return
		}
		d := r.damaged[at]
		if d == nil {
			d = &damagedBatch{}
			r.damaged[at] = d
		}
		switch d.tries++; {
		case d.stopped != nil: // its pause was lifted
			cl.PauseFetchPartitions(at.AsMap())
		case d.tries < core.DamageTries && core.DecompressTooLarge(err) == nil:
			backoff := core.DamageRetry().Backoff(d.tries)
			wait = max(wait, backoff)
			r.router.Log.Warn("refetch damaged batch", "topic", at.Topic, "partition", at.ID,
				"attempt", d.tries, "retry_after", backoff, "err", err)
		default:
			cl.PauseFetchPartitions(at.AsMap())
			d.stopped = r.describeDamage(ctx, cl, at, p.FetchPartition, err)
			r.router.Log.Error("stop partition", "topic", at.Topic, "partition", at.ID, "err", d.stopped.Err)
			r.router.Config.Unreadables.PartitionStopped(*d.stopped)
		}
	})
	_ = retry.Sleep(ctx, wait) // only ctx ends it early
}

// forget drops the state of a partition that is read again, or no longer assigned.
func (r *pollChecker) forget(at core.Partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(at)
}

// drop is forget for a caller that holds r.mu.
func (r *pollChecker) drop(at core.Partition) {
	if d := r.damaged[at]; d != nil && d.stopped != nil {
		r.router.Config.Unreadables.PartitionResumed(*d.stopped)
	}
	delete(r.damaged, at)
}

// position returns the offset at which the client continues to read the partition of p.
func (r *pollChecker) position(cl *kgo.Client, at core.Partition, p kgo.FetchPartition) int64 {
	if n := len(p.Records); n > 0 {
		return p.Records[n-1].Offset + 1
	}
	if r.nextOffset != nil {
		return max(r.nextOffset(at), p.LogStartOffset)
	}
	for _, offsets := range []map[string]map[int32]kgo.EpochOffset{cl.UncommittedOffsets(), cl.CommittedOffsets()} {
		if o, ok := offsets[at.Topic][at.ID]; ok && o.Offset >= 0 {
			return o.Offset
		}
	}
	return max(p.LogStartOffset, 0)
}

// describeDamage returns the location of a batch that cannot be parsed, and instructions for the operator. p
// is the result of the poll for its partition.
func (r *pollChecker) describeDamage(
	ctx context.Context, cl *kgo.Client, at core.Partition, p kgo.FetchPartition, cause error,
) *client.UnreadableBatch {
	offset := r.position(cl, at, p)
	u := &client.UnreadableBatch{Topic: r.router.Config.SchemaTopic(at.Topic), Partition: at.ID, Offset: offset}
	what := fmt.Sprintf("%s: the batch at offset %d cannot be parsed, so the partition is no longer read: "+
		"its bytes are damaged on the broker that leads the partition. Make a replica with intact bytes the leader "+
		"(kafka-leader-election.sh), or restore the bytes, and restart this process", at, offset)
	if core.DecompressTooLarge(cause) != nil {
		what = fmt.Sprintf("%s: the batch at offset %d is longer, decompressed, than any message may be, "+
			"so the partition is no longer read", at, offset)
	}
	if r.commits == nil {
		u.Reader = string(r.router.Role)
		u.Err = fmt.Errorf("%s: %w", what, cause)
		return u
	}
	u.Reader, _ = cl.OptValue(kgo.ConsumerGroup).(string)
	// If the committed offset is below the batch, records between them are still in flight, and the command
	// would skip them.
	done := offset <= p.LogStartOffset || cl.CommittedOffsets()[at.Topic][at.ID].Offset == offset
	next := nextBatchOffset(ctx, cl, at, offset, cause)
	u.Err = fmt.Errorf("%s. %s: %w", what, r.skipCommand(u.Reader, at, offset, next, done), cause)
	return u
}

// nextBatchOffset returns the offset after the batch that cannot be read because of cause, or 0 if it is
// unknown.
func nextBatchOffset(ctx context.Context, cl *kgo.Client, at core.Partition, offset int64, cause error) int64 {
	if tooLarge := core.DecompressTooLarge(cause); tooLarge != nil {
		return tooLarge.NextOffset
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	next, err := core.OffsetAfterBatch(ctx, cl, at, offset)
	if err != nil {
		return 0
	}
	return next
}

// skipCommand returns instructions to make a group continue at next, without the batch at offset. done
// reports whether the group has finished all records before the batch.
func (r *pollChecker) skipCommand(group string, at core.Partition, offset, next int64, done bool) string {
	brokers := r.router.Config.Brokers
	without, to := fmt.Sprintf("the records from offset %d to %d", offset, next-1), strconv.FormatInt(next, 10)
	if next == 0 {
		without = fmt.Sprintf("the records from offset %d on, up to the next batch "+
			"(kafka-dump-log.sh shows its offset, NEXT)", offset)
		to = "NEXT"
	}
	first := ""
	if !done {
		first = fmt.Sprintf("let the group finish those before them, until kafka-consumer-groups.sh --bootstrap-server %s "+
			"--describe --group %s shows CURRENT-OFFSET %d for it. Then ", strings.Join(brokers, ","), group, offset)
	}
	return "To go on without " + without + ", " + first + resetGroup(brokers, group, at, "--to-offset "+to)
}

// resetGroup returns the command that sets the offset of a group.
func resetGroup(brokers []string, group string, at core.Partition, to string) string {
	return fmt.Sprintf("stop the role in every process and run: "+
		"kafka-consumer-groups.sh --bootstrap-server %s --group %s --topic %s:%d --reset-offsets %s --execute",
		strings.Join(brokers, ","), group, at.Topic, at.ID, to)
}
