package duplicate

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func TestRepair(t *testing.T) {
	prepare := func(t *testing.T) (*world, digest.Set) {
		w := newWorld(t)
		change := w.added("1", "hello")
		w.mustRun(command(change))
		return w, change.GetDigests()
	}
	moot := func(t *testing.T, w *world, c *pb.DuplicationCommand, held string) {
		t.Helper()
		puts := len(w.mem["2"].AllKept())
		got := w.mustRun(c)
		got.ends("C0", "repair-moot", handedOn, 0, 1)
		for _, tasks := range got.tasks {
			if tasks[0].GetReason() != pb.FixityReason_FIXITY_REASON_REPAIR || tasks[0].GetStore() != "2" {
				t.Errorf("task: %v", tasks[0])
			}
		}
		if len(w.mem["2"].AllKept()) != puts {
			t.Error("something was replaced")
		}
		w.holds("2", held)
	}
	t.Run("corrupt", func(t *testing.T) {
		w, expected := prepare(t)
		w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
		c := w.repair(expected)
		got := w.mustRun(c)
		got.ends("C0", "repaired", done, 1, 1)
		w.holds("2", "hello")
		if kept := w.mem["2"].AllKept(); len(kept) != 1 || string(kept[0].Bytes) != "hellO" {
			t.Errorf("kept: %v", kept)
		}
		if got.changes[0].GetOrigin() != pb.Origin_ORIGIN_REPAIR || got.result.GetIncident() != "incident" {
			t.Errorf("change %v\nresult %v", got.changes[0], got.result)
		}
		for _, tasks := range got.tasks {
			if tasks[0].GetReason() != pb.FixityReason_FIXITY_REASON_REPAIR {
				t.Errorf("task: %v", tasks[0])
			}
		}
		moot(t, w, c, "hello") // it is no longer the failed object
		w.untouched("1")
	})
	t.Run("replaced", func(t *testing.T) { // its properties belong to the bytes of another program
		for own, set := range map[string]storage.Properties{"none": {}, "others": {MediaType: "text/html"}} {
			w, expected := prepare(t)
			_, err := w.mem["2"].Put(t.Context(), "photos", "a.jpg", strings.NewReader("theirs"),
				storage.PutOptions{Size: storage.UnknownSize, Properties: set})
			w.must(err)
			w.mustRun(w.repair(expected)).ends("C0", "repaired", done, 1, 1)
			w.holds("2", "hello")
			w.hasProperties("2", storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}})
			if t.Failed() {
				t.Log("it has", own)
			}
		}
	})
	t.Run("missing", func(t *testing.T) {
		w, expected := prepare(t)
		w.mem["2"].Lose("photos", "a.jpg")
		w.mustRun(w.repair(expected)).ends("C0", "repaired", done, 1, 1)
		w.holds("2", "hello")
	})
	t.Run("written meanwhile", func(t *testing.T) {
		w, expected := prepare(t)
		w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
		c := w.repair(expected)
		w.once("2", "Put", func() { w.mem["2"].Rewrite("photos", "a.jpg", []byte("mine")) })
		moot(t, w, c, "mine")
	})
	t.Run("the good copy has rotted too", func(t *testing.T) {
		w, expected := prepare(t)
		w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
		w.mem["1"].Corrupt("photos", "a.jpg", []byte("hELLO"))
		mootOfBoth(t, w, w.repair(expected))
		w.holds("2", "hellO")
	})
	t.Run("the good copy is lost too", func(t *testing.T) {
		w, expected := prepare(t)
		w.mem["2"].Lose("photos", "a.jpg")
		w.mem["1"].Lose("photos", "a.jpg")
		mootOfBoth(t, w, w.repair(expected))
	})
	t.Run("the good copy is another, as its store says", func(t *testing.T) {
		w, expected := prepare(t)
		w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
		w.put("1", "hELLO")
		mootOfBoth(t, w, w.repair(expected))
		w.holds("2", "hellO")
	})
	t.Run("failed, and persisted", func(t *testing.T) {
		w, expected := prepare(t)
		w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
		c := w.repair(expected)
		w.faulty["2"].Script(storagetest.Fault{Method: "Put", Applied: true})
		if _, err := w.run(c, 0); retry.ClassOf(err) != retry.Transient {
			t.Fatalf("got %v", err)
		}
		w.holds("2", "hello")
		got := w.mustRun(c)
		got.ends("C0", "repair-moot", nothing, 1, 1)
		if got.changes[0].GetOrigin() != pb.Origin_ORIGIN_REPAIR {
			t.Errorf("change: %v", got.changes[0])
		}
		moot(t, w, c, "hello") // published only once
	})
	t.Run("nothing is known of it", func(t *testing.T) {
		w, expected := prepare(t)
		w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
		w.journal.err = errors.New("no answer")
		if _, err := w.run(w.repair(expected), 0); retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("got %v", err)
		}
		w.holds("2", "hellO")
	})
}

// mootOfBoth runs a repair whose source is not a good copy. Both sides are checked, since no other part has observed
// that. The reason of the source's check is not repair.
func mootOfBoth(t *testing.T, w *world, c *pb.DuplicationCommand) {
	t.Helper()
	got := w.mustRun(c)
	got.ends("C0", "repair-moot", handedOn, 0, 2)
	reasons := map[string]pb.FixityReason{}
	for _, task := range got.tasks[schemas.FixityHigh] {
		reasons[task.GetStore()] = task.GetReason()
	}
	want := map[string]pb.FixityReason{"1": pb.FixityReason_FIXITY_REASON_SUSPECT,
		"2": pb.FixityReason_FIXITY_REASON_REPAIR}
	if !maps.Equal(reasons, want) {
		t.Errorf("checks: got %v, want %v", reasons, want)
	}
	w.untouched("1")
}

// The primary rots, and its secondary has an older version: on record, or because that came back. The primary is not
// repaired from it, whether or not the store of the secondary reports digests, and a secondary that should have the
// content is checked, so that it has an incident of its own.
func TestRotInThePrimaryAndAStaleSecondary(t *testing.T) {
	for name, stale := range map[string]func(*world, *pb.Change){
		"not copied yet": func(*world, *pb.Change) {},
		"come back":      func(w *world, newer *pb.Change) { w.mustRun(command(newer)); w.put("2", "hello") },
		"without a digest": func(w *world, _ *pb.Change) {
			w.mem["2"].Rewrite("photos", "a.jpg", []byte("hello"))
		},
		"come back without a digest": func(w *world, newer *pb.Change) {
			w.mustRun(command(newer))
			w.mem["2"].Rewrite("photos", "a.jpg", []byte("hello"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.mustRun(command(w.added("1", "hello")))
			newer := w.added("1", "hello again")
			stale(w, newer)
			w.mem["1"].Corrupt("photos", "a.jpg", []byte("hellO again"))
			c := w.repair(newer.GetDigests())
			c.SourceStore, c.DestinationStore = "2", "1"
			o, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			c.Repair.Failed = record.Identity(o)
			for range 2 {
				got := w.mustRun(c)
				got.ends("C0", "repair-moot", handedOn, 0, 2)
				w.holds("1", "hellO again")
				w.holds("2", "hello")
			}
			if now, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg"); err != nil || now.Version != o.Version {
				t.Errorf("the primary has %v, %v; had %v", now, err, o)
			}
		})
	}
}
