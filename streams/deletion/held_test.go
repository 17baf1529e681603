package deletion

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// A delete beyond the limit waits, with its list in the result. One that was tried and not done does not count.
func TestDeleteBeyondTheLimit(t *testing.T) {
	w := newWorld(t)
	w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1}
	if _, r, err := w.run(order()); err != nil || r.GetResult() != "deleted" || r.GetList() != "" {
		t.Fatalf("got %v, %v", r, err)
	}
	o := w.put("2", "hello")
	w.rows["2"] = &pb.Record{State: live, Time: stamp(3), Version: o.Version, SourceTime: stamp(2)}
	_, r, err := w.run(order())
	w.must(err)
	effect := duplicate.DeleteEffect(destination, hour(4), o)
	if r.GetResult() != "awaiting-approval" || r.GetDecision() != "C7" || r.GetList() != "brake-1" ||
		r.GetEffect() != effect || r.GetDetail() != "the brake: deletes.max_count within an hour" ||
		!r.GetChangeTime().AsTime().Equal(hour(4)) {
		t.Errorf("got %v", r)
	}
	w.present(true)
}

// A delete that is executed again, as when its result was not acknowledged in time, counts once and reports nothing
// new.
func TestDeleteThatIsDoneAgainCountsOnce(t *testing.T) {
	w := newWorld(t)
	w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 2}
	for n, want := range []string{"deleted", "deleted", "awaiting-approval"} {
		if n > 0 {
			w.seen = w.put("2", "hello")
		}
		w.rows["2"] = &pb.Record{State: live, Time: stamp(3), Version: w.seen.Version, SourceTime: stamp(2)}
		if _, r, err := w.run(order()); err != nil || r.GetResult() != want {
			t.Fatalf("delete %d: got %v, %v, want %s", n, r, err, want)
		}
		if want == "deleted" {
			w.rows["2"] = &pb.Record{State: tomb, Time: stamp(4)}
			changes, r, err := w.run(order())
			if err != nil || len(changes) != 0 || r.GetDecision() != "C8" || r.GetId() == "" {
				t.Fatalf("delete %d, again: got %v, %v, %v", n, changes, r, err)
			}
		}
	}
}

func TestUnknownCountsDeleteNothing(t *testing.T) {
	w := newWorld(t)
	w.topic.Unknown = errors.New("no answer")
	if _, _, err := w.run(order()); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	w.present(true)
	w.topic.Unknown, w.topic.Fail = nil, func(schemas.Message) error { return errors.New("refused") }
	if _, _, err := w.run(order()); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("the checkpoint is refused: got %v", err)
	}
	w.present(true)
}

// Each delete is held for one reason, and a list of one kind holds no delete of another.
func TestKindsOfLists(t *testing.T) {
	type prepare = func(*world, *pb.DeletionCommand)
	approve := func(w *world, _ *pb.DeletionCommand) { w.rules.Deletes = policy.Approve }
	keep := func(w *world, _ *pb.DeletionCommand) { w.rules.Deletes = policy.KeepCopy }
	sweep := func(w *world, _ *pb.DeletionCommand) { w.rows["1"].Origin = pb.Origin_ORIGIN_SWEEP }
	disputed := func(w *world, _ *pb.DeletionCommand) { w.rows["1"].Disputed = true }
	said := func(_ *world, c *pb.DeletionCommand) { c.NeedsApproval = true }
	beyond := func(w *world, _ *pb.DeletionCommand) { w.topic.Limits = brake.Limits{MaxShare: 1} }
	both := func(a, b prepare) prepare { return func(w *world, c *pb.DeletionCommand) { a(w, c); b(w, c) } }
	open := func(kinds ...held.Kind) prepare {
		return func(w *world, _ *pb.DeletionCommand) {
			for _, k := range kinds {
				w.lists.Open[listOfKind(k, 1)] = true
			}
		}
	}
	elsewhere := func(w *world, _ *pb.DeletionCommand) {
		l := listOfKind(held.Limit, 1)
		l.Space.Space = "music"
		w.lists.Open[l] = true
	}
	unreported, rule := "no client reported the deletes, or a clock may be wrong", "the policy has deletes: approve"
	for name, tt := range map[string]struct {
		prepare     prepare
		kind        held.Kind // none: it is not held
		cause, then string
	}{
		"the rule says so":              {approve, held.Approve, rule, ""},
		"the rule, and no client":       {both(approve, sweep), held.Approve, rule, ""},
		"the rule, beyond the limits":   {both(approve, beyond), held.Approve, rule, ""},
		"the command says so":           {said, held.Unreported, "the deletes needed approval when they were ordered", ""},
		"only a sweep missed it":        {sweep, held.Unreported, unreported, ""},
		"a sweep, beyond the limits":    {both(sweep, beyond), held.Unreported, unreported, ""},
		"a sweep, and one of the brake": {both(sweep, open(held.Limit)), held.Unreported, unreported, ""},
		"a clock may be wrong":          {disputed, held.Unreported, unreported, ""},
		"beyond the limits":             {beyond, held.Limit, "the brake: deletes.max_count within an hour", ""},
		"an earlier one waits":          {open(held.Limit), held.Limit, "the brake: " + held.EarlierWaits, ""},
		"others wait":                   {open(held.Approve, held.Unreported, held.Rewrites), "", "", "deleted"},
		"one of another space waits":    {elsewhere, "", "", "deleted"},
		"it is carried":                 {func(*world, *pb.DeletionCommand) {}, "", "", "deleted"},
		"it is kept by the rule":        {keep, "", "", "kept"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := order()
			tt.prepare(w, c)
			_, r, err := w.run(c)
			w.must(err)
			if tt.kind == "" {
				if r.GetResult() != tt.then || r.GetList() != "" || len(w.lists.Held) > 0 {
					t.Errorf("got %v, held %v", r, w.lists.Held)
				}
				return
			}
			l := listOfKind(tt.kind, 1)
			if r.GetResult() != "awaiting-approval" || r.GetOutcome() != handedOn || r.GetList() != l.Name() ||
				r.GetDetail() != tt.cause || !w.lists.Open[l] || !slices.Equal(w.lists.Held, []string{l.Name() + ": " + tt.cause}) {
				t.Errorf("got %v, held %v", r, w.lists.Held)
			}
			w.present(true)
		})
	}
}

