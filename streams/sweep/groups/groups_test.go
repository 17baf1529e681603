package groups

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/chunks"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
	"github.com/millrace/millrace/streams/sweep"
)

var photos = schemas.Copy{Account: "acme", Store: "1", Space: "photos"}

// A world is a store, its records, and what the sweep has published.
type world struct {
	t        *testing.T
	mem      *mem.Store
	store    *storagetest.Faulty
	known    map[string]*pb.CopyRecord
	config   Config
	incident string // detail of the open incident
	pages    int
	batches  int          // of records
	fresh    func() error // when fresh records are asked for
	report   *pb.Report   // of the last round
	previous []byte
}

func in(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, known: map[string]*pb.CopyRecord{}, config: Config{Space: photos, Page: 3, Large: 1000}}
		var err error
		w.mem, err = mem.New(mem.Config{ID: "acme/1"})
		w.must(err)
		w.store = storagetest.NewFaulty(w.mem)
		w.mem.Mark("acme/1")
		w.must(w.mem.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
		test(t, w)
	})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// put puts an item, and its record, with a check that has passed.
func (w *world) put(item, text string) {
	w.t.Helper()
	o, err := w.mem.Put(w.t.Context(), "photos", item, strings.NewReader(text),
		storage.PutOptions{Size: storage.UnknownSize})
	w.must(err)
	w.known[item] = &pb.CopyRecord{LastPass: timestamppb.New(o.Modified), LastAttempt: timestamppb.New(o.Modified),
		Manifest: &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Size: o.Size, Time: timestamppb.New(o.Modified),
			Version: o.Version, Digests: o.Digests}}
}

// group puts a file in chunks, and its document.
func (w *world) group(name string, parts ...string) {
	w.t.Helper()
	size, list := 0, ""
	for i, text := range parts {
		chunk, sum := fmt.Sprintf("%s.dura-chunk-%04d", name, i), md5.Sum([]byte(text))
		w.put(chunk, text)
		size += len(text)
		list += fmt.Sprintf(`<chunk chunkId=%q index="%d"><byteSize>%d</byteSize><md5>%s</md5></chunk>`, chunk, i, len(text),
			hex.EncodeToString(sum[:]))
	}
	w.put(name+".dura-manifest", fmt.Sprintf(`<dur:chunksManifest xmlns:dur="duracloud.org"><header schemaVersion="0.2">`+
		`<sourceContent contentId=%q><byteSize>%d</byteSize></sourceContent></header><chunks>%s</chunks>`+
		`</dur:chunksManifest>`,
		name, size, list))
}

// lose removes the record of an item.
func (w *world) lose(item string) { delete(w.known, item) }

func (w *world) deps() Deps {
	return Deps{
		Store: storage.ReadOnly(w.store),
		Items: func(_ context.Context, of schemas.Copy, limit int) (all []Item, err error) {
			w.pages++
			for _, item := range slices.Sorted(maps.Keys(w.known)) {
				r := w.known[item].GetManifest()
				if item > of.Item && r.GetState() == pb.RecordState_RECORD_STATE_LIVE && len(all) < limit &&
					(strings.HasSuffix(item, chunks.DocumentSuffix) || strings.Contains(item, chunks.ChunkInfix)) {
					all = append(all, Item{item, r.GetVersion(), r.GetSize(), r.GetTime().AsTime()})
				}
			}
			return all, nil
		},
		Records: func(_ context.Context, copies []schemas.Copy) (all []*pb.CopyRecord, err error) {
			w.batches++
			for _, c := range copies {
				all = append(all, w.known[c.Item])
			}
			return all, nil
		},
		Fresh: func(context.Context) error {
			if w.fresh != nil {
				return w.fresh()
			}
			return nil
		},
		OpenIncident:  func(_ context.Context, detail string) error { w.incident = detail; return nil },
		CloseIncident: func(context.Context, string) error { w.incident = ""; return nil },
	}
}

