package inventory

import (
	"fmt"
	"strings"
	"testing"
)

// RFC 8493: section 2.1 (structure), 2.1.3 (manifests, encoding of paths), 2.2.2 (Payload-Oxum), 4 (examples); the
// drafts 0.93 to 0.97 for older bags.
func TestBagIt(t *testing.T) {
	const v10, v97 = "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n",
		"BagIt-Version: 0.97\nTag-File-Character-Encoding: UTF-8\n"
	for name, c := range map[string]listing{
		"basic bag": {
			files: map[string]string{
				"bagit.txt": v10,
				"manifest-sha256.txt": emptySHA256 + "  data/27613-h/images/q172.png\n" + emptySHA256 +
					" data/27613-h/images/q172.txt\n",
				"bag-info.txt": "Source-Organization: FOO University\nExternal-Description:\n   one line\n   and " +
					"another\nPayload-Oxum: 279164409832.2\n",
			},
			want: []string{`manifest-sha256.txt:1 |"data/27613-h/images/q172.png" sha256:` + emptySHA256,
				`manifest-sha256.txt:2 |"data/27613-h/images/q172.txt" sha256:` + emptySHA256},
		},
		"a manifest is its bag": {
			open:  "manifest-md5.txt",
			files: map[string]string{"bagit.txt": v97, "manifest-md5.txt": emptyMD5 + " *data/a\n"},
			want:  []string{`manifest-md5.txt:1 |"data/a" md5:` + emptyMD5},
		},
		"a manifest without its bag": {
			open: "manifest-md5.txt", opts: Options{Format: BagIt},
			files: map[string]string{"manifest-md5.txt": emptyMD5 + "  data/a%25\n"},
			want:  []string{`manifest-md5.txt:1 |"data/a%" md5:` + emptyMD5},
		},
		"two manifests, in different orders": {
			files: map[string]string{
				"bagit.txt":           v10,
				"manifest-md5.txt":    emptyMD5 + "  data/a\n" + emptyMD5 + "  data/b\n" + emptyMD5 + "  data/c\n",
				"manifest-sha256.txt": emptySHA256 + "  data/a\n" + emptySHA256 + "  data/c\n" + emptySHA256 + "  data/b\n",
				"bag-info.txt":        "Payload-Oxum: 0.3\n",
			},
			want: []string{
				`manifest-md5.txt:1 |"data/a" md5:` + emptyMD5 + " sha256:" + emptySHA256,
				`manifest-md5.txt:3 |"data/c" md5:` + emptyMD5 + " sha256:" + emptySHA256,
				`manifest-md5.txt:2 |"data/b" md5:` + emptyMD5 + " sha256:" + emptySHA256,
			},
		},
		"a file that one manifest lacks": {
			files: map[string]string{
				"bagit.txt":           v10,
				"manifest-md5.txt":    emptyMD5 + "  data/a\n" + emptyMD5 + "  data/b\n",
				"manifest-sha256.txt": emptySHA256 + "  data/b\n",
			},
			want: []string{
				`manifest-md5.txt:2 |"data/b" md5:` + emptyMD5 + " sha256:" + emptySHA256,
				`! manifest-md5.txt:1 "data/a" is not in manifest-sha256.txt, or not as often`,
			},
		},
		"the same before 1.0, when it was right": {
			files: map[string]string{
				"bagit.txt":         v97,
				"manifest-md5.txt":  emptyMD5 + "  data/a\n",
				"manifest-sha1.txt": emptySHA1 + "  data/b\n",
			},
			want: []string{`manifest-md5.txt:1 |"data/a" md5:` + emptyMD5, `manifest-sha1.txt:1 |"data/b" sha1:` + emptySHA1},
		},
		"a file that is listed twice": {
			files: map[string]string{
				"bagit.txt":           v10,
				"manifest-md5.txt":    emptyMD5 + "  data/a\n" + emptyMD5 + "  data/a\n" + emptyMD5 + "  data/b\n",
				"manifest-sha256.txt": emptySHA256 + "  data/b\n" + emptySHA256 + "  data/a\n",
			},
			want: []string{
				`! manifest-md5.txt:2 "data/a" is listed more than once`,
				`manifest-md5.txt:1 |"data/a" md5:` + emptyMD5 + " sha256:" + emptySHA256,
				`manifest-md5.txt:3 |"data/b" md5:` + emptyMD5 + " sha256:" + emptySHA256,
			},
		},
		"percent signs in 1.0": {
			files: map[string]string{"bagit.txt": v10, "manifest-md5.txt": emptyMD5 + "  data/a%0Ab%0dc%25d%20e\n"},
			want:  []string{`manifest-md5.txt:1 |"data/a\nb\rc%d%20e" md5:` + emptyMD5},
		},
		"percent signs before": {
			files: map[string]string{"bagit.txt": v97, "manifest-md5.txt": emptyMD5 + "  data/a%0Ab%25d\n"},
			want:  []string{`manifest-md5.txt:1 |"data/a\nb%25d" md5:` + emptyMD5},
		},
		"ISO-8859-1": {
			files: map[string]string{"bagit.txt": "BagIt-Version: 0.97\r\nTag-File-Character-Encoding: ISO-8859-1\r\n",
				"manifest-md5.txt": emptyMD5 + "  data/caf\xe9\r\n"},
			want: []string{`manifest-md5.txt:1 |"data/café" md5:` + emptyMD5},
		},
		"UTF-16": {
			files: map[string]string{"bagit.txt": "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-16\n",
				"manifest-md5.txt": "\xff\xfe" + utf16(emptyMD5+"  data/ü\n")},
			want: []string{`manifest-md5.txt:1 |"data/ü" md5:` + emptyMD5},
		},
		"an encoding that is not known": {
			files: map[string]string{"bagit.txt": "BagIt-Version: 1.0\nTag-File-Character-Encoding: EBCDIC-42\n",
				"manifest-md5.txt": emptyMD5 + "  data/a\n"},
			want: []string{`~the encoding "EBCDIC-42" is unknown`},
		},
		"Oxum with another number": {
			files: map[string]string{"bagit.txt": v10, "manifest-md5.txt": emptyMD5 + "  data/a\n",
				"bag-info.txt": "payload-oxum: 12.2\n"},
			want: []string{`manifest-md5.txt:1 |"data/a" md5:` + emptyMD5,
				"! bag-info.txt:1 Payload-Oxum says 2 files, and the manifests list 1"},
		},
		"Oxum that is none": {
			files: map[string]string{"bagit.txt": v10, "manifest-md5.txt": emptyMD5 + "  data/a\n",
				"bag-info.txt": "Payload-Oxum: many\n"},
			want: []string{`manifest-md5.txt:1 |"data/a" md5:` + emptyMD5,
				`! bag-info.txt:1 Payload-Oxum "many" is not OCTETS.FILES`},
		},
		"tag manifests": {
			opts: Options{TagManifests: true},
			files: map[string]string{"bagit.txt": v10, "manifest-md5.txt": emptyMD5 + "  data/a\n",
				"tagmanifest-md5.txt":  emptyMD5 + "  bagit.txt\n",
				"tagmanifest-sha1.txt": emptySHA1 + "  bagit.txt\n", "bag-info.txt": "Payload-Oxum: 12.1\n"},
			want: []string{`manifest-md5.txt:1 |"data/a" md5:` + emptyMD5, `tagmanifest-md5.txt:1 |"bagit.txt" md5:` +
				emptyMD5 + " sha1:" + emptySHA1},
		},
		"rows that are wrong": {
			files: map[string]string{"bagit.txt": v10, "manifest-md5.txt": emptyMD5 + "  a\n" + emptySHA1 + "  data/b\n" +
				emptyMD5 + "\n" + emptyMD5 + "  ./data/c\n\xff\n",
				"bag-info.txt": "Payload-Oxum: 12.5\n"},
			want: []string{`! manifest-md5.txt:1 "a" is not below data/`,
				"! manifest-md5.txt:2 a digest of 40 digits is not a md5",
				"~! manifest-md5.txt:3 it is not a line of a manifest", `manifest-md5.txt:4 |"data/c" md5:` + emptyMD5,
				"! manifest-md5.txt:5 the line is not UTF-8"},
		},
		"a version to come": {
			files: map[string]string{"bagit.txt": "BagIt-Version: 2.0\n", "manifest-md5.txt": emptyMD5 + "  data/a\n"},
			want:  []string{`~BagIt "2.0" is not supported`},
		},
		"bagit.txt that is unreadable": {
			files: map[string]string{"bagit.txt": "BagIt-Version: 1.0\n\xff\n", "manifest-md5.txt": emptyMD5 + "  data/a\n"},
			want:  []string{"~!! damaged listing: "},
		},
		"no manifest": {
			files: map[string]string{"bagit.txt": v10},
			want:  []string{"~the bag has no payload manifest"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.format = BagIt
			c.run(t)
		})
	}
}

// Manifests with the same order are read in little memory; this checks the end of the sequence.
func TestBagItMany(t *testing.T) {
	var md5s, sha1s strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&md5s, "%s  data/%d\n", emptyMD5, i)
		fmt.Fprintf(&sha1s, "%s  data/%d\n", emptySHA1, 4999-i)
	}
	dir := files(t, map[string]string{"bagit.txt": "BagIt-Version: 1.0\n", "manifest-md5.txt": md5s.String(),
		"manifest-sha1.txt": sha1s.String()})
	l, err := Open(dir, Options{})
	must(t, err)
	seen := map[string]bool{}
	for e, err := range l.Entries() {
		if err != nil || len(e.Digests) != 2 {
			t.Fatalf("%v with %v", formatEntry(e), err)
		}
		seen[e.Item] = true
		if len(seen) == 4000 {
			break // the reader may stop
		}
	}
	if len(seen) != 4000 {
		t.Errorf("%d items", len(seen))
	}
}
