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
// the text of a ScheduleTarget, and After the schedule; empty: it is withdrawn.
const actionSetSchedule = "set-schedule"

// schedules holds the newest schedules that operators have set, from the topic of actions. They count in place of those
// of the settings.
type schedules struct {
	configured map[string][]spaceSchedule // of spaces, by sweep; fixed before use

	mu       sync.Mutex                 // guards what follows
	byTarget map[string]setSchedule     // those that are not of some spaces have the name
	spaces   map[string][]spaceSchedule // which count, by sweep, by precedence; an entry is replaced, never changed
}

// A setSchedule is a schedule that an operator has set.
type setSchedule struct {
	action   *pb.AdminAction
	at       time.Time // of its record
	schedule schedule.Schedule
	counts   bool // false: that of the settings counts, also if this version cannot read the action
}

// configure sets the schedules of spaces of the settings, which have been checked.
func (s *schedules) configure(of []config.SpaceSchedule) {
	s.configured = configuredSpaces(of)
	s.spaces = maps.Clone(s.configured)
}

// apply notes an action that was recorded at a time. The error is why that of the settings counts in place of the
// schedule: this version cannot read it, or check refuses it.
func (s *schedules) apply(
	action *pb.AdminAction, at time.Time, check func(ScheduleTarget, schedule.Schedule) error,
) (err error) {
	if action.GetAction() != actionSetSchedule {
		return nil
	}
	set, of := setSchedule{action: action, at: at}, parseTarget(action.GetTarget())
	if text := action.GetAfter(); text != "" {
		if set.schedule, err = schedule.Parse(text); err == nil {
			err = check(of, set.schedule)
		}
		set.counts = err == nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTarget == nil {
		s.byTarget = map[string]setSchedule{}
	}
	if target := of.String(); !at.Before(s.byTarget[target].at) {
		s.byTarget[target] = set
		if of.Spaces != "" {
			s.setSpaces(of.Name)
		}
	}
	return err
}

// setSpaces sets the schedules of spaces of a sweep from those that were set.
func (s *schedules) setSpaces(name string) {
	var all []spaceSchedule
	for target, set := range s.byTarget {
		if of := parseTarget(target); set.counts && of.Name == name && of.Spaces != "" {
			one, err := newSpaceSchedule(of.Spaces, set.schedule)
			if err != nil {
				continue // check has refused it
			}
			one.set, one.at = set.action, set.at
			all = append(all, one)
		}
	}
	if s.spaces == nil { // the settings have none
		s.spaces = map[string][]spaceSchedule{}
	}
	s.spaces[name] = byPrecedence(all, s.configured[name])
}

// applySchedule notes an action that was recorded at a time. The settings of the process that set the schedule are not
// those of this one.
func (a *App) applySchedule(action *pb.AdminAction, at time.Time) {
	if err := a.schedules.apply(action, at, a.checkSchedule); err != nil {
		a.log.Warn("ignore a schedule that was set: that of the settings counts", "name", action.GetTarget(),
			"schedule", action.GetAfter(), "err", err, "who", action.GetWho(), "action", action.GetId())
	}
}

// checkSchedule returns why the settings of this process refuse a schedule. It accepts names that it does not know:
// their schedules count for nothing here.
func (a *App) checkSchedule(of ScheduleTarget, s schedule.Schedule) error {
	if err := of.check(); err != nil {
		return err
	}
	if of.Name == trimJob && a.cfg.Trim.Schedule.Off() && !s.Off() {
		return errTrimOff
	}
	return config.CheckSchedule(a.cfg, of.Name, of.Spaces, s)
}

// errTrimOff refuses a schedule for the job trim. With trim.schedule off its rights may be left out of the logins.
var errTrimOff = errors.New("trim.schedule is off in the settings: sweepers may lack the rights to delete records")

// of returns the schedule that counts for a sweep or job, in some places, and the id of the action that has set it;
// empty: it is a configured one. configured is that of the settings for the other places.
func (s *schedules) of(
	name string, places []schemas.Copy, configured schedule.Schedule,
) (is schedule.Schedule, action string) {
	s.mu.Lock()
	set, spaces := s.byTarget[name], s.spaces[name]
	s.mu.Unlock()
	for _, one := range spaces {
		if one.matches(places) {
			return one.schedule, one.set.GetId()
		}
	}
	if set.counts {
		return set.schedule, set.action.GetId()
	}
	return configured, ""
}

// all returns each schedule of a sweep or job that may count somewhere.
func (s *schedules) all(name string, configured schedule.Schedule) []schedule.Schedule {
	other, _ := s.of(name, nil, configured)
	all := []schedule.Schedule{other}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.spaces[name] {
		all = append(all, one.schedule)
	}
	return all
}

// scheduled returns the names of the sweeps and jobs with a schedule, sorted.
func (a *App) scheduled() []string {
	all := slices.AppendSeq(append(Sweeps(), trimJob, expireJob), maps.Keys(a.fileJobs()))
	slices.Sort(all)
	return all
}

// configuredSchedule returns the schedule of the settings for a sweep or job; off if they do not have it.
func (a *App) configuredSchedule(name string) schedule.Schedule {
	switch name {
	case sweep.FixitySweep:
		return a.cfg.Sweep.Fixity
	case reconcile.Name:
		return a.cfg.Sweep.Reconcile
	case DuplicationSweep:
		return a.cfg.Sweep.Duplication
	case groups.Name:
		return a.cfg.Sweep.Groups
	case StatsSweep:
		return a.cfg.Sweep.Stats
	case trimJob:
		return a.cfg.Trim.Schedule
	case expireJob:
		return a.cfg.Expire.Schedule
	}
	return a.fileJobs()[name]
}

// fileJobs returns the configured schedules of the jobs that write files, by their names.
func (a *App) fileJobs() map[string]schedule.Schedule {
	all := map[string]schedule.Schedule{}
	for _, e := range a.cfg.Audit.Exports {
		all[jobName(auditExport, e.Name)] = e.Schedule
	}
	for _, r := range a.cfg.Fixity.Reports {
		all[jobName(reportJob, r.Name)] = r.Schedule
	}
	return all
}

// scheduleOf returns the schedule that counts for a sweep or job, in some places.
func (a *App) scheduleOf(name string, places ...schemas.Copy) schedule.Schedule {
	is, _ := a.schedules.of(name, places, a.configuredSchedule(name))
	return is
}

// timetable returns the timetable of a sweep or job, by the schedules that count at any time.
func (a *App) timetable(name string) *timetable {
	t := newTimetable(name, a.configuredSchedule(name), a.log)
	t.set, t.now = &a.schedules, a.kafka.Clock.Now
	return t
}

// A ScheduleInfo is the schedule of a target.
type ScheduleInfo struct {
	ScheduleTarget
	// Schedule counts, in the spaces of the target that match none before it.
	Schedule schedule.Schedule
	// Configured is that of the settings; nil: they have none for the pattern.
	Configured *schedule.Schedule
	// Set is the newest action about the schedule, if it counts; nil: that of the settings counts.
	Set *pb.AdminAction
}

// Schedules returns the schedules of the sweeps and jobs by name. Of those of a sweep, the first one that matches a
// space counts.
func (a *App) Schedules(ctx context.Context) (all []ScheduleInfo, err error) {
	if err := a.readSchedules(ctx); err != nil {
		return nil, err
	}
	a.schedules.mu.Lock()
	defer a.schedules.mu.Unlock()
	for _, name := range a.scheduled() {
		for _, s := range a.schedules.spaces[name] {
			all = append(all, ScheduleInfo{ScheduleTarget{name, s.spaces}, s.schedule, s.configured, s.set})
		}
		configured := a.configuredSchedule(name)
		in := ScheduleInfo{ScheduleTarget{name, ""}, configured, &configured, nil}
		if set := a.schedules.byTarget[name]; set.counts {
			in.Schedule, in.Set = set.schedule, set.action
		}
		all = append(all, in)
	}
	return all, nil
}

// readSchedules reads the schedules that operators have set.
func (a *App) readSchedules(ctx context.Context) error {
	apply := a.actionsTo(new(space.Gone), new(skippedRounds))
	if err := a.readTable(ctx, schemas.Admin, apply, func(context.Context) error { return nil }); err != nil {
		return fmt.Errorf("read the actions: %w", err)
	}
	return nil
}

// SetSchedule sets when rounds of a sweep, or iterations of a job, begin from now on, in place of the settings; nil:
// the settings count again. Processes with role sweeper follow it within seconds.
func (a *App) SetSchedule(ctx context.Context, of ScheduleTarget, s *schedule.Schedule, by Actor) error {
	if all := a.scheduled(); !slices.Contains(all, of.Name) {
		return &UnknownNameError{"sweep or job with a schedule", of.Name, all}
	}
	if err := of.check(); err != nil { // before normal, which makes another pattern, or none, of "//a" and "/"
		return fmt.Errorf("%w: %w", precondition.Err, err)
	}
	of = of.normal()
	action := by.action(actionSetSchedule, of.String())
	switch {
	case s != nil:
		if err := a.checkSchedule(of, *s); err != nil {
			return fmt.Errorf("%w: %w", precondition.Err, err)
		}
		action.After = s.String()
	case of.Spaces != "":
		if err := a.requireSet(ctx, of); err != nil {
			return err
		}
	}
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Admin, Body: action}); err != nil {
		return fmt.Errorf("set the schedule of %s: %w", of, err)
	}
	return nil
}

// requireSet returns an error if no schedule was set for some spaces of a sweep: the pattern may be misspelt.
func (a *App) requireSet(ctx context.Context, of ScheduleTarget) error {
	if err := a.readSchedules(ctx); err != nil {
		return err
	}
	a.schedules.mu.Lock()
	defer a.schedules.mu.Unlock()
	if a.schedules.byTarget[of.String()].action.GetAfter() == "" {
		return fmt.Errorf("%w: no schedule is set for %s: see 'millrace schedule list'", precondition.Err, of)
	}
	return nil
}
