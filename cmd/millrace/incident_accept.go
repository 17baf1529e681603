package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func newIncidentAccept() *cobra.Command {
	f := decisionFlags{done: "accepted", later: "it is carried out"}
	var force bool
	c := &cobra.Command{
		Use:   "accept " + keysUse,
		Short: "Accept what a copy holds as its content on record",
		Long: `Accepts what the copies of incidents hold, of the kinds replaced, no-quorum, not-captured-update and
resurrected. A checker reads each copy again. If it is still the object that the check has found, with the same
digests, and no later event is on record, a change of origin fixity records it, and the content is copied as the policy
says. Another check closes the incident.

Bytes that have changed under the version on record are damage, and refused. With --force they are accepted too.

` + keysLong + `

With --wait the command ends when each incident is closed, or its content was not accepted. With --state all roles run
in this command until then.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: an incident is still open, 4 some are accepted and others not,
5 precondition, such as an incident of another kind, 130 interrupted.`,
		Args: someKeys,
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.requireReason(); err != nil {
				return err
			}
			accept := func(ctx context.Context, a *app.App, i *pb.Incident, by app.Actor) (decision, error) {
				action, err := a.Accept(ctx, i, by, force)
				return decision{incident: i, action: action, how: "a checker will read the copy again"}, err
			}
			return f.decide(c, args, accept, f.awaitRepairs)
		},
	}
	f.register(c, "wait until the incidents are closed, or not accepted")
	c.Flags().BoolVar(&force, "force", false, "accept bytes that have changed under the version on record")
	return c
}
