package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// maxOutcomes is the number of mutations of unknown outcome that are printed.
const maxOutcomes = 50

func newOutbox() *cobra.Command {
	return noun("outbox", "Check and salvage the outbox of a program that uses streams/storage/emit",
		newOutboxCheck(), newOutboxSalvage())
}

func newOutboxCheck() *cobra.Command {
	var o *output
	c := &cobra.Command{
		Use:   "check DIR",
		Short: "Verify an outbox and report damage; nothing is written",
		Long: `Reads each page of the outbox in DIR and verifies each record. It reports the number of mutations whose
Changes Kafka has not acknowledged, those of unknown outcome (the program looks it up in the store when it starts), the
reports of undecided mutations and rejected Changes (docs/outbox.md), and damaged pages.

Exit codes: 0 sound, 1 error, 2 usage, 3 damaged, 5 a process has the outbox open or another user owns it, 130
interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			in, err := outbox.Inspect(c.Context(), args[0])
			if err != nil {
				return outboxError(err)
			}
			if err := showInspection(c.OutOrStdout(), o, in); err != nil || len(in.Damage) == 0 {
				return err
			}
			return fmt.Errorf("%w: outbox %s is damaged: run: millrace outbox salvage %s", errFindings, args[0], args[0])
		},
	}
	o = outputFlag(c, formText, formJSON)
	return c
}

func newOutboxSalvage() *cobra.Command {
	var o *output
	c := &cobra.Command{
		Use:   "salvage DIR",
		Short: "Repair a damaged outbox: keep the readable records",
		Long: `Repairs the damaged outbox in DIR: moves the readable records to a new database, and reports the damaged pages.
The damaged database stays in DIR as outbox.db.damaged.

Mutations of unknown outcome are looked up in the store when the program starts. Mutations with no readable record are
not published: import a listing of the store (millrace import) to find them.

Run it as the user that the program runs as: that user will own the new database. For a sound outbox nothing is written.

Exit codes: 0 sound, 1 error, 2 usage, 3 it was damaged and the readable records are kept, 5 a process has the outbox
open or another user owns it, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			in, err := outbox.Salvage(c.Context(), args[0])
			if err != nil {
				return outboxError(err)
			}
			if err := showInspection(c.OutOrStdout(), o, in); err != nil || len(in.Damage) == 0 {
				return err
			}
			return fmt.Errorf("%w: outbox %s was damaged: its readable records are kept", errFindings, args[0])
		},
	}
	o = outputFlag(c, formText, formJSON)
	return c
}

// outboxError wraps precondition.Err if another process has the outbox open, or another user owns it.
func outboxError(err error) error {
	if errors.Is(err, outbox.ErrLocked) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", precondition.Err, err)
	}
	return err
}

// showInspection prints in as text or JSON.
func showInspection(w io.Writer, o *output, in outbox.Inspection) error {
	if o.form == formJSON {
		return writeJSON(w, in)
	}
	_, err := io.WriteString(w, inspectionText(in))
	return err
}

func inspectionText(in outbox.Inspection) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d bytes; the Changes of %d mutations are not acknowledged, "+
		"%d of them of unknown outcome; reports: %d undecided, %d rejected\n",
		in.Dir, in.Bytes, in.Pending, len(in.Unknown), in.Undecided, in.Rejected)
	for _, d := range in.Damage {
		fmt.Fprintf(&b, "damaged: %s\n", d)
	}
	if in.Lost > 0 {
		fmt.Fprintf(&b, "lost: %d mutations\n", in.Lost)
	}
	for i, u := range in.Unknown {
		if i == maxOutcomes {
			fmt.Fprintf(&b, "and %d more of unknown outcome\n", len(in.Unknown)-i)
			break
		}
		fmt.Fprintf(&b, "unknown outcome: ticket %d: %s of item %q in space %q, started at %s\n",
			u.Ticket, u.Op, u.Item, u.Space, u.Began.Format(time.RFC3339))
	}
	return b.String()
}