// A delete whose list has no incident has no result: it is tried again.
func TestHeldDeleteIsReported(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"the rule says so":       func(w *world) { w.rules.Deletes = policy.Approve },
		"only a sweep missed it": func(w *world) { w.rows["1"].Origin = pb.Origin_ORIGIN_SWEEP },
		"beyond the limits":      func(w *world) { w.topic.Limits = brake.Limits{MaxShare: 1} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			prepare(w)
			w.lists.Fail = errors.New("no answer")
			if _, _, err := w.run(order()); err == nil || retry.ClassOf(err) != retry.Transient {
				t.Errorf("got %v", err)
			}
			w.present(true)
			if len(w.lists.Open) > 0 || len(w.topic.Published) > 0 {
				t.Errorf("open %v, published %v", w.lists.Open, w.topic.Published)
			}
			w.lists.Fail = nil
			if l := w.held(order()); !w.lists.Open[l] || !slices.Equal(w.lists.items(l), []string{"a.jpg"}) {
				t.Errorf("open %v, on the list %v", w.lists.Open, w.lists.items(l))
			}
		})
	}
}

// An approval is one of the delete that was on the list, and of nothing else.
func TestApprovedDelete(t *testing.T) {
	same := func(*world) {}
	beyond := func(w *world) { w.topic.Limits = brake.Limits{MaxShare: 1} }
	within := func(w *world) { w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1} }
	rule := func(w *world) { w.rules.Deletes = policy.Approve }
	sweep := func(w *world) { w.rows["1"].Origin = pb.Origin_ORIGIN_SWEEP }
	propagate := func(w *world) { w.rules.Deletes = policy.Propagate }
	keep := func(w *world) { w.rules.Deletes = policy.KeepCopy }
	recorded := func(w *world) { w.rows["1"] = &pb.Record{State: live, Time: stamp(5)} }
	again := func(w *world) { w.rows["1"].Time = stamp(5) }
	written := func(w *world) { // by a client of the destination
		w.mem["2"].Rewrite("photos", "a.jpg", []byte("mine"))
		w.mem["2"].Date("photos", "a.jpg", hour(3))
	}
	copied := func(w *world) {
		o := w.put("2", "newer")
		w.rows["2"].Version, w.rows["2"].Digests = o.Version, o.Digests
	}
	both := func(a, b func(*world)) func(*world) { return func(w *world) { a(w); b(w) } }
	for name, tt := range map[string]struct {
		held, then   func(*world)
		result, list string // none: that of the result has none
	}{
		"passes the brake": {beyond, same, "deleted", "brake-1"},
		"passes the rule":  {rule, same, "deleted", "approve-1"},
		"a list of another kind keeps it": {both(func(w *world) { beyond(w); w.held(order()) }, rule), func(w *world) {
			w.decide(listOfKind(held.Limit, 1), held.ActionClose)
		}, "kept", ""},
		"was a guess":                     {sweep, same, "deleted", "unreported-1"},
		"the rule is propagate now":       {rule, propagate, "deleted", "approve-1"},
		"the rule is keep now":            {beyond, keep, "kept", ""},
		"the source is back":              {beyond, func(w *world) { w.put("1", "new") }, "not-deleted", ""},
		"the copy is gone":                {beyond, func(w *world) { w.mem["2"].Lose("photos", "a.jpg") }, "gone", ""},
		"the copy is newer":               {beyond, func(w *world) { w.rows["2"].SourceTime = stamp(5) }, "kept-newer", ""},
		"the source is on record":         {beyond, recorded, "not-deleted", ""},
		"deleted again":                   {beyond, again, "awaiting-approval", "brake-2"},
		"deleted again, within limits":    {beyond, both(within, again), "deleted", ""},
		"deleted again, under the rule":   {rule, again, "awaiting-approval", "approve-2"},
		"deleted again, a guess":          {sweep, again, "awaiting-approval", "unreported-2"},
		"deleted again, now a guess":      {beyond, both(sweep, again), "awaiting-approval", "unreported-1"},
		"another copy":                    {beyond, copied, "awaiting-approval", "brake-2"},
		"another copy, under the rule":    {rule, copied, "awaiting-approval", "approve-2"},
		"another copy, of a guess":        {sweep, copied, "awaiting-approval", "unreported-2"},
		"a client's copy":                 {beyond, written, "awaiting-approval", "unreported-1"},
		"a client's copy, within limits":  {beyond, both(within, written), "awaiting-approval", "unreported-1"},
		"a client's copy, under the rule": {rule, written, "awaiting-approval", "approve-2"},
		"a client's copy, of a guess":     {sweep, written, "awaiting-approval", "unreported-2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.held(w)
			ordered := w.approve(w.held(order()))
			if len(ordered) != 1 {
				t.Fatalf("ordered %v", ordered)
			}
			counted := len(w.topic.Checkpoints)
			tt.then(w)
			_, r, err := w.run(ordered[0])
			w.must(err)
			if r.GetResult() != tt.result || r.GetList() != tt.list || r.GetCause() != ordered[0].GetList() {
				t.Errorf("got %v", r)
			}
			if _, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg"); (err != nil) != (tt.result == "deleted" ||
				tt.result == "gone") {
				t.Errorf("the copy: %v", err)
			}
			if n := len(w.topic.Checkpoints); tt.result == "deleted" && (n > counted) != (tt.list == "") {
				t.Errorf("%d checkpoints: only a delete without approval is counted", n-counted)
			}
		})
	}
}

