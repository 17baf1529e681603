package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep/filter"
)

func newSchedule() *cobra.Command {
	return noun("schedule", "Show and set when sweeps and jobs begin", newScheduleList(), newScheduleSet(),
		newScheduleReset())
}

func newScheduleList() *cobra.Command {
	return listing(&cobra.Command{
		Use:   "list",
		Short: "List the schedules of sweeps and jobs",
		Long: `Lists the schedules of each sweep and job. One that was set with 'millrace schedule set' counts in place of
that of the settings of this command, which the row has as CONFIGURED. Of the rows of a sweep, the first one whose
SPACES match a space counts for it, and the one without SPACES for all others.`,
		Args: exactly(0),
	}, func(c *cobra.Command, _ []string, f *engineFlags, o *output) error {
		return f.withApp(c, func(ctx context.Context, a *app.App, _ *engines) error {
			all, err := a.Schedules(ctx)
			if err != nil {
				return err
			}
			rows := make([]scheduleRow, len(all))
			for i, in := range all {
				rows[i] = scheduleRow{Name: in.Name, Spaces: in.Spaces, Schedule: in.Schedule.String()}
				if in.Configured != nil {
					rows[i].Configured = in.Configured.String()
				}
				if set := in.Set; set != nil {
					rows[i].By, rows[i].Reason, rows[i].Set = set.GetWho(), set.GetReason(), timeOf(set.GetTime())
				}
			}
			return printList(c.OutOrStdout(), o, rows, scheduleTable())
		})
	})
}

// A scheduleRow is the schedule of a sweep or job in a list.
type scheduleRow struct {
	Name       string     `json:"name"`
	Spaces     string     `json:"spaces"` // a pattern; empty: all that match none of the rows before
	Schedule   string     `json:"schedule"`
	Configured string     `json:"configured"` // empty: none for these spaces
	Set        *time.Time `json:"set"`        // null: the configured one counts
	By         string     `json:"by"`
	Reason     string     `json:"reason"`
}

func scheduleTable() table[scheduleRow] {
	return table[scheduleRow]{"NAME\tSPACES\tSCHEDULE\tCONFIGURED\tSET\tBY\tREASON", func(r scheduleRow) []string {
		return []string{r.Name, r.Spaces, r.Schedule, r.Configured, stamp(r.Set), r.By, r.Reason}
	}}
}

func newScheduleSet() *cobra.Command {
	const use = "set NAME SCHEDULE [--spaces PATTERN] --reason TEXT"
	c := scheduleCommand(use, func(args []string) (*schedule.Schedule, error) {
		if len(args) == 0 {
			return nil, fmt.Errorf("%w: the schedule is missing, such as 'every 12h'", usage.Err)
		}
		s, err := schedule.Parse(strings.Join(args, " "))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", usage.Err, err)
		}
		return &s, nil
	})
	c.Short = "Set when rounds of a sweep, or iterations of a job, begin"
	c.Long = `Sets when rounds of a sweep, or iterations of a job, begin, in place of the settings: the processes with role
sweeper follow it within seconds, also those that start later, until 'millrace schedule reset'. NAME is one of
'millrace schedule list', SCHEDULE as in the settings: off, every 12h, every 1w start 20:00 window 22:00-06:00. A round
that is under way goes on within the windows of the new schedule; with off it waits. A process whose own settings
refuse the schedule keeps to its settings, and logs it. The job trim has none if trim.schedule is off in the settings,
as the rights to delete records may be missing then.

With --spaces the schedule is that of some spaces of the sweep fixity, reconcile, duplication or groups, as
ACCOUNT[/STORE[/SPACE]], with * and ? for any characters of a name; of a pair of stores, one that matches suffices.
Schedules of spaces count before that of the sweep, also if that is off: those that were set, SPACE before STORE before
ACCOUNT and the newest first, then those of sweep.schedules. 'millrace schedule list' shows them in this order. To stop
a sweep in all spaces, use 'millrace sweep pause'.

Exit codes: 0 fine, 1 error, 2 usage, 5 precondition: the settings would refuse the schedule, or the sweep or job has
none of spaces, 130 interrupted.`
	return c
}

func newScheduleReset() *cobra.Command {
	c := scheduleCommand("reset NAME [--spaces PATTERN] --reason TEXT", func(args []string) (*schedule.Schedule, error) {
		if len(args) > 0 {
			return nil, fmt.Errorf("%w: name one sweep or job", usage.Err)
		}
		return nil, nil
	})
	c.Short = "Let the settings say when rounds of a sweep, or iterations of a job, begin"
	c.Long = `Withdraws 'millrace schedule set': the schedule of the settings of each process counts again. With --spaces
it withdraws the one that was set with the same pattern.

Exit codes: 0 fine, 1 error, 2 usage, 5 precondition: none was set with the pattern, 130 interrupted.`
	return c
}

// scheduleCommand returns a command that sets the schedule of a sweep or job. parse returns it from the arguments after
// the name; nil: that of the settings.
func scheduleCommand(use string, parse func(args []string) (*schedule.Schedule, error)) *cobra.Command {
	var (
		f              engineFlags
		spaces, reason string
	)
	c := &cobra.Command{
		Use: use,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%w: name a sweep or a job: see 'millrace schedule list'", usage.Err)
			}
			_, err := parse(args[1:])
			return err
		},
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return fmt.Errorf("%w: --reason is missing: it is recorded", usage.Err)
			}
			if spaces == "" && c.Flags().Changed("spaces") { // as by a variable that is not set
				return fmt.Errorf("%w: --spaces is empty: want ACCOUNT[/STORE[/SPACE]]", usage.Err)
			} else if err := filter.Check(spaces); spaces != "" && err != nil {
				return fmt.Errorf("%w: --spaces: %w", usage.Err, err)
			}
			s, err := parse(args[1:])
			if err != nil {
				return err
			}
			return suggestName(f.withApp(c, func(ctx context.Context, a *app.App, _ *engines) error {
				of := app.ScheduleTarget{Name: args[0], Spaces: spaces}
				if err := a.SetSchedule(ctx, of, s, app.Actor{Who: currentUser(), Reason: reason, From: "cli"}); err != nil {
					return err
				}
				text := "the schedule of the settings"
				switch {
				case s != nil:
					text = s.String()
				case spaces != "":
					text = "withdrawn: 'millrace schedule list' shows what counts"
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", of, text)
				return err
			}))
		},
	}
	f.register(c)
	c.Flags().StringVar(&spaces, "spaces", "", "the spaces of the sweep, as ACCOUNT[/STORE[/SPACE]]; default: all others")
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	return c
}
