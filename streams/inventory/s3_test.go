package inventory

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// s3CSVSchema is the fileSchema of the Amazon S3 User Guide, "Locating your inventory list".
const s3CSVSchema = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass, " +
	"IsMultipartUploaded, ReplicationStatus, EncryptionStatus"

// manifest is a manifest.json as in the guide's example, with its checksum and its files in data/.
func manifest(format, schema string, data ...string) map[string]string {
	var list []string
	all := map[string]string{}
	for i, content := range data {
		key := fmt.Sprintf("inventory/example-source-bucket/data/%d.%s", i, strings.ToLower(format))
		list = append(list, fmt.Sprintf(`{"key": %q, "size": %d, "MD5checksum": %q}`, key, len(content), md5Of(content)))
		all[fmt.Sprintf("data/%d.%s", i, strings.ToLower(format))] = content
	}
	m := fmt.Sprintf(`{
    "sourceBucket": "example-source-bucket",
    "destinationBucket": "arn:aws:s3:::example-inventory-destination-bucket",
    "version": "2016-11-30",
    "creationTimestamp" : "1514944800000",
    "fileFormat": %q,
    "fileSchema": %q,
    "files": [%s]
}`, format, schema, strings.Join(list, ", "))
	all["2018-01-03T02-00Z/manifest.json"], all["2018-01-03T02-00Z/manifest.checksum"] = m, md5Of(m)
	return all
}

func with(m map[string]string, name, content string) map[string]string {
	m = maps.Clone(m)
	m[name] = content
	return m
}

func without(m map[string]string, name string) map[string]string {
	m = maps.Clone(m)
	delete(m, name)
	return m
}

const s3Rows = `"example-source-bucket","photos/a+b%2Bc+%C3%BC.jpg","CZ1FU_LgfcRTXJZnEeFDIfU6rpBKYG4g","true",` +
	`"false","1048576","2016-08-11T02:11:10.000Z","d41d8cd98f00b204e9800998ecf8427e","STANDARD","false",` +
	`"COMPLETED","SSE-S3"` + "\n" +
	`"example-source-bucket","gone","V2","true","true","","2016-08-10T22:23:56.000Z","","","","",""` + "\n" +
	`"example-source-bucket","old","V1","false","false","1","2016-08-10T22:23:56.000Z",` +
	`"d41d8cd98f00b204e9800998ecf8427e","STANDARD","false","","NOT-SSE"` + "\n" +
	`"example-source-bucket","../parts//","null","true","false","6291456","2016-08-10T22:23:56.000Z",` +
	`"9c8af9a76df052144598c115ef33e511-2","STANDARD","true","","NOT-SSE"` + "\n" +
	`"example-source-bucket","kms","","","","0","2016-08-10T22:23:56.000Z",` +
	`"ab9503789e4af0669bcea10bc79d1ff7","STANDARD","false","","SSE-KMS"` + "\n"

func TestS3CSV(t *testing.T) {
	whole := manifest("CSV", s3CSVSchema, zipped(s3Rows),
		zipped(`"example-source-bucket","b","","","","7","2016-08-10T22:23:56.000Z","x","","","",""`+"\n"))
	good := []string{
		`0.csv:1 example-source-bucket|"photos/a b+c ü.jpg" key 1048576 md5:` + emptyMD5 +
			" 2016-08-11T02:11:10Z CZ1FU_LgfcRTXJZnEeFDIfU6rpBKYG4g " + emptyMD5,
		`0.csv:4 example-source-bucket|"../parts//" key 6291456 2016-08-10T22:23:56Z 9c8af9a76df052144598c115ef33e511-2`,
		`0.csv:5 example-source-bucket|"kms" key 0 2016-08-10T22:23:56Z ` + otherMD5,
		`1.csv:1 example-source-bucket|"b" key 7 2016-08-10T22:23:56Z x`,
	}
	const in, of = "2018-01-03T02-00Z", "2018-01-03T02-00Z/manifest.json"
	bad := zipped(`"b","%zz","","","","7","2016-08-10T22:23:56.000Z","x","","","",""` + "\n" + `"b","c"` + "\n" +
		`"b","d","","maybe","","7","2016-08-10T22:23:56.000Z","x","","","",""` + "\n" +
		`"b","","","","","7","2016-08-10T22:23:56.000Z","x","","","",""` + "\n" +
		`"b","e","","","","7","yesterday","x","","","",""` + "\n")
	short := manifest("CSV", s3CSVSchema, zipped(s3Rows)[:60])
	for name, c := range map[string]listing{
		"as Amazon puts them": {files: whole, open: in, want: good},
		"by the manifest":     {files: whole, open: of, want: good},
		"all in one folder":   {files: flat(whole), want: good},
		"without its sum":     {files: without(whole, in+"/manifest.checksum"), open: in, want: good},
		"a manifest with another": {files: with(whole, in+"/manifest.checksum", emptyMD5), open: in,
			want: []string{"~and manifest.checksum says " + `"` + emptyMD5}},
		"a file that is missing": {files: without(whole, "data/1.csv"), open: in,
			want: append(good[:3:3], "~names inventory/example-source-bucket/data/1.csv, which is in none of")},
		"a file of another length": {files: with(whole, "data/1.csv", "x"), open: in,
			want: append(good[:3:3], "~it has 1 bytes, and the manifest says")},
		"a file with another sum": {files: with(whole, "data/1.csv", swap(whole["data/1.csv"])), open: in,
			want: append(good[:3:3], good[3], "~its md5 is")},
		"a file that is cut short": {files: short, open: in, want: []string{"~the compressed file is cut short"}},
		"rows that are wrong": {files: manifest("CSV", s3CSVSchema, bad), open: in, want: []string{
			`! 0.csv:1 key "%zz" is not encoded as in a URL`, "! 0.csv:2 the row has 2 fields, and fileSchema 12",
			`! 0.csv:3 "maybe" is neither true nor false`, "! 0.csv:4 the row has no key",
			`~! 0.csv:5 "yesterday" is not a time`}},
		"Parquet": {files: manifest("Parquet", "message s3.inventory { required binary key (UTF8); }", "PAR1"), open: in,
			want: []string{`~fileFormat is "Parquet", and only CSV is supported; set the output format`}},
		"ORC": {files: manifest("ORC", "struct<key:string>", "ORC"), open: in,
			want: []string{`~fileFormat is "ORC", and only CSV is supported; set the output format`}},
		"not JSON": {files: map[string]string{"manifest.json": "x"},
			want: []string{"~it is not the JSON of an S3 Inventory"}},
		"a key of no file": {files: map[string]string{"manifest.json": `{"fileFormat": "CSV", "fileSchema": "Key", ` +
			`"files": [{"key": "data/.."}]}`},
			want: []string{`~"data/.." is not the key of a file`}},
		"nothing": {files: manifest("CSV", s3CSVSchema), open: in, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.format = S3
			c.run(t)
		})
	}
	l, err := Open(files(t, whole)+"/"+in, Options{})
	must(t, err)
	read(t, l)
	if got := l.Skipped(); !maps.Equal(got, map[string]int64{skippedOld: 1, skippedDeleted: 1}) {
		t.Errorf("passed over: %v", got)
	}
}

// flat puts all files in one folder.
func flat(m map[string]string) map[string]string {
	out := map[string]string{}
	for name, content := range m {
		out[name[strings.IndexByte(name, '/')+1:]] = content
	}
	return out
}

// swap changes the time in the header of a gzip file, which readers ignore.
func swap(s string) string {
	b := []byte(s)
	b[4] ^= 1
	return string(b)
}