// round runs a round, and returns its counts and the items that it requests checks of.
func (w *world) round() (counts map[string]int64, checks []string, err error) {
	w.t.Helper()
	page, err := New(w.config, w.deps())
	w.must(err)
	round := sweep.Round{ID: schemas.NewID(), Started: time.Now(), Previous: w.previous}
	counts, w.report = map[string]int64{}, nil
	for state := []byte(nil); ; {
		p, err := page(w.t.Context(), round, state)
		if err != nil {
			return counts, checks, err
		}
		for k, n := range p.Counts {
			counts[k] += n
		}
		emitted := int64(0)
		for _, m := range p.Messages {
			w.must(schemas.Validate(m.Body))
			switch b := m.Body.(type) {
			case *pb.FixityTask:
				checks = append(checks, b.GetItem())
				emitted++
			case *pb.Report:
				w.report = b
			}
		}
		if emitted != p.Emitted {
			w.t.Errorf("emitted %d, says %d", emitted, p.Emitted)
		}
		if state = p.Next; p.Last {
			w.previous = p.Next
			return counts, checks, nil
		}
	}
}

// expects runs a round and compares its counts, as text, and its checks.
func (w *world) expects(want string, checks ...string) {
	w.t.Helper()
	counts, asked, err := w.round()
	w.must(err)
	if got := fmt.Sprint(counts); got != "map["+want+"]" || !slices.Equal(asked, checks) {
		w.t.Errorf("got %s and checks of %q, want %s and %q", got, asked, want, checks)
	}
	if want != "" && fmt.Sprint(w.report.GetCounts()) != "map["+want+"]" {
		w.t.Errorf("reported %v", w.report)
	}
}

// A round finds the groups that lack or differ in a chunk over many pages. Its incident closes when they are whole.
func TestRounds(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.expects("")
		if w.report != nil || w.pages != 1 || w.batches != 0 {
			t.Errorf("of an empty space: %v, %d pages, %d batches", w.report, w.pages, w.batches)
		}
		w.group("a", "one", "two", "three")
		w.group("b", "four")
		w.group("c", "five", "six")
		w.put("ordinary", "text")
		w.expects("whole:3")
		w.lose("a.dura-chunk-0001")
		w.known["c.dura-chunk-0001"].Manifest.Size = 99
		w.expects("whole:1 young:2")
		time.Sleep(25 * time.Hour)
		w.expects("different:1 incomplete:1 whole:1", "a.dura-chunk-0001", "c.dura-chunk-0001")
		for _, want := range []string{`2 groups`, `"a.dura-manifest" is incomplete (absent: "a.dura-chunk-0001")`,
			`"c.dura-manifest" is different (different: "c.dura-chunk-0001")`} {
			if !strings.Contains(w.incident, want) {
				t.Errorf("incident %q lacks %q", w.incident, want)
			}
		}
		if !w.report.GetComplete() || !strings.Contains(w.report.GetDetail(), `"a.dura-manifest" is incomplete`) {
			t.Errorf("reported %v", w.report)
		}
		w.group("a", "one", "two", "three")
		w.group("c", "five", "six")
		w.expects("whole:3")
		if w.incident != "" {
			t.Errorf("incident %q", w.incident)
		}
		clear(w.known)
		for n, reported := range []bool{true, false} {
			if w.expects(""); (w.report != nil) != reported {
				t.Errorf("%d rounds after the last group is gone: reported %v", n+1, w.report)
			}
		}
	})
}

// A page that is read again, by another process, has the same checks with the same ids.
func TestPageIsRepeatable(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.group("a", "one", "two")
		w.lose("a.dura-chunk-0000")
		time.Sleep(25 * time.Hour)
		round := sweep.Round{ID: schemas.ID("r"), Started: time.Now()}
		ids := func() (all []string) {
			page, err := New(w.config, w.deps())
			w.must(err)
			p, err := page(t.Context(), round, nil)
			w.must(err)
			for _, m := range p.Messages {
				all = append(all, m.Body.GetId())
			}
			return all
		}
		if first, again := ids(), ids(); len(first) != 2 || !slices.Equal(first, again) {
			t.Errorf("got %q, again %q", first, again)
		}
	})
}

