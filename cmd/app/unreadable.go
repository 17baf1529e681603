package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// reportAgain is the time after which incidents are published again that could not be.
	reportRetryInterval = 5 * time.Second
	// lookAgain is the time after which incidents are compared again with what is unreadable.
	reportInterval = 30 * time.Second
)

// aboutUnreadable is what the incident of an unreadable record is about.
func recordSubject(u kafka.UnreadableRecord) incident.Subject {
	return incident.Subject{Kind: incident.RecordUnreadable, Name: u.Position()}
}

// aboutBatch is what the incident of a batch that cannot be parsed is about.
func batchSubject(u kafka.UnreadableBatch) incident.Subject {
	return incident.Subject{Kind: incident.BatchUnreadable, Name: u.Reader + " " + u.Position()}
}

// watchUnreadable opens an incident for each record of a table that cannot be read here, and closes it when a later
// record of the same key follows. One that a person has closed stays closed: its name has the record's offset. One about
// a record that can be read here is left alone: another process may not be able to.
func (a *App) watchUnreadable(ctx context.Context) error {
	if err := ready(ctx, a.incidents); err != nil {
		return err
	}
	for ctx.Err() == nil {
		changed := a.unreadable.Changed()
		if err := errors.Join(a.reportUnreadable(ctx), a.reportBatches(ctx)); err != nil && ctx.Err() == nil {
			a.log.Warn("report unreadable records again", "wait", reportRetryInterval, "err", err)
			_ = retry.Sleep(ctx, reportRetryInterval) // only ctx ends it early
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(reportInterval): // an older program closes what it can read
		}
	}
	return nil
}

// reportUnreadable brings the incidents in line with the records that are unreadable now.
func (a *App) reportUnreadable(ctx context.Context) error {
	var errs []error
	for _, u := range a.unreadable.List() {
		if about := recordSubject(u); a.unreadable.Complete(u.Topic) && !a.incidentBoard.Accepted(about) {
			errs = append(errs, a.incidentBoard.Open(ctx, about, fmt.Sprintf("key %q: %v", u.Key, u.Err)))
		}
	}
	for _, about := range a.incidentBoard.OpenOf(incident.RecordUnreadable) {
		if a.unreadable.Superseded(about.Name) {
			errs = append(errs, a.incidentBoard.Close(ctx, about, "a later record of its key follows, or its key is gone"))
		}
	}
	return errors.Join(errs...)
}

// reportBatches opens an incident for each batch that keeps a partition from being read. A person closes it: the process
// that reads the partition on may be another one. Then it stays closed, since its name has the offset.
func (a *App) reportBatches(ctx context.Context) error {
	var errs []error
	for _, u := range a.unreadable.Batches() {
		if about := batchSubject(u); !a.incidentBoard.Accepted(about) {
			errs = append(errs, a.incidentBoard.Open(ctx, about, u.Err.Error()))
		}
	}
	return errors.Join(errs...)
}

// unread names the records that cannot be read, that what n has depends on, and that no person has accepted as lost,
// and the partitions that are not read any further.
func (a *App) unreadableRecords(n needs) (all []string) {
	for _, u := range a.unreadable.Batches() {
		all = append(all, u.Err.Error())
	}
	for _, u := range a.unreadable.List() {
		if about := recordSubject(u); n.table(u.Topic) && !a.incidentBoard.Accepted(about) {
			all = append(all, fmt.Sprintf("%s with key %q (%v): publish its key again, or 'millrace incident close %s'",
				u.Position(), u.Key, u.Err, about.Key()))
		}
	}
	return all
}
