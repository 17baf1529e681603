package duplicate

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func TestReference(t *testing.T) {
	t.Run("C5", func(t *testing.T) {
		w := newWorld(t)
		w.put("1", "hello")
		w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello")) // no digests, no Change
		got := w.mustRun(manual())
		got.ends("C5", "copied", done, 2, 1)
		checkReference(t, got, 1, w)
	})
	t.Run("C4n", func(t *testing.T) {
		w := newWorld(t)
		w.put("1", "hello")
		w.put("2", "other")
		got := w.mustRun(bare())
		got.ends("C4n", "copied", done, 2, 1)
		checkReference(t, got, 2, w)
	})
	t.Run("C4n, two readings differ", func(t *testing.T) {
		w := newWorld(t)
		w.put("1", "hello")
		w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello"))
		w.put("2", "other")
		opened := 0
		w.faulty["1"].Before(func(_ context.Context, c storagetest.Call) error {
			if c.Method == "Open" {
				if opened++; opened == 2 { // C1 has read once
					w.mem["1"].Corrupt("photos", "a.jpg", []byte("hellO"))
				}
			}
			return nil
		})
		w.mustRun(bare())
		if n := w.faulty["2"].Count("Put"); n != 2 {
			t.Errorf("%d puts, want one refused and one done", n)
		}
	})
	t.Run("C5, replaced before it is opened", func(t *testing.T) {
		w := newWorld(t)
		w.put("1", "hello")
		w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello"))
		w.once("1", "Open", func() { w.mem["1"].Rewrite("photos", "a.jpg", []byte("world")) })
		got := w.mustRun(manual())
		o, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
		w.must(err)
		if got.changes[0].GetSourceVersion() != o.Version {
			t.Errorf("source version: got %q, want %q", got.changes[0].GetSourceVersion(), o.Version)
		}
		w.holds("2", "world")
	})
	t.Run("C5, cut short", func(t *testing.T) {
		w := newWorld(t)
		w.put("1", "hello")
		w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello"))
		w.faulty["1"].Script(storagetest.Fault{Method: "Open", Mid: true, After: 3, Times: -1, Err: io.EOF})
		w.mustRun(manual()).ends("C4s", "source-suspect", handedOn, 0, 1)
		w.holds("2", "")
	})
}

// The digests that a copier computes join the Change of the content, once a second look has found the source unchanged.
// If it was replaced meanwhile, nothing is known of the new content.
func TestReferenceCompletesItsCause(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*pb.Change)
		want bool
	}{
		"the content of the cause": {func(*pb.Change) {}, true},
		"the content of the cause, dated by its event": {func(c *pb.Change) {
			c.Time = ms(c.GetTime().AsTime().Add(-time.Hour))
		}, true},
		"the content of the cause, without a version":     {func(c *pb.Change) { c.Version = "" }, true},
		"the content of the cause, dated ahead":           {func(*pb.Change) {}, true},
		"without a version, of the cause and dated ahead": {func(c *pb.Change) { c.Version = "" }, true},
		"replaced meanwhile":                              {func(*pb.Change) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put("1", "hello")
			w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello")) // no digests, no Change
			if strings.Contains(name, "ahead") {
				w.mem["1"].Date("photos", "a.jpg", time.Now().Add(time.Hour))
			}
			o, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			cause := record.Content(at("1"), o)
			tt.edit(cause)
			c := command(w.reported(cause))
			if !tt.want { // before the second look
				w.once("2", "Put", func() { w.mem["1"].Rewrite("photos", "a.jpg", []byte("world")) })
				w.mustRun(c).ends("C5", "copied", done, 1, 1)
				return
			}
			got := w.mustRun(c)
			got.ends("C5", "copied", done, 2, 1)
			source, row := got.changes[1], w.journal.rows[at("1")]
			if !schemas.IsCompletion(source) || source.GetId() != cause.GetId() ||
				!proto.Equal(source.GetTime(), cause.GetTime()) ||
				source.GetVersion() != cause.GetVersion() || source.GetStore() != "1" {
				t.Errorf("got %v, want one that completes %v", source, cause)
			}
			if row.GetChangeId() != cause.GetId() || row.GetOrigin() != pb.Origin_ORIGIN_CLIENT || len(row.GetDigests()) == 0 {
				t.Errorf("on record: %v", row)
			}
		})
	}
}

