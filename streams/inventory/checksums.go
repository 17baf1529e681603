package inventory

import (
	"encoding/base64"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"strings"

	"github.com/millrace/millrace/streams/digest"
)

// A ComputedRow is a row of the completion report of a job of S3 Batch Operations that has computed checksums (Amazon
// S3 User Guide, "Examples: S3 Batch Operations completion reports").
type ComputedRow struct {
	At     Position
	Bucket string
	// Keys are the key as it is and, first, decoded from the form of URLs if that is another one. A manifest has keys in
	// that form, and the guide does not say which form reports have.
	Keys    []string
	Version string // the version id; empty if the object has none, or the manifest of the job had none
	ETag    string
	Digests digest.Set // of the whole object; empty if the checksum was computed from those of parts
	Failed  string     // the error of a task that failed; then there are no digests
}

// reportColumns are Bucket, Key, VersionId, TaskStatus, then ErrorCode and HTTPStatusCode, which the examples of the
// guide have the other way round than its schema and which are not needed, and ResultMessage.
const reportColumns = 7

// A computedMessage is the ResultMessage of a task that has computed a checksum.
type computedMessage struct {
	Base64    string `json:"checksum_base64"`
	Hex       string `json:"checksum_hex"`
	ETag      string `json:"etag"`
	Algorithm string `json:"checksumAlgorithm"`
	Type      string `json:"checksumType"` // FULL_OBJECT, or COMPOSITE: of the checksums of parts
}

// ComputedRows reads a completion report. The first row that is not one of such a report ends it with an error that
// wraps ErrInvalid; name is in the error.
func ComputedRows(name string, r io.Reader) iter.Seq2[ComputedRow, error] {
	return func(yield func(ComputedRow, error) bool) {
		rows := csv.NewReader(r)
		// The messages of failed tasks have quotes that are not doubled, and so further columns.
		rows.LazyQuotes, rows.FieldsPerRecord, rows.ReuseRecord = true, -1, true
		for {
			fields, err := rows.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				var parse *csv.ParseError
				if errors.As(err, &parse) {
					err = invalid(Position{name, int64(parse.Line)}, "%w", err)
				}
				yield(ComputedRow{}, err)
				return
			}
			line, _ := rows.FieldPos(0)
			row, err := computedRow(Position{name, int64(line)}, fields)
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

func computedRow(at Position, fields []string) (r ComputedRow, err error) {
	if len(fields) < reportColumns {
		return r, invalid(at, "it has %d columns, and rows of a completion report %d", len(fields), reportColumns)
	}
	r = ComputedRow{At: at, Bucket: fields[0], Keys: []string{fields[1]}, Version: fields[2]}
	if decoded, err := url.QueryUnescape(fields[1]); err == nil && decoded != fields[1] {
		r.Keys = []string{decoded, fields[1]}
	}
	if r.Version == "null" {
		r.Version = ""
	}
	switch status := fields[3]; status {
	case "succeeded":
	case "failed":
		r.Failed = strings.Join(fields[4:], ",")
		return r, nil
	default:
		return r, invalid(at, "the status of its task is %.40q, not succeeded or failed", status)
	}
	var m computedMessage
	if err := json.Unmarshal([]byte(fields[6]), &m); err != nil || m.Algorithm == "" {
		return r, invalid(at, "its message is not that of a computed checksum: %.200q", fields[6])
	}
	sum, err := m.sum()
	if err != nil {
		return r, invalid(at, "%w", err)
	}
	r.ETag = strings.Trim(m.ETag, `"`)
	if m.Type == "FULL_OBJECT" {
		r.Digests = sum
	}
	return r, nil
}

// sum returns the checksum, which the message has in two forms.
func (m computedMessage) sum() (digest.Set, error) {
	value := strings.ToLower(m.Hex)
	if m.Base64 != "" {
		raw, err := base64.StdEncoding.DecodeString(m.Base64)
		if err != nil {
			return nil, fmt.Errorf("checksum_base64 is %q: %w", m.Base64, err)
		}
		if text := hex.EncodeToString(raw); value == "" {
			value = text
		} else if value != text {
			return nil, fmt.Errorf("checksum_hex is %s, and checksum_base64 is %s", m.Hex, m.Base64)
		}
	}
	sum := digest.Set{strings.ToLower(m.Algorithm): value}
	return sum, sum.Validate()
}
