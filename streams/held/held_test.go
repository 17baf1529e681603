package held

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func space() schemas.Copy { return schemas.Copy{Account: "acme", Store: "2", Space: "a/b"} }

func TestNames(t *testing.T) {
	for name, tt := range map[string]struct {
		kind Kind
		ok   bool
	}{
		"brake-1": {Limit, true}, "unreported-12": {Unreported, true}, "approve-3": {Approve, true},
		"rewrites-1": {Rewrites, true}, "differs-1": {Differs, true}, "repairs-7": {Repairs, true},
		"brake-0": {Limit, false}, "brake-01": {Limit, false}, "brake--1": {Limit, false}, "brake": {Limit, false},
		"other-1": {"other", false}, "": {"", false},
	} {
		l, ok := Named(space(), name)
		if ok != tt.ok || ok && (l.Kind != tt.kind || l.Name() != name || l.Space != space() || KindOf(name) != tt.kind) {
			t.Errorf("%q: got %+v, %t", name, l, ok)
		}
	}
}

// decision returns an action about a list, of an operator who has seen partition 0 to an offset.
func decision(id, action, name string, end int64) *pb.AdminAction {
	return &pb.AdminAction{Id: id, Action: action, Who: "ann",
		Target: schemas.Key("acme", "2", "a/b", "", "deletes-held", name),
		After:  schemas.Seen{Incarnation: 7, Ends: map[int32]int64{0: end}}.String()}
}

// Of several decisions about a list the first one counts, and each list begins where the decision before ends.
func TestDecisions(t *testing.T) {
	start := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	type made struct {
		*pb.AdminAction
		after time.Duration
	}
	again := func(a *pb.AdminAction, before string) *pb.AdminAction { a.Before = before; return a }
	for name, tt := range map[string]struct {
		made []made
		open string // the list that is open then
		of   string // the decisions about what was held at offsets 0, 5, 10 and 15
	}{
		"none": {nil, "brake-1", "- - - -"},
		"one":  {[]made{{decision("1", ActionApprove, "brake-1", 10), 0}}, "brake-2", "1 1 - -"},
		"the second loses": {[]made{{decision("1", ActionClose, "brake-1", 5), 0},
			{decision("2", ActionApprove, "brake-1", 20), 0}}, "brake-2", "1 - - -"},
		"the same again": {[]made{{decision("1", ActionRefuse, "brake-1", 6), 0},
			{decision("1", ActionRefuse, "brake-1", 6), 0}}, "brake-2", "1 1 - -"},
		"two lists": {[]made{{decision("1", ActionApprove, "brake-1", 6), 0},
			{decision("2", ActionClose, "brake-2", 11), 0}}, "brake-3", "1 1 2 -"},
		"a later list": {[]made{{decision("1", ActionApprove, "brake-2", 6), 0}}, "brake-1", "- - - -"},
		"less was seen than before": {[]made{{decision("1", ActionApprove, "brake-1", 11), 0},
			{decision("2", ActionClose, "brake-2", 6), 0}}, "brake-3", "1 1 1 -"},
		"approved after a close": {[]made{{decision("1", ActionClose, "brake-1", 6), 0},
			{again(decision("2", ActionApprove, "brake-1", 20), "1"), Final - 1}}, "brake-2", "2 2 - -"},
		"approved after the close of a list before": {[]made{{decision("1", ActionClose, "brake-1", 6), 0},
			{decision("2", ActionApprove, "brake-2", 11), 0}, {again(decision("3", ActionApprove, "brake-1", 20), "1"), 0}},
			"brake-3", "3 3 2 -"},
		"approved after a close that is final": {[]made{{decision("1", ActionClose, "brake-1", 6), 0},
			{again(decision("2", ActionApprove, "brake-1", 6), "1"), Final}}, "brake-2", "1 1 - -"},
		"approved after another close": {[]made{{decision("1", ActionClose, "brake-1", 6), 0},
			{again(decision("2", ActionApprove, "brake-1", 6), "9"), 0}}, "brake-2", "1 1 - -"},
		"refused after a close": {[]made{{decision("1", ActionClose, "brake-1", 6), 0},
			{again(decision("2", ActionRefuse, "brake-1", 6), "1"), 0}}, "brake-2", "1 1 - -"},
		"closed after an approval": {[]made{{decision("1", ActionApprove, "brake-1", 6), 0},
			{again(decision("2", ActionClose, "brake-1", 6), "1"), 0}}, "brake-2", "1 1 - -"},
		"another kind":   {[]made{{decision("1", ActionApprove, "approve-1", 20), 0}}, "brake-1", "- - - -"},
		"another action": {[]made{{decision("1", "redrive", "brake-1", 20), 0}}, "brake-1", "- - - -"},
		"no such list":   {[]made{{decision("1", ActionApprove, "brake", 20), 0}}, "brake-1", "- - - -"},
		"nothing was seen": {[]made{{&pb.AdminAction{Id: "1", Action: ActionApprove,
			Target: decision("", "", "brake-1", 0).GetTarget()}, 0}}, "brake-1", "- - - -"},
		"another topic": {[]made{{&pb.AdminAction{Id: "1", Action: ActionApprove,
			Target: decision("", "", "brake-1", 0).GetTarget(), After: "00000008:0=99"}, 0}}, "brake-2", "- - - -"},
	} {
		t.Run(name, func(t *testing.T) {
			var d Decisions
			for _, m := range tt.made {
				d.Apply(m.AdminAction, start.Add(m.after))
			}
			if got := d.Open(space(), Limit).Name(); got != tt.open {
				t.Errorf("%s is open, want %s", got, tt.open)
			}
			of := ""
			for _, off := range []int64{0, 5, 10, 15} {
				_, one, ok := d.Of(space(), Limit, []schemas.Coordinates{{Incarnation: 7, Offset: off}})
				if !ok {
					one.ID = "-"
				}
				of += " " + one.ID
			}
			if of[1:] != tt.of {
				t.Errorf("decided by%s, want %s", of, tt.of)
			}
		})
	}
}

