package inventory

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxManifest is the largest size of a manifest.json in bytes.
const maxManifest = 64 << 20

// An s3Manifest is the manifest.json of an S3 Inventory (Amazon S3 User Guide, "Locating your inventory list").
type s3Manifest struct {
	SourceBucket string `json:"sourceBucket"`
	Created      string `json:"creationTimestamp"` // milliseconds
	Format       string `json:"fileFormat"`
	Schema       string `json:"fileSchema"`
	Files        []struct {
		Key  string `json:"key"`
		Size int64  `json:"size"`
		MD5  string `json:"MD5checksum"`
	} `json:"files"`
}

// The kinds of skipped rows of an S3 Inventory.
const (
	skippedOld     = "older versions"
	skippedDeleted = "delete markers"
)

// s3Inventory reads the files of an S3 Inventory and compares each with its MD5. The entries are the latest versions of
// objects.
func (l *Listing) s3Inventory() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		r, err := l.openS3Manifest()
		if err != nil {
			yield(Entry{}, err)
			return
		}
		// A row without a time gets the creation time of the inventory, which stays the same if the files are copied.
		made, _ := readTime(r.Created, nil)
		stop := false
		for _, f := range r.Files {
			file, err := l.locate(f.Key, f.Size)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			rows := l.s3CSV(file, f.MD5, r)
			if r.Format == "Parquet" {
				rows = l.s3Parquet(file, f.MD5)
			}
			for row, err := range rows {
				var fault *Fault
				switch {
				case err == nil:
					e, passed, reason := row.entry()
					if passed != "" {
						l.skipped[passed]++
						continue
					}
					if e.Time.IsZero() {
						e.Time = made
					}
					if reason != "" {
						err = &Fault{e.At, reason}
					}
					stop = !yield(e, err)
				case errors.As(err, &fault):
					stop = !yield(Entry{At: fault.At}, err)
				default:
					yield(Entry{}, err)
					stop = true
				}
				if stop {
					return
				}
			}
		}
	}
}

func (l *Listing) openS3Manifest() (*s3Manifest, error) {
	at := Position{File: l.path}
	data, err := l.readAll(l.path, maxManifest)
	if err != nil {
		return nil, err
	}
	sum, err := l.readAll(filepath.Join(filepath.Dir(l.path), "manifest.checksum"), maxLine)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		h := newHash("md5")
		h.Write(data)
		if got, want := hex.EncodeToString(h.Sum(nil)), strings.TrimSpace(string(sum)); !strings.EqualFold(got, want) {
			return nil, invalid(at, "its md5 is %s, and manifest.checksum says %.80q", got, want)
		}
	}
	r := new(s3Manifest)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, invalid(at, "it is not the JSON of an S3 Inventory: %w", err)
	}
	switch r.Format {
	case "CSV", "Parquet":
	case "ORC":
		return nil, fmt.Errorf("%w: %s: the files of this inventory are ORC, which is not supported; "+
			"have it made as CSV or Parquet", ErrFormat, l.path)
	default:
		return nil, invalid(at, "fileFormat is %q; CSV and Parquet are supported", r.Format)
	}
	l.bytes = 0
	for _, f := range r.Files {
		l.bytes += f.Size
	}
	return r, nil
}

// locate returns the path of a file of an S3 Inventory: relative to the manifest as Amazon lays it out, or beside the
// manifest.
func (l *Listing) locate(key string, size int64) (string, error) {
	dir, name := filepath.Dir(l.path), path.Base(key)
	if name == "." || name == "/" || name == ".." || strings.ContainsRune(name, filepath.Separator) {
		return "", invalid(Position{File: l.path}, "%q is not the key of a file", key)
	}
	paths := []string{filepath.Join(dir, "..", "data", name), filepath.Join(dir, "data", name), filepath.Join(dir, name)}
	for _, p := range paths {
		info, err := os.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return "", fmt.Errorf("read the listing: %w", err)
		case size != info.Size():
			return "", invalid(Position{File: p}, "it has %d bytes, and the manifest says %d", info.Size(), size)
		}
		return p, nil
	}
	return "", fmt.Errorf("%w: %s names %s, which is in none of %s", ErrInvalid, l.path, key, strings.Join(paths, ", "))
}

// An inventoryRow is one row of an S3 Inventory. Pointers are nil if a column is missing or empty.
type inventoryRow struct {
	at                                    Position
	bucket, key, version, etag, encrypted string
	latest, marker, multipart             *bool
	size                                  int64
	modified                              time.Time
}

