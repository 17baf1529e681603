package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/digest"
)

// Meanings of columns, besides the names of algorithms.
const (
	colPath     = "path" // relative path of a file
	colKey      = "key"  // name of an item, used unchanged
	colSpace    = "space"
	colSize     = "size" // in bytes
	colModified = "modified"
	colVersion  = "version"
	colETag     = "etag"
	colMedia    = "media-type"
	colDigest   = "digest" // with the algorithm of the options, or the one for its length
)

// Meanings returns the meanings of columns, besides digest algorithms.
func Meanings() []string {
	return []string{colPath, colKey, colSpace, colSize, colModified, colVersion, colETag, colMedia, colDigest}
}

// usualNames returns the meanings of the usual names of columns, in lower case without space and punctuation.
func usualNames() map[string]string {
	names := map[string]string{}
	for meaning, all := range map[string]string{
		colPath:       "path file filename filepath name relativepath",
		colKey:        "key item itemid objectkey contentid object",
		colSpace:      "space spaceid bucket bucketname",
		colSize:       "size bytes length filesize contentsize contentlength sizebytes sizeinbytes",
		colModified:   "modified mtime lastmodified lastmodifieddate modificationtime contentmodified modifiedat",
		colVersion:    "version versionid",
		colETag:       "etag",
		colMedia:      "mimetype mediatype contenttype contentmimetype",
		digest.MD5:    "md5 md5sum md5checksum contentmd5 checksummd5 md5hash hashmd5",
		digest.SHA1:   "sha1 sha1sum sha1checksum checksumsha1 sha1hash hashsha1",
		digest.SHA256: "sha256 sha256sum sha256checksum checksumsha256 sha256hash hashsha256",
		"sha512":      "sha512 sha512sum sha512checksum checksumsha512 sha512hash hashsha512",
	} {
		for name := range strings.FieldsSeq(all) {
			names[name] = meaning
		}
	}
	return names
}

// normalName returns the name of a column in the form of usualNames.
func normalName(name string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(" -_./:", r) {
			return -1
		}
		return r
	}, strings.ToLower(strings.TrimSpace(name)))
}

// columns holds the meanings of the columns of a table.
type columns struct {
	meaning []string // by position; empty if the column is ignored
	unread  []string
}

// readHeader determines the meanings of columns: those in chosenNames, else those of their usual names. Its error is
// for the user.
func readHeader(header []string, chosenNames map[string]string) (columns, error) {
	c := columns{meaning: make([]string, len(header))}
	at := map[string]int{} // positions by meaning
	set := func(meaning string, i int) error {
		if j, ok := at[meaning]; ok {
			return fmt.Errorf("columns %q and %q may both be the %s; say which with --column %s=NAME",
				header[j], header[i], meaning, meaning)
		}
		at[meaning], c.meaning[i] = i, meaning
		return nil
	}
	for _, meaning := range slices.Sorted(maps.Keys(chosenNames)) {
		i := slices.Index(header, chosenNames[meaning])
		if i < 0 {
			return c, fmt.Errorf("there is no column %q; there are %q", chosenNames[meaning], header)
		}
		if meaning = meaningOf(meaning); c.meaning[i] != "" {
			return c, fmt.Errorf("column %q cannot be %s and %s", header[i], c.meaning[i], meaning)
		}
		if err := set(meaning, i); err != nil {
			return c, err
		}
	}
	chosen := maps.Clone(at)
	names := usualNames()
	for i, name := range header {
		meaning := names[normalName(name)]
		_, taken := chosen[meaning]
		if c.meaning[i] != "" {
			continue
		}
		if _, item := chosen[other(meaning)]; meaning == "" || taken || item {
			c.unread = append(c.unread, name)
			continue
		}
		if err := set(meaning, i); err != nil {
			return c, err
		}
	}
	path, isPath := at[colPath]
	key, isKey := at[colKey]
	switch {
	case isPath && isKey:
		return c, fmt.Errorf("columns %q and %q may both name the item; say which with --column path=NAME or "+
			"--column key=NAME", header[path], header[key])
	case !isPath && !isKey:
		return c, fmt.Errorf("no column of %q names the item; say which does with --column path=NAME or --column key=NAME",
			header)
	}
	return c, nil
}

