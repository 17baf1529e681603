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
		Long: `Reads each record of the outbox in DIR and verifies its checksum. It reports the number of mutations whose
Changes Kafka has not acknowledged, those of unknown outcome (the program looks it up in the store when it starts), the
reports of undecided mutations and rejected Changes (docs/outbox.md), and damaged bytes. An incomplete record at the
end is no damage: a killed process leaves one. Missing segments at the beginning or end are not detected.

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
		Long: `Repairs the damaged outbox in DIR: keeps the readable records, and reports the loss: the bytes, and the
tickets between which records are lost. The damaged segments stay in DIR as NAME.damaged.

Mutations of unknown outcome are looked up in the store when the program starts. Mutations with no readable record are
not published: import a listing of the store (millrace import) to find them.

Run it as the user that the program runs as: that user will own new segments. For a sound outbox nothing is written.

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
	fmt.Fprintf(&b, "%s: %d segments of %d bytes; the Changes of %d mutations are not acknowledged, "+
		"%d of them of unknown outcome; reports: %d undecided, %d rejected\n",
		in.Dir, in.Segments, in.Bytes, in.Pending, len(in.Unknown), in.Undecided, in.Rejected)
	if in.Incomplete > 0 {
		fmt.Fprintf(&b, "incomplete: the last %d bytes are part of a record, as a killed process leaves it: no damage\n",
			in.Incomplete)
	}
	lost := int64(0)
	for _, d := range in.Damage {
		lost += d.Bytes
		if d.Missing > 0 {
			fmt.Fprintf(&b, "damaged: %d segments are missing, starting with %s%s\n", d.Missing, d.Segment, gapText(d))
			continue
		}
		fmt.Fprintf(&b, "damaged: %s: %d bytes from byte %d on cannot be read%s\n", d.Segment, d.Bytes, d.From, gapText(d))
	}
	if len(in.Damage) > 0 {
		fmt.Fprintf(&b, "lost: %d bytes in %d ranges\n", lost, len(in.Damage))
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

// gapText describes the records that damage has removed.
func gapText(d outbox.Damage) string {
	if d.Before == 0 {
		return fmt.Sprintf(", records after ticket %d", d.After)
	}
	if d.Before == d.After+1 {
		return fmt.Sprintf(", between tickets %d and %d: neither an intent nor an outcome", d.After, d.Before)
	}
	return fmt.Sprintf(", records between tickets %d and %d", d.After, d.Before)
}
