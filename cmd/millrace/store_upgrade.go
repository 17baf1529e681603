package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/streams/storage/file"
)

func newStoreUpgrade() *cobra.Command {
	var (
		config string
		dryRun bool
		o      *output
	)
	c := &cobra.Command{
		Use:   "upgrade --config FILE ACCOUNT/STORE",
		Short: "Upgrade a store of driver file to the newest layout",
		Long: `Switches a store of driver file to layout 2, which keeps properties and digests in an extended attribute of
each item's file, and moves them there from sidecar files (docs/stores.md). Older versions of millrace refuse the
store from then on.

The switch requires that no other process uses the store. The move can be interrupted and repeated, also while roles
run. With --dry-run the command counts sidecar files and changes nothing.

Exit codes: 0 fine, 2 usage, 3 a dry run has found something to move, 5 the store is in use, cannot be reached, or
has no such layout.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, err := storeNames(args)
			if err != nil {
				return err
			}
			cfg, err := storeConfig(c, config)
			if err != nil {
				return err
			}
			display := progress.New(c.ErrOrStderr())
			defer display.Close()
			var step *progress.Step // started with the first sidecar file
			log := slog.New(slog.NewTextHandler(display, nil))
			done, err := app.UpgradeStore(c.Context(), cfg, log, names[0], file.UpgradeOptions{
				DryRun: dryRun,
				Each: func(u file.Upgraded, total int64) {
					if step == nil {
						step = display.Step("upgrade", total)
					}
					step.Set(u.Moved + u.Kept + u.Absent + u.Damaged)
				},
			})
			if step != nil {
				step.End(err == nil)
			}
			display.Close()
			if err != nil {
				return err
			}
			if err := showUpgraded(c, o, dryRun, done); err != nil {
				return err
			}
			if dryRun && done.Moved > 0 {
				return fmt.Errorf("%w: %d sidecar files can be moved", errFindings, done.Moved)
			}
			return nil
		},
	}
	c.Flags().StringVar(&config, "config", "", "configuration `FILE`")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "count the sidecar files that would be moved, and change nothing")
	o = outputFlag(c, formText, formJSON)
	return c
}

// showUpgraded prints the result of an upgrade.
func showUpgraded(c *cobra.Command, o *output, dryRun bool, done file.Upgraded) error {
	if o.form == formJSON {
		return writeJSON(c.OutOrStdout(), done)
	}
	moved := "moved to their items' files"
	if dryRun {
		moved = "to be moved"
	}
	_, err := fmt.Fprintf(c.OutOrStdout(),
		"sidecar files: %d %s, %d kept for lack of space or permission, %d of absent items, %d damaged\n",
		done.Moved, moved, done.Kept, done.Absent, done.Damaged)
	return err
}
