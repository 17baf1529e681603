package duplicate

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/held/heldtest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A braked is a brake on rewrites and its lists.
type braked struct {
	*braketest.Topic
	lists *heldtest.Lists
}

// braked adds a brake on rewrites with a limit to the executor.
func (w *world) braked(limit int64) *braked {
	w.t.Helper()
	topic := &braked{braketest.New(brake.Rewrites), heldtest.New()}
	topic.Limits = brake.Limits{MaxShare: 1, MaxCount: limit}
	config := w.executor.cfg
	config.Rewrites, config.Held = topic.Process(), topic.lists
	var err error
	w.executor, err = New(config, w, w, w.journal)
	w.must(err)
	return topic
}

// replaced puts old content into both stores, and then new content into the source. It returns the command for that.
func (w *world) replaced(old, text string) *pb.DuplicationCommand {
	w.added("1", old)
	w.mustRun(command(w.added("1", old)))
	w.holds("2", old)
	c := command(w.added("1", text))
	c.CauseOp = pb.Op_OP_UPDATE
	return c
}

// held executes a command that is expected to be held, and returns its result, which the topic has then.
func (w *world) held(topic *braked, c *pb.DuplicationCommand) *pb.DuplicationResult {
	w.t.Helper()
	r := w.mustRun(c).result
	if r.GetResult() != "awaiting-approval" || r.GetEffect() == "" {
		w.t.Fatalf("got %v", r)
	}
	topic.lists.Results = append(topic.lists.Results, r)
	return r
}

// A rewrite within the limits is done. One beyond them waits: the copy is kept, and the result says what waits.
func TestRewriteBeyondTheLimit(t *testing.T) {
	w := newWorld(t)
	topic := w.braked(1)
	w.mustRun(w.replaced("one", "two")).ends("C4", "copied", done, 1, 1)
	c := command(w.added("1", "encrypted"))
	r := w.held(topic, c)
	w.holds("2", "two")
	source, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	if r.GetDecision() != "C4" || r.GetResult() != "awaiting-approval" || r.GetOutcome() != handedOn ||
		r.GetList() != "rewrites-1" ||
		r.GetDetail() != "the brake: replaced.max_count within an hour" ||
		r.GetSourceVersion() != source.Version || r.GetDigests()["md5"] != source.Digests["md5"] || r.GetBytes() != 0 {
		t.Errorf("got %v", r)
	}
	if err := schemas.Validate(r); err != nil {
		t.Error(err)
	}
	if len(topic.lists.Held) != 1 || topic.lists.Held[0] != r.GetList()+": "+r.GetDetail() {
		t.Errorf("incidents %q", topic.lists.Held)
	}
	// The same again is the same effect, and a later content of the item another one, whatever the limits say by then.
	if again := w.held(topic, c); again.GetEffect() != r.GetEffect() {
		t.Errorf("got %v after %v", again, r)
	}
	topic.Limits.MaxCount = 100
	later := w.held(topic, command(w.added("1", "encrypted again")))
	if later.GetList() != r.GetList() || later.GetEffect() == r.GetEffect() ||
		later.GetDetail() != "the brake: an earlier one waits for a decision" {
		t.Errorf("got %v after %v", later, r)
	}
	w.holds("2", "two")
}

// While the sources of a refused list are being brought back from the copies, these are not replaced, not even by what
// was approved before. What was refused is not done afterwards either.
func TestRewriteDuringARefusal(t *testing.T) {
	w := newWorld(t)
	topic := w.braked(0)
	c := w.replaced("one", "two")
	r := w.held(topic, c)
	space := at("2").WithoutItem()
	topic.lists.Decide(held.List{Space: space, Kind: held.Rewrites, Number: 1}, held.ActionApprove)
	approved := listed(r)
	topic.Limits.MaxCount = 9
	other := held.List{Space: space, Kind: held.Limit, Number: 1} // of deletes in the same space
	topic.lists.Decide(other, held.ActionRefuse)
	for _, c := range []*pb.DuplicationCommand{c, approved} {
		if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("got %v", err)
		}
	}
	w.holds("2", "one")
	topic.lists.Closed[other] = true
	w.mustRun(approved).ends("C4", "copied", done, 1, 1)
	w.holds("2", "two")
}

// A refusal stops a rewrite whose bytes are being written.
func TestRefusalDuringARewrite(t *testing.T) {
	w := newWorld(t)
	topic := w.braked(5)
	c := w.replaced("one", "two")
	w.once("2", "Put", func() {
		topic.lists.Decide(held.List{Space: at("2").WithoutItem(), Kind: held.Rewrites, Number: 1}, held.ActionRefuse)
	})
	if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	w.holds("2", "one")
}