// other returns the alternative to a meaning that names items: the key for a path, and the path for a key.
func other(meaning string) string {
	switch meaning {
	case colPath:
		return colKey
	case colKey:
		return colPath
	}
	return ""
}

// meaningOf returns the meaning for a word of the user: one of Meanings, or an algorithm.
func meaningOf(word string) string {
	if slices.Contains(Meanings(), word) {
		return word
	}
	return schemas.AlgorithmName(word)
}

// entry parses one row. If it is invalid, reason is not empty.
func (c columns) entry(row []string, o Options) (e Entry, reason string) {
	e.Size = -1
	for i, value := range row {
		meaning := c.meaning[i]
		if value == "" && meaning != colPath && meaning != colKey {
			continue
		}
		switch meaning {
		case "":
		case colPath, colKey:
			e.Item, e.Key = value, meaning == colKey
		case colSpace:
			e.Space = value
		case colVersion:
			e.Version = value
		case colETag:
			e.ETag = value
		case colMedia:
			e.Media = value
		case colSize:
			e.Size, reason = readSize(value)
		case colModified:
			e.Time, reason = readTime(value, o.Zone)
		case colDigest:
			reason = e.add("", o.Algorithm, value)
		default:
			reason = e.add(meaning, "", value)
		}
		if reason != "" {
			return e, reason
		}
	}
	return e, ""
}

// add adds a digest. It returns a reason if the digest is invalid or contradicts another one of the row.
func (e *Entry) add(tag, wanted, value string) (reason string) {
	alg, hex, reason := digestOf(tag, wanted, value)
	if reason != "" {
		return reason
	}
	if d, ok := e.Digests[alg]; ok && d != hex {
		return "the row has two digests " + alg + " that differ"
	}
	if e.Digests == nil {
		e.Digests = digest.Set{}
	}
	e.Digests[alg] = hex
	return ""
}

func readSize(value string) (size int64, reason string) {
	size, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil || size < 0 {
		return 0, fmt.Sprintf("%.80q is not a size in bytes", value)
	}
	return size, ""
}

// readTime parses the times of tables: RFC 3339, HTTP dates, seconds or milliseconds since 1970, and times without a
// time zone, which are in zone.
func readTime(value string, zone *time.Location) (t time.Time, reason string) {
	value = strings.TrimSpace(value)
	for _, form := range []string{
		time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05 -0700", time.RFC1123, time.RFC1123Z,
	} {
		t, err := time.Parse(form, value)
		// Of zones by name, only UTC has a known offset.
		if name, offset := t.Zone(); err == nil && (form != time.RFC1123 || offset != 0 || name == "GMT" || name == "UTC") {
			return t.UTC(), ""
		}
	}
	for _, form := range []string{"2006-01-02T15:04:05", time.DateTime, time.DateOnly} {
		local := zone
		if local == nil {
			local = time.UTC
		}
		t, err := time.ParseInLocation(form, value, local)
		switch {
		case err != nil:
		case zone == nil:
			return time.Time{}, fmt.Sprintf("the time %q names no zone; say with --zone UTC, or a place, which is meant", value)
		default:
			return t.UTC(), ""
		}
	}
	whole, fraction, _ := strings.Cut(value, ".") // find -printf %T@
	n, err := strconv.ParseInt(whole, 10, 64)
	nanos, ok := readFraction(fraction)
	switch {
	case err != nil || n < 0 || !ok:
	case n < 1e11:
		return time.Unix(n, nanos).UTC(), ""
	case n < 1e14 && fraction == "":
		return time.UnixMilli(n).UTC(), ""
	}
	return time.Time{},
		fmt.Sprintf("%.80q is not a time such as 2006-01-02T15:04:05Z, nor seconds or milliseconds since 1970", value)
}

// readFraction parses the digits after the decimal point as nanoseconds.
func readFraction(digits string) (nanos int64, ok bool) {
	if digits == "" {
		return 0, true
	}
	n, err := strconv.ParseUint((digits + "000000000")[:9], 10, 32)
	return int64(n), err == nil && strings.Trim(digits, "0123456789") == ""
}
