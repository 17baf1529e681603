package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/extract"
)

func newObjectExport() *cobra.Command {
	var (
		f itemsFlags
		o *output
	)
	c := &cobra.Command{
		Use:   "export ACCOUNT/SPACE[/PREFIX] DIR",
		Short: "Write the items of a space as files",
		Long: `Writes every item of a space, or those whose ids begin with PREFIX, as the file DIR/ITEM: with the content that
it has in the source store, or had there at a time (--at). Items that are deleted, or were at that time, are left out.
The bytes come from the first good copy: the copies on record, then whatever else a store has or has kept of replaced
and deleted items. Copies that are absent, have other bytes (mismatch), or whose store did not answer (unknown) are
reported. No copy is changed.

A file gets its name when its bytes were verified and are on disk, and has the date of the source's file. Nothing is
replaced: a file with the right bytes is counted as present, so the same command again continues an interrupted one; a
file with other bytes, or a file or directory in the way of others, is named, and left. Names that cannot be files are
listed: with a part that is empty, . or .., or longer than 255 bytes, or with a NUL. 'object get -o FILE' writes such an
item. Nothing is written outside DIR. A process that was killed may leave files ` + extract.TempPrefix + `*,
which are not complete.

With -o json the last line of stdout has the result. Up to 1,000 items are listed, the rest is counted in more.

Exit codes: 0 fine, 1 error, 2 usage, 4 for some items no copy has good bytes, or something else has their name,
5 precondition, 130 interrupted.`,
		Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			parts := append(strings.SplitN(args[0], "/", 3), "")
			if len(parts) < 3 || parts[0] == "" || parts[1] == "" || args[1] == "" {
				return fmt.Errorf("%w: %q %q is not ACCOUNT/SPACE[/PREFIX] DIR", usage.Err, args[0], args[1])
			}
			r, err := f.request(parts[0], parts[1], parts[2])
			if err != nil {
				return err
			}
			return exportObjects(c, f, r, args[1], o)
		},
	}
	f.register(c)
	o = outputFlag(c, formText, formJSON)
	return c
}

func exportObjects(c *cobra.Command, f itemsFlags, r app.ItemsRequest, dir string, o *output) error {
	var report *app.ExportReport
	err := f.withItems(c, func(ctx context.Context, a *app.App, e *engines) (err error) {
		var step *progress.Step
		report, err = a.ExportItems(ctx, r, dir, func(ended, items int64) {
			if step == nil {
				step = e.display.Step("export (items)", items)
			}
			step.Set(ended)
		})
		if step != nil {
			step.End(err == nil)
		}
		return err
	})
	if report != nil && (err == nil || report.Ended > 0) { // also what was written before a failure
		err = errors.Join(err, printExport(c.OutOrStdout(), report, o))
	}
	if err != nil || report.Complete() {
		return err
	}
	return fmt.Errorf("%w: %d items have no good copy, and other files or directories are in the way of %d", errPartly,
		report.Lacking, report.Differ)
}

func printExport(w io.Writer, r *app.ExportReport, o *output) error {
	if o.form == formJSON {
		return json.NewEncoder(w).Encode(r)
	}
	var b strings.Builder
	for i := range r.Items {
		item := &r.Items[i]
		fmt.Fprintf(&b, "%q: %s", item.Item, item.Result)
		if item.From != nil {
			fmt.Fprintf(&b, " from %s", describeCopy(item.From))
		}
		if item.Detail != "" {
			fmt.Fprintf(&b, ": %s", item.Detail)
		}
		for j := range item.Faults {
			fmt.Fprintf(&b, "; %s", describeFault(&item.Faults[j]))
		}
		b.WriteByte('\n')
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "and %d more\n", r.More)
	}
	fmt.Fprintf(&b, "content of store %s: %d items exported (%d bytes), %d present, %d lacking, %d differ, %d unnamed\n",
		r.Source, r.Exported, r.Bytes, r.Present, r.Lacking, r.Differ, r.Unnamed)
	_, err := io.WriteString(w, b.String())
	return err
}