// An approved delete that is executed again, because its process was killed before it published, reports the delete.
func TestApprovedDeleteIsReported(t *testing.T) {
	for name, hold := range map[string]func(*world){
		"beyond the limits":      func(w *world) { w.topic.Limits = brake.Limits{MaxShare: 1} },
		"only a sweep missed it": func(w *world) { w.rows["1"].Origin = pb.Origin_ORIGIN_SWEEP },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			hold(w)
			c := w.approve(w.held(order()))[0]
			for n, want := range []string{"deleted", "gone"} {
				changes, r, err := w.run(c)
				w.must(err)
				if r.GetResult() != want || len(changes) != 1 || changes[0].GetOp() != pb.Op_OP_DELETE ||
					changes[0].GetStore() != "2" {
					t.Errorf("execution %d: got %v, %v", n, r, changes)
				}
			}
		})
	}
}

// What an operator has decided to keep is kept from the same delete for ever, but not from another one.
func TestKeptDelete(t *testing.T) {
	for name, tt := range map[string]struct {
		hold   func(*world)
		action string
	}{
		"a closed list of the brake":    {func(w *world) { w.topic.Limits = brake.Limits{MaxShare: 1} }, held.ActionClose},
		"a closed list of the rule":     {func(w *world) { w.rules.Deletes = policy.Approve }, held.ActionClose},
		"a closed list of guesses":      {func(w *world) { w.rows["1"].Origin = pb.Origin_ORIGIN_SWEEP }, held.ActionClose},
		"a refused list of the brake":   {func(w *world) { w.topic.Limits = brake.Limits{MaxShare: 1} }, held.ActionRefuse},
		"a refused list of unreporteds": {func(w *world) { w.rows["1"].Origin = pb.Origin_ORIGIN_SWEEP }, held.ActionRefuse},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.hold(w)
			l := w.held(order())
			w.decide(l, tt.action)
			w.lists.Closed[l] = true // the sources are restored, and lost again
			w.lists.Held = nil
			w.topic.Limits, w.rules.Deletes = brake.Limits{MaxShare: 1, MaxCount: 10}, policy.Propagate
			w.rows["1"].Origin = pb.Origin_ORIGIN_CLIENT
			for _, id := range []string{"deletion", "of a sweep"} {
				c := order()
				c.Id = id
				_, r, err := w.run(c)
				w.must(err)
				if r.GetResult() != "kept" || r.GetOutcome() != nothing || r.GetList() != "" ||
					!strings.Contains(r.GetDetail(), "ann about list "+l.Name()) ||
					r.GetEffect() == "" {
					t.Errorf("got %v", r)
				}
				w.present(true)
			}
			if n := len(w.topic.Checkpoints); n > 1 || len(w.lists.Held) > 0 {
				t.Errorf("%d checkpoints, held %v", n, w.lists.Held)
			}
			w.lists.Unknown = errors.New("no answer")
			if _, _, err := w.run(order()); retry.ClassOf(err) != retry.ClassUnavailable {
				t.Errorf("while the decisions are unknown: got %v", err)
			}
			w.present(true)
			w.lists.Unknown, w.rows["1"].Time = nil, stamp(5)
			if _, r, err := w.run(order()); err != nil || r.GetResult() != "deleted" {
				t.Errorf("another delete of the source: got %v, %v", r, err)
			}
		})
	}
}