func checkReference(t *testing.T, got did, opened int, w *world) {
	t.Helper()
	w.holds("2", "hello")
	destination, source := got.changes[0], got.changes[1]
	if source.GetStore() != "1" || source.GetOrigin() != pb.Origin_ORIGIN_FIXITY || source.GetCause() != "manual" ||
		len(source.GetDigests()) < 2 || !reflect.DeepEqual(source.GetDigests(), destination.GetDigests()) {
		t.Errorf("the Change of the source: %v", source)
	}
	if n := w.faulty["1"].Count("Open"); n != opened {
		t.Errorf("the source was opened %d times, want %d", n, opened)
	}
}

func TestProperties(t *testing.T) {
	prepare := func(t *testing.T) (*world, *pb.DuplicationCommand) {
		w := newWorld(t)
		w.mustRun(command(w.added("1", "hello")))
		o, err := w.mem["1"].SetProperties(t.Context(), "photos", "a.jpg", storage.Properties{MediaType: "image/png"},
			storage.Condition{})
		w.must(err)
		change := w.reported(&pb.Change{Op: pb.Op_OP_SET_PROPERTIES, Account: "acme", Store: "1", Space: "photos",
			Item:    "a.jpg",
			Version: o.Version, Time: ms(o.Modified.Add(2 * time.Hour))})
		return w, command(change)
	}
	t.Run("set", func(t *testing.T) {
		w, c := prepare(t)
		got := w.mustRun(c)
		got.ends("C3", "properties-set", done, 2, 0)
		o, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
		if want := (storage.Properties{MediaType: "image/png"}); err != nil || !reflect.DeepEqual(o.Properties, want) {
			t.Errorf("got %+v, %v", o.Properties, err)
		}
		set := got.changes[1]
		if set.GetOp() != pb.Op_OP_SET_PROPERTIES || set.GetMediaType() != "image/png" ||
			!proto.Equal(set.GetTime(), c.GetChangeTime()) {
			t.Errorf("change: %v", set)
		}
		w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
	})
	t.Run("failed, and persisted", func(t *testing.T) {
		w, c := prepare(t)
		w.faulty["2"].Script(storagetest.Fault{Method: "SetProperties", Applied: true})
		if _, err := w.run(c, 0); retry.ClassOf(err) != retry.Transient {
			t.Errorf("got %v", err)
		}
		got := w.mustRun(c)
		got.ends("C2", "in-sync", nothing, 1, 0)
		if set := got.changes[0]; set.GetOp() != pb.Op_OP_SET_PROPERTIES || set.GetMediaType() != "image/png" {
			t.Errorf("change: %v", set)
		}
		w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
	})
	t.Run("deferred", func(t *testing.T) {
		w, c := prepare(t)
		w.faulty["2"].Script(fault("SetProperties", storage.ErrUnsupported))
		w.mustRun(c).ends("C3", "properties-deferred", nothing, 0, 0)
	})
	t.Run("of another version", func(t *testing.T) {
		w, c := prepare(t)
		w.once("2", "SetProperties", func() { w.put("2", "else") })
		if _, err := w.run(c, 0); err != nil {
			t.Fatal(err)
		}
		w.holds("2", "hello")
	})
	t.Run("failed", func(t *testing.T) {
		w, c := prepare(t)
		w.faulty["2"].Script(fault("SetProperties", nil))
		if _, err := w.run(c, 0); retry.ClassOf(err) != retry.Transient {
			t.Errorf("got %v", err)
		}
		w.mustRun(c).ends("C3", "properties-set", done, 2, 0)
	})
}

