package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

var changes = []*pb.Change{
	{Id: "01", Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a\tb\n\\c \"d\", é",
		Digests: map[string]string{"sha256": "ff", "md5": "aa"}, Size: 7, MediaType: "text/plain",
		Properties: map[string]string{"b": "<2>", "a": "1"}, User: "ann", Origin: pb.Origin_ORIGIN_CLIENT,
		Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Time:       timestamppb.New(time.Date(2026, 3, 4, 5, 6, 7, 891_999_999, time.FixedZone("", 3600)))},
	{Id: "02", Op: pb.Op_OP_COPY, Account: "acme", Store: "1", Space: "photos", Item: "copy", SizeUnknown: true,
		SourceSpace: "old", SourceItem: "source"},
	{Id: "03", Op: pb.Op_OP_DELETE, Account: "acme", Store: "2", Space: "photos", Item: "gone", Size: 9},
	{Id: "04", Op: pb.Op_OP_SET_ACL, Account: "acme", Store: "2", Space: "photos",
		Acl: map[string]string{"group": "READ"}},
}

func write(t *testing.T, f Format) string {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b, changes); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTSV(t *testing.T) {
	want := strings.Join([]string{
		"account\tstore-id\tspace-id\tcontent-id\tcontent-md5\tcontent-size\tcontent-mimetype\tcontent-properties\t" +
			"space-acls\tsource-space-id\tsource-content-id\ttimestamp\taction\tusername",
		`acme	1	photos	a\tb\n\\c "d", é	aa	7	text/plain	{"a":"1","b":"\\u003c2\\u003e"}				` +
			"2026-03-04T04:06:07.891Z\tADD_CONTENT\tann",
		"acme\t1\tphotos\tcopy\t\t\t\t\t\told\tsource\t\tCOPY_CONTENT\t",
		"acme\t2\tphotos\tgone\t\t\t\t\t\t\t\t\tDELETE_CONTENT\t",
		"acme\t2\tphotos\t\t\t\t\t\t{\"group\":\"READ\"}\t\t\t\tSET_SPACE_ACLS\t",
	}, "\n") + "\n"
	if got := write(t, TSV); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Every operation has a name in the 14 columns.
func TestActions(t *testing.T) {
	for n := range pb.Op_name {
		if op := pb.Op(n); op != pb.Op_OP_UNSPECIFIED && actions[op] == "" {
			t.Errorf("%v has no name", op)
		}
	}
}

func TestCSV(t *testing.T) {
	rows, err := csv.NewReader(strings.NewReader(write(t, CSV))).ReadAll()
	if err != nil || len(rows) != len(changes)+1 {
		t.Fatalf("read %d rows, %v", len(rows), err)
	}
	columns := map[string]string{}
	for i, name := range rows[0] {
		columns[name] = rows[1][i]
	}
	for name, want := range map[string]string{"id": "01", "time": "2026-03-04T04:06:07.891Z", "op": "add",
		"item": changes[0].GetItem(), "size": "7", "digests": `{"md5":"aa","sha256":"ff"}`, "provenance": "verified",
		"origin": "client", "user": "ann", "acl": "", "approved": ""} {
		if columns[name] != want {
			t.Errorf("%s: got %q, want %q", name, columns[name], want)
		}
	}
}

func TestJSONLines(t *testing.T) {
	lines := strings.SplitAfter(write(t, JSONLines), "\n")
	if len(lines) != len(changes)+1 || lines[len(changes)] != "" {
		t.Fatalf("wrote %q", lines)
	}
	for i, c := range changes {
		var got pb.Change
		if err := protojson.Unmarshal([]byte(lines[i]), &got); err != nil || !proto.Equal(&got, c) {
			t.Errorf("line %d: %v, %v, want %v", i, &got, err, c)
		}
		var b bytes.Buffer
		if err := json.Compact(&b, []byte(lines[i])); err != nil || b.String()+"\n" != lines[i] {
			t.Errorf("line %d is not compact: %q, %v", i, lines[i], err)
		}
	}
}

func TestUnknownFormat(t *testing.T) {
	if err := Format("xml").Write(new(bytes.Buffer), changes); err == nil {
		t.Error("it was written")
	}
	for _, f := range Formats() {
		write(t, f)
	}
}

func TestParquet(t *testing.T) {
	text := write(t, Parquet)
	rows, err := parquet.Read[parquetRow](strings.NewReader(text), int64(len(text)))
	if err != nil || len(rows) != len(changes) {
		t.Fatalf("read %d rows, %v", len(rows), err)
	}
	first := rows[0]
	if first.ID != "01" || first.Item != changes[0].GetItem() || first.Size == nil || *first.Size != 7 ||
		!maps.Equal(first.Digests, changes[0].GetDigests()) || !maps.Equal(first.Properties, changes[0].GetProperties()) ||
		!first.Time.Equal(changes[0].GetTime().AsTime().Truncate(time.Millisecond)) || first.Op != "add" {
		t.Errorf("got %+v", first)
	}
	if rows[1].Size != nil || rows[2].Size != nil {
		t.Errorf("sizes that are not known: %v, %v", rows[1].Size, rows[2].Size)
	}
}
