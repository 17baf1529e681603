package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/sinks/clickhouse"
)

func newObject() *cobra.Command {
	return noun("object", "Look at items", newObjectShow())
}

func newObjectShow() *cobra.Command {
	var (
		f      engineFlags
		output string
	)
	c := &cobra.Command{
		Use:   "show ACCOUNT/SPACE/ITEM",
		Short: "Print all that happened to an item, in whichever store, oldest first",
		Args:  exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			parts := strings.SplitN(args[0], "/", 3) // an item may hold slashes
			if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
				return fmt.Errorf("%w: %q is not ACCOUNT/SPACE/ITEM", errUsage, args[0])
			}
			if output != "table" && output != "json" {
				return fmt.Errorf("%w: --output is table or json, not %q", errUsage, output)
			}
			return showObject(c, f, parts, output == "json")
		},
	}
	f.register(c)
	c.Flags().StringVarP(&output, "output", "o", "table", "`FORM`: table or json (one object a line)")
	return c
}

func showObject(c *cobra.Command, f engineFlags, parts []string, asJSON bool) error {
	var events []clickhouse.Event
	err := f.withDB(c, func(ctx context.Context, db *clickhouse.DB) (err error) {
		events, err = db.Timeline(ctx, parts[0], parts[1], parts[2])
		return err
	})
	if err != nil {
		return err
	}
	if len(events) == 0 {
		return fmt.Errorf("nothing is on record of item %q in space %q of account %q", parts[2], parts[1], parts[0])
	}
	if asJSON {
		enc := json.NewEncoder(c.OutOrStdout())
		for _, ev := range events {
			if err := enc.Encode(ev); err != nil {
				return err
			}
		}
		return nil
	}
	tw := tabwriter.NewWriter(c.OutOrStdout(), 2, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TIME\tSTORE\tWHAT\t")
	for _, ev := range events {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", ev.Time.UTC().Format(time.RFC3339Nano), ev.Store, ev.Kind, strings.TrimSpace(ev.What+" "+ev.Detail))
	}
	return tw.Flush()
}
