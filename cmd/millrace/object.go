package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func newObject() *cobra.Command {
	return noun("object", "Show, restore, export and delete items", newObjectShow(), newObjectVersions(), newObjectGet(),
		newObjectExport(), newObjectRestore(), newObjectDelete(), newObjectDryRun())
}

func newObjectShow() *cobra.Command {
	return listing(&cobra.Command{
		Use:   "show ACCOUNT/SPACE/ITEM",
		Short: "Print the history of an item in all stores, oldest first",
		Args:  exactly(1),
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		parts, err := itemName(args[0])
		if err != nil {
			return err
		}
		return showObject(c, *f, parts, o)
	})
}

// itemName parses ACCOUNT/SPACE/ITEM. An item may contain slashes.
func itemName(arg string) (parts []string, err error) {
	parts = strings.SplitN(arg, "/", 3)
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return nil, fmt.Errorf("%w: %q is not ACCOUNT/SPACE/ITEM", usage.Err, arg)
	}
	return parts, nil
}

func showObject(c *cobra.Command, f engineFlags, parts []string, o *output) error {
	var events []read.Event
	err := f.withDB(c, func(ctx context.Context, db *clickhouse.DB) (err error) {
		events, err = read.Timeline(ctx, db, parts[0], parts[1], parts[2])
		return err
	})
	if err != nil {
		return err
	}
	if len(events) == 0 {
		return fmt.Errorf("there are no records of item %q in space %q of account %q", parts[2], parts[1], parts[0])
	}
	return printList(c.OutOrStdout(), o, events, eventTable())
}

// eventTable returns the table of an item's history.
func eventTable() table[read.Event] {
	return table[read.Event]{"TIME\tSTORE\tKIND\tWHAT", func(ev read.Event) []string {
		text := strings.TrimSpace(ev.What + " " + ev.Detail)
		return []string{ev.Time.UTC().Format(time.RFC3339Nano), ev.Store, ev.Kind, text}
	}}
}
