package app

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
)

// neededStarts returns the first offsets that a table, or a list, still needs: those of the gaps of the tables, and of
// lists that are not decided about, being carried out, or were decided about within held.Final.
func (a *App) neededStarts(ctx context.Context) (map[schemas.Topic]map[int32]int64, error) {
	first, err := a.gapStarts(ctx)
	if err != nil {
		return nil, err
	}
	lists := a.decided.Decided(time.Now().Add(-held.Final))
	for _, kind := range []string{incident.DeletesHeld, incident.RewritesHeld} {
		for _, about := range a.incidentBoard.OpenOf(kind) {
			if l, ok := listOf(about); ok {
				lists = append(lists, l)
			}
		}
	}
	for _, l := range lists {
		starts, err := read.FirstOfList(ctx, a.db, queryOf(&a.decided, l))
		if err != nil {
			return nil, fmt.Errorf("read where list %s of %s begins: %w", l.Name(), l.Space, err)
		}
		for id, off := range starts {
			if first[schemas.DuplicationResults] == nil {
				first[schemas.DuplicationResults] = map[int32]int64{}
			}
			if at, ok := first[schemas.DuplicationResults][id]; !ok || off < at {
				first[schemas.DuplicationResults][id] = off
			}
		}
	}
	return first, nil
}
