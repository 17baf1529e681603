package inventory

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	emptyMD5    = "d41d8cd98f00b204e9800998ecf8427e"
	emptySHA1   = "da39a3ee5e6b4b0d3255bfef95601890afd80709"
	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	emptySHA512 = "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce" +
		"47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"
	otherMD5 = "ab9503789e4af0669bcea10bc79d1ff7"
)

// files writes files of a new folder, and returns it.
func files(t testing.TB, all map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range all {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return dir
}

func zipped(content string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(content))
	z.Close()
	return b.String()
}

func md5Of(content string) string {
	sum := md5.Sum([]byte(content))
	return hex.EncodeToString(sum[:])
}

// formatEntry formats an entry: FILE:LINE SPACE|ITEM SIZE DIGESTS TIME.
func formatEntry(e Entry) string {
	words := []string{fmt.Sprintf("%s:%d %s|%q", filepath.Base(e.At.File), e.At.Line, e.Space, e.Item)}
	if e.Key {
		words[0] += " key"
	}
	if e.Size >= 0 {
		words = append(words, fmt.Sprintf("%d", e.Size))
	}
	for _, alg := range e.Digests.Algorithms() {
		words = append(words, alg+":"+e.Digests[alg])
	}
	if !e.Time.IsZero() {
		words = append(words, e.Time.UTC().Format(time.RFC3339Nano))
	}
	for _, w := range []string{e.Version, e.ETag, e.Media} {
		if w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

// read reads a listing twice, with the same result, and returns lines: entries, "! FILE:LINE REASON" for faults,
// and last "!! ERROR" if it ended with one.
func read(t testing.TB, l *Listing) []string {
	t.Helper()
	var both [2][]string
	for i := range both {
		for e, err := range l.Entries() {
			var f *Fault
			switch {
			case err == nil:
				both[i] = append(both[i], formatEntry(e))
			case errors.As(err, &f):
				both[i] = append(both[i], fmt.Sprintf("! %s:%d %s", filepath.Base(f.At.File), f.At.Line, f.Reason))
			default:
				both[i] = append(both[i], "!! "+err.Error())
			}
		}
	}
	if !slices.Equal(both[0], both[1]) {
		t.Errorf("two readings differ:\n%s\n\n%s", strings.Join(both[0], "\n"), strings.Join(both[1], "\n"))
	}
	return both[0]
}

// A listing is one test case: files, the one to open, and the expected lines.
type listing struct {
	files  map[string]string
	open   string // empty: the folder
	opts   Options
	format Format
	want   []string // equal, or, where they begin with ~, contained
}

func (c listing) run(t *testing.T) {
	dir := files(t, c.files)
	l, err := Open(filepath.Join(dir, c.open), c.opts)
	must(t, err)
	if l.Format() != c.format {
		t.Errorf("it is taken for %s, want %s", l.Format(), c.format)
	}
	got := read(t, l)
	for i := range max(len(got), len(c.want)) {
		switch {
		case i >= len(got):
			t.Errorf("missing: %s", c.want[i])
		case i >= len(c.want):
			t.Errorf("too much: %s", got[i])
		case strings.HasPrefix(c.want[i], "~"):
			if !strings.Contains(got[i], c.want[i][1:]) {
				t.Errorf("row %d:\n got %s\nwant %s", i, got[i], c.want[i])
			}
		case got[i] != c.want[i]:
			t.Errorf("row %d:\n got %s\nwant %s", i, got[i], c.want[i])
		}
	}
}

// Formats of md5sum and similar tools: GNU coreutils manual, "md5sum invocation"; FreeBSD md5(1); openssl-dgst(1);
// perl's shasum.
func TestSums(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		opts       Options
		want       []string
	}{
		"text mode": {"SHA256SUMS", emptySHA256 + "  a/b.txt\n", Options{},
			[]string{`SHA256SUMS:1 |"a/b.txt" sha256:` + emptySHA256}},
		"binary mode": {"x.md5", emptyMD5 + " *a b.iso\n", Options{}, []string{`x.md5:1 |"a b.iso" md5:` + emptyMD5}},
		"sha1 and sha512": {"x", emptySHA1 + "  a\n" + emptySHA512 + "  b\n", Options{},
			[]string{`x:1 |"a" sha1:` + emptySHA1, `x:2 |"b" sha512:` + emptySHA512}},
		"no last line end": {"x", emptyMD5 + "  a", Options{}, []string{`x:1 |"a" md5:` + emptyMD5}},
		"name with an escape": {"x", `\` + emptyMD5 + `  a\nb\\c\rd` + "\n", Options{}, []string{`x:1 |"a\nb\\c\rd" md5:` +
			emptyMD5}},
		"a wrong escape": {"x", emptyMD5 + "  a\n" + `\` + emptyMD5 + `  a\tb` + "\n", Options{},
			[]string{`x:1 |"a" md5:` + emptyMD5, `~! x:2 the name has the escape \t`}},
		"an escape cut short": {"x", emptyMD5 + "  a\n" + `\` + emptyMD5 + `  a\` + "\n", Options{},
			[]string{`x:1 |"a" md5:` + emptyMD5, `~! x:2 the name ends in the middle`}},
		"a backslash, no escape": {"x", emptyMD5 + `  a\b` + "\n", Options{},
			[]string{`x:1 |"a\\b" md5:` + emptyMD5}},
		"BSD tag": {"x", "SHA256 (a (1) = b.txt) = " + emptySHA256 + "\n", Options{},
			[]string{`x:1 |"a (1) = b.txt" sha256:` + emptySHA256}},
		"BSD tag, escaped": {"x", `\MD5 (a\nb) = ` + emptyMD5 + "\n", Options{}, []string{`x:1 |"a\nb" md5:` + emptyMD5}},
		"openssl":          {"x", "SHA1(a b)= " + emptySHA1 + "\n", Options{}, []string{`x:1 |"a b" sha1:` + emptySHA1}},
		"openssl 3": {"x", "SHA2-256(a)= " + emptySHA256 + "\n", Options{}, []string{`x:1 |"a" sha256:` +
			emptySHA256}},
		"BSD reversed": {"x", emptyMD5 + " a\n", Options{}, []string{`x:1 |"a" md5:` + emptyMD5}},
		"b2sum": {"b2sums.txt", emptySHA512 + "  a\n", Options{}, []string{`b2sums.txt:1 |"a" blake2b-512:` +
			emptySHA512}},
		"algorithm said": {"x", emptySHA256 + "  a\n", Options{Algorithm: "sha3-256"}, []string{`x:1 |"a" sha3-256:` +
			emptySHA256}},
		"algorithm said, and wrong": {"x", emptySHA256 + "  a\n", Options{Algorithm: "md5"},
			[]string{`! x:1 a digest of 64 digits is not a md5`}},
		"upper case": {"x", strings.ToUpper(emptyMD5) + "  A\n", Options{}, []string{`x:1 |"A" md5:` + emptyMD5}},
		"Windows line ends": {"x", emptyMD5 + " *a\r\n" + otherMD5 + " *b\r\n", Options{},
			[]string{`x:1 |"a" md5:` + emptyMD5, `x:2 |"b" md5:` + otherMD5}},
		"BOM":    {"x", "\xef\xbb\xbf" + emptyMD5 + "  a\n", Options{}, []string{`x:1 |"a" md5:` + emptyMD5}},
		"UTF-16": {"x", "\xff\xfe" + utf16(emptyMD5+"  ä\r\n"), Options{}, []string{`x:1 |"ä" md5:` + emptyMD5}},
		"comments and blanks": {"x", "# made by hand\n\n" + emptyMD5 + "  a\n  \n", Options{},
			[]string{`x:3 |"a" md5:` + emptyMD5}},
		"gzipped": {"x.gz", zipped(emptyMD5 + "  a\n"), Options{}, []string{`x.gz:1 |"a" md5:` + emptyMD5}},
		"cut short": {"x.gz", zipped(emptyMD5 + "  a\n")[:40], Options{Format: Sums},
			[]string{"~the compressed file is cut short"}},
		"gzip with a wrong sum": {"x.gz", spoilt(zipped(emptyMD5 + "  a\n")), Options{Format: Sums},
			[]string{`x.gz:1 |"a" md5:` + emptyMD5, "~decompress: gzip: invalid checksum"}},
		"NUL": {"x", emptyMD5 + "  a\n" + emptyMD5 + "  a\x00" + emptyMD5 + "  b\n", Options{},
			[]string{`x:1 |"a" md5:` + emptyMD5, "~! x:2 the line has a NUL byte"}},
		"not UTF-8": {"x", emptyMD5 + "  a\n" + emptyMD5 + "  \xff\n", Options{}, []string{`x:1 |"a" md5:` + emptyMD5,
			"! x:2 the line is not UTF-8"}},
		"no name": {"x", emptyMD5 + "  a\n" + emptyMD5 + "  \n", Options{}, []string{`x:1 |"a" md5:` + emptyMD5,
			"! x:2 there is no name after the sum"}},
		"stdin": {"x", emptyMD5 + "  -\n", Options{Format: Sums}, []string{"~! x:1 it is the sum of standard input"}},
		"odd length": {"x", emptyMD5 + "  a\n" + emptyMD5 + "0  b\n", Options{}, []string{`x:1 |"a" md5:` + emptyMD5,
			"! x:2 no algorithm has digests of 33 digits"}},
		"garbage": {"x", emptyMD5 + "  a\nhello\n" + otherMD5 + "  b\n", Options{}, []string{`x:1 |"a" md5:` +
			emptyMD5, "~! x:2 it is not a line of sums", `x:3 |"b" md5:` + otherMD5}},
		"a long line": {"x", emptyMD5 + "  a\n" + emptyMD5 + "  " + strings.Repeat("x", maxLine) + "\n" + otherMD5 +
			"  b\n", Options{}, []string{`x:1 |"a" md5:` + emptyMD5, "~! x:2 the line is longer", `x:3 |"b" md5:` + otherMD5}},
		"nothing":      {"x", "", Options{Format: Sums}, nil},
		"leading dots": {"x", emptyMD5 + "  ./a/b\n", Options{}, []string{`x:1 |"./a/b" md5:` + emptyMD5}},
	} {
		t.Run(name, func(t *testing.T) {
			listing{files: map[string]string{c.file: c.text}, open: c.file, opts: c.opts, format: Sums, want: c.want}.run(t)
		})
	}
}

func utf16(s string) string {
	var b strings.Builder
	for _, r := range s {
		b.WriteByte(byte(r))
		b.WriteByte(byte(r >> 8))
	}
	return b.String()
}

// spoilt changes the checksum at the end of a gzip file.
func spoilt(s string) string {
	b := []byte(s)
	b[len(b)-6] ^= 1
	return string(b)
}

// Tables: RFC 4180, and the output of spreadsheets and archive tools.
func TestTables(t *testing.T) {
	const day = "2020-01-02T03:04:05Z"
	for name, c := range map[string]struct {
		file, text string
		opts       Options
		format     Format
		want       []string
	}{
		"csv": {"l.csv", "path,size,md5,sha256,modified\na/b,0," + emptyMD5 + "," + emptySHA256 + "," + day + "\n",
			Options{}, CSV,
			[]string{`l.csv:2 |"a/b" 0 md5:` + emptyMD5 + " sha256:" + emptySHA256 + " " + day}},
		"usual names, other case": {"l.csv", "File Path,Size (old),Content-MD5,Last Modified,MIME Type,Bytes\na,x," +
			emptyMD5 + "," + day + ",text/plain,7\n", Options{}, CSV,
			[]string{`l.csv:2 |"a" 7 md5:` + emptyMD5 + " " + day + " text/plain"}},
		"semicolons": {"l.csv", "name;size\r\n\"a;b\";5\r\n", Options{}, CSV, []string{`l.csv:2 |"a;b" 5`}},
		"a delimiter that is said": {"l.csv", "name|size\na,b|5\n", Options{Delimiter: '|'}, CSV,
			[]string{`l.csv:2 |"a,b" 5`}},
		"quotes and line ends": {"l.csv", "key,size\n\"a \"\"b\"\"\nc\",5\nd,6\n", Options{}, CSV,
			[]string{`l.csv:2 |"a \"b\"\nc" key 5`, `l.csv:4 |"d" key 6`}},
		"tsv": {"l.tsv", "item\tspace\tsize\tsha1\na \"b\tmaps\t9\t" + emptySHA1 + "\n", Options{},
			TSV, []string{`l.tsv:2 maps|"a \"b" key 9 sha1:` + emptySHA1}},
		"tsv with quotes": {"l.tsv", "item\tsize\n\"a\"\t9\nb\t1\n", Options{}, TSV,
			[]string{"~! l.tsv:2 a field is in quotes", `l.tsv:3 |"b" key 1`}},
		"csv with tabs": {"l.tsv", "item\tsize\n\"a\"\t9\n", Options{Format: CSV, Delimiter: '\t'}, CSV,
			[]string{`l.tsv:2 |"a" key 9`}},
		"columns that are said": {"l.csv", "where,what,sum\na,x," + emptySHA256 + "\n",
			Options{Columns: map[string]string{"path": "where", "sha256": "sum"}}, CSV,
			[]string{`l.csv:2 |"a" sha256:` + emptySHA256}},
		"one of two names": {"l.csv", "path,name\na/b,b\n", Options{Columns: map[string]string{"key": "name"}}, CSV,
			[]string{`l.csv:2 |"b" key`}},
		"sums that do not say": {"l.csv", "path,checksum\na," + emptySHA256 + "\n",
			Options{Columns: map[string]string{"digest": "checksum"}}, CSV,
			[]string{`l.csv:2 |"a" sha256:` + emptySHA256}},
		"missing values": {"l.csv", "path,size,md5,mtime\na,,,\n", Options{}, CSV, []string{`l.csv:2 |"a"`}},
		"short and long": {"l.csv", "path,size\na\nb,1,2\nc,3\n", Options{}, CSV,
			[]string{"! l.csv:2 the row has 1 fields, and the header 2", "! l.csv:3 the row has 3 fields, and the header 2",
				`l.csv:4 |"c" 3`}},
		"bad size": {"l.csv", "path,size\na,-1\nb,\"1,000\"\nc,99999999999999999999\n", Options{}, CSV,
			[]string{`! l.csv:2 "-1" is not a size in bytes`, `! l.csv:3 "1,000" is not a size in bytes`,
				`! l.csv:4 "99999999999999999999" is not a size in bytes`}},
		"bad digest": {"l.csv", "path,md5\na,1B2M2Y8AsgTpgAmY7PhCfg==\nb," + emptySHA1 + "\n", Options{},
			CSV, []string{`! l.csv:2 "1B2M2Y8AsgTpgAmY7PhCfg==" is not a digest in hexadecimal`,
				"! l.csv:3 a digest of 40 digits is not a md5"}},
		"times": {"l.csv",
			"path,mtime\na,1577934245\nb,1577934245.5\nc,1577934245123\nd,\"Thu, 02 Jan 2020 03:04:05 GMT\"\ne,2020-01-02 " +
				"03:04:05+01:00\n", Options{}, CSV, []string{`l.csv:2 |"a" ` + day, `l.csv:3 |"b" 2020-01-02T03:04:05.5Z`,
				`l.csv:4 |"c" 2020-01-02T03:04:05.123Z`, `l.csv:5 |"d" ` + day, `l.csv:6 |"e" 2020-01-02T02:04:05Z`}},
		"no zone": {"l.csv", "path,mtime\na,2020-01-02 03:04:05\n", Options{}, CSV,
			[]string{"~! l.csv:2 the time \"2020-01-02 03:04:05\" names no zone"}},
		"a zone": {"l.csv", "path,mtime\na,2020-01-02 03:04:05\nb,2020-01-02\n",
			Options{Zone: time.FixedZone("CET", 3600)}, CSV, []string{`l.csv:2 |"a" 2020-01-02T02:04:05Z`,
				`l.csv:3 |"b" 2020-01-01T23:00:00Z`}},
		"a zone by name": {"l.csv", "path,mtime\na,\"Thu, 02 Jan 2020 03:04:05 PST\"\nb,yesterday\n", Options{},
			CSV, []string{"~! l.csv:2 \"Thu, 02 Jan 2020 03:04:05 PST\" is not a time",
				"~! l.csv:3 \"yesterday\" is not a time"}},
		"a bare quote": {"l.csv", "path,size\na\"b,1\nc,2\n", Options{}, CSV,
			[]string{"~! l.csv:2 bare \" in non-quoted", `l.csv:3 |"c" 2`}},
		"a quote left open": {"l.csv", "path,size\na,1\n\"b,2\nc,3\n", Options{}, CSV,
			[]string{`l.csv:2 |"a" 1`, "~l.csv:3: a quote that is opened there is not closed"}},
		"a quote left open in much": {"l.csv", "path,size\na,1\n\"b,2\n" + strings.Repeat("c,3\n", maxLine), Options{},
			CSV, []string{`l.csv:2 |"a" 1`, "~a quote is not closed there or further on"}},
		"not UTF-8 and NUL": {"l.csv", "path,size\n\xff,1\na\x00,2\nb,3\n", Options{}, CSV,
			[]string{"! l.csv:2 the line is not UTF-8", "! l.csv:3 the row has a NUL byte", `l.csv:4 |"b" 3`}},
		"BOM": {"l.csv", "\xef\xbb\xbfpath,size\r\na,1\r\n", Options{}, CSV,
			[]string{`l.csv:2 |"a" 1`}},
		"UTF-16": {"l.txt", "\xff\xfe" + utf16("path\tsize\r\nä\t1\r\n"), Options{}, TSV,
			[]string{`l.txt:2 |"ä" 1`}},
		"only a header": {"l.csv", "path,size\n", Options{}, CSV, nil},
		"nothing":       {"l.csv", "", Options{Format: CSV}, CSV, nil},
		"header unreadable": {"l.csv", "path,\"size\na,1\n", Options{Format: CSV}, CSV,
			[]string{"~!! damaged listing: "}},
		// DuraCloud's TsvManifestFormatter, ExtendedTsvManifestFormatter and BagitManifestFormatter.
		"DuraCloud": {"m.tsv", "space-id\tcontent-id\tMD5\nphotos\t/a//b c.jpg\t" + emptyMD5 + "\n", Options{}, DuraCloud,
			[]string{`m.tsv:2 photos|"/a//b c.jpg" key md5:` + emptyMD5}},
		"DuraCloud, extended": {"m.tsv", "space-id\tcontent-id\tMD5\tcontent-size\tmime-type\nphotos\ta\t" + emptyMD5 +
			"\t0\ttext/plain\n", Options{}, DuraCloud,
			[]string{`m.tsv:2 photos|"a" key 0 md5:` + emptyMD5 + " text/plain"}},
		"DuraCloud, BagIt form": {"m.txt", emptyMD5 + "  photos/a/b.jpg\n" + emptyMD5 + "  photos\n",
			Options{Format: DuraCloud}, DuraCloud,
			[]string{`m.txt:1 photos|"a/b.jpg" key md5:` + emptyMD5, "~! m.txt:2 it is not a line of a DuraCloud manifest"}},
	} {
		t.Run(name, func(t *testing.T) {
			listing{files: map[string]string{c.file: c.text}, open: c.file, opts: c.opts, format: c.format, want: c.want}.run(t)
		})
	}
}

// An unknown or ambiguous format is an error with the possible formats.
func TestOpenRefuses(t *testing.T) {
	sum := emptyMD5 + "  data/a\n"
	for name, c := range map[string]struct {
		files map[string]string
		open  string
		opts  Options
		want  string
	}{
		"empty": {map[string]string{"x": " \n"}, "x", Options{}, "is empty"},
		"garbage": {map[string]string{"x": "hello world\n"}, "x", Options{},
			"has no known format (sums, csv,"},
		"a manifest, and no bag": {map[string]string{"manifest-md5.txt": sum}, "manifest-md5.txt", Options{},
			"may be bagit, sums; say which with --format"},
		"two columns": {map[string]string{"x": "path,filename\na,b\n"}, "x", Options{},
			`columns "path" and "filename" may both be the path; say which with --column path=NAME`},
		"a path and a key": {map[string]string{"x": "path,key\na,b\n"}, "x", Options{}, `may both name the item`},
		"no item": {map[string]string{"x": "size,md5\n1,b\n"}, "x", Options{},
			`no column of ["size" "md5"] names the item`},
		"no such column": {map[string]string{"x": "path,md5\n1,b\n"}, "x",
			Options{Columns: map[string]string{"sha1": "Sum"}}, `there is no column "Sum"`},
		"a column for two things": {map[string]string{"x": "path,sum\n1,b\n"}, "x",
			Options{Columns: map[string]string{"sha1": "sum", "md5": "sum"}}, `column "sum" cannot be`},
		"tabs and commas": {map[string]string{"x": "path,size\tpath\n1,b\t2\n"}, "x",
			Options{Columns: map[string]string{"size": "path"}}, `names the item`},
		"ORC":     {map[string]string{"x.orc": "ORC\n..."}, "x.orc", Options{}, "ORC are not supported; set the output"},
		"Parquet": {map[string]string{"x": "PAR1..."}, "x", Options{}, "Parquet and ORC are not supported; set"},
		"hashdeep": {map[string]string{"x": "%%%% HASHDEEP-1.0\n%%%% size,md5,sha256,filename\n"}, "x",
			Options{}, "hashdeep's own format is not supported"},
		"other JSON": {map[string]string{"x": `{"a": 1}`}, "x", Options{}, "neither an OCFL inventory nor"},
		"both JSON": {map[string]string{"x": `{"digestAlgorithm": 1, "sourceBucket": 2}`}, "x", Options{},
			"may be ocfl, s3-inventory"},
		"a folder of nothing": {map[string]string{"x": "y"}, "", Options{}, "holds no bagit.txt"},
		"a folder of two": {map[string]string{"bagit.txt": "y", "inventory.json": "z"}, "", Options{},
			"may be bagit, ocfl"},
		"no such form": {map[string]string{"x": "y"}, "x", Options{Format: "xml"},
			`there is no format "xml"; there are sums,`},
		"cut short": {map[string]string{"x.gz": zipped(sum)[:9]}, "x.gz", Options{}, "cut short"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(filepath.Join(files(t, c.files), c.open), c.opts)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!errors.Is(err, ErrFormat) && !errors.Is(err, ErrInvalid) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := Open(os.DevNull, Options{}); !errors.Is(err, ErrFormat) {
		t.Errorf("a file that cannot be read twice: %v", err)
	}
}

// A file that has changed between two readings is an error.
func TestChanged(t *testing.T) {
	path := filepath.Join(files(t, map[string]string{"x": emptyMD5 + "  a\n"}), "x")
	l, err := Open(path, Options{})
	must(t, err)
	read(t, l)
	must(t, os.WriteFile(path, []byte(emptyMD5+"  a\n"+otherMD5+"  b\n"), 0o644))
	for _, err := range l.Entries() {
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "was changed") {
			t.Errorf("got %v", err)
		}
	}
}

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
