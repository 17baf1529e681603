// Package inventory reads listings that others made of items: files of sums, tables, manifests of
// bags, inventories of objects and of buckets. It says what each row claims, and what is wrong with it.
//
// It promises that no row is lost silently: each one is an Entry, a *Fault, or counted among what is
// passed over. Rows come in the order of the listing, the same at every reading, in memory that does not
// grow with them (except for OCFL: the paths of one version are held, to be sorted). Nothing is guessed: a listing that may be
// read in two ways is an error that names both.
package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/streams/digest"
)

// What errors of this package wrap, besides those of reading files.
var (
	// ErrFormat: the form of a listing is not recognised, is in doubt, or is not read.
	ErrFormat = errors.New("unknown form of listing")
	// ErrInvalid: the listing as a whole is damaged: cut short, not what its own sums say, or not of its form.
	ErrInvalid = errors.New("damaged listing")
)

// A Format is a form of listing.
type Format string

// The forms that are read.
const (
	Sums      Format = "sums"         // md5sum, sha1sum, sha256sum, sha512sum: GNU, BSD and --tag forms
	CSV       Format = "csv"          // with a header; comma or semicolon
	TSV       Format = "tsv"          // with a header; tabs, and no quotes
	BagIt     Format = "bagit"        // payload manifests of a bag, RFC 8493 and 0.93 to 0.97
	OCFL      Format = "ocfl"         // inventory.json of an object, 1.0 and 1.1
	DuraCloud Format = "duracloud"    // manifest of a space: TSV, or its BagIt form
	S3        Format = "s3-inventory" // manifest.json with CSV or Parquet files
)

// Formats are all of them.
func Formats() []Format { return []Format{Sums, CSV, TSV, BagIt, OCFL, DuraCloud, S3} }

// A Place is where a row stands.
type Place struct {
	File string
	Line int64 // of the text, or row of a Parquet file; 0: the file as a whole
}

func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.FormatInt(p.Line, 10)
}

// An Entry is what one row claims of one item.
type Entry struct {
	At    Place
	Space string // empty where the listing names none
	Item  string // as it stands there, decoded; any bytes
	// Key says that Item is a key, to be taken as it is. Else it is a path of a file: relative, in parts.
	Key     bool
	Size    int64      // bytes; -1: not said
	Digests digest.Set // lower-case hex
	Time    time.Time  // when the content was written; zero: not said
	Version string
	ETag    string
	Media   string
}

// A Fault is what is wrong with one row. The rows after it can be read.
type Fault struct {
	At     Place
	Reason string
}

func (f *Fault) Error() string { return f.At.String() + ": " + f.Reason }

// Options say how listings are read. The zero value recognises what it can.
type Options struct {
	Format Format
	// Algorithm is that of digests that do not say: untagged sums, a column "checksum". Empty: by their length.
	Algorithm string
	// Columns names columns of tables: meaning to name in the header. Meanings are those of Meanings, or an algorithm.
	Columns map[string]string
	// Delimiter is that of CSV; 0: found in the header.
	Delimiter rune
	// Zone is that of times without one; nil: they are faults.
	Zone *time.Location
	// Version is the OCFL version to read; empty: the head.
	Version string
	// ContentPaths takes the files of an OCFL object as they lie, in place of a version's logical paths.
	ContentPaths bool
	// TagManifests reads the tag files of a bag too.
	TagManifests bool
	// Told, where set, is called with the number of bytes that were read since it was called last.
	Told func(bytes int64)
}

// A Listing is one listing whose form is known. Its methods are for one goroutine.
type Listing struct {
	path   string // of its main file
	format Format
	opts   Options
	mod    time.Time
	bytes  int64
	files  map[string]stamp // what was read, as it was at the first reading
	passed map[string]int64
	unread []string // columns
}

// stamp tells that a file has changed.
type stamp struct {
	size int64
	mod  time.Time
}

