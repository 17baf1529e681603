package clickhouse

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/version"
)

// orderByFirst orders the rows of each Change by Kafka's time of its first record. A later record of a Change whose
// time was ahead of Kafka's may not be ahead any more, and must not become newer than what came in between: the table
// keeps the greatest version, which cannot be lowered. So Kafka's time of the first record of a Change that is ahead is
// stored in a row of the table, which orderByFirst adds. It is inserted together with the rows that it orders. A Change
// of a copy is ahead, too, if the source content is: Kafka's time orders that, then.
func (s *State) orderByFirst(ctx context.Context, rows []stateRow) ([]stateRow, error) {
	if rows[0].reported == nil { // checks
		return rows, nil
	}
	first := map[string]int64{} // in Unix milliseconds, of the Changes that are ahead
	lower := func(id string, ms int64) {
		if before, ok := first[id]; !ok || ms < before {
			first[id] = ms
		}
	}
	for i := range rows {
		r := &rows[i]
		source := r.Body.(*pb.Change).GetSourceTime()
		if schemas.Earlier(r.reported, r.first) != r.reported || schemas.Earlier(source, r.first) != source {
			lower(r.id(), r.first.UnixMilli())
		}
	}
	ahead := slices.Collect(maps.Keys(first))
	stored, err := s.storedFirst(ctx, rows)
	if err != nil {
		return nil, err
	}
	for _, f := range stored {
		lower(f.ID, version.Shift-int64(f.At))
	}
	if len(first) == 0 {
		return rows, nil
	}
	for i := range rows {
		r := &rows[i]
		if ms, ok := first[r.id()]; ok && ms < r.first.UnixMilli() {
			if r.first = time.UnixMilli(ms); ms < r.at.Millis { // a repeat, which is newer than nothing of this time
				r.at.Millis, r.at.Offset = ms, 0
			}
		}
	}
	for _, id := range ahead {
		rows = append(rows, stateRow{Delivery: rows[0].Delivery, copy: schemas.Copy{Space: id},
			position: uint64(version.Shift - first[id])})
	}
	return rows, nil
}

// id identifies the Change of a row, as the view of the audit log does.
func (r *stateRow) id() string {
	return fmt.Sprintf("%d/%x", r.reported.AsTime().UnixMilli(), r.change)
}

// A firstRecord is a row of the table with Kafka's time of the first record of a Change.
type firstRecord struct {
	ID string `ch:"space"`
	At uint64 `ch:"at"` // version.Shift minus the time in Unix milliseconds, of which the table keeps the greatest
}

// storedFirst returns what the table has of the first records of the Changes of rows. It asks for these Changes only if
// the table has any: normally no clock is ahead of Kafka's.
func (s *State) storedFirst(ctx context.Context, rows []stateRow) ([]firstRecord, error) {
	const op = "read which changes were ahead of Kafka's time"
	const from = " FROM {db}.copy_state WHERE account = '' AND store = ''"
	one, err := QueryOn[firstRecord](ctx, s.db.Writer(), op, s.db.Name("SELECT space, position AS at"+from+" LIMIT 1"))
	if err != nil || len(one) == 0 {
		return nil, err
	}
	ids := make([]schemas.Copy, len(rows))
	for i := range rows {
		ids[i].Space = rows[i].id()
	}
	with, err := WithCopies(ctx, ids)
	if err != nil {
		return nil, err
	}
	return QueryOn[firstRecord](with, s.db.Writer(), op, s.db.Name("SELECT space, max(position) AS at"+from+
		" AND space IN (SELECT space FROM copies) GROUP BY space"))
}