// What was held twice is on the list in which it was held first.
func TestDecisionOfWhatWasHeldTwice(t *testing.T) {
	var d Decisions
	d.Apply(decision("1", ActionClose, "brake-1", 6), time.Now())
	d.Apply(decision("2", ActionApprove, "brake-2", 20), time.Now())
	twice := []schemas.Coordinates{{Incarnation: 7, Offset: 12}, {Incarnation: 7, Offset: 3}}
	if l, one, ok := d.Of(space(), Limit, twice); !ok || one.ID != "1" || l.Number != 1 {
		t.Errorf("got %+v of %+v, %t", one, l, ok)
	}
}

// heldAt returns where effects on a copy were held: those with an id in each kind, all at one offset.
func heldAt(off int64, effect string, kinds ...Kind) (all []Place) {
	for _, k := range kinds {
		all = append(all, Place{schemas.Coordinates{Incarnation: 7, Offset: off}, k, effect})
	}
	return all
}

// A decision that keeps a copy stands for good; an approval stands until its effect was done.
func TestStanding(t *testing.T) {
	kept := Standing{Kept: "kept by the decision of ann about list brake-1: "}
	for action, want := range map[string]Standing{
		ActionApprove: {Approved: "brake-1"}, ActionClose: kept, ActionRefuse: kept,
	} {
		var d Decisions
		d.Apply(decision("1", action, "brake-1", 6), time.Unix(100, 0))
		if got := d.Standing(space(), "e-1", heldAt(3, "e-1", Limit), false); got != want {
			t.Errorf("%s: got %+v", action, got)
		}
		after := want
		after.Approved = ""
		if got := d.Standing(space(), "e-1", heldAt(3, "e-1", Limit), true); got != after {
			t.Errorf("%s: once it was done: got %+v", action, got)
		}
		if got := d.Standing(space(), "e-2", heldAt(3, "e-1", Limit), false); got != after {
			t.Errorf("%s: of another object: got %+v", action, got)
		}
		other := append(heldAt(6, "e-1", Limit), heldAt(3, "e-1", Approve)...)
		if got := d.Standing(space(), "e-1", other, false); got != (Standing{}) {
			t.Errorf("%s: %+v of what was held later, and of another kind", action, got)
		}
		if !d.Matter(space(), Delete) || d.Matter(space(), Rewrite) || d.Matter(space().In("3"), Delete) {
			t.Errorf("%s: it does not matter, or elsewhere", action)
		}
		for _, ended := range []bool{false, true} {
			_, refused := d.Refused(space(), func(List) bool { return ended })
			if refused != (action == ActionRefuse && !ended) {
				t.Errorf("%s, closed %t: refused %t", action, ended, refused)
			}
		}
		if len(d.Decided(time.Unix(100, 0))) != 1 || len(d.Decided(time.Unix(101, 0))) != 0 {
			t.Errorf("decided: %v, %v", d.Decided(time.Unix(100, 0)), d.Decided(time.Unix(101, 0)))
		}
	}
}

