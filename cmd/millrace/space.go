package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

func newSpace() *cobra.Command {
	return noun("space", "Decide about spaces that are not there", newSpaceGone(), newSpaceBack())
}

func newSpaceGone() *cobra.Command {
	c := spaceCommand("gone", "is gone: its copies are missing from their next check on", (*app.App).SpaceGone)
	c.Short = "Declare that a space is gone for good: what was in it is missing, and is repaired"
	c.Long = `A space that has copies on record and is not there is unknown: its bucket or directory may be back
soon. One incident, space-missing, is open meanwhile; nothing is concluded of what was in the space, and nothing is
copied into it.

This command ends that. Its copies are checked once more, are missing then, and are repaired as the store's setting
repair says; copies are made in the space again. With repair: auto that is all of them: there is no limit from which on
repairs wait for an approval, so set repair: approve first if you want to see the list.
A space that is there, and one of a store whose marker cannot be read, are refused.

Exit codes: 0 fine, 1 error, 2 usage, 5 precondition, 130 interrupted.`
	return c
}

func newSpaceBack() *cobra.Command {
	c := spaceCommand("back", "is expected again", (*app.App).SpaceBack)
	c.Short = "Withdraw 'space gone': the space is expected again"
	c.Long = `Withdraws what 'space gone' said. A space that was created since is expected without this command.

Exit codes: 0 fine, 1 error, 2 usage, 5 precondition, 130 interrupted.`
	return c
}

// A spaceAction publishes that something is so of a space.
type spaceAction func(a *app.App, ctx context.Context, of app.StoreName, space string, by app.Approval) error

// spaceCommand is a command that publishes an action about one space.
func spaceCommand(name, done string, act spaceAction) *cobra.Command {
	var (
		f      engineFlags
		reason string
	)
	c := &cobra.Command{
		Use:  name + " ACCOUNT/STORE/SPACE --reason TEXT",
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			of, space, err := spaceName(args[0])
			if err != nil {
				return err
			}
			if reason == "" {
				return fmt.Errorf("%w: --reason is missing: say why, for the record", usage.Err)
			}
			return f.withApp(c, func(ctx context.Context, a *app.App, _ *engines) error {
				if err := act(a, ctx, of, space, app.Approval{Who: currentUser(), Reason: reason, From: "cli"}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "space %s %s\n", args[0], done)
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return c
}

// spaceName reads ACCOUNT/STORE/SPACE.
func spaceName(arg string) (app.StoreName, string, error) {
	parts := strings.SplitN(arg, "/", 3)
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return app.StoreName{}, "", fmt.Errorf("%w: %q names no space: want ACCOUNT/STORE/SPACE", usage.Err, arg)
	}
	return app.StoreName{Account: parts[0], Store: parts[1]}, parts[2], nil
}
