package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// DamageTries is the number of fetches of a batch that cannot be parsed before reading of its partition
// stops.
const DamageTries = 5

// DamageRetry is the wait between two fetches of a batch that cannot be parsed. The client reads no partition
// meanwhile, for 3 s in total.
func DamageRetry() retry.Policy {
	return retry.Policy{Wait: 250 * time.Millisecond, MaxWait: time.Second}
}

// PollFaults are the errors of a poll that need more than a log message.
type PollFaults struct {
	Fatal   error
	Unknown map[string][16]byte // topics with an id that the brokers do not know, with that id
	// Partitions with a batch that is too long, or that the client or the broker cannot parse.
	Damaged   map[Partition]error
	Transient map[Partition]error // partitions, or -1 for a topic, that the broker does not serve for now
}

// FaultsOf sorts the errors of a poll by their consequence, and logs those without one.
func FaultsOf(fetches kgo.Fetches, log *slog.Logger) PollFaults {
	var (
		out    OutOfRangeError
		faults = PollFaults{Unknown: map[string][16]byte{}, Damaged: map[Partition]error{}, Transient: map[Partition]error{}}
	)
	fetches.EachTopic(func(t kgo.FetchTopic) {
		t.EachPartition(func(p kgo.FetchPartition) {
			if p.Err == nil {
				return
			}
			var (
				loss *kgo.ErrDataLoss
				code *kerr.Error
				at   = Partition{t.Topic, p.Partition}
				err  = p.Err
			)
			switch {
			case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
				return // the context of the poll, or of a request that the client repeats
			case errors.As(err, &loss):
				log.Error("detect data loss", "topic", at.Topic, "partition", at.ID, "err", err)
			case DecompressTooLarge(err) != nil:
				faults.Damaged[at] = err
			case errors.Is(err, kerr.OffsetOutOfRange):
				out.Partitions = append(out.Partitions, at)
			case errors.Is(err, kerr.UnknownTopicID):
				faults.Unknown[at.Topic] = t.TopicID
			case errors.Is(err, kgo.ErrClientClosed), errors.As(err, &code) && !code.Retriable && !GroupMovedOn(code):
				if faults.Fatal == nil {
					faults.Fatal = client.Refused(fmt.Errorf("poll %s: %w", at, err), "Read", at.Topic, "")
				}
			case errors.Is(err, kerr.CorruptMessage), code == nil && p.HighWatermark > 0: // the broker answered with records
				faults.Damaged[at] = err
			case code != nil && code.Retriable:
				faults.Transient[at] = err
			default:
				log.Warn("poll partition", "topic", at.Topic, "partition", at.ID, "err", err)
			}
		})
	})
	if faults.Fatal == nil && len(out.Partitions) > 0 {
		faults.Fatal = &out
	}
	return faults
}

// pollError returns the first error of a poll by a client that reads once.
func pollError(fetches kgo.Fetches, log *slog.Logger) error {
	faults := FaultsOf(fetches, log)
	switch {
	case faults.Fatal != nil:
		return faults.Fatal
	case len(faults.Unknown) > 0:
		return fmt.Errorf("poll %v: %w", slices.Sorted(maps.Keys(faults.Unknown)), kerr.UnknownTopicID)
	}
	for at, err := range faults.Transient {
		log.Warn("poll partition", "topic", at.Topic, "partition", at.ID, "err", err)
	}
	for at, err := range faults.Damaged {
		return &damagedError{at, err}
	}
	return nil
}

// A damagedError reports a batch that cannot be parsed.
type damagedError struct {
	at  Partition
	err error
}

// Error implements error.
func (e *damagedError) Error() string { return fmt.Sprintf("poll %s: %v", e.at, e.err) }

// Unwrap returns the cause.
func (e *damagedError) Unwrap() error { return e.err }

// DecompressTooLarge returns the error of a batch that is larger, decompressed, than the client accepts, or
// nil for any other error. The client does not fetch such a batch again.
func DecompressTooLarge(err error) *kgo.ErrDecompressTooLarge {
	tooLarge := (*kgo.ErrDecompressTooLarge)(nil)
	_ = errors.As(err, &tooLarge)
	return tooLarge
}

// GroupMovedOn reports whether err only means that the group has a new generation. The client joins again,
// and records that were not committed are delivered again.
func GroupMovedOn(err error) bool {
	for _, e := range []error{
		kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.StaleMemberEpoch,
		kerr.FencedMemberEpoch,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// An OutOfRangeError is the error of a poll at offsets that are not in the logs of some partitions.
type OutOfRangeError struct{ Partitions []Partition }

// Error implements error.
func (e *OutOfRangeError) Error() string {
	var names []string
	for _, p := range e.Partitions {
		names = append(names, p.String())
	}
	return fmt.Sprintf("poll %s: %v", strings.Join(names, ", "), kerr.OffsetOutOfRange)
}

// Unwrap returns the broker's error.
func (e *OutOfRangeError) Unwrap() error { return kerr.OffsetOutOfRange }
