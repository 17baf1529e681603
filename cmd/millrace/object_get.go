package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/extract"
	"github.com/millrace/millrace/streams/storage"
)

// itemsFlags are the flags that select contents which leave the stores.
type itemsFlags struct {
	engineFlags
	at, store string
}

func (f *itemsFlags) register(c *cobra.Command) {
	f.engineFlags.register(c)
	c.Flags().StringVar(&f.at, "at", "",
		"the content at this `TIME` by the clock of the store: RFC 3339, YYYY-MM-DD, or how long ago, as 2h")
	c.Flags().StringVar(&f.store, "store", "", "the content of the store of this `ID`, instead of the source store")
}

// request returns the request for the items of a space.
func (f *itemsFlags) request(account, space, item string) (app.ItemsRequest, error) {
	r := app.ItemsRequest{Account: account, Space: space, Item: item, Store: f.store}
	err := storage.CheckSpace(space)
	if f.at != "" {
		var fault error
		r.At, fault = contentTime(f.at, time.Now())
		err = errors.Join(err, fault)
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", usage.Err, err)
	}
	return r, nil
}

// withItems calls do with an App; with --state it runs the role that completes the tables meanwhile.
func (f *itemsFlags) withItems(c *cobra.Command, do func(context.Context, *app.App, *engines) error) error {
	return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
		return e.withRoles(c, a, f.engineFlags, []schemas.Role{schemas.RoleSink},
			func(ctx context.Context, _ *waiter) error { return do(ctx, a, e) })
	})
}

func newObjectGet() *cobra.Command {
	var (
		f             itemsFlags
		version, file string
	)
	c := &cobra.Command{
		Use:   "get ACCOUNT/SPACE/ITEM",
		Short: "Write the bytes of an item into a file, or to standard output",
		Long: `Writes the content that an item has in the source store, had there at a time (--at), or one that
'object versions' lists (--version takes its id or version). The bytes come from the first good copy: the copies on
record, then whatever else a store has or has kept of replaced and deleted items. Each copy that was tried and is
absent, has other bytes (mismatch), or whose store did not answer (unknown) is named on stderr. No copy is changed.

With -o FILE the bytes are verified before the file gets its name, and the file has the date of the source's file. A
file that is there is never replaced: if it has the right bytes, the command has nothing to do, otherwise it fails.
Without -o the bytes go to standard output; if that is a terminal, to a file named like the last part of the item.
'-o -' is standard output in any case. What was printed cannot be taken back: only items of up to 8 MiB are verified
before they are printed, and if the bytes of a larger one turn out to be wrong, the exit code is 4.

Exit codes: 0 fine, 1 error, 2 usage, 4 no copy has good bytes, 5 precondition, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			parts, err := itemName(args[0])
			if err != nil {
				return err
			}
			r, err := f.request(parts[0], parts[1], parts[2])
			if err != nil {
				return err
			}
			if err := storage.CheckItem(r.Item); err != nil {
				return fmt.Errorf("%w: %w", usage.Err, err)
			}
			if r.Version = version; version != "" && f.at != "" {
				return fmt.Errorf("%w: --at and --version exclude each other", usage.Err)
			}
			name, err := outputFile(file, r.Item, isTerminal(c.OutOrStdout()))
			if err != nil {
				return err
			}
			return getObject(c, f, r, name)
		},
	}
	f.register(c)
	c.Flags().StringVar(&version, "version", "", "the content of this `ID` or version")
	c.Flags().StringVarP(&file, "output", "o", "", "write this `FILE`; - is standard output")
	return c
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// outputFile returns the file that an item is written into; empty: standard output.
func outputFile(file, item string, terminal bool) (string, error) {
	switch {
	case file == "-", file == "" && !terminal:
		return "", nil
	case file != "":
		return file, nil
	}
	last := item[strings.LastIndexByte(item, '/')+1:]
	if why := extract.CheckName(last); last == "" || why != "" {
		return "", fmt.Errorf("%w: the last part of %q cannot be a file (%s): name one with -o FILE", usage.Err, item,
			cmp.Or(why, "it is empty"))
	}
	return last, nil
}

func getObject(c *cobra.Command, f itemsFlags, r app.ItemsRequest, file string) error {
	var o extract.Outcome
	err := f.withItems(c, func(ctx context.Context, a *app.App, _ *engines) (err error) {
		if file == "" {
			o, err = a.GetItem(ctx, r, func(e extract.Content, places []extract.Place) (extract.Outcome, error) {
				return extract.Stream(ctx, c.OutOrStdout(), e, places)
			})
			return err
		}
		dir, err := extract.OpenDir(filepath.Dir(file))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dir.Sync(), dir.Close()) }()
		o, err = a.GetItem(ctx, r, func(e extract.Content, places []extract.Place) (extract.Outcome, error) {
			return dir.Extract(ctx, filepath.Base(file), e, places)
		})
		return err
	})
	if err != nil {
		return err
	}
	var b strings.Builder
	for i := range o.Faults {
		fmt.Fprintln(&b, describeFault(&o.Faults[i]))
	}
	switch {
	case o.Result == extract.Present:
		fmt.Fprintf(&b, "%s is there already, and has the bytes\n", file)
	case o.Result == extract.Exported && file != "":
		fmt.Fprintf(&b, "%s: %d bytes from %s\n", file, o.Bytes, describeCopy(o.From))
	}
	if _, err := io.WriteString(c.ErrOrStderr(), b.String()); err != nil {
		return err
	}
	switch o.Result {
	case extract.Lacking:
		return fmt.Errorf("%w: %s", errPartly, o.Detail)
	case extract.Unnamed:
		return fmt.Errorf("%w: %s: %s", usage.Err, file, o.Detail)
	case extract.Differs:
		return fmt.Errorf("%s: name another file with -o", o.Detail)
	}
	return nil
}

// describeCopy names a copy, or kept bytes.
func describeCopy(p *extract.Place) string {
	if p.Kept == "" {
		return "store " + p.Store
	}
	return "store " + p.Store + ", kept " + p.Kept
}

// describeFault describes a copy that has not given the bytes.
func describeFault(f *extract.Fault) string {
	text := describeCopy(&f.Place) + ": " + string(f.State)
	if f.Detail != "" {
		text += " (" + f.Detail + ")"
	}
	return text
}