// A store that cannot set properties gets them with the same bytes: once, verified, and without keeping the replaced
// ones.
func TestPropertiesWithTheBytes(t *testing.T) {
	prepareWith := func(t *testing.T, versions mem.Weak) (*world, *pb.DuplicationCommand) {
		versions.Properties = true
		w := newWorld(t)
		weak, err := mem.New(mem.Config{ID: "2", Weak: versions, Now: func() time.Time { return hour(10) }})
		w.must(err)
		w.mem["2"], w.faulty["2"] = weak, storagetest.NewFaulty(weak)
		weak.Mark("2")
		w.must(weak.CreateSpace(t.Context(), storage.Space{Name: "photos", Properties: map[string]string{"k": "v"}}))
		w.mustRun(command(w.added("1", "hello")))
		o, err := w.mem["1"].SetProperties(t.Context(), "photos", "a.jpg", storage.Properties{MediaType: "image/png"},
			storage.Condition{})
		w.must(err)
		return w, command(w.reported(&pb.Change{Op: pb.Op_OP_SET_PROPERTIES, Account: "acme", Store: "1", Space: "photos",
			Item:    "a.jpg",
			Version: o.Version, Time: ms(o.Modified.Add(2 * time.Hour))}))
	}
	prepare := func(t *testing.T) (*world, *pb.DuplicationCommand) { return prepareWith(t, mem.Weak{}) }
	carried := func(w *world) {
		t.Helper()
		o, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
		if want := (storage.Properties{MediaType: "image/png"}); err != nil || !reflect.DeepEqual(o.Properties, want) {
			t.Errorf("got %+v, %v", o.Properties, err)
		}
		w.holds("2", "hello")
		if r := w.journal.rows[at("2")]; r.GetVersion() != o.Version || r.GetMediaType() != "image/png" ||
			r.GetState() != live {
			t.Errorf("on record: %v, want version %s", r, o.Version)
		}
		if kept := w.mem["2"].AllKept(); len(kept) > 0 {
			t.Errorf("kept: %+v", kept)
		}
	}
	t.Run("done", func(t *testing.T) {
		w, c := prepare(t)
		got := w.mustRun(c)
		got.ends("C3", "properties-set", done, 1, 1)
		if up := got.changes[0]; up.GetOp() != pb.Op_OP_UPDATE || up.GetMediaType() != "image/png" {
			t.Errorf("change: %v", up)
		}
		carried(w)
		w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
	})
	t.Run("killed, and failed but persisted", func(t *testing.T) {
		for name, fail := range map[string]bool{"killed": false, "failed": true} {
			w, c := prepare(t)
			if fail {
				w.faulty["2"].Script(storagetest.Fault{Method: "Put", Applied: true})
			}
			if _, err := w.crash(c, 0); (err != nil) != fail {
				t.Errorf("%s: %v", name, err)
			}
			w.mustRun(c)
			carried(w)
			w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
		}
	})
	t.Run("failed", func(t *testing.T) {
		w, c := prepare(t)
		w.faulty["2"].Script(fault("Put", nil))
		if _, err := w.run(c, 0); retry.ClassOf(err) != retry.Transient {
			t.Errorf("got %v", err)
		}
		w.mustRun(c).ends("C3", "properties-set", done, 1, 1)
		carried(w)
	})
	t.Run("the source is archived", func(t *testing.T) { // and restore is off
		w, c := prepare(t)
		w.faulty["1"].Script(storagetest.Fault{Method: "Open", Times: -1, Err: retry.Permanent(storage.ErrUnsupported)})
		w.mustRun(c).ends("C3", "properties-deferred", nothing, 0, 0)
		w.faulty["1"].Heal()
		w.mustRun(c).ends("C3", "properties-set", done, 1, 1)
	})
	t.Run("the source rotted", func(t *testing.T) {
		w, c := prepare(t)
		w.mem["1"].Corrupt("photos", "a.jpg", []byte("hullo"))
		w.mustRun(c).ends("C4s", "source-suspect", handedOn, 0, 2)
		w.holds("2", "hello")
	})
	// A newer command puts the same bytes with newer properties, between this command's observation and its Put.
	t.Run("newer properties meanwhile", func(t *testing.T) {
		newest := storage.Properties{MediaType: "image/webp", User: map[string]string{"by": "her"}}
		for name, weak := range map[string]mem.Weak{"an ETag": {Versions: true},
			"an ETag, of no condition": {Versions: true, Conditions: true}, "unique": {}} {
			for again, f := range map[string]storagetest.Fault{
				"": {}, ", failed": {Method: "Put"}, ", done, failed": {Method: "Put", Applied: true},
			} {
				w, c := prepareWith(t, weak)
				w.once("2", "Put", func() {
					_, err := w.mem["1"].SetProperties(t.Context(), "photos", "a.jpg", newest, storage.Condition{})
					w.must(err)
					o, err := w.mem["2"].Put(t.Context(), "photos", "a.jpg", strings.NewReader("hello"),
						storage.PutOptions{Size: 5, Properties: newest})
					w.must(err)
					w.journal.add(record.Seal(record.Content(at("2"), o)))
				})
				if f.Method != "" {
					w.faulty["2"].Script(f)
				}
				_, _ = w.crash(c, 0)
				for range 2 { // the messages are lost
					o, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
					if err != nil || !reflect.DeepEqual(o.Properties, newest) {
						t.Errorf("%s%s: got %+v, %v, want %+v", name, again, o.Properties, err, newest)
					}
					w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
				}
			}
		}
	})
	t.Run("replaced meanwhile", func(t *testing.T) {
		w, c := prepare(t)
		w.once("2", "Put", func() { w.put("2", "else") })
		if _, err := w.run(c, 0); err != nil {
			t.Fatal(err)
		}
		w.holds("2", "hello")
	})
}