// entry converts the row. If the row is to be skipped, passed is its kind; if it is invalid, reason is not empty. The
// ETag is the MD5 of the content only if the row says that the object was not uploaded in parts and is not encrypted
// with a customer's key.
func (r inventoryRow) entry() (e Entry, passed, reason string) {
	e = Entry{At: r.at, Space: r.bucket, Item: r.key, Key: true, Size: r.size, Time: r.modified, Version: r.version,
		ETag: r.etag}
	switch {
	case r.latest != nil && !*r.latest:
		return e, skippedOld, ""
	case r.marker != nil && *r.marker:
		return e, skippedDeleted, ""
	case r.key == "":
		return e, "", "the row has no key"
	}
	if e.Version == "null" { // the object is older than versioning; this version is not unique
		e.Version = ""
	}
	plain := r.encrypted == "SSE-S3" || r.encrypted == "NOT-SSE"
	if etag := strings.Trim(r.etag, `"`); plain && r.multipart != nil && !*r.multipart && len(etag) == 32 {
		return e, "", e.add("md5", "", etag)
	}
	return e, "", ""
}

// isS3Column reports whether set uses a column.
func isS3Column(name string) bool {
	return slices.Contains([]string{"bucket", "key", "versionid", "etag", "encryptionstatus", "size", "lastmodifieddate",
		"islatest",
		"isdeletemarker", "ismultipartuploaded"}, name)
}

// set sets the value of one column, from CSV or Parquet.
func (r *inventoryRow) set(column, value string) (reason string) {
	if value == "" {
		return ""
	}
	switch column {
	case "bucket":
		r.bucket = value
	case "key":
		r.key = value
	case "versionid":
		r.version = value
	case "etag":
		r.etag = value
	case "encryptionstatus":
		r.encrypted = value
	case "size":
		r.size, reason = readSize(value)
	case "lastmodifieddate":
		r.modified, reason = readTime(value, nil)
	case "islatest":
		r.latest, reason = readBool(value)
	case "isdeletemarker":
		r.marker, reason = readBool(value)
	case "ismultipartuploaded":
		r.multipart, reason = readBool(value)
	}
	return reason
}

func readBool(value string) (b *bool, reason string) {
	v, err := strconv.ParseBool(value)
	if err != nil {
		return nil, fmt.Sprintf("%.80q is neither true nor false", value)
	}
	return &v, ""
}

// s3CSV reads one file of an inventory: gzip, no header, URL-encoded keys.
func (l *Listing) s3CSV(file, sum string, r *s3Manifest) iter.Seq2[inventoryRow, error] {
	return func(yield func(inventoryRow, error) bool) {
		f, err := l.open(file)
		if err != nil {
			yield(inventoryRow{}, err)
			return
		}
		defer f.Close()
		in, err := newInput(file, f.hashing(), "")
		if err != nil {
			yield(inventoryRow{}, err)
			return
		}
		columns := strings.Split(r.Schema, ",")
		for i, c := range columns {
			columns[i] = normalName(c)
		}
		for fields, err := range in.quoted(',') {
			row := inventoryRow{at: in.at(), size: -1}
			if err == nil {
				err = row.fromCSV(columns, fields)
			}
			var fault *Fault
			if !yield(row, err) || err != nil && !errors.As(err, &fault) {
				return
			}
		}
		if err := l.checkMD5(f, sum); err != nil {
			yield(inventoryRow{}, err)
		}
	}
}

func (r *inventoryRow) fromCSV(columns, fields []string) error {
	if len(fields) != len(columns) {
		return &Fault{r.at, fmt.Sprintf("the row has %d fields, and fileSchema %d", len(fields), len(columns))}
	}
	for i, c := range columns {
		value := fields[i]
		if c == "key" {
			key, err := url.QueryUnescape(value)
			if err != nil {
				return &Fault{r.at, fmt.Sprintf("key %.200q is not encoded as in a URL", value)}
			}
			value = key
		}
		if reason := r.set(c, value); reason != "" {
			return &Fault{r.at, reason}
		}
	}
	return nil
}

// checkMD5 compares the MD5 of a file with the one in the manifest.
func (l *Listing) checkMD5(f *source, want string) error {
	got, err := f.sum()
	switch {
	case err != nil:
		return err
	case !strings.EqualFold(got, want):
		return invalid(Position{File: f.f.Name()}, "its md5 is %s, and the manifest says %.80q", got, want)
	}
	return nil
}
