package fixity

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

const (
	stNone    = pb.EvidenceState_EVIDENCE_STATE_NONE
	stDigests = pb.EvidenceState_EVIDENCE_STATE_DIGESTS
	stAbsent  = pb.EvidenceState_EVIDENCE_STATE_ABSENT
	stUnread  = pb.EvidenceState_EVIDENCE_STATE_UNREAD
	stUnknown = pb.EvidenceState_EVIDENCE_STATE_UNKNOWN
	stBuried  = pb.EvidenceState_EVIDENCE_STATE_TOMBSTONE
)

// said returns the evidence for a word: a state, or a digest. A "?" after it marks a claimed digest.
func said(word string) Evidence {
	switch word {
	case "none":
		return Evidence{State: stNone}
	case "404":
		return Evidence{State: stAbsent}
	case "unread":
		return Evidence{State: stUnread}
	case "unknown":
		return Evidence{State: stUnknown}
	case "bare":
		return Evidence{State: stDigests}
	case "tombstone":
		return Evidence{State: stBuried}
	}
	return Evidence{State: stDigests, Digests: digest.Set{"sha256": word[:1]}, Claimed: len(word) > 1}
}

// A symbolic is evidence in words.
type symbolic struct {
	c, s, m, a string
	newer      bool
	writes     bool // external writes are expected
}

func (y symbolic) evidence() EvidenceSet {
	return EvidenceSet{Content: said(y.c), Stored: said(y.s), Manifest: said(y.m), Audit: said(y.a), Newer: y.newer}
}

// every calls f with every combination of the values.
func every(f func(symbolic)) {
	recorded := []string{"a", "b", "c", "a?", "b?", "c?", "bare", "none", "unknown"}
	for _, c := range []string{"a", "b", "c", "404", "unread", "unknown"} {
		for _, s := range []string{"a", "b", "c", "none", "404", "unknown"} {
			for _, m := range append(recorded, "tombstone") {
				for _, a := range recorded {
					for _, newer := range []bool{false, true} {
						f(symbolic{c, s, m, a, newer, false})
						f(symbolic{c, s, m, a, newer, true})
					}
				}
			}
		}
	}
}

// rows evaluates the condition of each row for y, independently of the others and of their order.
func rows(y symbolic) map[Row]bool {
	is := func(w string) bool { return w[0] >= 'a' && w[0] <= 'c' && len(w) <= 2 }
	d := func(w string) string { return w[:1] }
	unread, unknown := y.c == "unread", slices.Contains([]string{y.c, y.s, y.m, y.a}, "unknown")
	torn := !unread && (y.c == "404") != (y.s == "404")
	gone := y.s == "404" && (y.c == "404" || unread)
	answered := !unknown && !torn
	there := answered && !gone
	mute := unread && y.s == "none"
	split := !unread && is(y.s) && y.c != y.s
	x := y.c
	if unread {
		x = y.s
	}
	mx, ax := is(y.m) && d(y.m) == x, is(y.a) && d(y.a) == x
	buried := y.m == "tombstone"
	recorded := y.m != "none" && !buried || y.a != "none"
	var r string
	switch {
	case is(y.m) && is(y.a):
		if d(y.m) == d(y.a) {
			r = d(y.m)
		}
	case is(y.m):
		r = d(y.m)
	case is(y.a):
		r = d(y.a)
	}
	both := is(y.m) && is(y.a) && r != ""
	verified := r != "" && (y.m == r || y.a == r) // one of them is not claimed
	three := there && split && r == y.c
	two := there && split && r != y.c && verified && (y.s == r || both)
	plain := there && !split && !mute && !buried
	neither := plain && (is(y.m) || is(y.a)) && !mx && !ax
	ten := neither && !unread && y.newer && y.writes && is(y.m) && len(y.m) == 1
	thirteen := neither && !unread && !ten && verified
	return map[Row]bool{
		1:  plain && mx && ax,
		2:  two,
		3:  three,
		4:  neither && unread,
		5:  plain && ax && !mx,
		6:  plain && mx && is(y.a) && !ax,
		7:  plain && mx && !is(y.a),
		8:  answered && gone && recorded,
		9:  plain && !is(y.m) && !is(y.a),
		10: ten,
		11: answered && gone && !recorded,
		12: !answered,
		13: thirteen,
		14: there && split && !two && !three || neither && !unread && !ten && !thirteen,
		15: there && mute,
		16: there && !split && !mute && buried,
	}
}

