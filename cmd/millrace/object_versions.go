package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/sinks/clickhouse"
)

func newObjectVersions() *cobra.Command {
	var read bool
	c := listing(&cobra.Command{
		Use:   "versions ACCOUNT/SPACE/ITEM",
		Short: "Print all contents of an item, and where their bytes still are",
		Long: `Prints every content that the audit log knows of an item in any store, oldest first, and the places where its
bytes still are: the copies that are there now, and what stores have kept of replaced and deleted ones, with the id and,
if replaced.keep removes it, the time until which it is kept. Each place has a state:

  read      with --read: the bytes were read now, and have the digests that the audit log proves
  proven    the audit log has verified digests, and the store reports the same ones, or the version on record
  unproven  there are no verified digests, or the store reports none and no version on record
  damaged   a check, or the reading, found other bytes; repairs keep the damaged bytes that they replace
  unknown   the store did not answer: it may have bytes

Kept bytes that are no content on record are listed last, without an operation. The command changes nothing.

Exit codes: 0 fine, 1 error, 2 usage, 5 precondition, 130 interrupted.`,
		Args: exactly(1),
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		parts, err := itemName(args[0])
		if err != nil {
			return err
		}
		var all []app.ItemVersion
		q := app.VersionsQuery{Account: parts[0], Space: parts[1], Item: parts[2], Read: read}
		err = f.withTables(c, statedir.Config{},
			func(ctx context.Context, e *engines, db *clickhouse.DB) (err error) {
				all, err = app.Versions(ctx, e.cfg, e.log, db, q)
				return err
			})
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return fmt.Errorf("there are no records of item %q in space %q of account %q", parts[2], parts[1], parts[0])
		}
		return printList(c.OutOrStdout(), o, all, versionTable())
	})
	c.Flags().BoolVar(&read, "read", false, "read the bytes in every place, and compare them with the digests on record")
	return c
}

// versionTable returns the table of the contents of an item.
func versionTable() table[app.ItemVersion] {
	return table[app.ItemVersion]{"TIME\tSTORE\tOP\tSIZE\tID\tDIGESTS\tBYTES", func(v app.ItemVersion) []string {
		op, size := v.Op, ""
		if v.Origin != "" {
			op += " (" + v.Origin + ")"
		}
		if v.Size != nil {
			size = strconv.FormatInt(*v.Size, 10)
		}
		var sums, places []string
		for _, alg := range v.Digests.Algorithms() {
			sums = append(sums, alg+":"+v.Digests[alg])
		}
		for _, b := range v.Bytes {
			places = append(places, describePlace(b))
		}
		return []string{stamp(v.Time), v.Store, op, size, v.ID, strings.Join(sums, " "), strings.Join(places, "; ")}
	}}
}

// describePlace describes a place with bytes in a table.
func describePlace(b app.ItemBytes) string {
	text := "store " + b.Store
	if b.Kept != "" {
		text += ", kept " + b.Kept
	}
	if b.Until != nil {
		text += ", until " + b.Until.UTC().Format(time.RFC3339)
	}
	text += ": " + string(b.State)
	if b.Error != "" {
		text += " (" + b.Error + ")"
	}
	return text
}
