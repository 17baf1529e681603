package app

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
)

// neededStarts returns the first offsets that a table, or a list, still needs: those of the gaps of the tables, and of
// lists that are not decided about, being carried out, or were decided about within held.Final.
func (a *App) neededStarts(ctx context.Context) (map[schemas.Topic]map[int32]int64, error) {
	needed, err := a.listStarts(ctx)
	if err != nil {
		return nil, err
	}
	first, err := a.gapStarts(ctx) // last: what a table lacked while the lists were read is a gap now
	if err != nil || len(needed) == 0 {
		return first, err
	}
	if first[schemas.DuplicationResults] == nil {
		first[schemas.DuplicationResults] = map[int32]int64{}
	}
	addStarts(first[schemas.DuplicationResults], needed)
	return first, nil
}

// listStarts returns the first offsets that the lists need.
func (a *App) listStarts(ctx context.Context) (map[int32]int64, error) {
	first := map[int32]int64{}
	lists := a.decided.Decided(time.Now().Add(-held.Final))
	for _, about := range a.openLists() {
		if l, ok := listOf(about); ok {
			lists = append(lists, l)
		}
	}
	for _, l := range lists {
		starts, err := read.FirstOfList(ctx, a.db, queryOf(&a.decided, l))
		if err != nil {
			return nil, fmt.Errorf("read where list %s of %s begins: %w", l.Name(), l.Space, err)
		}
		addStarts(first, starts)
	}
	return first, nil
}

// addStarts sets the lower one of the offsets of each partition.
func addStarts(first, more map[int32]int64) {
	for id, off := range more {
		if at, ok := first[id]; !ok || off < at {
			first[id] = off
		}
	}
}
