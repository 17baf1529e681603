package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/inventory"
)

// listingFlags are the flags that say how listings are read, and the options that they become.
type listingFlags struct {
	options inventory.Options
	target  inventory.Target

	format, delimiter, zone string
	columns                 []string
}

func (f *listingFlags) register(c *cobra.Command) {
	s := c.Flags()
	s.StringVar(&f.target.Strip, "strip", "",
		"remove `PREFIX` from items (from paths: whole elements); an item without it is a fault")
	s.StringVar(&f.target.Prefix, "prefix", "", "add `TEXT` before items")
	s.StringVar(&f.target.Backslash, "backslash", "",
		"`MEANING` of backslashes in paths: slash, or keep; by default they are faults")
	s.StringVar(&f.format, "format", "", "`FORMAT` of the listings, instead of the detected one: "+formatNames())
	s.StringVar(&f.options.Algorithm, "algorithm", "",
		"`ALGORITHM` of digests without one; by default their length determines it")
	s.StringArrayVar(&f.columns, "column", nil,
		"tables: `MEANING=NAME` of a column; meanings are "+strings.Join(inventory.Meanings(), ", ")+" and algorithms")
	s.StringVar(&f.delimiter, "delimiter", "", "CSV: separating `CHARACTER`, or tab")
	s.StringVar(&f.zone, "zone", "", "time `ZONE` of times without one: UTC, Europe/Berlin")
}

// listingFlagNames returns the names of listingFlags.
func listingFlagNames() []string {
	return []string{"strip", "prefix", "backslash", "format", "algorithm", "column", "delimiter", "zone"}
}

func formatNames() string { return strings.Join(words(inventory.Formats()), ", ") }

// check validates the flags and sets the options.
func (f *listingFlags) check() (err error) {
	f.options.Format = inventory.Format(f.format)
	backslashes := []string{inventory.BackslashRefuse, inventory.BackslashSlash, inventory.BackslashKeep}
	switch {
	case f.format != "" && !slices.Contains(inventory.Formats(), f.options.Format):
		return fmt.Errorf("%w: there is no format %q; there are %s", usage.Err, f.format, formatNames())
	case !slices.Contains(backslashes, f.target.Backslash):
		return fmt.Errorf("%w: --backslash is slash or keep, not %q", usage.Err, f.target.Backslash)
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

// openListing opens a listing of the target.
func (f *listingFlags) openListing(path string) (*inventory.Listing, error) {
	l, err := inventory.Open(filepath.Clean(path), f.options)
	if err != nil {
		return nil, err
	}
	withoutSpaces := []inventory.Format{inventory.Sums, inventory.BagIt, inventory.OCFL}
	if f.target.Space == "" && slices.Contains(withoutSpaces, l.Format()) {
		return nil, fmt.Errorf("%w: %s has no spaces; name the space with --space", usage.Err, path)
	}
	return l, nil
}
