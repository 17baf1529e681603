// Package export writes changes of the audit log as files that other programs read.
package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A Format is the form of a file, and the extension of its name.
type Format string

// The formats.
const (
	TSV       Format = "tsv"   // the 14 columns of the audit logs of DuraCloud, with their names as the first line
	CSV       Format = "csv"   // all fields, by RFC 4180, with the names of the columns as the first line
	JSONLines Format = "jsonl" // all fields, a JSON object in each line
	Parquet   Format = "parquet"
)

// Formats returns all formats.
func Formats() []Format { return []Format{TSV, CSV, JSONLines, Parquet} }

// Write writes changes in their order.
func (f Format) Write(w io.Writer, changes []*pb.Change) error {
	switch f {
	case TSV:
		return writeTSV(w, changes)
	case CSV:
		return writeCSV(w, changes)
	case JSONLines:
		return writeJSONLines(w, changes)
	case Parquet:
		return writeParquet(w, changes)
	}
	return fmt.Errorf("no such format: %q", f)
}

// timeForm is the form of times: UTC, with milliseconds.
const timeForm = "2006-01-02T15:04:05.000Z"

// actions are the names of operations in the audit logs of DuraCloud.
var actions = map[pb.Op]string{
	pb.Op_OP_ADD: "ADD_CONTENT", pb.Op_OP_UPDATE: "ADD_CONTENT", pb.Op_OP_COPY: "COPY_CONTENT",
	pb.Op_OP_DELETE: "DELETE_CONTENT", pb.Op_OP_SET_PROPERTIES: "SET_CONTENT_PROPERTIES",
	pb.Op_OP_CREATE_SPACE: "CREATE_SPACE", pb.Op_OP_DELETE_SPACE: "DELETE_SPACE", pb.Op_OP_SET_ACL: "SET_SPACE_ACLS",
	pb.Op_OP_SET_SPACE_PROPERTIES: "SET_SPACE_PROPERTIES", pb.Op_OP_READ: "READ_CONTENT",
}

// tsvEscaper keeps a value in its column and its line.
var tsvEscaper = strings.NewReplacer("\\", "\\\\", "\t", "\\t", "\n", "\\n", "\r", "\\r")

func writeTSV(w io.Writer, changes []*pb.Change) error {
	var b bytes.Buffer
	row := func(columns ...string) {
		for i, c := range columns {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(tsvEscaper.Replace(c))
		}
		b.WriteByte('\n')
	}
	row("account", "store-id", "space-id", "content-id", "content-md5", "content-size", "content-mimetype",
		"content-properties", "space-acls", "source-space-id", "source-content-id", "timestamp", "action", "username")
	for _, c := range changes {
		row(c.GetAccount(), c.GetStore(), c.GetSpace(), c.GetItem(), c.GetDigests()["md5"], sizeOf(c), c.GetMediaType(),
			object(c.GetProperties()), object(c.GetAcl()), c.GetSourceSpace(), c.GetSourceItem(), timeOf(c),
			actions[c.GetOp()], c.GetUser())
	}
	_, err := w.Write(b.Bytes())
	return err
}

func writeCSV(w io.Writer, changes []*pb.Change) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"id", "time", "op", "account", "store", "space", "item", "source_space", "source_item", "version",
		"etag", "size", "digests", "provenance", "media_type", "properties", "acl", "user", "agent", "origin", "cause",
		"approved", "evidence"}}
	for _, c := range changes {
		rows = append(rows, []string{c.GetId(), timeOf(c), name(c.GetOp().String(), "OP_"), c.GetAccount(), c.GetStore(),
			c.GetSpace(), c.GetItem(), c.GetSourceSpace(), c.GetSourceItem(), c.GetVersion(), c.GetEtag(), sizeOf(c),
			object(c.GetDigests()), name(c.GetProvenance().String(), "PROVENANCE_"), c.GetMediaType(),
			object(c.GetProperties()), object(c.GetAcl()), c.GetUser(), c.GetAgent(), name(c.GetOrigin().String(), "ORIGIN_"),
			c.GetCause(), c.GetApproved(), object(c.GetEvidence())})
	}
	return out.WriteAll(rows)
}

func writeJSONLines(w io.Writer, changes []*pb.Change) error {
	var b bytes.Buffer
	for _, c := range changes {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(c)
		if err != nil {
			return fmt.Errorf("write change %s as JSON: %w", c.GetId(), err)
		}
		if err := json.Compact(&b, text); err != nil { // protojson varies the spaces
			return fmt.Errorf("write change %s as JSON: %w", c.GetId(), err)
		}
		b.WriteByte('\n')
	}
	_, err := w.Write(b.Bytes())
	return err
}

// hasSize reports whether a change has a content, of known size.
func hasSize(c *pb.Change) bool {
	switch c.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		return !c.GetSizeUnknown()
	}
	return false
}

// sizeOf returns the size of the content of a change; "" if it has none.
func sizeOf(c *pb.Change) string {
	if !hasSize(c) {
		return ""
	}
	return strconv.FormatInt(c.GetSize(), 10)
}

func timeOf(c *pb.Change) string {
	if c.GetTime() == nil {
		return ""
	}
	return c.GetTime().AsTime().Truncate(time.Millisecond).Format(timeForm)
}

// object returns values as a JSON object; "" if there are none.
func object(values map[string]string) string {
	if len(values) == 0 {
		return ""
	}
	text, _ := json.Marshal(values) // a map of texts has a JSON form
	return string(text)
}

// name returns the name of a value of an enum in lower case, "" for the unspecified one.
func name(value, prefix string) string {
	if value = strings.ToLower(strings.TrimPrefix(value, prefix)); value == "unspecified" {
		return ""
	}
	return value
}
