package inventory

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// The object of ocfl.io/1.1/spec, example "Versioned Object" (digests shortened there; here whole).
func ocflExample() (inventory, sidecar string) {
	a, b, c := strings.Repeat("a1", 64), strings.Repeat("B2", 64), strings.Repeat("c3", 64)
	inventory = `{
  "digestAlgorithm": "sha512",
  "fixity": {
    "md5": {"` + emptyMD5 + `": ["v1/content/empty.txt"], "` +
		strings.ToUpper(otherMD5) + `": ["v1/content/foo/bar.xml"]},
    "sha1": {"` + emptySHA1 + `": ["v1/content/empty.txt"]}
  },
  "head": "v3",
  "id": "ark:/12345/bcd987",
  "manifest": {
    "` + a + `": ["v3/content/foo/bar.xml"],
    "` + b + `": ["v1/content/foo/bar.xml"],
    "` + c + `": ["v1/content/empty.txt", "v1/content/copy.txt"]
  },
  "type": "https://ocfl.io/1.1/spec/#inventory",
  "versions": {
    "v1": {"created": "2018-01-01T01:01:01Z", "message": "Initial import", "state": {"` +
		b + `": ["foo/bar.xml"], "` + c + `": ["empty.txt"]}, "user": {"name": "Alice"}},
    "v2": {"created": "2018-02-02T02:02:02+01:00", "state": {"` +
		b + `": ["foo/bar.xml"], "` + c + `": ["empty.txt", "empty2.txt"]}},
    "v3": {"created": "2018-03-03T03:03:03Z", "state": {"` + a + `": ["foo/bar.xml"], "` + c + `": ["empty2.txt"]}}
  }
}
`
	sum := sha512.Sum512([]byte(inventory))
	return inventory, hex.EncodeToString(sum[:]) + " inventory.json\n"
}