// If a list of one kind keeps an effect, the approval of another one has no effect, whoever was first.
func TestStandingOfTwoKinds(t *testing.T) {
	keep := decision("1", ActionClose, "unreported-1", 6)
	for name, made := range map[string][]*pb.AdminAction{
		"the close is first":    {keep, decision("2", ActionApprove, "brake-1", 6)},
		"the approval is first": {decision("2", ActionApprove, "brake-1", 6), keep},
		"of a kind that follows": {decision("2", ActionApprove, "brake-1", 6), keep,
			decision("3", ActionApprove, "approve-1", 6)},
	} {
		t.Run(name, func(t *testing.T) {
			var d Decisions
			for _, a := range made {
				d.Apply(a, time.Unix(100, 0))
			}
			want := Standing{Kept: "kept by the decision of ann about list unreported-1: "}
			at := heldAt(3, "e-1", Limit, Unreported, Approve)
			if got := d.Standing(space(), "e-1", at, false); got != want {
				t.Errorf("got %+v", got)
			}
			// The approval of this very object counts before what keeps the copy from an effect on another one.
			at = append(heldAt(3, "e-2", Limit), heldAt(3, "e-1", Unreported)...)
			if got := d.Standing(space(), "e-2", at, false); got != (Standing{Approved: "brake-1"}) {
				t.Errorf("of another object: got %+v", got)
			}
		})
	}
}

// A range of offsets has results for the lists that it overlaps: each one begins where the one before ends.
func TestKeeping(t *testing.T) {
	var d Decisions
	for _, a := range []*pb.AdminAction{decision("1", ActionClose, "brake-1", 6),
		decision("2", ActionApprove, "brake-2", 9), decision("3", ActionRefuse, "brake-3", 20),
		decision("4", ActionClose, "differs-1", 15)} {
		d.Apply(a, time.Unix(100, 0))
	}
	for name, tt := range map[string]struct {
		from schemas.Coordinates
		to   int64
		want string
	}{
		"all":                      {schemas.Coordinates{Incarnation: 7}, 30, "brake-1 brake-3 differs-1"},
		"the first":                {schemas.Coordinates{Incarnation: 7}, 6, "brake-1 differs-1"},
		"the approved one":         {schemas.Coordinates{Incarnation: 7, Offset: 6}, 9, "differs-1"},
		"the end of the third":     {schemas.Coordinates{Incarnation: 7, Offset: 19}, 20, "brake-3"},
		"after all":                {schemas.Coordinates{Incarnation: 7, Offset: 20}, 30, ""},
		"nothing":                  {schemas.Coordinates{Incarnation: 7, Offset: 3}, 3, ""},
		"a partition without them": {schemas.Coordinates{Incarnation: 7, Partition: 1}, 30, ""},
		"another topic":            {schemas.Coordinates{Incarnation: 8}, 30, ""},
	} {
		got := strings.ReplaceAll(strings.Join(d.Keeping(tt.from, tt.to), " "), " of acme/2/a%2Fb", "")
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
