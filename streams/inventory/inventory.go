// Package inventory reads listings of items made by other software: checksum files, tables, manifests of bags,
// inventories of OCFL objects and of buckets. It returns the claim of each row, or its fault. An Import publishes the
// rows of several listings as Changes; it can be repeated, and continued at a row.
//
// No row is lost silently: each one becomes an Entry or a *Fault, or is counted as skipped. Rows come in the order of
// the listing, which is the same at every reading. The memory does not grow with the number of rows, except for OCFL:
// there the paths of one version are held in memory and sorted. The package does not guess: if a listing can be read in
// two ways, Open returns an error that names both.
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

// Sentinels that the errors of this package wrap, apart from errors of reading files.
var (
	// ErrFormat reports that the format of a listing is unknown, ambiguous or not supported.
	ErrFormat = errors.New("unknown format of listing")
	// ErrInvalid reports that a listing as a whole is damaged: it is truncated, differs from its own checksums, or does
	// not have its format.
	ErrInvalid = errors.New("damaged listing")
)

// A Format is the format of a listing.
type Format string

// The supported formats.
const (
	Sums      Format = "sums"         // md5sum, sha1sum, sha256sum, sha512sum: GNU, BSD and --tag forms
	CSV       Format = "csv"          // with a header; comma or semicolon
	TSV       Format = "tsv"          // with a header; tabs, and no quotes
	BagIt     Format = "bagit"        // payload manifests of a bag, RFC 8493 and 0.93 to 0.97
	OCFL      Format = "ocfl"         // inventory.json of an object, 1.0 and 1.1
	DuraCloud Format = "duracloud"    // manifest of a space: TSV, or its BagIt form
	S3        Format = "s3-inventory" // manifest.json with CSV files
)

// Formats returns all supported formats.
func Formats() []Format { return []Format{Sums, CSV, TSV, BagIt, OCFL, DuraCloud, S3} }

// A Position is the position of a row.
type Position struct {
	File string
	Line int64 // 0 for the whole file
}

func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.FormatInt(p.Line, 10)
}

// An Entry is the claim of one row about one item.
type Entry struct {
	At    Position
	Space string // empty if the listing has none
	Item  string // as in the listing, decoded; it can contain any bytes
	// Key reports that Item is a key, to be used unchanged. Otherwise it is the relative path of a file.
	Key     bool
	Size    int64      // in bytes; -1 if unknown
	Digests digest.Set // lower-case hex
	Time    time.Time  // when the content was written; zero if unknown
	Version string
	ETag    string
	Media   string
}

// A Fault is an error in one row. The rows after it can be read.
type Fault struct {
	At     Position
	Reason string
}

func (f *Fault) Error() string { return f.At.String() + ": " + f.Reason }

// Options control how listings are read. The zero value recognises formats and columns where it can.
type Options struct {
	Format Format
	// Algorithm is the algorithm of digests without one: untagged sums, a column "checksum". If it is empty, the length
	// of the digest determines the algorithm.
	Algorithm string
	// Columns maps meanings to names in the header of a table. A meaning is one of Meanings or a digest algorithm.
	Columns map[string]string
	// Delimiter is the delimiter of CSV; 0 means that the header determines it.
	Delimiter rune
	// Zone is the time zone of times without one. If it is nil, such times are faults.
	Zone *time.Location
	// Version is the OCFL version to read; empty means the head.
	Version string
	// ContentPaths reads the content paths of an OCFL object instead of the logical paths of a version.
	ContentPaths bool
	// TagManifests also reads the tag manifests of a bag.
	TagManifests bool
	// Progress, if not nil, is called with the number of bytes read since the last call.
	Progress func(bytes int64)
}

// A Listing is one listing with a known format. Its methods must be called from one goroutine.
type Listing struct {
	path          string // of the main file
	format        Format
	opts          Options
	mod           time.Time
	bytes         int64
	files         map[string]fileState // states of the files at the first reading
	skipped       map[string]int64
	unreadColumns []string
}

// A fileState detects changes of a file.
type fileState struct {
	size int64
	mod  time.Time
}

// Open opens the listing at path and determines its format. The path is a file, or the folder of a bag, an OCFL object
// or an S3 Inventory.
func Open(path string, o Options) (*Listing, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open the listing: %w", err)
	}
	if o.Format != "" && !slices.Contains(Formats(), o.Format) {
		return nil, fmt.Errorf("%w: there is no format %q; there are %s", ErrFormat, o.Format, joinFormats(Formats()))
	}
	l := &Listing{path: path, format: o.Format, opts: o, files: map[string]fileState{}, skipped: map[string]int64{}}
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

// inFolder finds the main file in a folder.
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
		return fmt.Errorf("%w: folder %s holds no bagit.txt (bagit), inventory.json (ocfl) or manifest.json (s3-inventory)",
			ErrFormat, l.path)
	case 1:
		l.format, l.path = found[0], filepath.Join(l.path, mains[found[0]])
		return nil
	}
	return ambiguous(l.path, found)
}

func ambiguous(path string, candidates []Format) error {
	return fmt.Errorf("%w: %s may be %s; say which with --format", ErrFormat, path, joinFormats(candidates))
}

func joinFormats(formats []Format) string {
	words := make([]string, len(formats))
	for i, f := range formats {
		words[i] = string(f)
	}
	return strings.Join(words, ", ")
}

// Path returns the path of the main file.
func (l *Listing) Path() string { return l.path }

// Format returns the format of the listing.
func (l *Listing) Format() Format { return l.format }

// Modified returns the modification time of the main file.
func (l *Listing) Modified() time.Time { return l.mod }

// Made returns when the listing was made: the creation time of an S3 Inventory, else Modified.
func (l *Listing) Made() (time.Time, error) {
	if l.format != S3 {
		return l.mod, nil
	}
	r, err := l.openS3Manifest()
	if err != nil {
		return time.Time{}, err
	}
	made, reason := readTime(r.Created, nil)
	if reason != "" {
		return time.Time{}, invalid(Position{File: l.path}, "creationTimestamp: %s", reason)
	}
	return made, nil
}

// Bytes returns the number of bytes to read, as far as it is known in advance.
func (l *Listing) Bytes() int64 { return l.bytes }

// Skipped returns the numbers of rows, by kind, that the last reading skipped: older versions and delete markers of
// an S3 Inventory.
func (l *Listing) Skipped() map[string]int64 { return maps.Clone(l.skipped) }

// UnreadColumns returns the columns of a table that the last reading ignored.
func (l *Listing) UnreadColumns() []string { return slices.Clone(l.unreadColumns) }

// Entries reads the listing from its beginning. A faulty row has a *Fault as its error, and the next rows follow. Any
// other error ends the sequence: the listing could not be read to its end or, if the error wraps ErrInvalid, is
// damaged.
func (l *Listing) Entries() iter.Seq2[Entry, error] {
	clear(l.skipped)
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
		return l.s3Inventory()
	}
	return failed(fmt.Errorf("%w: %q", ErrFormat, l.format))
}

// failed returns a sequence that only has an error.
func failed(err error) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) { yield(Entry{}, err) }
}

// invalid returns an error at a place that wraps ErrInvalid.
func invalid(at Position, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", ErrInvalid, at, fmt.Errorf(format, args...))
}

// wholeListing converts the fault of a row to an error of the listing, after which nothing can be read.
func wholeListing(err error) error {
	var f *Fault
	if errors.As(err, &f) {
		return invalid(f.At, "%s", f.Reason)
	}
	return err
}
