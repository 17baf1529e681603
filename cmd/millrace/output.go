package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Output forms of the flag -o.
const (
	formTable  = "table"  // aligned columns
	formText   = "text"   // lines of text
	formJSON   = "json"   // one document; a list is an array
	formNDJSON = "ndjson" // for a list: one object per line
)

// An output is the flag -o, a pflag.Value. It accepts the forms of its command.
type output struct {
	form  string
	forms []string
}

// outputFlag adds the flag -o to c. The first of forms is the default.
func outputFlag(c *cobra.Command, forms ...string) *output {
	o := &output{forms[0], forms}
	c.Flags().VarP(o, "output", "o", "`FORM` of the output: "+o.choices())
	return o
}

// listFlag is outputFlag for a command that prints a list.
func listFlag(c *cobra.Command) *output { return outputFlag(c, formTable, formJSON, formNDJSON) }

// listing completes a command that prints a list. do gets the flags of the engines and of the list.
func listing(
	c *cobra.Command, do func(c *cobra.Command, args []string, f *engineFlags, o *output) error,
) *cobra.Command {
	f := new(engineFlags)
	f.register(c)
	o := listFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error { return do(c, args, f, o) }
	return c
}

func (o *output) choices() string {
	last := len(o.forms) - 1
	return strings.Join(o.forms[:last], ", ") + " or " + o.forms[last]
}

// String implements pflag.Value.
func (o *output) String() string { return o.form }

// Set implements pflag.Value.
func (o *output) Set(form string) error {
	if !slices.Contains(o.forms, form) {
		return fmt.Errorf("it is %s, not %q", o.choices(), form)
	}
	o.form = form
	return nil
}

// Type implements pflag.Value.
func (o *output) Type() string { return "form" }

// A table formats the rows of a list as columns.
type table[T any] struct {
	columns string // names, separated by tabs
	cells   func(T) []string
}

// rowsOf returns the row of each of all.
func rowsOf[T, R any](all []T, row func(T) R) []R {
	rows := make([]R, len(all))
	for i, of := range all {
		rows[i] = row(of)
	}
	return rows
}

// words returns all as strings.
func words[T ~string](all []T) []string {
	return rowsOf(all, func(word T) string { return string(word) })
}

// printList prints rows in the form of o.
func printList[T any](w io.Writer, o *output, rows []T, t table[T]) error {
	l := list[T]{w: w, form: o.form, table: t}
	return errors.Join(l.print(rows), l.end())
}

// A list prints rows in batches. It does not buffer them.
type list[T any] struct {
	w       io.Writer
	form    string
	table   table[T]
	started bool // rows were printed
}

// print prints the next rows. The columns of a table are aligned within a batch.
func (l *list[T]) print(rows []T) error {
	if len(rows) == 0 {
		return nil
	}
	began := !l.started
	l.started = true
	switch l.form {
	case formJSON:
		return l.document(rows, began)
	case formNDJSON:
		enc := json.NewEncoder(l.w)
		for _, r := range rows {
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	return l.lines(rows, began)
}

// end prints the end of the list.
func (l *list[T]) end() error {
	var err error
	switch {
	case l.form == formJSON && l.started:
		_, err = io.WriteString(l.w, "\n]\n")
	case l.form == formJSON:
		_, err = io.WriteString(l.w, "[]\n")
	case l.form == formTable && !l.started:
		return l.lines(nil, true)
	}
	return err
}

// document prints rows as elements of a JSON array.
func (l *list[T]) document(rows []T, began bool) error {
	before := ",\n  "
	if began {
		before = "[\n  "
	}
	for _, r := range rows {
		text, err := json.MarshalIndent(r, "  ", "  ")
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(l.w, "%s%s", before, text); err != nil {
			return err
		}
		before = ",\n  "
	}
	return nil
}

// lines prints rows as a table.
func (l *list[T]) lines(rows []T, began bool) error {
	tw := tabwriter.NewWriter(l.w, 2, 0, 2, ' ', 0)
	if began {
		fmt.Fprintln(tw, l.table.columns)
	}
	for _, r := range rows {
		cells := l.table.cells(r)
		for i, cell := range cells {
			cells[i] = orDash(cell)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// writeJSON prints v as one document.
func writeJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
