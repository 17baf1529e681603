package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/sinks/export"
)

func newAudit() *cobra.Command {
	return noun("audit", "Export the audit log", newAuditExport())
}

// An auditExport is the result of an export.
type auditExport struct {
	Name    string   `json:"name"`
	Changes int      `json:"changes"`
	Files   []string `json:"files"` // that were written, in order
}

const auditExportLong = `Writes the changes of the audit log that were not exported before to files in a directory.
Each change is exported once: the position is recorded under --name, and the next command with this name goes on from
there, also after an interruption. An export with a new name begins with the first change.

A file has the changes of a range of offsets of a partition of the topic changes: NAME-INCARNATION-PARTITION-FIRST-LAST.
It is complete when it has its name; an interrupted command writes its last file again. A change that was reported
several times, as by the client and by a notification, is one change, with what was known when it was exported.

Formats:

  tsv    the 14 columns of the audit logs of DuraCloud, with backslashes before tabs, line breaks and backslashes
  csv    all fields (RFC 4180)
  jsonl  all fields, a JSON object in each line
  parquet
         all fields, compressed with Zstandard

Exit codes: 0 fine, also if there is nothing to export, 1 error, 2 usage, 5 precondition, 130 interrupted: the next
command goes on.`

func newAuditExport() *cobra.Command {
	var (
		f      engineFlags
		r      app.ExportRequest
		format string
		o      *output
	)
	formats := words(export.Formats())
	c := &cobra.Command{
		Use:   "export DIR",
		Short: "Write the changes that were not exported before to files",
		Long:  auditExportLong,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%w: name the directory of the files", usage.Err)
			}
			if r.Format = export.Format(format); !slices.Contains(export.Formats(), r.Format) {
				return fmt.Errorf("%w: --format is one of %s, not %q", usage.Err, strings.Join(formats, ", "), format)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if info, err := os.Stat(args[0]); err != nil || !info.IsDir() {
				return fmt.Errorf("%w: %s is no directory: create it first", precondition.Err, args[0])
			}
			done := auditExport{Name: r.Name, Files: []string{}}
			r.Write = func(_ context.Context, name string, text []byte, changes int) error {
				if err := statedir.WriteFile(filepath.Join(args[0], name), text); err != nil {
					return err
				}
				done.Changes += changes
				done.Files = append(done.Files, name)
				fmt.Fprintf(c.ErrOrStderr(), "%s: %d changes\n", name, changes)
				return nil
			}
			err := f.withApp(c, func(ctx context.Context, a *app.App, _ *engines) (err error) {
				if r.Begun, err = a.Begin(ctx, false); err != nil {
					return err
				}
				return a.ExportAudit(ctx, r)
			})
			if err != nil && len(done.Files) == 0 {
				return err
			}
			if o.form == formJSON {
				return errors.Join(err, writeJSON(c.OutOrStdout(), done))
			}
			_, printed := fmt.Fprintf(c.OutOrStdout(), "exported %d changes to %d files in %s\n", done.Changes, len(done.Files),
				args[0])
			return errors.Join(err, printed)
		},
	}
	f.register(c)
	c.Flags().StringVar(&r.Name, "name", "audit", "the `NAME` of the export")
	c.Flags().StringVar(&r.Account, "account", "", "only of this `ACCOUNT`")
	c.Flags().StringVar(&format, "format", string(export.TSV), "the `FORMAT` of the files: "+strings.Join(formats, ", "))
	o = outputFlag(c, formText, formJSON)
	return c
}