// What a person has decided not to do is not done by a sweep either, however far the limits are.
func TestRewriteThatIsKept(t *testing.T) {
	for action, want := range map[string]string{
		held.ActionClose: "kept", held.ActionRefuse: "kept", held.ActionApprove: "copied"} {
		t.Run(action, func(t *testing.T) {
			w := newWorld(t)
			topic := w.braked(0)
			c := w.replaced("one", "two")
			first := w.held(topic, c)
			list := held.List{Space: at("2").WithoutItem(), Kind: held.Rewrites, Number: 1}
			topic.lists.Decide(list, action)
			topic.lists.Closed[list], topic.Limits.MaxCount = true, 9
			topic.lists.Unknown = errors.New("no answer")
			if _, err := w.run(c, 0); want == "kept" && retry.ClassOf(err) != retry.ClassUnavailable {
				t.Errorf("the results are unknown: got %v", err)
			}
			topic.lists.Unknown = nil
			r := w.mustRun(c).result
			if want == "kept" && (r.GetResult() != want || !strings.Contains(r.GetDetail(), "of ann about list rewrites-1")) {
				t.Errorf("got %v", r)
			}
			if want == "kept" {
				if r := w.mustRun(listed(first)).result; r.GetResult() != want {
					t.Errorf("by a command that was ordered before: got %v", r)
				}
				w.mem["2"].Date("photos", "a.jpg", hour(50)) // as a repair does
				if r := w.mustRun(c).result; r.GetResult() != want {
					t.Errorf("over the same content in another object: got %v", r)
				}
				w.holds("2", "one")
				w.mustRun(command(w.added("1", "three"))).ends("C4", "copied", done, 1, 1) // another effect
				w.holds("2", "three")
			} else {
				w.holds("2", "two")
			}
		})
	}
}

// Only C4 and C4n over a copy that is present are counted and held.
func TestWhatIsNoRewrite(t *testing.T) {
	for name, tt := range map[string]func(w *world) *pb.DuplicationCommand{
		"the destination is absent": func(w *world) *pb.DuplicationCommand { return command(w.added("1", "hello")) },
		"only properties differ": func(w *world) *pb.DuplicationCommand {
			w.replaced("hello", "hello")
			o, err := w.mem["1"].SetProperties(t.Context(), "photos", "a.jpg", storage.Properties{MediaType: "text/plain"},
				storage.Condition{})
			w.must(err)
			return command(w.reported(record.Content(at("1"), o)))
		},
		"a repair": func(w *world) *pb.DuplicationCommand {
			w.replaced("hello", "hello")
			w.mem["2"].Rewrite("photos", "a.jpg", []byte("rot"))
			source, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			return w.repair(source.Digests)
		},
		"the same content": func(w *world) *pb.DuplicationCommand { return w.replaced("hello", "hello") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := tt(w)
			topic := w.braked(0)
			if r := w.mustRun(c).result; r.GetList() != "" || r.GetResult() == "awaiting-approval" {
				t.Errorf("got %v", r)
			}
			w.holds("2", "hello")
			if len(topic.Checkpoints) > 0 {
				t.Errorf("%d checkpoints", len(topic.Checkpoints))
			}
		})
	}
}

// A source on no record is held with what its store reports of it.
func TestUnrecordedRewriteIsHeld(t *testing.T) {
	w := newWorld(t)
	w.put("2", "mine")
	w.put("1", "theirs")
	topic := w.braked(0)
	c := bare()
	if r := w.held(topic, c); r.GetDecision() != "C4n" || r.GetSourceVersion() == "" {
		t.Errorf("got %v", r)
	}
	w.holds("2", "mine")
}

// An approval is one of the content that was on the list, and of nothing else.
func TestApprovedRewrite(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(w *world, c *pb.DuplicationCommand)
		list   bool
		holds  string
	}{
		"the content on the list": {func(*world, *pb.DuplicationCommand) {}, true, "two"},
		"by its digests":          {func(_ *world, c *pb.DuplicationCommand) { c.ChangeVersion = "" }, true, "two"},
		"another copy": {func(w *world, _ *pb.DuplicationCommand) {
			w.mem["2"].Rewrite("photos", "a.jpg", []byte("one"))
		}, false, "one"},
		"a later content":    {func(w *world, _ *pb.DuplicationCommand) { w.added("1", "three") }, false, "one"},
		"nothing says which": {func(_ *world, c *pb.DuplicationCommand) { c.Effect = "" }, false, "one"},
		"a list of deletes":  {func(_ *world, c *pb.DuplicationCommand) { c.List = "brake-1" }, false, "one"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			topic := w.braked(0)
			r := w.held(topic, w.replaced("one", "two"))
			c := listed(r)
			tt.change(w, c)
			checkpoints := len(topic.Checkpoints)
			if tt.list {
				got := w.mustRun(c)
				got.ends("C4", "copied", done, 1, 1)
				if got.result.GetList() != r.GetList() || got.result.GetCause() != r.GetList() ||
					got.result.GetEffect() != r.GetEffect() ||
					len(topic.Checkpoints) != checkpoints {
					t.Errorf("got %v, %d checkpoints", got.result, len(topic.Checkpoints)-checkpoints)
				}
			} else if got := w.held(topic, c); got.GetResult() != "awaiting-approval" {
				t.Errorf("got %v", got)
			}
			w.holds("2", tt.holds)
			if tt.list { // executed again, after a kill
				w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
			}
		})
	}
}