// Open recognises the listing at path: a file, or the folder of a bag, an OCFL object or an S3 Inventory.
func Open(path string, o Options) (*Listing, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open the listing: %w", err)
	}
	if o.Format != "" && !slices.Contains(Formats(), o.Format) {
		return nil, fmt.Errorf("%w: there is no form %q; there are %s", ErrFormat, o.Format, wordsOf(Formats()))
	}
	l := &Listing{path: path, format: o.Format, opts: o, files: map[string]stamp{}, passed: map[string]int64{}}
	switch {
	case info.IsDir():
		err = l.inFolder()
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%w: %s is not a file that can be read twice; write it to one first", ErrFormat, path)
	case l.format == "":
		l.format, err = recogniseFile(path, o)
	}
	if err != nil {
		return nil, err
	}
	if info, err = os.Stat(l.path); err != nil {
		return nil, fmt.Errorf("open the listing: %w", err)
	}
	l.mod, l.bytes = info.ModTime(), info.Size()
	return l, nil
}

// inFolder finds the file that stands for a folder.
func (l *Listing) inFolder() error {
	var found []Format
	mains := map[Format]string{BagIt: "bagit.txt", OCFL: "inventory.json", S3: "manifest.json"}
	for _, f := range slices.Sorted(maps.Keys(mains)) {
		if l.format != "" && l.format != f {
			continue
		}
		if _, err := os.Stat(filepath.Join(l.path, mains[f])); err == nil {
			found = append(found, f)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("open the listing: %w", err)
		}
	}
	switch len(found) {
	case 0:
		return fmt.Errorf("%w: folder %s holds no bagit.txt (bagit), inventory.json (ocfl) or manifest.json (s3-inventory)", ErrFormat, l.path)
	case 1:
		l.format, l.path = found[0], filepath.Join(l.path, mains[found[0]])
		return nil
	}
	return doubt(l.path, found)
}

func doubt(path string, candidates []Format) error {
	return fmt.Errorf("%w: %s may be %s; say which with --format", ErrFormat, path, wordsOf(candidates))
}

func wordsOf(formats []Format) string {
	words := make([]string, len(formats))
	for i, f := range formats {
		words[i] = string(f)
	}
	return strings.Join(words, ", ")
}

// Path is that of the file that is the listing, or stands for it.
func (l *Listing) Path() string { return l.path }

// Format is the listing's form.
func (l *Listing) Format() Format { return l.format }

// Modified is when the listing itself was written last.
func (l *Listing) Modified() time.Time { return l.mod }

// Bytes is how much there is to be read, as far as that is known before it is.
func (l *Listing) Bytes() int64 { return l.bytes }

// PassedOver counts, by kind, the rows that the last reading read and that are no entries: older versions and delete
// markers of an S3 Inventory.
func (l *Listing) PassedOver() map[string]int64 { return maps.Clone(l.passed) }

// Unread are the columns of a table that mean nothing to the last reading.
func (l *Listing) Unread() []string { return slices.Clone(l.unread) }

// Entries reads the listing, from its beginning each time. A row that is wrong comes with a *Fault, and
// the next one follows. Any other error is the last that comes: then the listing has not been read to its end,
// or, where it wraps ErrInvalid, is not what it says it is.
func (l *Listing) Entries() iter.Seq2[Entry, error] {
	clear(l.passed)
	switch l.format {
	case Sums:
		return l.text(l.path, "", func(in *input) iter.Seq2[Entry, error] { return sums(in, l.opts.Algorithm) })
	case DuraCloud:
		return l.text(l.path, "", l.duraCloud)
	case CSV, TSV:
		return l.text(l.path, "", func(in *input) iter.Seq2[Entry, error] { return l.table(in, l.format == TSV) })
	case BagIt:
		return l.bag()
	case OCFL:
		return l.ocfl()
	case S3:
		return l.bucket()
	}
	return broken(fmt.Errorf("%w: %q", ErrFormat, l.format))
}

// broken is a listing of which nothing can be read.
func broken(err error) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) { yield(Entry{}, err) }
}

// invalid wraps ErrInvalid, with what is wrong and where.
func invalid(at Place, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", ErrInvalid, at, fmt.Errorf(format, args...))
}

// whole makes a row's fault one of the whole listing, where nothing after it can be read.
func whole(err error) error {
	var f *Fault
	if errors.As(err, &f) {
		return invalid(f.At, "%s", f.Reason)
	}
	return err
}
