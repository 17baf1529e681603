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
	return noun("space", "List spaces, and decide about missing ones",
		newSpaceList(), newSpaceShow(), newSpaceGone(), newSpaceBack())
}

func newSpaceGone() *cobra.Command {
	c := spaceCommand("gone", "is gone: the next check of each copy reports it missing", (*app.App).SpaceGone)
	c.Short = "Declare that a space is lost: its copies are missing, and are repaired"
	c.Long = `A missing space with recorded copies may come back, for example when its directory is mounted again. Until
then the incident space-missing is open, checks of its copies conclude nothing, and nothing is copied into it.

This command ends that state. The copies are checked once more, found missing, and repaired according to the store's
setting repair; new copies are made in the space again. With repair: auto copies are repaired up to the share
sweep.max_missing, and the others wait on a list of the incident repairs-held. The command refuses a space that
exists, and a store without a readable marker.

Exit codes: 0 fine, 1 error, 2 usage, 5 precondition, 130 interrupted.`
	return c
}

func newSpaceBack() *cobra.Command {
	c := spaceCommand("back", "is expected again", (*app.App).SpaceBack)
	c.Short = "Withdraw 'space gone': the space is expected again"
	c.Long = `Withdraws 'space gone'. A space that was created since then is expected without this command.

Exit codes: 0 fine, 1 error, 2 usage, 5 precondition, 130 interrupted.`
	return c
}

// A spaceAction publishes an action about a space.
type spaceAction func(a *app.App, ctx context.Context, of app.StoreName, space string, by app.Actor) error

// spaceCommand returns a command that publishes an action about a space.
func spaceCommand(name, done string, act spaceAction) *cobra.Command {
	var (
		f      engineFlags
		reason string
	)
	c := &cobra.Command{
		Use:  name + " ACCOUNT/STORE/SPACE --reason TEXT",
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			store, space, err := spaceName(args[0])
			if err != nil {
				return err
			}
			if reason == "" {
				return fmt.Errorf("%w: --reason is missing: it is recorded", usage.Err)
			}
			return f.withApp(c, func(ctx context.Context, a *app.App, _ *engines) error {
				if err := act(a, ctx, store, space, app.Actor{Who: currentUser(), Reason: reason, From: "cli"}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "space %s %s\n", args[0], done)
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	return c
}

// spaceName parses ACCOUNT/STORE/SPACE.
func spaceName(arg string) (app.StoreName, string, error) {
	parts := strings.SplitN(arg, "/", 3)
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return app.StoreName{}, "", fmt.Errorf("%w: %q names no space: want ACCOUNT/STORE/SPACE", usage.Err, arg)
	}
	return app.StoreName{Account: parts[0], Store: parts[1]}, parts[2], nil
}
