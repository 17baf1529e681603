package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// positionsEvery is the time between two comparisons of the positions with the committed offsets.
	// Fresh reads compare them too; this is for times without any.
	positionsEvery = 30 * time.Second
	positionsLimit = 20 * time.Second
)

// watchPositions periodically compares the positions in the tables with the committed offsets,
// until ctx is done.
func (a *App) watchPositions(ctx context.Context) error {
	return watchPositions(ctx, a.findGaps, a.reportAllGaps, a.log)
}

// watchPositions logs once when the comparisons begin to fail, and when they succeed again.
func watchPositions(ctx context.Context, find func(context.Context) ([]clickhouse.Gap, error),
	report func(context.Context, []clickhouse.Gap), log *slog.Logger) error {
	t := time.NewTicker(positionsEvery)
	defer t.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		gaps, err := find(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && failing:
			log.Info("compare positions with committed offsets again")
		case err != nil && !failing:
			log.Warn("compare positions with committed offsets", "retry_after", positionsEvery, "err", err)
		}
		if failing = err != nil; !failing {
			report(ctx, gaps)
		}
	}
}

// findGaps returns the committed records that the tables lack.
func (a *App) findGaps(ctx context.Context) ([]clickhouse.Gap, error) {
	ctx, cancel := context.WithTimeout(ctx, positionsLimit)
	defer cancel()
	return findGaps(ctx, a.watermark, a.db)
}

func findGaps(ctx context.Context, mark *admin.Watermark, db *clickhouse.DB) ([]clickhouse.Gap, error) {
	committed, err := mark.Committed(ctx) // before the positions, which sinks move first
	if err != nil {
		return nil, fmt.Errorf("read the committed offsets: %w", err)
	}
	return clickhouse.Gaps(ctx, db, committed)
}

// checkGaps returns an error if the tables lack committed records.
func checkGaps(ctx context.Context, db *clickhouse.DB, committed map[schemas.Role][]schemas.Progress) error {
	gaps, err := clickhouse.Gaps(ctx, db, committed)
	if err == nil {
		err = clickhouse.CheckGaps(gaps)
	}
	return err
}

// gapStarts returns the first offsets of the gaps of the tables. Possibly only Kafka still has
// these records.
func (a *App) gapStarts(ctx context.Context) (map[schemas.Topic]map[int32]int64, error) {
	gaps, err := a.findGaps(ctx)
	first := map[schemas.Topic]map[int32]int64{}
	for _, g := range gaps {
		if g.Former { // of a deleted topic: Kafka has none of the records
			continue
		}
		if first[g.Topic] == nil {
			first[g.Topic] = map[int32]int64{}
		}
		addStarts(first[g.Topic], map[int32]int64{g.Partition: g.From})
	}
	return first, err
}

// reportAllGaps opens an incident for each table that lacks records, and closes the incidents of
// the others. gaps are those of all tables.
func (a *App) reportAllGaps(ctx context.Context, gaps []clickhouse.Gap) {
	byTable := map[string][]clickhouse.Gap{}
	for _, g := range gaps {
		byTable[g.Table] = append(byTable[g.Table], g)
	}
	for table, gaps := range byTable {
		about := incident.Subject{Kind: incident.RecordsBehind, Name: table}
		if err := a.incidentBoard.Open(ctx, about, describeGaps(gaps)); err != nil {
			a.log.Warn("open incident", "table", table, "err", err)
		}
	}
	for _, s := range a.incidentBoard.OpenOf(incident.RecordsBehind) {
		if byTable[s.Name] != nil {
			continue
		}
		if err := a.incidentBoard.Close(ctx, s, "the table has all that was committed"); err != nil {
			a.log.Warn("close incident", "table", s.Name, "err", err)
		}
	}
}

// maxGapsNamed is the number of gaps that an incident names.
const maxGapsNamed = 20

// describeGaps returns the detail of the incident of one table. It names the starts of the gaps and
// not their ends, which move with each commit, and would add a step to the incident each time.
func describeGaps(gaps []clickhouse.Gap) string {
	var b strings.Builder
	if slices.ContainsFunc(gaps, clickhouse.Gap.MakesUnknown) {
		fmt.Fprintf(&b, "table %s was emptied or restored: it lacks records from these offsets on, "+
			"and fresh reads are unknown until millrace rebuild has run:", gaps[0].Table)
	} else {
		fmt.Fprintf(&b, "table %s lacks the last records of a topic that was recreated, from these offsets on, "+
			"until millrace rebuild has run:", gaps[0].Table)
	}
	for i, g := range gaps {
		if i == maxGapsNamed {
			fmt.Fprintf(&b, " and %d more", len(gaps)-i)
			break
		}
		fmt.Fprintf(&b, " %s/%d@%d", g.Topic, g.Partition, g.From)
	}
	return b.String()
}

// requireNoGaps returns an error of class unavailable if tables lack records.
func (a *App) requireNoGaps(ctx context.Context) error {
	gaps, err := a.findGaps(ctx)
	if err == nil {
		err = clickhouse.CheckGaps(gaps)
	}
	return retry.Unavailable(err)
}

// withoutGaps calls do. While tables lack records, or if they do afterwards, it returns an error: what is not on record
// there would count as absent. A table may be filled or emptied meanwhile.
func (a *App) withoutGaps(ctx context.Context, do func() error) error {
	return between(func() error { return a.requireNoGaps(ctx) }, do)
}

// between calls check, do, and check again, until one of them returns an error.
func between(check, do func() error) error {
	for _, f := range []func() error{check, do, check} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}
