package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/inventory"
)

// importFlags are the flags of import, and the options that they become.
type importFlags struct {
	engineFlags
	listingFlags
	order inventory.Import

	when         string
	dryRun, wait bool
	output       *output
}

const importLong = `Reads listings of items and publishes each row as a Change of origin import, with the time and
the digests of the listing. The digests are claims: fixity checks confirm or refute them. Formats:

  sums          md5sum, sha1sum, sha256sum, sha512sum, with escapes, and the BSD --tag form
  csv, tsv      with a header; columns by their usual names, or --column MEANING=NAME
  bagit         the folder of a bag, or a payload manifest in it
  ocfl          the inventory.json of an object: logical paths of the head, or --version
  duracloud     the manifest of a space: TSV, or its BagIt form
  s3-inventory  manifest.json, with its CSV files as Amazon puts them, or beside it

The format is detected; an ambiguous listing needs --format. Files may be gzipped.

Everything is read twice: it is checked first and then published. If any row has a fault, nothing is published, and
every fault is printed with its file and line; with --skip-faulty the sound rows are published. An item with two
digests (none of its rows is sound) and an empty listing are faults too. A listing that is damaged as a whole
(truncated, or different from its own checksums) is never published. Paths must be relative, without "." and "..";
--strip and --prefix change their beginnings. S3 keys and DuraCloud content ids are used unchanged.

Rows without a time get --time, or else the modification time of their listing. Repeating the command has no effect
while that time is the same. After a stop, --from continues at a row.

With --wait the command ends when ClickHouse has the rows and the planner has handled them. With --state all roles
run in this command until then.

Exit codes: 0 fine, 1 error, 2 usage, 3 faults, and nothing is published, 4 sound rows are published and faulty ones
skipped, 5 precondition, 130 interrupted.`

func newImport() *cobra.Command {
	f := new(importFlags)
	c := &cobra.Command{
		Use:   "import LISTING... --account ID --store ID",
		Short: "Import a listing of the copies in a store: checksums, tables, BagIt, OCFL, DuraCloud, S3 Inventory",
		Long:  importLong,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%w: name a listing; see '%s --help'", usage.Err, c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, paths []string) error { return f.run(c, paths) },
	}
	f.register(c)
	return c
}

func (f *importFlags) register(c *cobra.Command) {
	f.engineFlags.register(c)
	s := c.Flags()
	s.StringVar(&f.target.Account, "account", "", "`ID` of the account")
	s.StringVar(&f.target.Store, "store", "", "`ID` of the store that has the listed copies")
	s.StringVar(&f.target.Space, "space", "", "`SPACE` of all rows; required if the listing has no spaces")
	f.listingFlags.register(c)
	s.StringVar(&f.when, "time", "", "`TIME` of rows without one, as 2006-01-02T15:04:05Z")
	s.StringVar(&f.options.Version, "version", "", "OCFL: read this `VERSION`, not the head")
	s.BoolVar(&f.options.ContentPaths, "content-paths", false, "OCFL: use the content paths in the object")
	s.BoolVar(&f.options.TagManifests, "tag-manifests", false, "BagIt: read the tag files too")
	s.BoolVar(&f.dryRun, "dry-run", false, "only check, and print the first rows; needs neither Kafka nor ClickHouse")
	s.BoolVar(&f.wait, "wait", false, "wait until the changes are planned, and ClickHouse has them")
	s.BoolVar(&f.order.SkipFaulty, "skip-faulty", false, "publish the sound rows even if others have faults")
	s.BoolVar(&f.order.Strict, "strict", false,
		"treat as faults: an item listed twice alike, a row without a digest, a column that is not read")
	s.Int64Var(&f.order.From, "from", 1, "start with row `N`, counted over all listings")
	s.IntVar(&f.order.Faults, "faults", 100, "print at most `N` faults, and the number of the others")
	f.output = outputFlag(c, formText, formJSON)
}

// check validates the flags and sets the options.
func (f *importFlags) check() (err error) {
	f.target.User = currentUser()
	switch {
	case f.target.Account == "" || f.target.Store == "":
		return fmt.Errorf("%w: name the copies' --account and --store", usage.Err)
	case f.dryRun && f.wait:
		return fmt.Errorf("%w: --dry-run publishes nothing that --wait could wait for", usage.Err)
	case f.order.From < 1 || f.order.Faults < 0:
		return fmt.Errorf("%w: --from must be at least 1, and --faults at least 0", usage.Err)
	}
	if f.when != "" {
		if f.target.Default, err = time.Parse(time.RFC3339, f.when); err != nil {
			return fmt.Errorf("%w: --time is a time such as 2006-01-02T15:04:05Z, not %q", usage.Err, f.when)
		}
	}
	return f.listingFlags.check()
}

