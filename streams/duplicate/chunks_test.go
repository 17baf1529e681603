package duplicate

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/chunks"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func md5Of(text string) string {
	sum := md5.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// chunkDocument returns a manifest document as DuraCloud's chunker writes it: entries are id, bytes.
func chunkDocument(entries ...[2]string) string {
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

func TestChunkIsAt(t *testing.T) {
	c := chunks.Chunk{ID: "c", Size: 3, MD5: md5Of("one")}
	at := func(size int64, sum string) Side {
		return Side{Presence: Present, Object: storage.Object{Size: size, Digests: digest.Set{digest.MD5: sum}}}
	}
	for name, tt := range map[string]struct {
		at   Side
		want bool
	}{
		"there":        {at(3, md5Of("one")), true},
		"other bytes":  {at(3, md5Of("two")), false},
		"other size":   {at(4, md5Of("one")), false},
		"no digest":    {Side{Presence: Present, Object: storage.Object{Size: 3}}, true},
		"absent":       {Side{Presence: Absent}, false},
		"another time": {Side{}, false},
	} {
		if got := isAt(c, tt.at); got != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// A chunkWorld has a chunked item in store 1, and the command for its manifest document.
type chunkWorld struct {
	*world
	command *pb.DuplicationCommand
}

const chunkItem = "film.mkv.dura-manifest"

func (w *world) putItem(store, item, text string) storage.Object {
	w.t.Helper()
	o, err := w.mem[store].Put(w.t.Context(), "photos", item, strings.NewReader(text),
		storage.PutOptions{Size: storage.UnknownSize})
	w.must(err)
	return o
}

func newChunkWorld(t *testing.T, document string) chunkWorld {
	w := newWorld(t)
	of := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: chunkItem}
	c := command(w.reported(record.Content(of, w.putItem("1", chunkItem, document))))
	c.Item = chunkItem
	return chunkWorld{w, c}
}

func (w chunkWorld) copied(want bool) {
	w.t.Helper()
	if _, err := w.mem["2"].Stat(w.t.Context(), "photos", chunkItem); (err == nil) != want {
		w.t.Errorf("the document is at the destination: %v", err)
	}
}

var twoChunks = chunkDocument([2]string{"film.mkv.dura-chunk-0000", "one"},
	[2]string{"film.mkv.dura-chunk-0001", "two"})

// The document waits until its chunks are at the destination. After the last wait it is copied, and the result names
// the chunks that are missing.
func TestChunkManifestWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		second string // the chunk at the destination: "" is none
		waits  int
		wait   bool
		detail string
	}{
		"absent":                   {"", 0, true, ""},
		"differs":                  {"TWO", 1, true, ""},
		"all are there":            {"two", 0, false, ""},
		"all came while it waited": {"two", 1, false, ""},
		"never came": {"", len(intervals), false,
			`chunks that are absent or differ at the destination: ["film.mkv.dura-chunk-0001"]`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newChunkWorld(t, twoChunks)
			w.putItem("2", "film.mkv.dura-chunk-0000", "one")
			if tt.second != "" {
				w.putItem("2", "film.mkv.dura-chunk-0001", tt.second)
			}
			got, err := w.waited(w.command, map[string]int{waitChunks: tt.waits})
			w.copied(!tt.wait)
			if tt.wait {
				if retry.ClassOf(err) != retry.ClassWait || retry.CauseOf(err) != waitChunks ||
					time.Until(retry.Due(err)) > intervals[tt.waits] {
					t.Errorf("got %v", err)
				}
				return
			}
			w.must(err)
			got.ends("C5", "copied", done, 1, 1)
			if got.result.GetDetail() != tt.detail {
				t.Errorf("detail: got %q, want %q", got.result.GetDetail(), tt.detail)
			}
		})
	}
}

// What is not a group of chunks is copied at once, and the result says why it did not wait.
func TestChunkManifestThatDoesNotWait(t *testing.T) {
	for name, tt := range map[string]struct {
		document string
		prepare  func(chunkWorld)
		detail   string // a part of it
	}{
		"malformed": {"<html></html>", func(chunkWorld) {}, "copied as an ordinary item: read the XML"},
		"excluded chunks": {twoChunks, func(w chunkWorld) {
			w.rules.Exclude = []string{"*.dura-chunk-*"}
		}, "2 chunks are excluded by the policy"},
		"too large": {strings.Repeat(" ", chunks.MaxDocument+1), func(chunkWorld) {}, "is not read"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newChunkWorld(t, tt.document)
			tt.prepare(w)
			got, err := w.waited(w.command, nil)
			w.must(err)
			got.ends("C5", "copied", done, 1, 1)
			if !strings.Contains(got.result.GetDetail(), tt.detail) {
				t.Errorf("detail: %q", got.result.GetDetail())
			}
			w.copied(true)
		})
	}
}

// A chunk that cannot be looked at is unknown, and not missing: the command is retried, and no wait is used.
func TestUnknownChunks(t *testing.T) {
	w := newChunkWorld(t, twoChunks)
	w.faulty["2"].Script(storagetest.Fault{Method: "Stat", Item: "film.mkv.dura-chunk-0001", Times: -1})
	if _, err := w.waited(w.command, map[string]int{waitChunks: 9}); retry.ClassOf(err) != retry.Transient || err == nil {
		t.Errorf("got %v", err)
	}
	w.copied(false)
}

// The bytes of the document that the chunks are read from are those that are expected: rot is found as before.
func TestRottenChunkManifest(t *testing.T) {
	w := newChunkWorld(t, twoChunks)
	w.mem["1"].Corrupt("photos", chunkItem, []byte(strings.Replace(twoChunks, "chunk-0001", "chunk-0009", 1)))
	got, err := w.waited(w.command, nil)
	w.must(err)
	got.ends("C4s", "source-suspect", pb.Outcome_OUTCOME_HANDED_ON, 0, 1)
	w.copied(false)
}
