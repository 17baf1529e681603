package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/space"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/groups"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// actionSetSchedule is the admin action that sets when rounds of a sweep, or iterations of a job, begin. Its target is
// the name of the sweep or job, and After the schedule; empty: that of the settings counts again.
const actionSetSchedule = "set-schedule"

// schedules holds the newest schedules that operators have set, from the topic of actions. They count in place of those
// of the settings.
type schedules struct {
	mu     sync.Mutex // guards byName
	byName map[string]setSchedule
}

// A setSchedule is a schedule that an operator has set.
type setSchedule struct {
	action   *pb.AdminAction
	at       time.Time // of its record
	schedule schedule.Schedule
	counts   bool // false: that of the settings counts, also if this version cannot read the action
}

// apply notes an action that was recorded at a time. The error is why that of the settings counts in place of the
// schedule: this version cannot read it, or check refuses it.
func (s *schedules) apply(
	action *pb.AdminAction, at time.Time, check func(name string, s schedule.Schedule) error,
) (err error) {
	if action.GetAction() != actionSetSchedule {
		return nil
	}
	set := setSchedule{action: action, at: at}
	if text := action.GetAfter(); text != "" {
		if set.schedule, err = schedule.Parse(text); err == nil {
			err = check(action.GetTarget(), set.schedule)
		}
		set.counts = err == nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName == nil {
		s.byName = map[string]setSchedule{}
	}
	if name := action.GetTarget(); !at.Before(s.byName[name].at) {
		s.byName[name] = set
	}
	return err
}

// applySchedule notes an action that was recorded at a time. The settings of the process that set the schedule are not
// those of this one.
func (a *App) applySchedule(action *pb.AdminAction, at time.Time) {
	if err := a.schedules.apply(action, at, a.checkSchedule); err != nil {
		a.log.Warn("ignore a schedule that was set: that of the settings counts", "name", action.GetTarget(),
			"schedule", action.GetAfter(), "err", err, "who", action.GetWho(), "action", action.GetId())
	}
}

// checkSchedule returns why the settings of this process refuse a schedule of a sweep or job. It accepts names that it
// does not know: their schedules count for nothing here.
func (a *App) checkSchedule(name string, s schedule.Schedule) error {
	if name == trimJob && a.cfg.Trim.Schedule.Off() && !s.Off() {
		return errTrimOff
	}
	return config.CheckSchedule(a.cfg, name == sweep.FixitySweep, s)
}

// errTrimOff refuses a schedule for the job trim. With trim.schedule off its rights may be left out of the logins.
var errTrimOff = errors.New("trim.schedule is off in the settings: sweepers may lack the rights to delete records")

// of returns the schedule that counts for a sweep or job, and the id of the action that has set it; empty: it is the
// configured one.
func (s *schedules) of(name string, configured schedule.Schedule) (is schedule.Schedule, action string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set := s.byName[name]; set.counts {
		return set.schedule, set.action.GetId()
	}
	return configured, ""
}

// configuredSchedules returns the schedules of the settings by the names of the sweeps and jobs.
func (a *App) configuredSchedules() map[string]schedule.Schedule {
	all := map[string]schedule.Schedule{
		sweep.FixitySweep: a.cfg.Sweep.Fixity, reconcile.Name: a.cfg.Sweep.Reconcile, groups.Name: a.cfg.Sweep.Groups,
		DuplicationSweep: a.cfg.Sweep.Duplication, StatsSweep: a.cfg.Sweep.Stats,
		trimJob: a.cfg.Trim.Schedule, expireJob: a.cfg.Expire.Schedule,
	}
	for _, e := range a.cfg.Audit.Exports {
		all[jobName(auditExport, e.Name)] = e.Schedule
	}
	for _, r := range a.cfg.Fixity.Reports {
		all[jobName(reportJob, r.Name)] = r.Schedule
	}
	return all
}

// scheduleOf returns the schedule that counts for a sweep or job.
func (a *App) scheduleOf(name string) schedule.Schedule {
	is, _ := a.schedules.of(name, a.configuredSchedules()[name])
	return is
}

// timetable returns the timetable of a sweep or job, by the schedule that counts at any time.
func (a *App) timetable(name string) *timetable {
	t := newTimetable(name, a.configuredSchedules()[name], a.log)
	configured := t.configured
	t.current = func() (schedule.Schedule, string) { return a.schedules.of(name, configured) }
	return t
}

// A ScheduleInfo is the schedule of a sweep or job.
type ScheduleInfo struct {
	Name string
	// Schedule counts, and Configured is that of the settings.
	Schedule, Configured schedule.Schedule
	// Set is the newest action about the schedule, if it counts; nil: that of the settings counts.
	Set *pb.AdminAction
}

// Schedules returns the schedules of the sweeps and jobs, by name.
func (a *App) Schedules(ctx context.Context) (all []ScheduleInfo, err error) {
	apply := a.actionsTo(new(space.Gone), new(skippedRounds))
	if err := a.readTable(ctx, schemas.Admin, apply, func(context.Context) error { return nil }); err != nil {
		return nil, fmt.Errorf("read the actions: %w", err)
	}
	configured := a.configuredSchedules()
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		in := ScheduleInfo{Name: name, Configured: configured[name], Schedule: a.scheduleOf(name)}
		a.schedules.mu.Lock()
		if set := a.schedules.byName[name]; set.counts {
			in.Set = set.action
		}
		a.schedules.mu.Unlock()
		all = append(all, in)
	}
	return all, nil
}

// SetSchedule sets when rounds of a sweep, or iterations of a job, begin from now on, in place of the settings; nil:
// the settings count again. Processes with role sweeper follow it within seconds.
func (a *App) SetSchedule(ctx context.Context, name string, s *schedule.Schedule, by Actor) error {
	configured := a.configuredSchedules()
	if _, ok := configured[name]; !ok {
		return &UnknownNameError{"sweep or job with a schedule", name, slices.Sorted(maps.Keys(configured))}
	}
	action := by.action(actionSetSchedule, name)
	if s != nil {
		if err := a.checkSchedule(name, *s); err != nil {
			return fmt.Errorf("%w: %w", precondition.Err, err)
		}
		action.After = s.String()
	}
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Admin, Body: action}); err != nil {
		return fmt.Errorf("set the schedule of %s: %w", name, err)
	}
	return nil
}
