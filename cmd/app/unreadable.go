package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// reportRetryInterval is the wait before incidents that could not be published are published
	// again.
	reportRetryInterval = 5 * time.Second
	// reportInterval is the time between two comparisons of the incidents with the unreadable records.
	reportInterval = 30 * time.Second
)

// recordSubject returns the subject of the incident of an unreadable record.
func recordSubject(u client.UnreadableRecord) incident.Subject {
	return incident.Subject{Kind: incident.RecordUnreadable, Name: u.Coordinates()}
}

// batchSubject returns the subject of the incident of a batch that cannot be parsed.
func batchSubject(u client.UnreadableBatch) incident.Subject {
	return incident.Subject{Kind: incident.BatchUnreadable, Name: u.Reader + " " + u.Coordinates()}
}

// watchUnreadable opens an incident for each record of a table that this process cannot read, and
// closes it when a later record of the same key follows. An incident that an operator closed stays
// closed, since its name has the record's offset. An incident about a record that this process can
// read is not touched: another process may be unable to.
func (a *App) watchUnreadable(ctx context.Context) error {
	if err := ready(ctx, a.incidents); err != nil {
		return err
	}
	for ctx.Err() == nil {
		changed := a.unreadable.Changed()
		if err := errors.Join(a.reportUnreadable(ctx), a.reportBatches(ctx)); err != nil && ctx.Err() == nil {
			a.log.Warn("report unreadable records", "retry_after", reportRetryInterval, "err", err)
			_ = retry.Sleep(ctx, reportRetryInterval) // only ctx ends it early
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(reportInterval): // an older version closes incidents of records that it can read
		}
	}
	return nil
}

// reportUnreadable opens and closes incidents to match the records that are unreadable now.
func (a *App) reportUnreadable(ctx context.Context) error {
	var errs []error
	for _, u := range a.unreadable.List() {
		if about := recordSubject(u); a.unreadable.Complete(u.Topic) && !a.incidentBoard.Accepted(about) {
			errs = append(errs, a.incidentBoard.Open(ctx, about, fmt.Sprintf("key %q: %v", u.Key, u.Err)))
		}
	}
	for _, about := range a.incidentBoard.OpenOf(incident.RecordUnreadable) {
		if a.unreadable.Superseded(about.Name) {
			errs = append(errs, a.incidentBoard.Close(ctx, about, "a later record of its key follows, or its key was deleted"))
		}
	}
	return errors.Join(errs...)
}

// reportBatches opens an incident for each batch that blocks the reading of a partition. An operator
// closes it, since another process may read the partition later. It then stays closed, since its
// name has the offset.
func (a *App) reportBatches(ctx context.Context) error {
	var errs []error
	for _, u := range a.unreadable.Batches() {
		if about := batchSubject(u); !a.incidentBoard.Accepted(about) {
			errs = append(errs, a.incidentBoard.Open(ctx, about, u.Err.Error()))
		}
	}
	return errors.Join(errs...)
}

// unreadableRecords returns descriptions of the unreadable records on which the roles depend and
// that no operator has accepted as lost, and of the partitions that cannot be read further.
func (a *App) unreadableRecords(n needs) (all []string) {
	for _, u := range a.unreadable.Batches() {
		all = append(all, u.Err.Error())
	}
	for _, u := range a.unreadable.List() {
		if about := recordSubject(u); n.table(u.Topic) && !a.incidentBoard.Accepted(about) {
			all = append(all, fmt.Sprintf("%s with key %q (%v): publish its key again, or 'millrace incident close %s'",
				u.Coordinates(), u.Key, u.Err, about.Key()))
		}
	}
	return all
}