func TestOCFL(t *testing.T) {
	inv, side := ocflExample()
	a, b, c := strings.Repeat("a1", 64), strings.Repeat("b2", 64), strings.Repeat("c3", 64)
	whole := map[string]string{"inventory.json": inv, "inventory.json.sha512": side}
	for name, tt := range map[string]listing{
		"the head": {files: whole, want: []string{
			`inventory.json:0 |"empty2.txt" md5:` + emptyMD5 + " sha1:" + emptySHA1 + " sha512:" + c + " 2018-02-02T01:02:02Z",
			`inventory.json:0 |"foo/bar.xml" sha512:` + a + " 2018-03-03T03:03:03Z",
		}},
		"a version": {files: whole, opts: Options{Version: "v2"}, want: []string{
			`inventory.json:0 |"empty.txt" md5:` + emptyMD5 + " sha1:" + emptySHA1 + " sha512:" + c + " 2018-01-01T01:01:01Z",
			`inventory.json:0 |"empty2.txt" md5:` + emptyMD5 + " sha1:" + emptySHA1 + " sha512:" + c + " 2018-02-02T01:02:02Z",
			`inventory.json:0 |"foo/bar.xml" md5:` + otherMD5 + " sha512:" + b + " 2018-01-01T01:01:01Z",
		}},
		"content paths": {files: whole, opts: Options{ContentPaths: true}, want: []string{
			`inventory.json:0 |"v1/content/copy.txt" md5:` + emptyMD5 + " sha1:" + emptySHA1 + " sha512:" + c,
			`inventory.json:0 |"v1/content/empty.txt" md5:` + emptyMD5 + " sha1:" + emptySHA1 + " sha512:" + c,
			`inventory.json:0 |"v1/content/foo/bar.xml" md5:` + otherMD5 + " sha512:" + b,
			`inventory.json:0 |"v3/content/foo/bar.xml" sha512:` + a,
		}},
		"a path that went and came back": {files: map[string]string{"inventory.json": strings.Replace(inv,
			`["foo/bar.xml"], "`+c+`": ["empty.txt", "empty2.txt"]`, `[], "`+c+`": ["empty.txt", "empty2.txt"]`, 1)},
			opts: Options{Version: "v3"}, want: []string{"~empty2.txt", "~2018-03-03"}},
		"a manifest in other letters": {files: map[string]string{"inventory.json": strings.Replace(inv, a,
			strings.ToUpper(a), 1)}, want: []string{"~empty2.txt", "~foo/bar.xml"}},
		"no such version": {files: whole, opts: Options{Version: "v9"},
			want: []string{`~there is no version "v9"; there are v1, v2, v3`}},
		"without its sum": {files: map[string]string{"inventory.json": inv}, opts: Options{Version: "v1"},
			want: []string{"~empty.txt", "~foo/bar.xml"}},
		"with a sum that does not count, and cannot be read": {files: map[string]string{"inventory.json": inv,
			"inventory.json.sha512": side, "inventory.json.md5/x": ""},
			opts: Options{Version: "v1"}, want: []string{"~empty.txt", "~foo/bar.xml"}},
		"with a sum that does not count, and is long": {files: map[string]string{"inventory.json": inv,
			"inventory.json.sha512": side, "inventory.json.sha1": strings.Repeat("a", 2*maxLine)},
			opts: Options{Version: "v1"}, want: []string{"~empty.txt", "~foo/bar.xml"}},
		"with its sum, which cannot be read": {files: map[string]string{"inventory.json": inv,
			"inventory.json.sha512/x": ""}, want: []string{"~inventory.json.sha512"}},
		"with another sum": {files: map[string]string{"inventory.json": inv + " ",
			"inventory.json.sha512": side}, want: []string{"~its sha512 is"}},
		"cut short": {files: map[string]string{"inventory.json": inv[:200]},
			want: []string{"~inventory.json:5: it is not the JSON"}},
		"two objects": {files: map[string]string{"inventory.json": inv + "{}"},
			want: []string{"~something follows"}},
		"nested deep": {files: map[string]string{"inventory.json": `{"x":` +
			strings.Repeat("[", 1<<20)}, want: []string{"~nested more than 64 deep"}},
		"a long text": {files: map[string]string{"inventory.json": `{"x":"` +
			strings.Repeat("a", 1<<20) + `"}`}, want: []string{"~longer than"}},
		"lists of numbers": {files: map[string]string{"inventory.json": strings.ReplaceAll(inv,
			`["foo/bar.xml"]`, `[7]`)}, want: []string{"~there is 7, want a text"}},
		"a state that is none": {files: map[string]string{"inventory.json": strings.ReplaceAll(inv,
			`"state": {`, `"state": [{`)}, want: []string{"~there is [, want {"}},
		"a time of words": {files: map[string]string{"inventory.json": strings.ReplaceAll(inv,
			`2018-03-03T03:03:03Z`, `now`)}, want: []string{"~not the JSON of an OCFL inventory: parsing time"}},
		"not UTF-8": {files: map[string]string{"inventory.json": inv + "\xff"},
			want: []string{"~it is not UTF-8"}},
		"nothing in it": {files: map[string]string{"inventory.json": "{}"},
			want: []string{"~it is not an OCFL inventory"}},
		"a state without end": {files: map[string]string{"inventory.json": strings.Replace(inv,
			`"`+a+`": ["v3/content/foo/bar.xml"],`, "", 1)},
			want: []string{"~empty2.txt", `~! inventory.json:0 "foo/bar.xml" has content`}},
		"a path twice": {files: map[string]string{"inventory.json": strings.Replace(inv, `"`+c+`": ["empty2.txt"]`,
			`"`+c+`": ["empty2.txt", "foo/bar.xml"]`, 1)},
			want: []string{"~empty2.txt", `~! inventory.json:0 "foo/bar.xml" occurs in the version's state more than once`}},
		"a digest that is none": {files: map[string]string{"inventory.json": strings.ReplaceAll(inv, a, "zz")},
			want: []string{"~empty2.txt", `~! inventory.json:0 "foo/bar.xml": "zz" is not a digest`}},
		"a fixity block that is wrong": {files: map[string]string{"inventory.json": strings.ReplaceAll(inv, emptySHA1,
			emptyMD5)},
			want: []string{`~fixity of "v1/content/empty.txt": a digest of 32 digits is not a sha1`}},
		"a version's name": {files: map[string]string{"inventory.json": strings.ReplaceAll(inv, `"v2"`, `"two"`)},
			want: []string{`~"two" is not the name of a version`}},
		"zero-padded names": {files: map[string]string{"inventory.json": strings.NewReplacer(`"v1"`, `"v0001"`, `"v2"`,
			`"v0002"`, `"v3"`, `"v0003"`).Replace(inv)},
			want: []string{"~empty2.txt", "~foo/bar.xml"}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.format = OCFL
			tt.run(t)
		})
	}
}

// An inventory with unknown parts only.
func TestOCFLRecognised(t *testing.T) {
	inv, _ := ocflExample()
	l, err := Open(files(t, map[string]string{"object.json": inv})+"/object.json", Options{})
	if err != nil || l.Format() != OCFL {
		t.Errorf("taken for %v, %v", l, err)
	}
	if _, err = Open(files(t, map[string]string{"x": "[1]"})+"/x", Options{}); !errors.Is(err, ErrFormat) {
		t.Errorf("other JSON: %v", err)
	}
}
