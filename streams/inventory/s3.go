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
	"strconv"
	"strings"
	"time"
)

// maxManifest is the largest size of a manifest.json in bytes.
const maxManifest = 64 << 20

// An s3Manifest is the manifest.json of an S3 Inventory (Amazon S3 User Guide, "Locating your inventory list").
type s3Manifest struct {
	SourceBucket string   `json:"sourceBucket"`
	Created      string   `json:"creationTimestamp"` // milliseconds
	Format       string   `json:"fileFormat"`
	Schema       string   `json:"fileSchema"`
	Files        []s3File `json:"files"`
}

// An s3File is a file of an S3 Inventory.
type s3File struct {
	Key  string `json:"key"`
	Size int64  `json:"size"`
	MD5  string `json:"MD5checksum"`
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
		m, err := l.openS3Manifest()
		if err != nil {
			yield(Entry{}, err)
			return
		}
		// A row without a time gets the creation time of the inventory, which stays the same if the files are copied.
		made, _ := readTime(m.Created, nil)
		columns := strings.Split(m.Schema, ",")
		for i, c := range columns {
			columns[i] = normalName(c)
		}
		for _, f := range m.Files {
			for row, err := range l.s3Rows(f, columns) {
				e, skipped := Entry{At: row.at}, ""
				if err == nil {
					e, skipped, err = row.entry(made)
				}
				if skipped != "" {
					l.skipped[skipped]++
					continue
				}
				var fault *Fault
				if !yield(e, err) || err != nil && !errors.As(err, &fault) {
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
	if r.Format != "CSV" { // Parquet or ORC
		return nil, fmt.Errorf("%w: %s: its fileFormat is %q, and only CSV is supported; "+
			"set the output format of the S3 Inventory to CSV", ErrFormat, l.path, r.Format)
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

// An s3Row is one row of an S3 Inventory. Pointers are nil if a column is missing or empty.
type s3Row struct {
	at                                    Position
	bucket, key, version, etag, encrypted string
	latest, marker, multipart             *bool
	size                                  int64
	modified                              time.Time
}

// entry converts the row, whose time is made if it has none. If the row is to be skipped, skipped is its kind. The ETag
// is the MD5 of the content only if the row says that the object was not uploaded in parts and is not encrypted with a
// customer's key.
func (r *s3Row) entry(made time.Time) (e Entry, skipped string, err error) {
	e = Entry{At: r.at, Space: r.bucket, Item: r.key, Key: true, Size: r.size, Time: r.modified, Version: r.version,
		ETag: r.etag}
	switch {
	case r.latest != nil && !*r.latest:
		return e, skippedOld, nil
	case r.marker != nil && *r.marker:
		return e, skippedDeleted, nil
	case r.key == "":
		return e, "", &Fault{r.at, "the row has no key"}
	}
	if e.Time.IsZero() {
		e.Time = made
	}
	if e.Version == "null" { // the object is older than versioning; this version is not unique
		e.Version = ""
	}
	plain := r.encrypted == "SSE-S3" || r.encrypted == "NOT-SSE"
	if etag := strings.Trim(r.etag, `"`); plain && r.multipart != nil && !*r.multipart && len(etag) == 32 {
		if reason := e.add("md5", "", etag); reason != "" {
			return e, "", &Fault{r.at, reason}
		}
	}
	return e, "", nil
}

// set sets the value of one column, and ignores other columns.
func (r *s3Row) set(column, value string) (reason string) {
	if value == "" {
		return ""
	}
	switch column {
	case "bucket":
		r.bucket = value
	case "key":
		var err error
		if r.key, err = url.QueryUnescape(value); err != nil {
			return fmt.Sprintf("key %.200q is not encoded as in a URL", value)
		}
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

// s3Rows reads one file of an inventory: gzip, no header, URL-encoded keys.
func (l *Listing) s3Rows(file s3File, columns []string) iter.Seq2[s3Row, error] {
	return func(yield func(s3Row, error) bool) {
		path, err := l.locate(file.Key, file.Size)
		if err != nil {
			yield(s3Row{}, err)
			return
		}
		f, err := l.open(path)
		if err != nil {
			yield(s3Row{}, err)
			return
		}
		defer f.Close()
		in, err := newInput(path, f.hashing(), "")
		if err != nil {
			yield(s3Row{}, err)
			return
		}
		for fields, err := range in.quoted(',') {
			row := s3Row{at: in.at(), size: -1}
			if err == nil {
				err = row.read(columns, fields)
			}
			var fault *Fault
			if !yield(row, err) || err != nil && !errors.As(err, &fault) {
				return
			}
		}
		got, err := f.sum()
		if err == nil && !strings.EqualFold(got, file.MD5) {
			err = invalid(Position{File: path}, "its md5 is %s, and the manifest says %.80q", got, file.MD5)
		}
		if err != nil {
			yield(s3Row{}, err)
		}
	}
}

func (r *s3Row) read(columns, fields []string) error {
	if len(fields) != len(columns) {
		return &Fault{r.at, fmt.Sprintf("the row has %d fields, and fileSchema %d", len(fields), len(columns))}
	}
	for i, c := range columns {
		if reason := r.set(c, fields[i]); reason != "" {
			return &Fault{r.at, reason}
		}
	}
	return nil
}
