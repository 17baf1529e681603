package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
)

func newIncidentApprove() *cobra.Command {
	f := decisionFlags{action: held.ActionApprove, done: "approved", later: "it is carried out"}
	c := &cobra.Command{
		Use:   "approve " + keysOrEventUse,
		Short: "Approve the repairs of incidents, or lists of deletes or rewrites",
		Long: `Publishes the approval of repairs. The roles steward, copier and checker carry them out.

Of an incident resurrected it approves the delete of the copy that came back, by the roles steward and deleter, if it
is still the object that the check has found and no later event is on record. Of an incident not-captured-update it
approves the record of the update, as 'incident accept' does.

Of an incident repairs-held it approves the repairs of missing copies that are on its list now. The roles steward,
deleter, copier and checker carry them out. Copies that are found missing later come to another list.

Of an incident deletes-held it approves the deletes that are on its list now. The roles steward and deleter carry them
out, if the sources are still deleted and were not deleted again later. Later deletes come to another list.

Of an incident rewrites-held it approves the contents that are on its list now. The roles steward, deleter and copier
carry them out. A later content comes to another list.

` + keysLong + `

` + eventLong + `

With --wait the command ends when each incident is closed, its repair has failed, or the steward does not order a
repair, for example because there is no good copy. Of a list, each item must have a result, even if its incident was
closed before. With --state all roles run in this command until then.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: an incident is still open, 4 some are approved and others not,
5 precondition, such as an incident that has no repair, 130 interrupted.`,
		RunE: func(c *cobra.Command, args []string) error { return f.decide(c, args, approve, f.awaitRepairs) },
	}
	f.register(c, "wait until the incidents are closed, or their repairs have failed")
	f.registerEvent(c)
	return c
}

// approve publishes an approval.
func approve(ctx context.Context, a *app.App, i *pb.Incident, by app.Actor) (d decision, err error) {
	d.incident = i
	if !app.HasList(i.GetKind()) {
		d.how = "the steward will order the repair"
		if i.GetKind() == "resurrected" {
			d.how = "the deleter will delete the copy"
		}
		d.action, err = a.ApproveRepair(ctx, i, by)
		return d, err
	}
	action, n, err := a.DecideList(ctx, i, by, held.ActionApprove)
	d.action, d.how = action, fmt.Sprintf("the deleter will do the %d deletes that are on the list", n)
	if act, is := strings.CutSuffix(i.GetKind(), "-held"); is && i.GetKind() != incident.DeletesHeld {
		d.how = fmt.Sprintf("the copier will do the %d %s that are on the list", n, act)
	}
	return d, err
}

func newIncidentClose() *cobra.Command {
	f := decisionFlags{action: held.ActionClose, done: "close", later: "it is closed"}
	c := &cobra.Command{
		Use:   "close " + keysOrEventUse,
		Short: "Close incidents",
		Long: `Closes open incidents, and records the user and the reason.

A running steward closes an incident of a copy. A later check that passes closes such an incident too, and a check
that finds the fault again opens a new one. An incident of a table, a space or a policy is opened again while its cause
exists. An incident of an unreadable record stays closed, and the record is skipped from then on.

Of an incident deletes-held or rewrites-held it keeps the copies: what is on the list now is not done later either.
Within 30 days 'incident approve' of the same key can still approve it.

` + keysLong + `

` + eventLong + `

Exit codes: 0 fine, 1 error, 2 usage, 4 some are closed and others not, 5 precondition, 130 interrupted.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.requireReason(); err != nil {
				return err
			}
			return f.decide(c, args, closeIncident, nil)
		},
	}
	f.register(c, "")
	f.registerEvent(c)
	return c
}

// closeIncident closes an incident, or publishes that the steward is to close it.
func closeIncident(ctx context.Context, a *app.App, i *pb.Incident, by app.Actor) (decision, error) {
	d := decision{incident: i, how: howClosed}
	if i.GetItem() != "" {
		d.how = "the steward will close it"
	}
	return d, a.CloseIncident(ctx, i, by)
}
