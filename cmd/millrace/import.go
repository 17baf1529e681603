package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/inventory"
)

// importFlags say what is imported, as what, and how it is told.
type importFlags struct {
	engineFlags
	options inventory.Options
	target  inventory.Target
	order   app.Import

	format, delimiter, zone, when string
	columns                       []string
	dryRun, wait                  bool
	output                        *output
}

const importLong = `Reads listings that others made of items, and publishes each row as a Change of origin import, with the listing's
own time and claimed digests: a claim, which fixity checks prove or not. Listings are:

  sums          md5sum, sha1sum, sha256sum, sha512sum, with escapes, and the BSD --tag form
  csv, tsv      with a header; columns by their usual names, or --column MEANING=NAME
  bagit         the folder of a bag, or a payload manifest in it
  ocfl          the inventory.json of an object: logical paths of the head, or --version
  duracloud     the manifest of a space: TSV, or its BagIt form
  s3-inventory  manifest.json, with its CSV or Parquet files as Amazon puts them, or beside it

The form is recognised; what may be two is refused until --format says which. Files may be gzipped.

Everything is read twice: first it is checked, and only then published. Where there is a fault in any row,
nothing is published, and every fault is named with its file and line; --skip-faulty publishes the sound
rows all the same. Faults are also: one item with two digests (then none of its rows counts), and a listing
that lists nothing. A listing that is damaged as a whole (cut short, or not what its own sums say) is never published.
Paths must be relative and plain: --strip and --prefix change their beginnings. Keys of S3 and content ids of DuraCloud are
taken as they are.

Rows without a time get --time, or else the time when their listing was written last. Running the same command again changes
nothing, as long as that time stays. After a stop, --from goes on where it was.

With --wait it ends when ClickHouse has the rows and the planner has seen them. With --state all roles run in this
command until then.

Exit codes: 0 fine, 1 error, 2 usage, 3 faults and nothing is published, 4 sound rows are published and faulty ones skipped,
5 precondition, 130 interrupted.`

func newImport() *cobra.Command {
	f := new(importFlags)
	c := &cobra.Command{
		Use:   "import LISTING... --account ID --store ID",
		Short: "Take in what a listing says of the copies in a store: sums, tables, BagIt, OCFL, DuraCloud, S3 Inventory",
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
	s.StringVar(&f.target.Store, "store", "", "`ID` of the store whose copies are listed")
	s.StringVar(&f.target.Space, "space", "", "`SPACE` of all rows; needed where the listing names none")
	s.StringVar(&f.target.Strip, "strip", "", "take `PREFIX` away from items: of paths whole parts; an item without it is a fault")
	s.StringVar(&f.target.Prefix, "prefix", "", "put `TEXT` in front of items")
	s.StringVar(&f.target.Backslash, "backslash", "", "in paths, take backslashes for `WHAT`: slash, or keep; else they are faults")
	s.StringVar(&f.when, "time", "", "`TIME` of rows that have none, as 2006-01-02T15:04:05Z")
	s.StringVar(&f.format, "format", "", "`FORM` of the listings, in place of what is recognised: "+formatNames())
	s.StringVar(&f.options.Algorithm, "algorithm", "", "`ALGORITHM` of digests that do not say; else their length does")
	s.StringArrayVar(&f.columns, "column", nil, "of tables, `MEANING=NAME`: "+strings.Join(inventory.Meanings(), ", ")+", or an algorithm")
	s.StringVar(&f.delimiter, "delimiter", "", "of CSV, `CHARACTER`, or tab")
	s.StringVar(&f.zone, "zone", "", "`ZONE` of times that name none: UTC, Europe/Berlin")
	s.StringVar(&f.options.Version, "version", "", "of OCFL, read this `VERSION`, not the head")
	s.BoolVar(&f.options.ContentPaths, "content-paths", false, "of OCFL, read the files as they lie in the object")
	s.BoolVar(&f.options.TagManifests, "tag-manifests", false, "of BagIt, read the tag files too")
	s.BoolVar(&f.dryRun, "dry-run", false, "only check, and print the first rows; needs no engine")
	s.BoolVar(&f.wait, "wait", false, "wait until what is published has been planned, and is on record")
	s.BoolVar(&f.order.SkipFaulty, "skip-faulty", false, "publish what is sound where there are faults")
	s.BoolVar(&f.order.Strict, "strict", false, "what is only odd is a fault: an item listed twice alike, a row without a digest, a column that is not read")
	s.Int64Var(&f.order.From, "from", 1, "go on with row `N`, counted over all listings")
	s.IntVar(&f.order.Faults, "faults", 100, "print at most `N` faults; the others are counted")
	f.output = outputFlag(c, formText, formJSON)
}

func formatNames() string {
	words := make([]string, 0, len(inventory.Formats()))
	for _, f := range inventory.Formats() {
		words = append(words, string(f))
	}
	return strings.Join(words, ", ")
}

// check reads the flags.
func (f *importFlags) check() (err error) {
	f.options.Format = inventory.Format(f.format)
	f.target.User, f.target.Now = currentUser(), time.Now()
	switch {
	case f.target.Account == "" || f.target.Store == "":
		return fmt.Errorf("%w: name the copies' --account and --store", usage.Err)
	case f.format != "" && !slices.Contains(inventory.Formats(), f.options.Format):
		return fmt.Errorf("%w: there is no form %q; there are %s", usage.Err, f.format, formatNames())
	case !slices.Contains([]string{inventory.BackslashRefuse, inventory.BackslashSlash, inventory.BackslashKeep}, f.target.Backslash):
		return fmt.Errorf("%w: --backslash is slash or keep, not %q", usage.Err, f.target.Backslash)
	case f.dryRun && f.wait:
		return fmt.Errorf("%w: --dry-run publishes nothing that --wait could wait for", usage.Err)
	case f.order.From < 1 || f.order.Faults < 0:
		return fmt.Errorf("%w: rows are counted from 1, and faults from 0", usage.Err)
	}
	if f.when != "" {
		if f.target.Default, err = time.Parse(time.RFC3339, f.when); err != nil {
			return fmt.Errorf("%w: --time is a time such as 2006-01-02T15:04:05Z, not %q", usage.Err, f.when)
		}
	}
	if f.zone != "" {
		if f.options.Zone, err = time.LoadLocation(f.zone); err != nil {
			return fmt.Errorf("%w: --zone: %w", usage.Err, err)
		}
	}
	if f.options.Delimiter, err = delimiter(f.delimiter); err != nil {
		return err
	}
	for _, word := range f.columns {
		meaning, name, ok := strings.Cut(word, "=")
		if !ok || meaning == "" || name == "" {
			return fmt.Errorf("%w: --column is MEANING=NAME, not %q", usage.Err, word)
		}
		if f.options.Columns == nil {
			f.options.Columns = map[string]string{}
		}
		f.options.Columns[meaning] = name
	}
	return nil
}

func delimiter(word string) (rune, error) {
	if word == "tab" {
		return '\t', nil
	}
	r, n := utf8.DecodeRuneInString(word)
	if n != len(word) || r == utf8.RuneError && n > 0 || r == '"' || r == '\n' || r == '\r' {
		return 0, fmt.Errorf("%w: --delimiter is one character, or tab, not %q", usage.Err, word)
	}
	if n == 0 {
		return 0, nil
	}
	return r, nil
}

func (f *importFlags) run(c *cobra.Command, paths []string) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	if !f.dryRun && f.config == "" && f.state == "" {
		return fmt.Errorf("%w: name a configuration with --config FILE, or a kept state with --state DIR; or check with --dry-run", usage.Err)
	}
	ctx := c.Context()
	var e *engines
	if f.config != "" || f.state != "" {
		// Before the listings are read: that may take long.
		without := app.StateConfig{WithoutEngine: !f.wait, WithoutBroker: f.dryRun}
		if e, err = f.open(ctx, c.ErrOrStderr(), without); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.Close(ctx)) }()
		if err := app.CheckStore(e.cfg, f.target.Account, f.target.Store); err != nil {
			return err
		}
	}
	var display *progress.Display
	if e != nil {
		display = e.display
	} else {
		display = progress.New(c.ErrOrStderr())
	}
	defer display.Close() // also before anything is printed below the bars
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
	// What was published is reported also if the wait for it fails.
	if err := errors.Join(err, report.print(c.OutOrStdout(), c.ErrOrStderr())); err != nil {
		return err
	}
	return report.exitError()
}

