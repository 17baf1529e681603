package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/wholefile"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/sinks/fixityreport"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// reportJob is the job that writes the reports of fixity rounds (fixity.reports).
const reportJob = "fixity.report"

// reportDelay is how long after the end of a round its report is published at the latest.
const reportDelay = 10 * time.Minute

// FixityReports returns the reports of fixity rounds that q selects, newest first, for display. Kind and Also of q are
// not used. Rounds over the items with a prefix are not the newest ones of their spaces.
func FixityReports(
	ctx context.Context, db *clickhouse.DB, q read.ReportQuery,
) (rounds []fixityreport.Round, err error) {
	if q.Kind = sweep.FixitySweep; !q.Newest {
		q.Also = sweep.PrefixReport
	}
	found, err := read.Reports(ctx, db, q)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	compared, err := comparisons(ctx, db, q)
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		rounds = append(rounds, fixityreport.Round{RoundReport: r, Part: r.Kind == sweep.PrefixReport,
			Checks:   checksOf(ctx, db, r),
			Compared: compared[schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space}]})
	}
	return rounds, nil
}

// comparisons returns the newest comparison of the listing of each space that q selects with the records.
func comparisons(
	ctx context.Context, db *clickhouse.DB, q read.ReportQuery,
) (map[schemas.Copy]*fixityreport.Comparison, error) {
	found, err := read.Reports(ctx, db,
		read.ReportQuery{Kind: reconcile.Name, Account: q.Account, Store: q.Store, Space: q.Space, Newest: true})
	all := map[schemas.Copy]*fixityreport.Comparison{}
	for _, r := range found {
		all[schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space}] = fixityreport.ComparisonOf(r)
	}
	return all, err
}

// checksPage is the number of checks that are read at once.
const checksPage = 10_000

// checksOf returns fixityreport.Round.Checks of a report.
func checksOf(
	ctx context.Context, db *clickhouse.DB, r read.RoundReport,
) func(findings bool, each func(read.RoundCheck) error) error {
	return func(findings bool, each func(read.RoundCheck) error) error {
		q := read.RoundCheckQuery{Space: schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space}, Round: r.Round,
			Started: r.Started, Findings: findings, Limit: checksPage}
		for {
			checks, err := read.RoundChecks(ctx, db, q)
			if err != nil {
				return err
			}
			for _, c := range checks {
				if err := each(c); err != nil {
					return err
				}
				q.After = c.Item
			}
			if retry.Alive(ctx); len(checks) < q.Limit {
				return nil
			}
		}
	}
}

// A reportPosition is how far the reports of a setting have been written.
type reportPosition struct {
	Request string    `json:"request,omitempty"` // that of jobCursor
	Until   time.Time `json:"until"`             // rounds that ended later have not
}

// reportSplit returns the split that writes the reports of a setting. Each iteration writes a file of the rounds that
// have ended since the one before; the first one of the newest round of each space.
func (a *App) reportSplit(r config.FixityReport) sweep.Split {
	account, store, _ := r.To()
	return sweep.Split{Sweep: reportJob, Name: r.Name, Account: r.Account, Lag: noLag,
		Blocked: a.jobBlocked(reportJob, StoreName{account, store}),
		Pages: func(ctx context.Context, round sweep.Round, _ []byte) (page sweep.Page, err error) {
			var last reportPosition
			if round.Previous != nil {
				if err := json.Unmarshal(round.Previous, &last); err != nil {
					return page, fmt.Errorf("read the position of the reports: %w", err)
				}
			}
			at := reportPosition{cmp.Or(a.jobRequests.newest(jobName(reportJob, r.Name)).id, last.Request),
				round.Started.Add(-reportDelay)}
			if at.Until.Before(last.Until) { // the clock was set back
				at.Until = last.Until
			}
			page.Last = true
			if page.Counts, err = a.writeReports(ctx, r, last.Until, at.Until); err != nil {
				return page, retry.Unavailable(err) // not tried again at once
			}
			page.Next, err = json.Marshal(at)
			return page, err
		}}
}

// writeReports writes the reports of the rounds that have ended after since and not after until, and counts them.
func (a *App) writeReports(
	ctx context.Context, r config.FixityReport, since, until time.Time,
) (map[string]int64, error) {
	if err := a.sinkHas(ctx, schemas.Reports); err != nil {
		return nil, err
	}
	all, err := FixityReports(ctx, a.db, read.ReportQuery{Account: r.Account, Newest: since.IsZero(), Since: since})
	if err != nil {
		return nil, err
	}
	var rounds []fixityreport.Round
	for _, one := range all {
		if one.Finished.After(since) && !one.Finished.After(until) {
			rounds = append(rounds, one)
		}
	}
	counts := map[string]int64{"rounds": int64(len(rounds))}
	if len(rounds) == 0 {
		return counts, nil
	}
	fixityreport.Sort(rounds)
	format := fixityreport.Format(r.FormatOrDefault())
	name := fmt.Sprintf("%s-%s.%s", r.Name, until.UTC().Format("20060102T150405Z"), format)
	err = a.putReport(ctx, r, name, func(w io.Writer) error {
		return a.withoutGaps(ctx, func() error { return format.Write(w, rounds) })
	})
	if err != nil {
		return counts, fmt.Errorf("write the report %s: %w", name, err)
	}
	counts["files"] = 1
	return counts, nil
}

// putReport writes a file into the directory or the space of a setting.
func (a *App) putReport(
	ctx context.Context, r config.FixityReport, name string, write func(io.Writer) error,
) error {
	if r.Dir != "" {
		return wholefile.Write(filepath.Join(r.Dir, name), write)
	}
	account, store, space := r.To()
	from, to := io.Pipe()
	var g errgroup.Group
	g.Go(func() error { return to.CloseWithError(write(to)) }) // which the reader returns
	item := schemas.Copy{Account: account, Store: store, Space: space, Item: name}
	err := a.putItem(ctx, item, "millrace fixity report", from, storage.UnknownSize)
	return errors.Join(err, from.CloseWithError(errNotStored), g.Wait())
}

// errNotStored ends the writing of a file that could not be stored.
var errNotStored = errors.New("the item was not stored")

// sinkHas returns an error unless the role sink has handled all that a topic has now.
func (a *App) sinkHas(ctx context.Context, topic schemas.Topic) error {
	n, err := a.unhandled(ctx, schemas.RoleSink, topic)
	if err == nil && n > 0 {
		err = fmt.Errorf("the tables lack records of topic %s: is role sink running?", topic)
	}
	return err
}

// Stored returns a ProgressFunc that counts the records of a topic that the role sink has handled. The total is the
// largest number of those that it had not.
func (a *App) Stored(topic schemas.Topic) ProgressFunc {
	var total int64
	return func(ctx context.Context) (p Progress, err error) {
		n, err := a.unhandled(ctx, schemas.RoleSink, topic)
		total = max(total, n)
		return Progress{Done: total - n, Total: total}, err
	}
}