func TestJudgeHasOneRowForEverything(t *testing.T) {
	seen, count := map[Row]int{}, 0
	every(func(y symbolic) {
		count++
		var want []Row
		for row, holds := range rows(y) {
			if holds {
				want = append(want, row)
			}
		}
		got := Judge(y.evidence(), StoreSettings{ExternalWrites: y.writes})
		if len(want) != 1 || want[0] != got.Row {
			t.Errorf("Judge(%+v) is row %d, want exactly %d", y, got.Row, want)
		}
		if want := verdict(got.Row, got.Detail); got != want {
			t.Errorf("Judge(%+v) = %+v, want %+v", y, got, want)
		}
		seen[got.Row]++
	})
	if len(seen) != 16 || count != 6*6*10*9*2*2 {
		t.Errorf("%d combinations fell under rows %v, want all 16", count, seen)
	}
}

// Invariants that hold for each row.
func TestJudgeInvariants(t *testing.T) {
	every(func(y symbolic) {
		e := y.evidence()
		v := Judge(e, StoreSettings{ExternalWrites: y.writes})
		claims := !(len(y.m) == 1 || len(y.a) == 1)
		bytes := e.Content.State == stDigests
		switch {
		case claims && (v.Row == 2 || v.Row == 10 || v.Row == 13):
			t.Errorf("row %d of %+v rests on claims", v.Row, y)
		case !bytes && (v.Row == 2 || v.Row == 3 || v.Row == 10 || v.Row == 13 || v.Row == 14):
			t.Errorf("row %d of %+v without bytes", v.Row, y)
		case v.Row == 8 && (e.Stored.State != stAbsent || bytes):
			t.Errorf("missing, though %+v", y)
		case y.m == "tombstone" && bytes && y.c == y.s && y.a != "unknown" && v.Row != 16:
			t.Errorf("row %d of %+v, which was deleted", v.Row, y)
		case v.Row == 10 && !y.writes:
			t.Errorf("row 10 of %+v without external writes", y)
		case v.Detail == detailClaim && v.Row != 14 && v.Row != 4:
			t.Errorf("detail claim at row %d of %+v", v.Row, y)
		}
		unknown := slices.Contains([]string{y.c, y.s, y.m, y.a}, "unknown")
		if unknown && v.Outcome != pb.Verdict_VERDICT_UNKNOWN {
			t.Errorf("verdict %v of %+v", v.Outcome, y)
		}
		swapped := y
		swapped.newer = !y.newer
		if w := Judge(swapped.evidence(), StoreSettings{ExternalWrites: y.writes}); !y.writes && w != v {
			t.Errorf("%+v is %v, and %v when newer is %v", y, v, w, swapped.newer)
		}
	})
}

func TestJudgeIsTotal(t *testing.T) {
	states := []pb.EvidenceState{0, stDigests, stNone, stAbsent, stUnread, stUnknown, stBuried, 99}
	piece := rapid.Custom(func(t *rapid.T) Evidence {
		return Evidence{
			State: rapid.SampledFrom(states).Draw(t, "state"),
			Digests: digest.Set(rapid.MapOfN(rapid.SampledFrom([]string{"md5", "sha256", "crc64nvme"}),
				rapid.SampledFrom([]string{"a", "b"}), 0, 3).Draw(t, "digests")),
			Claimed: rapid.Bool().Draw(t, "claimed"),
		}
	})
	need.Check(t, func(t *rapid.T) {
		e := EvidenceSet{
			piece.Draw(t, "C"), piece.Draw(t, "S"), piece.Draw(t, "M"), piece.Draw(t, "A"), rapid.Bool().Draw(t, "newer"),
		}
		v := Judge(e, StoreSettings{})
		if v.Row < 1 || v.Row > 16 || v.Finding == "" || v.Outcome == 0 {
			t.Fatalf("Judge(%+v) = %+v", e, v)
		}
		x := e.Content.Digests
		if e.Content.State == stUnread {
			x = e.Stored.Digests
		}
		if v.Row == 1 && (x.Compare(e.Manifest.Digests) == digest.Disagree || x.Compare(e.Audit.Digests) == digest.Disagree) {
			t.Fatalf("%+v passes", e)
		}
	})
}

