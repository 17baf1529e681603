package clickhouse

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A State keeps the state of every copy: what its changes and checks say, merged by the
// table. Records may be stored in any order and any number of times. Its consumer group
// is its own, so that what it has committed says how far the state has come.
type State struct {
	// Behind is called with what the table lacks, each time that a position cannot be moved because of that. It may be
	// nil, and is set before Mark is called.
	Behind func(context.Context, []Gap)

	db        *DB
	columns   []column[stateRow]
	free      freeList[[]appender[stateRow]]
	positions *positionWriter
}

// NewState returns a State on db.
func NewState(db *DB) *State {
	return &State{db: db, columns: stateColumns(), positions: newPositionWriter(db, schemas.RoleState)}
}

// Topics returns the topics that make the state.
func (s *State) Topics() []schemas.Topic {
	return []schemas.Topic{schemas.Changes, schemas.FixityResults}
}

// Store merges records of one partition into the state. Its errors are as Sink.Store's.
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
	block, release, err := fill(s.columns, &s.free, rows, false, func(r stateRow, column string, err error) error {
		return rowError(r.Delivery, column, err)
	})
	if err != nil {
		return err
	}
	defer release()
	err = s.db.write(ctx, insertion{
		name: s.db.insertName("copy_state", at, first, last+1),
		into: s.db.name(insertInto("copy_state", s.columns)), columns: block, settings: insertSettings(),
	})
	if err != nil {
		return translate(fmt.Errorf("store the state of %s/%d@%d-%d: %w", at.topic, at.partition, first, last, err))
	}
	return nil
}

// Table returns the one table of the state.
func (s *State) Table(schemas.Topic) string { return "copy_state" }

// Mark records how far partitions are handled.
func (s *State) Mark(ctx context.Context, done []schemas.Progress) error {
	return s.positions.advance(ctx, done, s.Behind)
}

// Forget says that a partition has moved away, or is read again from elsewhere.
func (s *State) Forget(topic schemas.Topic, partition int32) {
	s.positions.forget(topicPartition{topic, partition})
}

// A stateRow is what one record says of one copy; groups that it says nothing of are nil.
type stateRow struct {
	*schemas.Delivery
	copy       schemas.Copy
	content    *pb.Change
	deleted    *pb.Change
	properties *pb.Change
	acl        *pb.Change
	check      *pb.FixityResult
	pass       bool // the check counts as a pass, ...
	fail       bool
	asserted   bool
	at         version
	change     [16]byte
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
			r.at, err = versionOf(d, m.GetTime(), rank)
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

// ofChange fills in what a change says of its copy; false where it says nothing.
func (r *stateRow) fromChange(m *pb.Change) bool {
	if m.GetItem() == "" {
		return false
	}
	r.copy = schemas.CopyOf(m)
	switch m.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		r.content = m
		// Who computed the digests wrote the object, and knows that it has no properties.
		knows := len(m.GetProperties()) > 0 || m.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED
		if knows && !m.GetPropertiesUnknown() {
			r.properties = m
		}
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

// ofCheck fills in which clocks a check moves; false where it moves none.
func (r *stateRow) fromCheck(m *pb.FixityResult) bool {
	if m.GetOvertaken() || m.GetVerdict() == pb.Verdict_VERDICT_SKIPPED {
		return false
	}
	r.copy = schemas.CopyOf(m)
	r.check = m
	switch m.GetVerdict() {
	case pb.Verdict_VERDICT_PASS:
		r.pass = m.GetFinal() && m.GetEvidenceLevel() >= 4
		r.asserted = m.GetEvidenceLevel() < 4
	case pb.Verdict_VERDICT_FAIL, pb.Verdict_VERDICT_MISSING, pb.Verdict_VERDICT_NOT_CAPTURED:
		r.fail = true
	}
	return true
}