// Chunks without a document are counted and named, and are no incident.
func TestOrphans(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.group("a", "one", "two", "three", "four", "five")
		w.group("b", "one")
		w.lose("a.dura-manifest")
		w.expects("whole:1")
		time.Sleep(25 * time.Hour)
		w.expects("orphans:5 whole:1")
		if want := `chunks without their document: ["a.dura-manifest"]`; w.report.GetDetail() != want || w.incident != "" ||
			!w.report.GetComplete() {
			t.Errorf("reported %v, incident %q", w.report, w.incident)
		}
	})
}

// Groups whose document is not selected are not looked at.
func TestItemsThatAreExcluded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.group("a", "one")
		w.put("a.tmp.dura-manifest", "not of chunks")
		w.put("b.tmp.dura-chunk-0000", "an orphan")
		time.Sleep(25 * time.Hour)
		w.config.Selected = func(item string) bool { return !strings.Contains(item, ".tmp.") }
		w.expects("whole:1")
	})
}

// An error of the store is no finding, and a round with unknown groups changes no incident.
func TestUnknown(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*world)
		want    string // "": the page fails
	}{
		"the document cannot be read": {func(w *world) {
			w.store.Script(storagetest.Fault{Method: "Open", Item: "a.dura-manifest", Times: -1})
		}, "unknown:1 whole:1"},
		"it is archived": {func(w *world) {
			w.store.Script(storagetest.Fault{Method: "Open", Item: "a.dura-manifest", Err: retry.Permanent(errors.New("x"))})
		}, "unknown:1 whole:1"},
		"once it cannot be read": {func(w *world) {
			w.store.Script(storagetest.Fault{Method: "Open", Item: "a.dura-manifest", Mid: true, After: 5})
		}, "whole:2"},
		"the store is not read": {func(w *world) {
			w.config.NeverRead = true
			w.store.Script(storagetest.Fault{Method: "Open", Times: -1, Err: retry.Unavailable(errors.New("x"))})
		}, "unknown:2"},
		"the store is away": {func(w *world) {
			w.store.Script(storagetest.Fault{Method: "Open", Times: -1, Err: retry.Unavailable(errors.New("x"))})
		}, ""},
		"the records are unknown": {func(w *world) { w.fresh = func() error { return errors.New("x") } }, ""},
		"another store is mounted": {func(w *world) {
			w.mem.Mark("other")
			w.mem.Lose("photos", "a.dura-manifest")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.group("a", "one")
				w.group("b", "two")
				time.Sleep(25 * time.Hour)
				w.incident = "open"
				tt.prepare(w)
				if tt.want == "" {
					if counts, _, err := w.round(); err == nil {
						t.Errorf("got %v", counts)
					}
					return
				}
				w.expects(tt.want)
				if unknown := strings.Contains(tt.want, "unknown"); w.report.GetComplete() == unknown ||
					(w.incident == "open") != unknown {
					t.Errorf("reported %v, incident %q", w.report, w.incident)
				}
			})
		})
	}
}

