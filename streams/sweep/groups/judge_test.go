package groups

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/chunks"
	"github.com/millrace/millrace/streams/digest"
)

func TestJudge(t *testing.T) {
	const document, one, two = "f.dura-manifest", "f.dura-chunk-0000", "f.dura-chunk-0001"
	settled := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)
	old, late := settled.Add(-time.Hour), settled.Add(time.Hour)
	md5Of := func(n int) string { return fmt.Sprintf("%032x", n) }
	first, second := chunks.Chunk{ID: one, Size: 3, MD5: md5Of(1)}, chunks.Chunk{ID: two, Size: 4, MD5: md5Of(2)}
	itself := chunks.Chunk{ID: document, Size: 300}
	for name, tt := range map[string]struct {
		change   func(*group)
		want     Verdict
		suspects []chunks.Chunk
		why      string
	}{
		"whole":               {func(*group) {}, Whole, nil, ""},
		"whole, and just put": {func(g *group) { g.document.time, g.chunks[0].time = late, late }, Whole, nil, ""},
		"the document has digests of other algorithms": {func(g *group) {
			g.document.digests = digest.Set{digest.SHA512: "00"}
		}, Whole, nil, ""},
		"a chunk without an MD5": {func(g *group) { g.chunks[0].digests = digest.Set{digest.SHA256: "00"} },
			Unproven, nil, ""},
		"a chunk of unknown size":     {func(g *group) { g.chunks[1].size = -1 }, Unproven, nil, ""},
		"a chunk that has not passed": {func(g *group) { g.chunks[1].passed = false }, Unproven, nil, ""},
		"a file of unknown size":      {func(g *group) { g.named.Size = -1 }, Unproven, nil, ""},
		"a chunk that was never there": {func(g *group) { g.chunks[0] = record{} },
			Incomplete, []chunks.Chunk{first}, `absent: "f.dura-chunk-0000"`},
		"a chunk that was deleted": {func(g *group) { g.chunks[1].live = false },
			Incomplete, []chunks.Chunk{second}, `absent: "f.dura-chunk-0001"`},
		"all chunks are absent": {func(g *group) { g.chunks = make([]record, 2) },
			Incomplete, []chunks.Chunk{first, second}, `absent: "f.dura-chunk-0000" and 1 more`},
		"absent, and the other differs": {func(g *group) { g.chunks[1], g.chunks[0].size = record{}, 9 },
			Incomplete, []chunks.Chunk{second, first}, `absent: "f.dura-chunk-0001"`},
		"a chunk of another size": {func(g *group) { g.chunks[0].size = 2 },
			Different, []chunks.Chunk{first}, `different: "f.dura-chunk-0000"`},
		"a chunk with another MD5": {func(g *group) { g.chunks[0].digests[digest.MD5] = md5Of(9) },
			Different, []chunks.Chunk{first}, `different: "f.dura-chunk-0000"`},
		"a file of another size": {func(g *group) { g.named.Size = 8 },
			Different, nil, "the chunks have 7 bytes, the file has 8"},
		"a document with other digests": {func(g *group) { g.document.digests[digest.MD5] = md5Of(9) },
			Different, []chunks.Chunk{itself}, "the document does not have the digests on record"},
		"the document is not on record": {func(g *group) { g.source = notOnRecord },
			Different, []chunks.Chunk{itself}, "the store does not have the document on record"},
		"not a document of chunks": {func(g *group) { g.fault = errors.New("no XML") },
			Unreadable, nil, "no XML"},
		"a chunk whose MD5 the document lacks":      {func(g *group) { g.named.Chunks[0].MD5 = "" }, Unproven, nil, ""},
		"another version, of the digests on record": {func(g *group) { g.source = otherVersion }, Whole, nil, ""},
		"another version, of unknown digests": {func(g *group) { g.source, g.document.digests = otherVersion, nil },
			Unknown, nil, ""},
		"recorded anew meanwhile":   {func(g *group) { g.chunks[0], g.document.version = record{}, "new" }, Young, nil, ""},
		"the store does not answer": {func(g *group) { g.source = notRead }, Unknown, nil, ""},
		"absent, and the other is new": {func(g *group) { g.chunks[0], g.chunks[1].time = record{}, late },
			Young, nil, ""},
		"a chunk that was just deleted": {func(g *group) { g.chunks[0] = record{time: late} }, Young, nil, ""},
		"a chunk that was just replaced": {func(g *group) { g.chunks[0].size, g.chunks[0].time = 2, late },
			Young, nil, ""},
		"a new document, not of chunks": {func(g *group) { g.fault, g.document.time = errors.New("no XML"), late },
			Young, nil, ""},
		"a new document, not on record": {func(g *group) { g.source, g.document.time = notOnRecord, late },
			Young, nil, ""},
		"a new document that is unknown": {func(g *group) { g.source, g.document.time = notRead, late },
			Unknown, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			good := func(c chunks.Chunk) record {
				return record{live: true, size: c.Size, digests: digest.Set{digest.MD5: c.MD5}, passed: true, time: old}
			}
			g := group{item: document, document: good(chunks.Chunk{Size: 300, MD5: md5Of(3)}), source: wasRead,
				sum:    digest.Set{digest.MD5: md5Of(3)},
				named:  chunks.Document{Size: 7, Chunks: []chunks.Chunk{first, second}},
				chunks: []record{good(first), good(second)}}
			tt.change(&g)
			if got, want := judge(g, settled), (judgement{tt.want, tt.suspects, tt.why}); !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}