func (f *importFlags) run(c *cobra.Command, paths []string) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	if !f.dryRun && f.config == "" && f.state == "" {
		return fmt.Errorf("%w: name a configuration with --config FILE, or a kept state with --state DIR; "+
			"or check with --dry-run", usage.Err)
	}
	ctx := c.Context()
	var e *engines
	if f.config != "" || f.state != "" {
		// Open before reading the listings, which may take long.
		if e, err = f.open(ctx, c.ErrOrStderr(), statedir.Config{WithoutEngine: !f.wait}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.Close(ctx)) }()
		e.useTopicAccounts(ctx)
		if err := app.RequireStore(e.cfg, app.StoreName{Account: f.target.Account, Store: f.target.Store}); err != nil {
			return err
		}
	}
	var display *progress.Display
	if e != nil {
		display = e.display
	} else {
		display = progress.New(c.ErrOrStderr())
	}
	defer display.Close() // it is also closed before each print below the bars
	checked, err := f.checkListings(ctx, display, paths)
	if err != nil {
		display.Close()
		if ctx.Err() != nil {
			fmt.Fprintln(c.ErrOrStderr(), "stopped before anything was published")
		}
		return classifyImportError(err)
	}
	report := importReport{flags: f, check: checked}
	if !f.dryRun && (checked.Faulty == 0 || f.order.SkipFaulty) {
		if report.done, err = f.publish(ctx, display, e, checked); err != nil {
			display.Close()
			return f.stoppedError(ctx, c.ErrOrStderr(), report, err)
		}
	}
	if f.wait && report.done.Published > 0 {
		err = e.waitHandled(c, f.engineFlags, schemas.RolePlanner)
	}
	display.Close()
	// Report the published rows even if waiting for them failed.
	if err := errors.Join(err, report.print(c.OutOrStdout(), c.ErrOrStderr())); err != nil {
		return err
	}
	return report.exitError()
}

// classifyImportError maps an unknown format to a usage error, and a damaged listing to a finding.
func classifyImportError(err error) error {
	switch {
	case errors.Is(err, inventory.ErrFormat):
		return fmt.Errorf("%w: %w", usage.Err, err)
	case errors.Is(err, inventory.ErrInvalid):
		return fmt.Errorf("%w: %w; nothing is published", errFindings, err)
	}
	return err
}

// checkListings opens and checks the listings.
func (f *importFlags) checkListings(
	ctx context.Context, display *progress.Display, paths []string,
) (*inventory.Check, error) {
	var step *progress.Step
	var total, read int64
	f.options.Progress = func(n int64) {
		if read += n; step != nil && read <= total {
			step.Set(read)
		}
	}
	for _, path := range paths {
		l, err := f.openListing(path)
		if err != nil {
			return nil, err
		}
		f.order.Listings = append(f.order.Listings, l)
		total += l.Bytes()
	}
	f.order.Target, f.order.Show = f.target, 5
	read = 0
	step = display.Step("check (bytes)", total)
	checked, err := f.order.Check(ctx)
	step.End(err == nil)
	step = nil
	return checked, err
}

func (f *importFlags) publish(
	ctx context.Context, display *progress.Display, e *engines, c *inventory.Check,
) (inventory.Progress, error) {
	p, err := app.OpenProducer(ctx, e.cfg, e.log, "millrace/import")
	if err != nil {
		return inventory.Progress{Next: f.order.From}, err
	}
	defer p.Close()
	step := display.Step("publish", c.Rows)
	done, err := f.order.Publish(ctx, p, c, func(d inventory.Progress) { step.Set(d.Next - 1) })
	step.End(err == nil)
	return done, err
}

// stoppedError returns the error of an import that stopped, with the options to continue.
func (f *importFlags) stoppedError(ctx context.Context, stderr io.Writer, r importReport, err error) error {
	hint := fmt.Sprintf("%d of %d rows are published; the same command continues with --from %d "+
		"(repeating it from the beginning is safe too)", r.done.Published, r.check.Sound(), r.done.Next)
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "stopped: "+hint)
		return err
	}
	return fmt.Errorf("%s: %w", hint, err)
}
