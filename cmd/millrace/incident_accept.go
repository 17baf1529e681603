package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

// acceptFlags are the flags of incident accept.
type acceptFlags struct {
	engineFlags
	reason      string
	force, wait bool
}

func newIncidentAccept() *cobra.Command {
	var f acceptFlags
	c := &cobra.Command{
		Use:   "accept KEY [KEY...]",
		Short: "Accept what a copy holds as its content on record",
		Long: `Accepts what the copies of incidents hold, of the kinds replaced, no-quorum, not-captured-update and
resurrected. A checker reads each copy again. If it is still the object that the check has found, with the same
digests, and no later event is on record, a change of origin fixity records it, and the content is copied as the policy
says. Another check closes the incident.

Bytes that have changed under the version on record are damage, and refused. With --force they are accepted too.

With --wait the command ends when each incident is closed, or its content was not accepted. With --state all roles run
in this command until then.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: an incident is still open, 5 precondition, such as an incident of
another kind, 130 interrupted.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%w: name the incidents by their keys; see '%s --help'", usage.Err, c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if f.reason == "" {
				return fmt.Errorf("%w: --reason is missing: it is recorded", usage.Err)
			}
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				accepted, err := f.accept(ctx, a, args)
				if err != nil {
					return err
				}
				how := "a checker will read the copy again"
				switch {
				case f.wait:
					how = "the incident is closed"
					err = f.awaitRepairs(c, e, a, accepted)
				case e.state != nil:
					how = f.laterWithState("it is carried out")
				}
				for n := 0; n < len(args) && err == nil; n++ {
					_, err = fmt.Fprintf(c.OutOrStdout(), "accepted %s: %s\n", args[n], how)
				}
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&f.reason, "reason", "", "the reason, which is recorded")
	c.Flags().BoolVar(&f.force, "force", false, "accept bytes that have changed under the version on record")
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until the incidents are closed, or not accepted")
	return c
}

// accept publishes the acceptances of the incidents with these keys: of all, or of none if one is refused.
func (f *acceptFlags) accept(ctx context.Context, a *app.App, keys []string) ([]approval, error) {
	accepted := make([]approval, len(keys))
	for n, key := range keys {
		i, err := requireOpenIncident(ctx, a, key)
		if err == nil {
			err = app.CheckAccept(i)
		}
		if err != nil {
			return nil, err
		}
		accepted[n].incident = i
	}
	by := app.Actor{Who: currentUser(), Reason: f.reason, From: "cli"}
	for n := range accepted {
		var err error
		if accepted[n].action, err = a.Accept(ctx, accepted[n].incident, by, f.force); err != nil {
			return nil, err
		}
	}
	return accepted, nil
}
