package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
)

const (
	monitorEvery = 5 * time.Minute
	// manyFailures is the number of failures in a row, without progress, after which a split is behind.
	manyFailures = 3
	// monitoredPeriod is how far back the monitor looks for failures.
	monitoredPeriod = 7 * 24 * time.Hour
)

// A sweepMonitor opens an incident of each sweep or job that is behind, and closes it when none of its splits is.
type sweepMonitor struct {
	app        *App
	timetables []*timetable // of the sweeps and jobs
	checkpoint func(sweep, split string) *pb.Checkpoint
}

// run checks the sweeps until ctx is done. One of the processes does it.
func (m *sweepMonitor) run(ctx context.Context, owns func(sweep, split string) bool) error {
	for ctx.Err() == nil {
		if owns("monitor", "sweeps") {
			if err := m.check(ctx, m.app.kafka.Clock.Now()); err != nil && ctx.Err() == nil {
				m.app.log.Warn("check whether sweeps are behind", "err", err, "retry_after", monitorEvery)
			}
		}
		_ = retry.Sleep(ctx, monitorEvery) // only ctx ends it early
	}
	return nil
}

func (m *sweepMonitor) check(ctx context.Context, now time.Time) error {
	failures, err := m.failures(ctx, now)
	if err != nil {
		return err
	}
	if err := m.closeOthers(ctx); err != nil {
		return err
	}
	for _, t := range m.timetables {
		splits, known := t.splits()
		if !known && !t.off() {
			continue
		}
		about := incident.Subject{Kind: incident.SweepBehind, Name: t.name}
		behind, example := 0, ""
		for _, s := range splits {
			why := behindOf(m.checkpoint(s.Sweep, s.Name), failures[s.Sweep+"/"+s.Name], s.Next, now)
			if why == "" || t.schedule(s.Name).Off() || errors.Is(s.Blocked(ctx), sweep.ErrPaused) {
				continue
			}
			if behind++; behind == 1 {
				example = s.Name + ": " + why
			}
		}
		if behind == 0 {
			err = m.app.incidentBoard.Close(ctx, about, "all rounds end in time")
		} else {
			err = m.app.incidentBoard.Open(ctx, about, fmt.Sprintf("%d splits are behind, for example %s", behind, example))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// closeOthers closes the incidents of what is not scheduled any more. All sweepers have the same settings.
func (m *sweepMonitor) closeOthers(ctx context.Context) error {
	for _, about := range m.app.incidentBoard.OpenOf(incident.SweepBehind) {
		if slices.ContainsFunc(m.timetables, func(t *timetable) bool { return t.name == about.Name }) {
			continue
		}
		if err := m.app.incidentBoard.Close(ctx, about, "it is not scheduled"); err != nil {
			return err
		}
	}
	return nil
}

// failures returns the failures of rounds by the names of their jobs. While tables lack records they are unknown.
func (m *sweepMonitor) failures(ctx context.Context, now time.Time) (map[string]read.JobFailures, error) {
	byName := map[string]read.JobFailures{}
	err := m.app.withoutGaps(ctx, func() error {
		all, err := read.FailuresOfJobs(ctx, m.app.db, now.Add(-monitoredPeriod))
		for _, f := range all {
			byName[f.Name] = f
		}
		return err
	})
	return byName, err
}

// behindOf returns why the round of a split is behind; "" if it is not. It is a pure function.
func behindOf(last *pb.Checkpoint, f read.JobFailures, next func(time.Time) time.Time, now time.Time) string {
	if f.Count >= manyFailures && !sweep.OnlyWaits(last) { // one that waits is asked again without counts
		return fmt.Sprintf("%d attempts have failed, at last: %s", f.Count, f.Error)
	}
	if last == nil || last.GetFinished() != nil {
		return ""
	}
	started := last.GetStarted().AsTime()
	if due := next(started); !due.IsZero() && due.Before(now) {
		return fmt.Sprintf("the round of %s goes on, and the next one was due at %s", started.Format(time.RFC3339),
			due.UTC().Format(time.RFC3339))
	}
	return ""
}