// A rowCase is a case of the decision table. Its name begins with the number of its row.
type rowCase struct {
	evidence symbolic
	row      Row
	outcome  pb.Verdict
	finding  string
	detail   string
}

func rowCases() map[string]rowCase {
	return map[string]rowCase{
		"1 pass":                              {symbolic{c: "a", s: "a", m: "a", a: "a"}, 1, pb.Verdict_VERDICT_PASS, "pass", ""},
		"1 pass, store without digest":        {symbolic{c: "a", s: "none", m: "a", a: "a"}, 1, pb.Verdict_VERDICT_PASS, "pass", ""},
		"1 pass, bytes unread":                {symbolic{c: "unread", s: "a", m: "a", a: "a"}, 1, pb.Verdict_VERDICT_PASS, "pass", ""},
		"1 pass on a claim":                   {symbolic{c: "a", s: "a", m: "a?", a: "a?"}, 1, pb.Verdict_VERDICT_PASS, "pass", ""},
		"2 content corrupt":                   {symbolic{c: "b", s: "a", m: "a", a: "a"}, 2, pb.Verdict_VERDICT_FAIL, "content-corrupt", ""},
		"2 content and store, two ways":       {symbolic{c: "b", s: "c", m: "a", a: "a"}, 2, pb.Verdict_VERDICT_FAIL, "content-corrupt", ""},
		"2 only the audit log knows":          {symbolic{c: "b", s: "a", m: "none", a: "a"}, 2, pb.Verdict_VERDICT_FAIL, "content-corrupt", ""},
		"3 store's digest wrong":              {symbolic{c: "a", s: "b", m: "a", a: "a"}, 3, pb.Verdict_VERDICT_FAIL, "store-digest-wrong", ""},
		"4 store's digest wrong, unread":      {symbolic{c: "unread", s: "b", m: "a", a: "a"}, 4, pb.Verdict_VERDICT_FAIL, "store-digest-wrong-unread", ""},
		"4 against a claim":                   {symbolic{c: "unread", s: "b", m: "a?", a: "a?"}, 4, pb.Verdict_VERDICT_FAIL, "store-digest-wrong-unread", "claim"},
		"5 manifest wrong":                    {symbolic{c: "a", s: "a", m: "b", a: "a"}, 5, pb.Verdict_VERDICT_FAIL, "manifest-corrected", ""},
		"5 manifest empty":                    {symbolic{c: "a", s: "a", m: "none", a: "a"}, 5, pb.Verdict_VERDICT_FAIL, "manifest-corrected", ""},
		"6 audit out of step":                 {symbolic{c: "a", s: "a", m: "a", a: "b"}, 6, pb.Verdict_VERDICT_FAIL, "audit-mismatch", ""},
		"7 audit row missing":                 {symbolic{c: "a", s: "a", m: "a", a: "none"}, 7, pb.Verdict_VERDICT_FAIL, "audit-missing", ""},
		"8 missing":                           {symbolic{c: "404", s: "404", m: "a", a: "a"}, 8, pb.Verdict_VERDICT_MISSING, "content-missing", ""},
		"8 missing, bytes unread":             {symbolic{c: "unread", s: "404", m: "none", a: "a"}, 8, pb.Verdict_VERDICT_MISSING, "content-missing", ""},
		"8 a row without digests":             {symbolic{c: "404", s: "404", m: "bare", a: "none"}, 8, pb.Verdict_VERDICT_MISSING, "content-missing", ""},
		"9 not captured":                      {symbolic{c: "a", s: "a", m: "none", a: "none"}, 9, pb.Verdict_VERDICT_NOT_CAPTURED, "not-captured", ""},
		"9 a row without digests":             {symbolic{c: "a", s: "none", m: "bare", a: "none"}, 9, pb.Verdict_VERDICT_NOT_CAPTURED, "not-captured", detailNoDigests},
		"10 update not captured":              {symbolic{c: "b", s: "b", m: "a", a: "a", newer: true, writes: true}, 10, pb.Verdict_VERDICT_NOT_CAPTURED, "not-captured-update", ""},
		"11 moot":                             {symbolic{c: "404", s: "404", m: "none", a: "none"}, 11, pb.Verdict_VERDICT_MOOT, "moot", ""},
		"12 content unknown":                  {symbolic{c: "unknown", s: "a", m: "a", a: "a"}, 12, pb.Verdict_VERDICT_UNKNOWN, "unknown", "content did not answer"},
		"12 audit log unknown":                {symbolic{c: "a", s: "a", m: "a", a: "unknown"}, 12, pb.Verdict_VERDICT_UNKNOWN, "unknown", "audit log did not answer"},
		"12 unknown, though it is gone":       {symbolic{c: "404", s: "404", m: "unknown", a: "a"}, 12, pb.Verdict_VERDICT_UNKNOWN, "unknown", "manifest did not answer"},
		"12 there and not there":              {symbolic{c: "404", s: "a", m: "a", a: "a"}, 12, pb.Verdict_VERDICT_UNKNOWN, "unknown", detailPresence},
		"13 replaced":                         {symbolic{c: "b", s: "b", m: "a", a: "a"}, 13, pb.Verdict_VERDICT_FAIL, "replaced", ""},
		"13 replaced, newer but not wanted":   {symbolic{c: "b", s: "b", m: "a", a: "a", newer: true}, 13, pb.Verdict_VERDICT_FAIL, "replaced", ""},
		"13 replaced, store without digest":   {symbolic{c: "b", s: "none", m: "a", a: "none"}, 13, pb.Verdict_VERDICT_FAIL, "replaced", ""},
		"14 all differ":                       {symbolic{c: "c", s: "b", m: "a", a: "none"}, 14, pb.Verdict_VERDICT_FAIL, "no-quorum", ""},
		"14 records differ":                   {symbolic{c: "c", s: "c", m: "a", a: "b"}, 14, pb.Verdict_VERDICT_FAIL, "no-quorum", ""},
		"14 corrupt by a claim":               {symbolic{c: "b", s: "a", m: "a?", a: "a?"}, 14, pb.Verdict_VERDICT_FAIL, "no-quorum", "claim"},
		"14 replaced by a claim":              {symbolic{c: "b", s: "b", m: "a?", a: "none"}, 14, pb.Verdict_VERDICT_FAIL, "no-quorum", "claim"},
		"12 a tombstone, and unknown":         {symbolic{c: "a", s: "unknown", m: "tombstone", a: "none"}, 12, pb.Verdict_VERDICT_UNKNOWN, "unknown", "store did not answer"},
		"8 only the audit log has it":         {symbolic{c: "404", s: "404", m: "tombstone", a: "a"}, 8, pb.Verdict_VERDICT_MISSING, "content-missing", ""},
		"11 gone, as its tombstone says":      {symbolic{c: "404", s: "404", m: "tombstone", a: "none"}, 11, pb.Verdict_VERDICT_MOOT, "moot", ""},
		"3 corrupt or not, under a tombstone": {symbolic{c: "a", s: "b", m: "tombstone", a: "a"}, 3, pb.Verdict_VERDICT_FAIL, "store-digest-wrong", ""},
		"14 split, under a tombstone":         {symbolic{c: "a", s: "b", m: "tombstone", a: "none"}, 14, pb.Verdict_VERDICT_FAIL, "no-quorum", ""},
		"15 mute, under a tombstone":          {symbolic{c: "unread", s: "none", m: "tombstone", a: "none"}, 15, pb.Verdict_VERDICT_UNVERIFIED, "unverified", detailUnreadable},
		"16 resurrected":                      {symbolic{c: "a", s: "a", m: "tombstone", a: "none"}, 16, pb.Verdict_VERDICT_FAIL, "resurrected", ""},
		"16 resurrected, as the log has it":   {symbolic{c: "a", s: "a", m: "tombstone", a: "a"}, 16, pb.Verdict_VERDICT_FAIL, "resurrected", ""},
		"16 resurrected, with other bytes":    {symbolic{c: "b", s: "none", m: "tombstone", a: "a", newer: true, writes: true}, 16, pb.Verdict_VERDICT_FAIL, "resurrected", ""},
		"16 resurrected, bytes unread":        {symbolic{c: "unread", s: "a", m: "tombstone", a: "none"}, 16, pb.Verdict_VERDICT_FAIL, "resurrected", ""},
		"15 nothing to compare":               {symbolic{c: "unread", s: "none", m: "a", a: "a"}, 15, pb.Verdict_VERDICT_UNVERIFIED, "unverified", detailUnreadable},
	}
}

