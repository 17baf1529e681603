package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
)

// The jobs: what recurs and compares nothing. Each runs as the rounds of splits, as sweeps do.
const (
	trimJob   = "trim"
	expireJob = "expire"
	// auditExport is also the sweep of the exports by hand, whose positions are the same.
	auditExport = "audit.export"
)

// Jobs returns the names of the jobs.
func Jobs() []string { return []string{auditExport, expireJob, reportJob, trimJob} }

// jobs returns what runs each job. One that takes hours delays none of the others.
func (a *App) jobs(known *checkpoints, owns func(sweep, split string) bool) (all []*periodicRounds, err error) {
	trimmer, expiry := a.newTrimmer(a.neededStarts), a.newExpiry()
	for _, name := range Jobs() {
		p, err := a.newPeriodic(known, owns, name, a.cfg.Sweep.Workers)
		if err != nil {
			return nil, err
		}
		switch name {
		case trimJob:
			p.addJob(a.timetable(name), func(context.Context) ([]sweep.Split, error) {
				return []sweep.Split{a.trimSplit(trimmer)}, nil
			})
		case expireJob:
			p.addJob(a.timetable(name), func(context.Context) ([]sweep.Split, error) {
				return expiry.splits(), nil
			})
		case reportJob:
			for _, r := range a.cfg.Fixity.Reports {
				p.addJob(a.timetable(jobName(name, r.Name)), func(context.Context) ([]sweep.Split, error) {
					return []sweep.Split{a.reportSplit(r)}, nil
				})
			}
		case auditExport:
			for _, e := range a.cfg.Audit.Exports {
				p.addJob(a.timetable(jobName(name, e.Name)), func(context.Context) ([]sweep.Split, error) {
					return []sweep.Split{a.scheduledExport(e)}, nil
				})
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// addJob adds the splits of a job, whose rounds begin by t, or when an operator requests one.
func (p *periodicRounds) addJob(t *timetable, splits sweep.Kind) {
	t.requested = func(sweep, split string) bool {
		return p.app.jobRequests.open(jobName(sweep, split), p.known.of(sweep, split), p.app.kafka.Clock.Now())
	}
	p.add(t, splits)
}

// job returns the split of a job of a store, or of none. do does one iteration, and returns what it has done also if it
// fails. The rest is done by a later attempt. Its log has the id of the iteration.
func (a *App) job(
	name, split string, of StoreName, do func(context.Context, *slog.Logger) (map[string]int64, error),
) sweep.Split {
	return sweep.Split{
		Sweep: name, Name: split, Account: of.Account, Lag: noLag, Blocked: a.jobBlocked(name, of),
		Pages: func(ctx context.Context, round sweep.Round, _ []byte) (page sweep.Page, err error) {
			at := jobCursor{a.jobRequests.newest(jobName(name, split)).id}
			page.Last = true
			if page.Counts, err = do(ctx, a.iterationLog(name, split, round)); err != nil {
				return page, retry.Unavailable(err) // not tried again at once
			}
			page.Next, err = json.Marshal(at)
			return page, err
		},
	}
}

// iterationLog returns the log of an iteration of a job, with the keys of the log lines of its begin and end.
func (a *App) iterationLog(name, split string, round sweep.Round) *slog.Logger {
	return a.log.With("sweep", name, "split", split, "round", round.ID)
}

func noLag(context.Context) (int64, error) { return 0, nil }

// jobBlocked returns a function that returns why a job may not work now.
func (a *App) jobBlocked(name string, of StoreName) func(context.Context) error {
	if of != (StoreName{}) {
		return a.sweepBlocked(a.controls, name, of)
	}
	return func(context.Context) error {
		if a.controls.Sweep(name) || a.controls.Role(schemas.RoleSweeper) {
			return sweep.ErrPaused
		}
		return nil
	}
}

// A jobCursor is a part of the last cursor of an iteration.
type jobCursor struct {
	Request string `json:"request,omitempty"` // the newest request when the iteration began
}

// actionStartJob is the admin action that requests an iteration of a job. Its target is the name of the job.
const actionStartJob = "start-job"

// requestAge is how long a request counts for a job that has no checkpoint: it may be a new one of an old name.
const requestAge = 24 * time.Hour

// A jobRequest is a request of an operator for an iteration of a job.
type jobRequest struct {
	id string
	at time.Time // of its record
}

// jobRequests holds the newest request for each job, from the topic of actions.
type jobRequests struct {
	mu    sync.Mutex // guards byJob
	byJob map[string]jobRequest
}

// apply notes an action that was recorded at a time, and reports whether it is a request.
func (r *jobRequests) apply(action *pb.AdminAction, at time.Time) bool {
	if action.GetAction() != actionStartJob {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byJob == nil {
		r.byJob = map[string]jobRequest{}
	}
	if job := action.GetTarget(); !at.Before(r.byJob[job].at) {
		r.byJob[job] = jobRequest{action.GetId(), at}
	}
	return true
}

// newest returns the newest request for a job; the zero value if there is none.
func (r *jobRequests) newest(job string) jobRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byJob[job]
}

// open reports whether the newest request for a job was made since its last iteration began.
func (r *jobRequests) open(job string, last *pb.Checkpoint, now time.Time) bool {
	newest := r.newest(job)
	if newest.id == "" || last == nil && now.Sub(newest.at) > requestAge {
		return false
	}
	cursor := last.GetCursor()
	if last.GetFinished() == nil {
		cursor = last.GetPrevious()
	}
	var at jobCursor
	if cursor != nil && json.Unmarshal(cursor, &at) != nil {
		return false
	}
	return at.Request != newest.id
}

// jobName returns the name of a job in the table job_log.
func jobName(sweep, split string) string { return sweep + "/" + split }

// StartJob requests an iteration of the jobs of a name, or of the first parts of their names, and returns their names.
// Processes with role sweeper begin it whatever the schedule says; one that is under way is followed by another.
func (a *App) StartJob(ctx context.Context, name string, by Actor) (started []string, err error) {
	all := a.jobNames()
	for _, job := range all {
		if job != name && !strings.HasPrefix(job, name+"/") {
			continue
		}
		start := schemas.Message{Topic: schemas.Admin, Body: by.action(actionStartJob, job)}
		if err := a.producer.Publish(ctx, start); err != nil {
			return started, fmt.Errorf("request %s: %w", job, err)
		}
		started = append(started, job)
	}
	if len(started) == 0 {
		return nil, &UnknownNameError{"job", name, append(Jobs(), all...)}
	}
	return started, nil
}

// jobNames returns the names of all jobs by the settings.
func (a *App) jobNames() (all []string) {
	all = append(all, jobName(trimJob, trimTopics))
	for _, m := range (&expiry{app: a}).splits() {
		all = append(all, jobName(m.Sweep, m.Name))
	}
	all = slices.AppendSeq(all, maps.Keys(a.fileJobs()))
	slices.Sort(all)
	return all
}
