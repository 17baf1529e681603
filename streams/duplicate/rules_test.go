package duplicate

import (
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

func putUnderHold(r *policy.Rules) {
	r.Holds = []policy.Hold{{Until: time.Now().Add(time.Hour), Reason: "a lawsuit"}}
}

func removePair(r *policy.Rules) { r.Pairs = nil }

// A rule that comes into force while a rewrite waits decides as if it had been in force before. What was not written
// takes no permit of the brake.
func TestRulesInForceAtTheRewrite(t *testing.T) {
	ref, list := ids("a.jpg")
	for name, tt := range map[string]struct {
		change      func(*policy.Rules)
		row, result string
	}{
		"hold":           {putUnderHold, "C4", "held"},
		"no pair":        {removePair, "C12", "not-in-policy"},
		"exclusion":      {func(r *policy.Rules) { r.Exclude = []string{"*.jpg"} }, "C10", "excluded"},
		"exclusion list": {func(r *policy.Rules) { r.ExcludeLists = []policy.ExcludeList{ref} }, "C10", "excluded"},
		"keep":           {func(r *policy.Rules) { r.Deletes = policy.KeepCopy }, "C4", "copied"},
	} {
		for point, waits := range map[string]func(w *world, topic *braked, change func()){
			"for fresh records": func(w *world, _ *braked, change func()) { w.journal.meanwhile = change },
			"for the brake": func(_ *world, topic *braked, change func()) {
				topic.Meanwhile = func(schemas.Message) { change() }
			},
			"for the stream": func(w *world, _ *braked, change func()) { w.once("1", "Open", change) },
		} {
			t.Run(name+" while waiting "+point, func(t *testing.T) {
				w := newWorld(t)
				c := w.replaced("one", "two")
				c.ChangeVersion, c.Digests = "", nil // the records are needed
				topic := w.braked(1)
				w.reads(lists{all: map[string]*policy.List{ref.URL: list}})
				before, changed := w.rules, false
				waits(w, topic, func() {
					if !changed {
						changed = true
						tt.change(&w.rules)
					}
				})
				got := w.mustRun(c)
				if !changed {
					t.Fatal("it did not wait")
				}
				if tt.result == "copied" {
					got.ends(tt.row, tt.result, done, 1, 1)
					return
				}
				got.ends(tt.row, tt.result, nothing, 0, 0)
				w.holds("2", "one")
				w.rules = before
				w.mustRun(c).ends("C4", "copied", done, 1, 1)
			})
		}
	}
}

// So it is for all other bytes that become visible.
func TestRulesInForceAfterTheStream(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare     func(t *testing.T) (*world, *pb.DuplicationCommand)
		from        string // the store that is read
		change      func(*policy.Rules)
		row, result string
		outcome     pb.Outcome
		tasks       int
	}{
		"what is absent": {func(t *testing.T) (*world, *pb.DuplicationCommand) {
			w := newWorld(t)
			return w, command(w.added("1", "hello"))
		}, "1", removePair, "C12", "not-in-policy", nothing, 0},
		"properties with the bytes": {func(t *testing.T) (*world, *pb.DuplicationCommand) {
			w := newWeakWorld(t)
			w.mustRun(command(w.added("1", "hello")))
			o, err := w.mem["1"].SetProperties(t.Context(), "photos", "a.jpg", storage.Properties{MediaType: "text/plain"},
				storage.Condition{})
			w.must(err)
			return w, command(w.reported(record.Content(at("1"), o)))
		}, "1", putUnderHold, "C3", "held", nothing, 0},
		"properties, after bytes were read for their digests": {func(t *testing.T) (*world, *pb.DuplicationCommand) {
			w := newWorld(t)
			w.mustRun(command(w.added("1", "hello")))
			w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello")) // without digests
			o, err := w.mem["1"].SetProperties(t.Context(), "photos", "a.jpg", storage.Properties{MediaType: "text/plain"},
				storage.Condition{})
			w.must(err)
			c := command(w.reported(record.Content(at("1"), o)))
			c.ChangeVersion, c.Digests = "", nil // the records are read before
			return w, c
		}, "1", putUnderHold, "C3", "held", nothing, 0},
		"a repair": {func(t *testing.T) (*world, *pb.DuplicationCommand) {
			w := newWorld(t)
			change := w.added("1", "hello")
			w.mustRun(command(change))
			w.mem["2"].Rewrite("photos", "a.jpg", []byte("rot"))
			return w, w.repair(change.GetDigests())
		}, "1", removePair, "C0", "repair-moot", handedOn, 1},
		"a repair of properties": {prepareAltered, "2", removePair, "C0p", "repair-moot", handedOn, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := tt.prepare(t)
			before, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
			absent := err != nil
			changed := false
			w.once(tt.from, "Open", func() { changed = true; tt.change(&w.rules) })
			w.mustRun(c).ends(tt.row, tt.result, tt.outcome, 0, tt.tasks)
			after, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
			if !changed || absent != (err != nil) || after.Version != before.Version {
				t.Errorf("streamed: %t; got %+v, %v after %+v", changed, after, err, before)
			}
		})
	}
}

// The same holds of what stops a restore, while its bytes are read.
func TestRulesInForceAfterTheStreamOfARestore(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*restoreWorld)
		result string
	}{
		"hold":      {func(w *restoreWorld) { putUnderHold(&w.rules) }, "held"},
		"no repair": {func(w *restoreWorld) { w.refused = "the store has repair: off" }, "restore-refused"},
		"no pair":   {func(w *restoreWorld) { removePair(&w.rules) }, "restored"},
	} {
		t.Run(name, func(t *testing.T) {
			w, change := newRestoreWorld(t)
			o := w.encrypted(change)
			w.once("2", "Open", func() { tt.change(w) })
			got, _ := w.restored(o)
			if r := got.result; r.GetDecision() != "C0r" || r.GetResult() != tt.result {
				t.Errorf("got %v", r)
			}
			w.holds("1", map[bool]string{true: "hello", false: "XXXXX"}[tt.result == "restored"])
		})
	}
}
