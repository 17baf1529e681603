package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/digest"
)

// The sample has the rows of the examples in the Amazon S3 User Guide: the message of a failed task has quotes that are
// not doubled, and ends its row.
func TestComputedRows(t *testing.T) {
	file, err := os.Open(filepath.Join("testdata", "compute-checksum.csv"))
	must(t, err)
	defer file.Close()
	at := func(line int64) Position { return Position{"r", line} }
	const bucket, hello = "archive-bucket", "5d41402abc4b2a76b9719d911017c592"
	want := []ComputedRow{
		{At: at(1), Bucket: bucket, Keys: []string{"archive/photos/one.tif"},
			ETag: "3c3c1813042989094598e4b57ecbdc82-2", Digests: digest.Set{"md5": hello}},
		{At: at(2), Bucket: bucket, Keys: []string{"archive/photos/two words/a.tif", "archive/photos/two+words%2Fa.tif"},
			Version: "3HL4kqtJlcpXroDTDmJ", ETag: "3c3c1813042989094598e4b57ecbdc82",
			Digests: digest.Set{"crc32": "6d2f5339"}},
		{At: at(3), Bucket: bucket, Keys: []string{"archive/photos/parts.tif"}, ETag: "3c3c1813042989094598e4b57ecbdc82-7"},
		{At: at(4), Bucket: bucket, Keys: []string{"archive/photos/gone.tif"},
			Failed: `200,PermanentFailure,error details: {"failureMessage":"Task 2845ca0d-38d9-4c4b-abcf-379dc749c452 ` +
				`Key not found, ""errorCode"": ""404""}"`},
		{At: at(5), Bucket: bucket, Keys: []string{"archive/photos/last.tif"}, ETag: "e",
			Digests: digest.Set{"crc64nvme": "00d4ecbff7c85aca"}},
	}
	var got []ComputedRow
	for row, err := range ComputedRows("r", file) {
		must(t, err)
		got = append(got, row)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

// A row that is not one of a completion report of computed checksums ends the report.
func TestComputedRowsOfAnotherFile(t *testing.T) {
	const sound = `b,k,,succeeded,200,,"{""checksumAlgorithm"":""MD5"",""checksumType"":""FULL_OBJECT"",` +
		`""checksum_hex"":""5d41402abc4b2a76b9719d911017c592""}"` + "\n"
	message := func(text string) string {
		return `b,k,,succeeded,200,,"` + strings.ReplaceAll(text, `"`, `""`) + "\"\n"
	}
	for name, tt := range map[string]struct{ row, want string }{
		"few columns":    {"b,k\n", "it has 2 columns"},
		"a header":       {"Bucket,Key,VersionId,TaskStatus,ErrorCode,HTTPStatusCode,ResultMessage\n", `is "TaskStatus"`},
		"of another job": {message("{u'CopySourceVersionId': 'x'}"), "not that of a computed checksum"},
		"no algorithm":   {message(`{"checksum_hex":"6D2F5339"}`), "not that of a computed checksum"},
		"no checksum":    {message(`{"checksumAlgorithm":"MD5"}`), "wrong length"},
		"a short one":    {message(`{"checksumAlgorithm":"MD5","checksum_hex":"6D2F5339"}`), "wrong length"},
		"not base64":     {message(`{"checksumAlgorithm":"CRC32","checksum_base64":"?"}`), "checksum_base64"},
		"forms that differ": {message(`{"checksumAlgorithm":"CRC32","checksum_hex":"6D2F5338","checksum_base64":"bS9TOQ=="}`),
			"checksum_hex is 6D2F5338"},
		"an open quote": {`b,k,,succeeded,200,,"{`, "not that of a computed checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			var failed error
			for _, err := range ComputedRows("r", strings.NewReader(sound+tt.row+sound)) {
				if n++; err != nil {
					failed = err
				}
			}
			if n != 2 || !errors.Is(failed, ErrInvalid) || !strings.Contains(failed.Error(), tt.want) ||
				!strings.Contains(failed.Error(), "r:2") {
				t.Errorf("%d rows, %v, want an error in the second: %s", n, failed, tt.want)
			}
		})
	}
}
