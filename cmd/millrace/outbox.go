package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/storage/emit"
)

// shownOutcomes is how many mutations of unknown outcome a text names.
const maxOutcomes = 50

func newOutbox() *cobra.Command {
	return noun("outbox", "Look after the outbox of a program that stores through streams/storage/emit",
		newOutboxCheck(), newOutboxSalvage())
}

func newOutboxCheck() *cobra.Command {
	var o *output
	c := &cobra.Command{
		Use:   "check DIR",
		Short: "Read all of an outbox, and report what of it is damaged; nothing is written",
		Long: `Reads each note of the outbox in DIR and verifies its checksum. It reports how many mutations wait to be published,
which of them have no outcome (the program looks it up in the store when it starts), and the bytes that were on
disk and cannot be read any more. An incomplete note at the end is no damage: a process that is killed leaves one.
If the oldest or the newest segments are missing, it does not find that.

Exit codes: 0 sound, 1 error, 2 usage, 3 damaged, 5 a process has the outbox open, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			in, err := emit.Inspect(c.Context(), args[0])
			if err != nil {
				return outboxError(err)
			}
			if err := showInspection(c.OutOrStdout(), o, in, in); err != nil || len(in.Damage) == 0 {
				return err
			}
			return fmt.Errorf("%w: outbox %s is damaged: run: millrace outbox salvage %s", errFindings, args[0], args[0])
		},
	}
	o = outputFlag(c, formText, formJSON)
	return c
}

// A salvaged outbox is what salvage reports.
type salvaged struct {
	emit.Inspection        // of the old one, before
	To              string `json:"to,omitempty"` // empty: nothing was written
}

func newOutboxSalvage() *cobra.Command {
	var (
		to      string
		inPlace bool
		o       *output
	)
	c := &cobra.Command{
		Use:   "salvage DIR",
		Short: "Write what can be read of a damaged outbox into a new one",
		Long: `Writes what can be read of the damaged outbox in DIR into a new one, DIR.salvaged or what --to names, and reports
what is lost: the bytes, and the tickets between which the lost notes lie. DIR stays as it is. Have the program open
the new outbox then, or put it in the place of the old one. With --in-place DIR itself is mended; its damaged
segments lie in it as NAME.damaged.

Mutations of which the outcome is unknown are looked up in the store when the program starts. Those of which all notes
are lost are not published: import a listing of the store (millrace import) to find them.

Run it as the user of the program, who owns the new outbox. Of an outbox that is sound nothing is written.

Exit codes: 0 sound, 1 error, 2 usage, 3 it was damaged and what can be read is kept, 5 a process has the outbox
open, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			if inPlace && to != "" {
				return fmt.Errorf("%w: --in-place and --to exclude each other", usage.Err)
			}
			if !inPlace {
				var err error
				if to, err = salvageTo(args[0], to); err != nil {
					return err
				}
			}
			in, err := emit.Salvage(c.Context(), args[0], to)
			if err != nil {
				return outboxError(err)
			}
			s := salvaged{Inspection: in}
			if len(in.Damage) > 0 {
				if s.To = to; inPlace {
					s.To = args[0]
				}
			}
			if err := showInspection(c.OutOrStdout(), o, in, s); err != nil || s.To == "" {
				return err
			}
			return fmt.Errorf("%w: outbox %s was damaged: what can be read of it is in %s", errFindings, args[0], s.To)
		},
	}
	c.Flags().StringVar(&to, "to", "", "`DIRECTORY` of the new outbox, which must not be there [DIR.salvaged]")
	c.Flags().BoolVar(&inPlace, "in-place", false, "mend DIR itself")
	o = outputFlag(c, formText, formJSON)
	return c
}

// salvageTo returns the directory of the new outbox: to, or one beside dir.
func salvageTo(dir, to string) (_ string, err error) {
	if to != "" {
		return filepath.Clean(to), nil
	}
	if base := filepath.Base(dir); base == "." || base == ".." { // it has a name only as seen from elsewhere
		if dir, err = filepath.Abs(dir); err != nil {
			return "", err
		}
	}
	return filepath.Clean(dir) + ".salvaged", nil
}

// outboxError says of an error that another process causes it.
func outboxError(err error) error {
	if errors.Is(err, emit.ErrLocked) {
		return fmt.Errorf("%w: %w", app.ErrPrecondition, err)
	}
	return err
}

// showInspection prints in for people, or document.
func showInspection(w io.Writer, o *output, in emit.Inspection, document any) error {
	if o.form == formJSON {
		return writeJSON(w, document)
	}
	_, err := io.WriteString(w, inspectionText(in))
	return err
}

func inspectionText(in emit.Inspection) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d segments of %d bytes; %d mutations wait, %d of them have no outcome; %d reports undecided, %d aside\n",
		in.Dir, in.Segments, in.Bytes, in.Held, len(in.Unknown), in.Undecided, in.Aside)
	if in.Torn > 0 {
		fmt.Fprintf(&b, "incomplete: the last %d bytes are no whole note, as a kill leaves it: no damage\n", in.Torn)
	}
	lost := int64(0)
	for _, d := range in.Damage {
		lost += d.Bytes
		if d.Missing > 0 {
			fmt.Fprintf(&b, "damaged: %d segments are missing from %s on%s\n", d.Missing, d.Segment, gapText(d))
			continue
		}
		fmt.Fprintf(&b, "damaged: %s: %d bytes from byte %d on cannot be read%s\n", d.Segment, d.Bytes, d.From, gapText(d))
	}
	if len(in.Damage) > 0 {
		fmt.Fprintf(&b, "lost: %d bytes in %d places\n", lost, len(in.Damage))
	}
	for i, u := range in.Unknown {
		if i == maxOutcomes {
			fmt.Fprintf(&b, "and %d more without an outcome\n", len(in.Unknown)-i)
			break
		}
		fmt.Fprintf(&b, "no outcome: ticket %d: %s of item %q in space %q, begun at %s\n",
			u.Ticket, u.Op, u.Item, u.Space, u.Began.Format(time.RFC3339))
	}
	return b.String()
}

// between says which notes damage has taken.
func gapText(d emit.Damage) string {
	if d.Before == 0 {
		return fmt.Sprintf(", of notes after ticket %d", d.After)
	}
	if d.Before == d.After+1 {
		return fmt.Sprintf(", between tickets %d and %d: no intent and no outcome", d.After, d.Before)
	}
	return fmt.Sprintf(", of notes between tickets %d and %d", d.After, d.Before)
}
