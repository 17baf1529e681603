package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func newJob() *cobra.Command {
	return noun("job", "Show what runs periodically, and how it ended; start and pause it", newJobList(), newJobHistory(),
		newJobStart(), newPauseOne(jobScope("pause NAME")), newResumeOne(jobScope("resume NAME")))
}

const jobNames = `A job is a split of a sweep, such as fixity/acme/1/photos, or another recurring task, such as
expire/acme/1. NAME is that of a job, or its first parts: fixity.demand, expire/acme.`

// jobScope is the form of arguments that selects a job.
func jobScope(use string) scopeArgs {
	p := sweepScope(use)
	p.short = "a recurring task: " + strings.Join(app.Jobs(), ", ")
	return p
}

func newJobStart() *cobra.Command {
	var (
		f      engineFlags
		reason string
	)
	c := &cobra.Command{
		Use:   "start NAME",
		Short: "Request a recurring task now, whatever its schedule says",
		Long: `Requests an iteration of the tasks of a name now, whatever their schedules say. A process with role
sweeper begins it within seconds; if one is under way, another one follows. 'millrace job history' shows how it
ended. Sweeps are started with 'millrace sweep start'.

  trim           deletes the records of topics that every reader has handled (trim.keep)
  expire         aborts old uploads, and removes replaced bytes after their retention (replaced.keep);
                 expire/ACCOUNT/STORE: of one store
  audit.export   exports the changes of the audit log that were not exported before; audit.export/NAME: of one of
                 audit.exports
  fixity.report  writes the reports of fixity rounds that have ended; fixity.report/NAME: of one of fixity.reports

Exit codes: 0 fine, 1 error, 2 usage, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			err := suggestName(f.withApp(c, func(ctx context.Context, a *app.App, _ *engines) error {
				started, err := a.StartJob(ctx, args[0], app.Actor{Who: currentUser(), Reason: reason, From: "cli"})
				for _, job := range started {
					if err == nil {
						_, err = fmt.Fprintf(c.OutOrStdout(), "requested %s\n", job)
					}
				}
				return err
			}))
			if err == nil && f.state != "" {
				_, err = fmt.Fprintln(c.OutOrStdout(), f.laterWithState("it begins"))
			}
			return err
		},
	}
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	return c
}

func newJobList() *cobra.Command {
	return listing(&cobra.Command{
		Use:   "list [NAME]",
		Short: "List the jobs, and the last iteration of each",
		Long: `Lists the jobs that are on record, with the iteration that ended last.

` + jobNames,
		Args: atMostOne,
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		return f.printJobs(c, o, read.JobQuery{Newest: true}, args)
	})
}

func newJobHistory() *cobra.Command {
	var h historyFlags
	c := listing(&cobra.Command{
		Use:   "history [NAME]",
		Short: "List the iterations of a job, newest first",
		Long: `Lists the ends of iterations, newest first. A round of a sweep that fails and goes on later has several
ends: the last one has no error.

` + jobNames,
		Args: atMostOne,
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		since, err := h.parse()
		if err != nil {
			return err
		}
		return f.printJobs(c, o, read.JobQuery{Since: since, Limit: h.limit}, args)
	})
	h.register(c, "iterations")
	return c
}

func (f *engineFlags) printJobs(c *cobra.Command, o *output, q read.JobQuery, names []string) error {
	if len(names) == 1 {
		q.Name = names[0]
	}
	return f.withDB(c, func(ctx context.Context, db *clickhouse.DB) error {
		found, err := read.Iterations(ctx, db, q)
		if err != nil {
			return err
		}
		return printList(c.OutOrStdout(), o, found, jobTable())
	})
}

func jobTable() table[read.Iteration] {
	return table[read.Iteration]{"NAME\tSTARTED\tFINISHED\tRESULT\tCOUNTS\tERROR", func(r read.Iteration) []string {
		result := "done"
		if r.Error != "" {
			result = "failed"
		}
		return []string{r.Name, stampOf(r.Started), stampOf(r.Finished), result, countsText(r.Counts), r.Error}
	}}
}
