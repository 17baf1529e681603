package chunks

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func md5Of(text string) string {
	sum := md5.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// document returns a manifest document as DuraCloud's chunker writes it: entries are id, bytes.
func document(entries ...[2]string) string {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>
<dur:chunksManifest xmlns:dur="duracloud.org">
  <header schemaVersion="0.2">
    <sourceContent contentId="film.mkv">
      <mimetype>video/x-matroska</mimetype>
      <byteSize>8</byteSize>
      <md5>` + md5Of("onetwo") + `</md5>
    </sourceContent>
  </header>
  <chunks>
`)
	for i, e := range entries {
		fmt.Fprintf(&b, `    <chunk chunkId=%q index="%d">
      <byteSize>%d</byteSize>
      <md5>%s</md5>
    </chunk>
`, e[0], i, len(e[1]), md5Of(e[1]))
	}
	b.WriteString("  </chunks>\n</dur:chunksManifest>\n")
	return b.String()
}

func TestParse(t *testing.T) {
	const item = "film.mkv.dura-manifest"
	good := document([2]string{"film.mkv.dura-chunk-0000", "one"}, [2]string{"film.mkv.dura-chunk-0001", ""})
	entry := func(id, size, sum string) string {
		return `<x:chunksManifest xmlns:x="duracloud.org"><chunks><chunk chunkId="` + id + `"><byteSize>` + size +
			`</byteSize><md5>` + sum + `</md5></chunk></chunks></x:chunksManifest>`
	}
	none := Document{}
	for name, tt := range map[string]struct {
		text string
		want Document
		err  string // a part of it
	}{
		"as DuraCloud writes it": {good, Document{8, []Chunk{{"film.mkv.dura-chunk-0000", 3, md5Of("one")},
			{"film.mkv.dura-chunk-0001", 0, md5Of("")}}}, ""},
		"upper case and spaces": {entry("c", "1", " "+strings.ToUpper(md5Of("a"))+"\n"),
			Document{-1, []Chunk{{"c", 1, md5Of("a")}}}, ""},
		"empty":            {"", none, "read the XML"},
		"cut off":          {good[:len(good)/2], none, "read the XML"},
		"another document": {"<html></html>", none, "read the XML"},
		"an entity":        {`<!DOCTYPE x [<!ENTITY e "x">]>` + entry("&e;", "1", md5Of("a")), none, "read the XML"},
		"no chunks":        {document(), none, "it names no chunks"},
		"no id":            {entry("", "1", md5Of("a")), none, "which is no name of an item"},
		"a long id":        {entry(strings.Repeat("c", 1025), "1", md5Of("a")), none, "which is no name of an item"},
		"itself":           {entry(item, "1", md5Of("a")), none, "of another entry or of the document"},
		"twice the same": {document([2]string{"c", "one"}, [2]string{"c", "one"}), none,
			"of another entry or of the document"},
		"a header without a number": {strings.Replace(good, "<byteSize>8<", "<byteSize>x<", 1), none, "read the XML"},
		"no number":                 {entry("c", "x", md5Of("a")), none, "read the XML"},
		"a negative size":           {entry("c", "-1", md5Of("a")), none, "has no size"},
		"no size": {strings.Replace(entry("c", "1", md5Of("a")), "<byteSize>1</byteSize>", "", 1), none,
			"has no size"},
		"without MD5s":   {entry("c", "1", "MD5-not-preserved"), Document{-1, []Chunk{{"c", 1, ""}}}, ""},
		"no digest":      {entry("c", "1", ""), none, `has the MD5 ""`},
		"another digest": {entry("c", "1", strings.Repeat("g", 32)), none, "has the MD5"},
		"too many chunks, and no end": {"<chunksManifest><chunks>" + strings.Repeat("<chunk/>", maxChunks+1) + "<", none,
			"it names more than 100000 chunks"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(item, []byte(tt.text))
			if !reflect.DeepEqual(got, tt.want) || (err == nil) != (tt.err == "") ||
				err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, %v; want %v, %q", got, err, tt.want, tt.err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(document([2]string{"c", "one"})))
	f.Add([]byte("<chunksManifest/>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse("x.dura-manifest", text)
		if (err == nil) != (len(d.Chunks) > 0) {
			t.Errorf("got %d chunks, %v", len(d.Chunks), err)
		}
	})
}

func TestIsDocument(t *testing.T) {
	for item, want := range map[string]bool{"a.dura-manifest": true, "a/b.dura-manifest": true, ".dura-manifest": false,
		"a.dura-manifest.txt": false, "a.dura-chunk-0000": false, "a": false} {
		if got := IsDocument(item); got != want {
			t.Errorf("%s: got %v", item, got)
		}
	}
}

func TestDocumentOf(t *testing.T) {
	for item, want := range map[string]string{
		"a.dura-chunk-0000": "a.dura-manifest", "a/b.dura-chunk-12345": "a/b.dura-manifest",
		"a.dura-chunk-1.dura-chunk-0002": "a.dura-chunk-1.dura-manifest",
		".dura-chunk-0000":               "", "a.dura-chunk-": "", "a.dura-chunk-0x": "", "a.dura-manifest": "", "a": "",
	} {
		if got, ok := DocumentOf(item); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %v", item, got, ok)
		}
	}
}