// classedImport says whose an error is: a form that is not recognised is the caller's to say, a damaged listing is
// a finding.
func classifyImportError(err error) error {
	switch {
	case errors.Is(err, inventory.ErrFormat):
		return fmt.Errorf("%w: %w", usage.Err, err)
	case errors.Is(err, inventory.ErrInvalid):
		return fmt.Errorf("%w: %w; nothing is published", errFindings, err)
	}
	return err
}

// examine opens and checks the listings.
func (f *importFlags) checkListings(ctx context.Context, display *progress.Display, paths []string) (*app.ImportCheck, error) {
	var step *progress.Step
	var total, read int64
	f.options.Told = func(n int64) {
		if read += n; step != nil && read <= total {
			step.Set(read)
		}
	}
	for _, path := range paths {
		l, err := inventory.Open(filepath.Clean(path), f.options)
		if err != nil {
			return nil, err
		}
		if f.target.Space == "" && slices.Contains([]inventory.Format{inventory.Sums, inventory.BagIt, inventory.OCFL}, l.Format()) {
			return nil, fmt.Errorf("%w: %s names no spaces; say with --space which it is", usage.Err, path)
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

func (f *importFlags) publish(ctx context.Context, display *progress.Display, e *engines, c *app.ImportCheck) (app.ImportDone, error) {
	p, err := app.OpenProducer(ctx, e.cfg, e.log, "millrace/import")
	if err != nil {
		return app.ImportDone{Next: f.order.From}, err
	}
	defer p.Close()
	step := display.Step("publish", c.Rows)
	done, err := f.order.Publish(ctx, p, c, func(d app.ImportDone) { step.Set(d.Next - 1) })
	step.End(err == nil)
	return done, err
}

// stopped says how to go on.
func (f *importFlags) stoppedError(ctx context.Context, stderr io.Writer, r importReport, err error) error {
	again := fmt.Sprintf("%d of %d rows are published; the same command goes on with --from %d (or again from the beginning, which is harmless)",
		r.done.Published, r.check.Sound(), r.done.Next)
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "stopped: "+again)
		return err
	}
	return fmt.Errorf("%s: %w", again, err)
}
