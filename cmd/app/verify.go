package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
	"github.com/millrace/millrace/streams/kafka/admin"
)

// A Verifier compares the records of Kafka with the rows of ClickHouse. It repairs nothing and
// commits no offsets. It creates one table, for the rebuilt state of copies, and drops it.
type Verifier struct {
	admin     *admin.Admin
	watermark *admin.Watermark
	db        *clickhouse.DB
	log       *slog.Logger
	progress  func(step string, done, total int64)
}

// OpenVerifier connects to Kafka and ClickHouse. progress is called with the progress of each step.
// The caller closes the Verifier.
func OpenVerifier(
	ctx context.Context, cfg *config.Config, log *slog.Logger, progress func(step string, done, total int64),
) (*Verifier, error) {
	k, err := kafkaConfig(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	v := &Verifier{log: log, progress: progress}
	if v.admin, err = admin.New(k); err != nil {
		return nil, fmt.Errorf("make the admin client: %w", err)
	}
	v.watermark = v.admin.NewWatermark(schemas.Changes, positionTopics())
	if v.db, err = OpenDB(ctx, cfg, log); err != nil {
		v.admin.Close()
		return nil, err
	}
	return v, nil
}

// Close closes the clients.
func (v *Verifier) Close() error {
	v.admin.Close()
	return v.db.Close()
}

// SinkTopics returns the topics that Topics can verify.
func SinkTopics() (topics []schemas.Topic) {
	for _, e := range schemas.Catalogue() {
		if e.Reads(schemas.RoleSink) {
			topics = append(topics, e.Topic)
		}
	}
	return topics
}

// Topics verifies topics one after the other. Each is read once, up to its end at that time.
func (v *Verifier) Topics(ctx context.Context, topics []schemas.Topic) ([]*verify.TableReport, error) {
	// The committed offsets are read before the records: every record before them has a row or a dead
	// letter.
	committed := map[schemas.Topic]map[int32]int64{}
	for _, topic := range topics {
		var err error
		if committed[topic], err = v.admin.Committed(ctx, schemas.RoleSink, topic); err != nil {
			return nil, fmt.Errorf("verify %s: %w", topic, err)
		}
	}
	dead, err := v.sinkDeadLetters(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the dead letters of the sink: %w", err)
	}
	var all []*verify.TableReport
	for _, topic := range topics {
		proofs, err := v.topic(ctx, topic, committed[topic], dead)
		if err != nil {
			return nil, fmt.Errorf("verify %s: %w", topic, err)
		}
		all = append(all, proofs...)
	}
	return all, nil
}

func (v *Verifier) topic(
	ctx context.Context, topic schemas.Topic, committed map[int32]int64, dead map[recordPosition]int64,
) (_ []*verify.TableReport, err error) {
	extent, err := v.admin.Extent(ctx, topic)
	if err != nil {
		return nil, err
	}
	p, err := verify.NewTopic(v.db, topic, func(d *schemas.Delivery) bool {
		at, ok := dead[recordPosition{topic, d.Partition, d.Offset}]
		return ok && at == d.Timestamp.UnixMilli()
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := v.read(ctx, topic, extent, func(d *schemas.Delivery, unreadable error) error {
		if d.Incarnation != extent.Incarnation {
			return verify.ErrRecreated
		}
		return p.Add(d, unreadable)
	}); err != nil {
		return nil, err
	}
	return p.Compare(ctx, verify.Offsets{
		Compared: extent, Committed: committed, Progress: v.progress,
		Now: func(ctx context.Context) (schemas.OffsetRange, error) {
			return v.admin.Extent(ctx, topic)
		},
	})
}

// read reads a topic and reports the progress in offsets.
func (v *Verifier) read(
	ctx context.Context, topic schemas.Topic, e schemas.OffsetRange, f func(*schemas.Delivery, error) error,
) error {
	var done, total, n int64
	at := map[int32]int64{}
	for id, end := range e.Ends {
		at[id] = e.Starts[id]
		total += max(0, end-e.Starts[id])
	}
	step := "read " + string(topic)
	v.progress(step, 0, total)
	err := v.admin.Read(ctx, topic, e, func(d *schemas.Delivery, unreadable error) error {
		done += d.Offset + 1 - at[d.Partition]
		at[d.Partition] = d.Offset + 1
		if n++; n%1000 == 0 {
			v.progress(step, min(done, total-1), total)
		}
		return f(d, unreadable)
	})
	if err == nil {
		v.progress(step, total, total)
	}
	return err
}

// A recordPosition is the position of a record.
type recordPosition struct {
	topic     schemas.Topic
	partition int32
	offset    int64
}

// sinkDeadLetters returns the records that the sink made dead letters, with their timestamps: those
// distinguish them from records of an earlier topic of the same name. Normally there are few.
func (v *Verifier) sinkDeadLetters(ctx context.Context) (map[recordPosition]int64, error) {
	letters := map[recordPosition]int64{}
	e, err := v.admin.Extent(ctx, schemas.Dead)
	if err != nil {
		return nil, err
	}
	return letters, v.read(ctx, schemas.Dead, e, func(d *schemas.Delivery, _ error) error {
		h := map[string]string{}
		for _, x := range d.Headers {
			h[x.Key] = string(x.Value)
		}
		if schemas.Role(h[schemas.HeaderRole]) != schemas.RoleSink {
			return nil
		}
		partition, errP := strconv.ParseInt(h[schemas.HeaderOriginPartition], 10, 32)
		offset, errO := strconv.ParseInt(h[schemas.HeaderOriginOffset], 10, 64)
		made, errT := strconv.ParseInt(h[schemas.HeaderOriginTimestamp], 10, 64)
		if err := errors.Join(errP, errO, errT); err != nil {
			v.log.Warn("skip dead letter without an original position", "partition", d.Partition, "offset", d.Offset, "err", err)
			return nil
		}
		letters[recordPosition{schemas.Topic(h[schemas.HeaderOriginTopic]), int32(partition), offset}] = made
		return nil
	})
}

// Gaps returns the committed records that the tables lack by their positions.
func (v *Verifier) Gaps(ctx context.Context) ([]clickhouse.Gap, error) {
	return findGaps(ctx, v.watermark, v.db)
}

// Lost returns the losses that rebuilds recorded and no operator has accepted.
func (v *Verifier) Lost(ctx context.Context) ([]Loss, error) { return unacceptedLosses(ctx, v.admin) }

// ManifestReport is the result of comparing the state of copies with the logs.
type ManifestReport struct {
	verify.ManifestReport
	// InFlight are copies that differ and have records that sink or state had not committed when the
	// comparison started. They are not findings.
	InFlight []verify.CopyDifference `json:"in_flight,omitempty"`
}

// Manifest rebuilds the state of every copy from the logs, and compares it with the table of
// copies.
func (v *Verifier) Manifest(ctx context.Context) (*ManifestReport, error) {
	from, err := v.uncommitted(ctx)
	if err != nil {
		return nil, fmt.Errorf("verify the manifest: %w", err)
	}
	proof, err := verify.Manifest(ctx, v.db, verify.ManifestConfig{Progress: v.progress})
	if err != nil {
		return nil, fmt.Errorf("verify the manifest: %w", err)
	}
	r := &ManifestReport{ManifestReport: *proof}
	if len(r.Differ) == 0 {
		return r, nil
	}
	moving, err := v.inFlight(ctx, from, r.Differ)
	if err != nil {
		return nil, fmt.Errorf("verify the manifest: %w", err)
	}
	r.Differ = slices.DeleteFunc(r.Differ, func(d verify.CopyDifference) bool {
		if moving[d.Copy()] {
			r.InFlight = append(r.InFlight, d)
		}
		return moving[d.Copy()]
	})
	return r, nil
}

// stateTopics returns the topics from which the state is made.
func stateTopics() []schemas.Topic { return []schemas.Topic{schemas.Changes, schemas.FixityResults} }

// uncommitted returns, for each topic, the offsets from which log or state may lack records.
func (v *Verifier) uncommitted(ctx context.Context) (map[schemas.Topic]schemas.OffsetRange, error) {
	all := map[schemas.Topic]schemas.OffsetRange{}
	for _, topic := range stateTopics() {
		e, err := v.admin.Extent(ctx, topic)
		if err != nil {
			return nil, err
		}
		logs, err := v.admin.Committed(ctx, schemas.RoleSink, topic)
		if err != nil {
			return nil, err
		}
		state, err := v.admin.Committed(ctx, schemas.RoleState, topic)
		if err != nil {
			return nil, err
		}
		for id := range e.Starts { // a partition without a commit counts from its start
			e.Starts[id] = max(e.Starts[id], min(logs[id], state[id]))
		}
		all[topic] = e
	}
	return all, nil
}

// inFlight returns the copies among differ that have records at or after the given offsets.
func (v *Verifier) inFlight(
	ctx context.Context, from map[schemas.Topic]schemas.OffsetRange, differ []verify.CopyDifference,
) (map[schemas.Copy]bool, error) {
	differing, inFlight := map[schemas.Copy]bool{}, map[schemas.Copy]bool{}
	for _, d := range differ {
		differing[d.Copy()] = true
	}
	for _, topic := range stateTopics() {
		e := from[topic]
		now, err := v.admin.Extent(ctx, topic)
		if err != nil {
			return nil, err
		}
		if now.Incarnation != e.Incarnation {
			return nil, verify.ErrRecreated
		}
		for id, start := range now.Starts {
			e.Starts[id] = max(e.Starts[id], start)
		}
		e.Ends = now.Ends
		if err := v.read(ctx, topic, e, func(d *schemas.Delivery, _ error) error {
			if m, ok := d.Body.(schemas.CopyBody); ok && differing[schemas.CopyOf(m)] {
				inFlight[schemas.CopyOf(m)] = true
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return inFlight, nil
}