// listed returns the command that orders a held rewrite whose list was approved.
func listed(r *pb.DuplicationResult) *pb.DuplicationCommand {
	return &pb.DuplicationCommand{Id: "listed", Account: "acme", Space: "photos", Item: "a.jpg", SourceStore: "1",
		DestinationStore: "2", Reason: r.GetReason(), Cause: r.GetList(), ChangeTime: r.GetChangeTime(),
		ChangeVersion: r.GetSourceVersion(), Digests: maps.Clone(r.GetDigests()), SizeUnknown: true, Approved: "ann",
		List: r.GetList(), Effect: r.GetEffect()}
}

// The approval of a rewrite is not one of a delete: if only a sweep noticed that the source is gone, the delete of the
// copy still needs its own.
func TestApprovedRewriteOfALostSource(t *testing.T) {
	w := newWorld(t)
	topic := w.braked(0)
	r := w.held(topic, w.replaced("one", "two"))
	gone := record.Delete(at("1"), w.remove("1"))
	gone.Origin = pb.Origin_ORIGIN_SWEEP
	w.journal.add(record.Seal(gone))
	got := w.mustRun(listed(r))
	got.ends("C7b", "deletion-ordered", handedOn, 0, 0)
	if o := got.orders[0]; !o.GetNeedsApproval() || o.GetApproved() != "" {
		t.Errorf("got %v", o)
	}
}

// A write that certainly changed nothing does not count; one that may have does.
func TestRewriteThatFails(t *testing.T) {
	for name, tt := range map[string]struct {
		err   error
		after bool // the write took effect
		next  string
	}{
		"not persisted": {storage.NotApplied(retry.Unavailable(errors.New("no answer"))), false, "copied"},
		"perhaps":       {retry.Unavailable(errors.New("no answer")), false, "awaiting-approval"},
		"but persisted": {retry.Unavailable(errors.New("no answer")), true, "in-sync"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			topic := w.braked(1)
			c := w.replaced("one", "two")
			w.faulty["2"].Script(storagetest.Fault{Method: "Put", Err: tt.err, Applied: tt.after})
			if _, err := w.run(c, 0); err == nil {
				t.Fatal("no error")
			}
			if tt.next == "awaiting-approval" {
				if r := w.held(topic, c); r.GetResult() != tt.next {
					t.Errorf("got %v", r)
				}
			} else if r := w.mustRun(c).result; r.GetResult() != tt.next {
				t.Errorf("got %v", r)
			}
		})
	}
}

// A service has replaced the object, and its answer was lost. The request was repeated, and refused, because the object
// has changed. The rewrite was done, and counts.
func TestRepeatedRewriteCounts(t *testing.T) {
	for name, tt := range map[string]struct {
		err     error
		applied bool
		reached string
	}{
		"repeated":       {storage.ErrChanged, true, "replaced.max_count within an hour"},
		"changed before": {storage.NotApplied(storage.ErrChanged), false, "replaced.max_count within an hour"},
		"unknown":        {storage.ErrNotFound, false, "replaced.max_count within an hour"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			topic := w.braked(1)
			c := w.replaced("one", "two")
			w.faulty["2"].Script(storagetest.Fault{Method: "Put", Err: tt.err, Applied: tt.applied})
			if name == "unknown" { // it counts, so the next try is held
				w.held(topic, c)
				w.holds("2", "one")
			} else {
				w.mustRun(c)
				w.holds("2", "two")
			}
			if got := w.executor.cfg.Rewrites.Reached(at("2")); got != tt.reached && got != "an earlier one waits for approval" {
				t.Errorf("got %q, want %q", got, tt.reached)
			}
		})
	}
}

// A source that cannot be opened or read is no rewrite: the retries of such commands must not stop all others.
func TestRewriteOfAnUnreadableSource(t *testing.T) {
	for name, fault := range map[string]storagetest.Fault{"opened": {}, "read": {Mid: true, After: 1}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.braked(1)
			c := w.replaced("one", "two")
			fault.Method, fault.Err = "Open", retry.Unavailable(errors.New("no answer"))
			w.faulty["1"].Script(fault)
			if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
				t.Fatalf("got %v", err)
			}
			w.mustRun(c).ends("C4", "copied", done, 1, 1)
		})
	}
}

// While the counts are unknown, or the incident of the list cannot be opened, the command is tried again.
func TestRewriteWaitsForItsBrake(t *testing.T) {
	w := newWorld(t)
	topic := w.braked(1)
	c := w.replaced("one", "two")
	topic.Unknown = errors.New("no answer")
	if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("the records are unknown: got %v", err)
	}
	topic.Unknown = nil
	refused := errors.New("refused")
	topic.Fail = func(schemas.Message) error { return refused }
	if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("the checkpoint is refused: got %v", err)
	}
	w.holds("2", "one")
	topic.Fail, topic.Limits.MaxCount = nil, 0
	topic.lists.Fail = refused
	if _, err := w.run(c, 0); !errors.Is(err, refused) {
		t.Errorf("the incident is refused: got %v", err)
	}
	topic.lists.Fail = nil
	w.held(topic, c)
	w.holds("2", "one")
}
