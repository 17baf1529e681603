package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/version"
	"github.com/millrace/millrace/streams/retry"
)

// A State stores the state of every copy, merged by the table from changes and checks. Records may be stored in any
// order and any number of times. A State has its own consumer group, so the group's offsets show how far the state
// is.
type State struct {
	db        *DB
	columns   []column[stateRow]
	free      freeList[[]appender[stateRow]]
	positions *positionWriter
}

// NewState returns a State that writes to db.
func NewState(db *DB) *State {
	return &State{db: db, columns: stateColumns(), positions: newPositionWriter(db, schemas.RoleState)}
}

// Topics returns the topics that a State stores.
func (s *State) Topics() []schemas.Topic {
	return []schemas.Topic{schemas.Changes, schemas.FixityResults}
}

// Store merges records of one partition into the state. It returns the same classes of errors as Sink.Store.
func (s *State) Store(ctx context.Context, batch []*schemas.Delivery) error {
	if len(batch) == 0 {
		return nil
	}
	at, first, last := topicPartition{batch[0].From, batch[0].Partition}, batch[0].Offset, batch[len(batch)-1].Offset
	rows, err := stateRows(batch)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return nil
	}
	if rows, err = s.orderByFirst(ctx, rows); err != nil {
		return fmt.Errorf("store the state of %s/%d@%d-%d: %w", at.topic, at.partition, first, last, err)
	}
	block, release, err := fill(s.columns, &s.free, rows, false, func(r stateRow, column string, err error) error {
		return rowError(r.Delivery, column, err)
	})
	if err != nil {
		return err
	}
	defer release()
	err = s.db.Insert(ctx, Insertion{
		Name: insertName(s.db, "copy_state", at, first, last+1),
		Into: s.db.Name(insertInto("copy_state", s.columns)), Columns: block, Settings: insertSettings(),
	})
	if err != nil {
		return Classify(fmt.Errorf("store the state of %s/%d@%d-%d: %w", at.topic, at.partition, first, last, err))
	}
	return nil
}

// Table returns the name of the table of the state.
func (s *State) Table(schemas.Topic) string { return "copy_state" }

// Mark moves the positions of partitions to the offsets that were handled.
func (s *State) Mark(ctx context.Context, done []schemas.Progress) error {
	return s.positions.advance(ctx, done)
}

// Forget drops the known position of a partition that was revoked, or that will be read again from another offset.
func (s *State) Forget(topic schemas.Topic, partition int32) {
	s.positions.forget(topicPartition{topic, partition})
}

// A stateRow is one row of copy_state, made from one record. The groups that the record does not set are nil.
type stateRow struct {
	*schemas.Delivery
	copy       schemas.Copy
	content    *pb.Change
	digests    *pb.Change
	deleted    *pb.Change
	properties *pb.Change
	acl        *pb.Change
	check      *pb.FixityResult
	pass       bool // the check is a final pass of the bytes
	fail       bool
	asserted   bool
	at         version.Version
	change     [16]byte
	reported   *timestamppb.Timestamp // of the Change; nil: a check
	first      time.Time              // Kafka's time of its first record, as far as its order depends on it
	position   uint64                 // see orderByFirst
}

func stateRows(batch []*schemas.Delivery) ([]stateRow, error) {
	rows := make([]stateRow, 0, len(batch))
	for _, d := range batch {
		r := stateRow{Delivery: d}
		var field string
		var err error
		switch m := d.Body.(type) {
		case *pb.Change:
			if !r.fromChange(m) {
				continue
			}
			rank := uint64(1)
			if m.GetOrigin() == pb.Origin_ORIGIN_FIXITY || m.GetOrigin() == pb.Origin_ORIGIN_SWEEP {
				rank = 0
			}
			if r.change, err = parseID(m.GetId()); err != nil {
				return nil, rowError(d, "id", err)
			}
			field = "time"
			r.reported, r.first = m.GetTime(), d.Timestamp
			if _, err = toMillis(r.reported); err == nil {
				r.at, err = versionOf(d, schemas.Earlier(r.reported, r.first), rank)
			}
		case *pb.FixityResult:
			if !r.fromCheck(m) {
				continue
			}
			field = "started"
			r.at, err = versionOf(d, m.GetStarted(), 0)
		default:
			return nil, retry.Permanent(&RowError{d.From, d.Partition, d.Offset, "body", fmt.Errorf("is a %T", d.Body)})
		}
		if err != nil {
			return nil, rowError(d, field, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// fromChange sets the groups of a change. It returns false if the change sets none.
func (r *stateRow) fromChange(m *pb.Change) bool {
	if m.GetItem() == "" {
		return false
	}
	r.copy = schemas.CopyOf(m)
	switch m.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		r.digests = m
		// A program that has verified the digests has written or read the object, so an empty map means no properties.
		knows := len(m.GetProperties()) > 0 || m.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED
		if knows && !m.GetPropertiesUnknown() {
			r.properties = m
		}
		if schemas.IsCompletion(m) {
			return true
		}
		r.content = m
		if len(m.GetAcl()) > 0 {
			r.acl = m
		}
	case pb.Op_OP_DELETE:
		r.deleted = m
	case pb.Op_OP_SET_PROPERTIES:
		if m.GetPropertiesUnknown() {
			return false
		}
		r.properties = m
	case pb.Op_OP_SET_ACL:
		r.acl = m
	default:
		return false
	}
	return true
}

// fromCheck sets the groups of a check. It returns false if the check sets none.
func (r *stateRow) fromCheck(m *pb.FixityResult) bool {
	if m.GetOvertaken() || m.GetVerdict() == pb.Verdict_VERDICT_SKIPPED {
		return false
	}
	r.copy = schemas.CopyOf(m)
	r.check = m
	switch m.GetVerdict() {
	case pb.Verdict_VERDICT_PASS:
		r.pass = m.GetFinal() && m.GetEvidenceLevel() >= 4
		r.asserted = m.GetEvidenceLevel() < 3 // a computed digest may be of a version that is not served any more
	case pb.Verdict_VERDICT_FAIL, pb.Verdict_VERDICT_MISSING, pb.Verdict_VERDICT_NOT_CAPTURED:
		r.fail = true
	}
	return true
}

func versionOf(d *schemas.Delivery, t *timestamppb.Timestamp, rank uint64) (version.Version, error) {
	ms, err := toMillis(t)
	if err != nil {
		return version.Version{}, err
	}
	if d.Offset < 0 || d.Offset > version.MaxOffset {
		return version.Version{}, errors.New("its offset is out of range")
	}
	return version.Version{Millis: ms, Rank: rank, Offset: uint64(d.Offset), Incarnation: d.Incarnation}, nil
}