// A document that is not what is on record is checked. One that was replaced or deleted while it was read is not.
func TestDocumentIsNotOnRecord(t *testing.T) {
	itself := []string{"a.dura-manifest"}
	for name, tt := range map[string]struct {
		prepare func(*world)
		want    string
		checks  []string
	}{
		"lost":      {func(w *world) { w.mem.Lose("photos", "a.dura-manifest") }, "different:1", itself},
		"rewritten": {func(w *world) { w.mem.Rewrite("photos", "a.dura-manifest", nil) }, "different:1", itself},
		"rotten":    {func(w *world) { w.mem.Corrupt("photos", "a.dura-manifest", nil) }, "different:1", itself},
		"too large": {func(w *world) { w.known["a.dura-manifest"].Manifest.Size = chunks.MaxDocument + 1 },
			"unreadable:1", nil},
		"replaced meanwhile": {func(w *world) {
			w.mem.Lose("photos", "a.dura-manifest")
			w.fresh = func() error { w.put("a.dura-manifest", "new"); return nil }
		}, "young:1", nil},
		"deleted meanwhile": {func(w *world) {
			w.mem.Lose("photos", "a.dura-manifest")
			w.fresh = func() error { w.lose("a.dura-manifest"); return nil }
		}, "orphans:1", nil},
		"replaced meanwhile, by an old file": {func(w *world) {
			w.mem.Lose("photos", "a.dura-manifest")
			w.fresh = func() error {
				old := w.known["a.dura-manifest"].GetManifest().GetTime()
				w.put("a.dura-manifest", "new")
				w.known["a.dura-manifest"].Manifest.Time = old
				return nil
			}
		}, "young:1", nil},
		"another version of the same bytes": {func(w *world) {
			w.known["a.dura-manifest"].Manifest.Version = "another"
		}, "whole:1", nil},
		"another version, of unknown digests": {func(w *world) {
			m := w.known["a.dura-manifest"].GetManifest()
			m.Version, m.Digests = "another", nil
		}, "unknown:1", nil},
		"claimed digests": {func(w *world) {
			m := w.known["a.dura-manifest"].GetManifest()
			m.Digests, m.Provenance = map[string]string{"md5": strings.Repeat("0", 32)}, pb.Provenance_PROVENANCE_CLAIMED
		}, "whole:1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.group("a", "one")
				time.Sleep(25 * time.Hour)
				tt.prepare(w)
				w.expects(tt.want, tt.checks...)
			})
		})
	}
}

// An incident stays open while a damaged group is touched, and opens even if another group is unknown.
func TestIncidentIsKept(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.group("a", "one", "two", "three")
		w.group("b", "four")
		w.lose("a.dura-chunk-0001")
		time.Sleep(25 * time.Hour)
		w.store.Script(storagetest.Fault{Method: "Open", Item: "b.dura-manifest",
			Err: retry.Permanent(errors.New("archived"))})
		w.expects("incomplete:1 unknown:1", "a.dura-chunk-0001")
		if w.incident == "" || w.report.GetComplete() || !strings.Contains(w.report.GetDetail(), "archived") {
			t.Errorf("incident %q, report %v", w.incident, w.report)
		}
		w.put("a.dura-chunk-0000", "one") // once more
		w.expects("whole:1 young:1")
		if w.incident == "" {
			t.Error("the incident is closed while a chunk is absent")
		}
		w.put("a.dura-chunk-0001", "two")
		w.expects("whole:2")
		if w.incident != "" {
			t.Errorf("incident %q", w.incident)
		}
	})
}

// What a document has is text of any length, and perhaps no text. It fits into messages.
func TestFindingsAreBounded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.group("a", "one")
		document := strings.Replace(`<chunksManifest><chunks><chunk chunkId="c"><byteSize>1</byteSize><md5>X</md5></chunk>`+
			`</chunks></chunksManifest>`, "X", strings.Repeat("\u00e9", 200_000), 1)
		w.put("b.dura-manifest", document)
		w.put("c.dura-manifest", "<\xff\xfe>")
		time.Sleep(25 * time.Hour)
		w.expects("unreadable:2 whole:1")
		for _, text := range []string{w.incident, w.report.GetDetail(), string(w.previous)} {
			if len(text) > 4*maxText || !utf8.ValidString(text) {
				t.Errorf("%d bytes: %.500q", len(text), text)
			}
		}
	})
}

// A page reads a bounded number of documents, and of records at once.
func TestPageIsBounded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.config.Page = 0
		for i := range maxDocuments + 1 {
			w.group(fmt.Sprintf("f%03d", i), "one", "two")
		}
		w.group("g", slices.Repeat([]string{"x"}, recordBatch)...)
		w.expects(fmt.Sprintf("whole:%d", maxDocuments+2))
		if w.pages < 3 || w.batches < 4 {
			t.Errorf("%d pages, %d batches", w.pages, w.batches)
		}
	})
}