func TestRows(t *testing.T) {
	for name, tt := range rowCases() {
		t.Run(name, func(t *testing.T) {
			want := Verdict{Row: tt.row, Outcome: tt.outcome, Finding: tt.finding, Detail: tt.detail}
			if got := Judge(tt.evidence.evidence(), StoreSettings{ExternalWrites: tt.evidence.writes}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// Sets of several algorithms that agree, disagree, or cannot be compared.
func TestRowsOfSeveralAlgorithms(t *testing.T) {
	live := func(pairs ...string) Evidence {
		p := Evidence{State: stDigests, Digests: digest.Set{}}
		for n := 0; n < len(pairs); n += 2 {
			p.Digests[pairs[n]] = pairs[n+1]
		}
		return p
	}
	none, unread := Evidence{State: stNone}, Evidence{State: stUnread}
	all := live("md5", "1", "sha256", "2")
	tests := map[string]struct {
		evidence EvidenceSet
		want     Row
	}{
		"records with one each":                        {EvidenceSet{all, none, live("md5", "1"), live("sha256", "2"), false}, 1},
		"store's digest is of an unknown algorithm":    {EvidenceSet{all, live("crc64nvme", "9"), all, all, false}, 1},
		"one record incomparable, the other agrees":    {EvidenceSet{all, none, live("sha512", "3"), all, false}, 15},
		"one record incomparable, the other differs":   {EvidenceSet{all, none, live("sha512", "3"), live("md5", "8"), false}, 13},
		"incomparable, but as the other":               {EvidenceSet{unread, live("md5", "1"), live("sha256", "2"), all, false}, 1},
		"incomparable, but as the other, which is not": {EvidenceSet{unread, live("md5", "8"), live("sha256", "2"), all, false}, 4},
		"unread and incomparable":                      {EvidenceSet{unread, live("crc64nvme", "9"), all, all, false}, 15},
		"one digest of two differs":                    {EvidenceSet{live("md5", "1", "sha256", "7"), none, all, all, false}, 13},
		"one digest of the store's two differs":        {EvidenceSet{all, live("md5", "1", "sha256", "7"), all, all, false}, 3},
		"corrupt, by a digest that only the log has":   {EvidenceSet{live("md5", "8", "sha256", "9"), live("md5", "1"), live("sha256", "2"), all, false}, 2},
		"incomparable and alone":                       {EvidenceSet{all, all, live("sha512", "3"), none, false}, 15},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Judge(tt.evidence, StoreSettings{}); got.Row != tt.want {
				t.Errorf("got row %d, want %d", got.Row, tt.want)
			}
		})
	}
}

func ExampleJudge() {
	a, b := digest.Set{"sha256": "aa"}, digest.Set{"sha256": "bb"}
	digests := func(s digest.Set) Evidence {
		return Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: s}
	}
	v := Judge(EvidenceSet{Content: digests(b), Stored: digests(a), Manifest: digests(a), Audit: digests(a)}, StoreSettings{})
	fmt.Println(v.Row, v.Finding)
	// Output: 2 content-corrupt
}
