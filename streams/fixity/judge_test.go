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
	differs    bool // another copy has other verified digests of the same source content
}

func (y symbolic) evidence() EvidenceSet {
	e := EvidenceSet{Content: said(y.c), Stored: said(y.s), Manifest: said(y.m), Audit: said(y.a), Newer: y.newer}
	if y.differs {
		e.Differs = "3"
	}
	return e
}

// every calls f with every combination of the values.
func every(f func(symbolic)) {
	recorded := []string{"a", "b", "c", "a?", "b?", "c?", "bare", "none", "unknown"}
	for _, c := range []string{"a", "b", "c", "404", "unread", "unknown"} {
		for _, s := range []string{"a", "b", "c", "none", "404", "unknown"} {
			for _, m := range append(recorded, "tombstone") {
				for _, a := range recorded {
					for n := range 8 {
						f(symbolic{c, s, m, a, n&1 > 0, n&2 > 0, n&4 > 0})
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
	contra := there && !split && !mute && !buried && len(y.m) == 2 && is(y.m) && len(y.a) == 1 && d(y.m) != y.a
	plain := there && !split && !mute && !buried && !contra
	blank := plain && !is(y.m) && !is(y.a)
	neither := plain && (is(y.m) || is(y.a)) && !mx && !ax
	ten := neither && !unread && y.newer && y.writes && is(y.m) && len(y.m) == 1
	thirteen := neither && !unread && !ten && verified
	return map[Row]bool{
		1:  plain && mx && ax,
		2:  two,
		3:  three,
		4:  (neither || contra) && unread,
		5:  plain && ax && !mx,
		6:  plain && mx && is(y.a) && !ax,
		7:  plain && mx && !is(y.a),
		8:  answered && gone && recorded,
		9:  blank && !y.differs,
		10: ten,
		11: answered && gone && !recorded,
		12: !answered,
		13: thirteen,
		14: there && split && !two && !three || neither && !unread && !ten && !thirteen || contra && !unread ||
			blank && y.differs,
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
	if len(seen) != 16 || count != 6*6*10*9*2*2*2 {
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
		case !bytes && !y.differs && (v.Row == 2 || v.Row == 3 || v.Row == 10 || v.Row == 13 || v.Row == 14):
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
			Content: piece.Draw(t, "C"), Stored: piece.Draw(t, "S"), Manifest: piece.Draw(t, "M"), Audit: piece.Draw(t, "A"),
			Newer: rapid.Bool().Draw(t, "newer"),
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
	detail   string
}

func rowCases() map[string]rowCase {
	return map[string]rowCase{
		"1 pass":                    {symbolic{c: "a", s: "a", m: "a", a: "a"}, 1, ""},
		"1 store without digest":    {symbolic{c: "a", s: "none", m: "a", a: "a"}, 1, ""},
		"1 bytes unread":            {symbolic{c: "unread", s: "a", m: "a", a: "a"}, 1, ""},
		"1 claimed digests":         {symbolic{c: "a", s: "a", m: "a?", a: "a?"}, 1, ""},
		"2 content corrupt":         {symbolic{c: "b", s: "a", m: "a", a: "a"}, 2, ""},
		"2 store differs too":       {symbolic{c: "b", s: "c", m: "a", a: "a"}, 2, ""},
		"2 only in the audit log":   {symbolic{c: "b", s: "a", m: "none", a: "a"}, 2, ""},
		"3 store digest wrong":      {symbolic{c: "a", s: "b", m: "a", a: "a"}, 3, ""},
		"4 store digest wrong":      {symbolic{c: "unread", s: "b", m: "a", a: "a"}, 4, ""},
		"4 against a claim":         {symbolic{c: "unread", s: "b", m: "a?", a: "a?"}, 4, "claim"},
		"5 manifest wrong":          {symbolic{c: "a", s: "a", m: "b", a: "a"}, 5, ""},
		"5 manifest empty":          {symbolic{c: "a", s: "a", m: "none", a: "a"}, 5, ""},
		"6 audit out of step":       {symbolic{c: "a", s: "a", m: "a", a: "b"}, 6, ""},
		"7 audit row missing":       {symbolic{c: "a", s: "a", m: "a", a: "none"}, 7, ""},
		"8 missing":                 {symbolic{c: "404", s: "404", m: "a", a: "a"}, 8, ""},
		"8 bytes unread":            {symbolic{c: "unread", s: "404", m: "none", a: "a"}, 8, ""},
		"8 a row without digests":   {symbolic{c: "404", s: "404", m: "bare", a: "none"}, 8, ""},
		"9 not captured":            {symbolic{c: "a", s: "a", m: "none", a: "none"}, 9, ""},
		"9 a row without digests":   {symbolic{c: "a", s: "none", m: "bare", a: "none"}, 9, detailNoDigests},
		"10 update not captured":    {symbolic{c: "b", s: "b", m: "a", a: "a", newer: true, writes: true}, 10, ""},
		"11 moot":                   {symbolic{c: "404", s: "404", m: "none", a: "none"}, 11, ""},
		"12 content unknown":        {symbolic{c: "unknown", s: "a", m: "a", a: "a"}, 12, "content did not answer"},
		"12 audit log unknown":      {symbolic{c: "a", s: "a", m: "a", a: "unknown"}, 12, "audit log did not answer"},
		"12 manifest unknown":       {symbolic{c: "404", s: "404", m: "unknown", a: "a"}, 12, "manifest did not answer"},
		"12 only content absent":    {symbolic{c: "404", s: "a", m: "a", a: "a"}, 12, detailPresence},
		"13 replaced":               {symbolic{c: "b", s: "b", m: "a", a: "a"}, 13, ""},
		"13 newer, writes refused":  {symbolic{c: "b", s: "b", m: "a", a: "a", newer: true}, 13, ""},
		"13 store without digest":   {symbolic{c: "b", s: "none", m: "a", a: "none"}, 13, ""},
		"14 all differ":             {symbolic{c: "c", s: "b", m: "a", a: "none"}, 14, ""},
		"14 records differ":         {symbolic{c: "c", s: "c", m: "a", a: "b"}, 14, ""},
		"14 corrupt by a claim":     {symbolic{c: "b", s: "a", m: "a?", a: "a?"}, 14, "claim"},
		"14 a claim beside digests": {symbolic{c: "a", s: "a", m: "b?", a: "a"}, 14, "claim"},
		"14 the bytes are claimed":  {symbolic{c: "b", s: "b", m: "b?", a: "a"}, 14, "claim"},
		"4 unread, a claim beside":  {symbolic{c: "unread", s: "a", m: "b?", a: "a"}, 4, "claim"},
		"14 another copy differs": {symbolic{c: "a", s: "a", m: "bare", a: "none", differs: true}, 14,
			detailCopyDiffers + "3"},
		"9 another copy agrees":   {symbolic{c: "a", s: "a", m: "bare", a: "none"}, 9, detailNoDigests},
		"1 another copy differs":  {symbolic{c: "a", s: "a", m: "a", a: "a", differs: true}, 1, ""},
		"14 replaced by a claim":  {symbolic{c: "b", s: "b", m: "a?", a: "none"}, 14, "claim"},
		"12 store unknown":        {symbolic{c: "a", s: "unknown", m: "tombstone", a: "none"}, 12, "store did not answer"},
		"8 only in the audit log": {symbolic{c: "404", s: "404", m: "tombstone", a: "a"}, 8, ""},
		"11 with a tombstone":     {symbolic{c: "404", s: "404", m: "tombstone", a: "none"}, 11, ""},
		"3 under a tombstone":     {symbolic{c: "a", s: "b", m: "tombstone", a: "a"}, 3, ""},
		"14 under a tombstone":    {symbolic{c: "a", s: "b", m: "tombstone", a: "none"}, 14, ""},
		"15 under a tombstone":    {symbolic{c: "unread", s: "none", m: "tombstone", a: "none"}, 15, detailUnreadable},
		"16 resurrected":          {symbolic{c: "a", s: "a", m: "tombstone", a: "none"}, 16, ""},
		"16 with an audit row":    {symbolic{c: "a", s: "a", m: "tombstone", a: "a"}, 16, ""},
		"16 with other bytes":     {symbolic{c: "b", s: "none", m: "tombstone", a: "a", newer: true, writes: true}, 16, ""},
		"16 bytes unread":         {symbolic{c: "unread", s: "a", m: "tombstone", a: "none"}, 16, ""},
		"15 nothing to compare":   {symbolic{c: "unread", s: "none", m: "a", a: "a"}, 15, detailUnreadable},
	}
}

func TestRows(t *testing.T) {
	for name, tt := range rowCases() {
		t.Run(name, func(t *testing.T) {
			want := verdict(tt.row, tt.detail)
			if got := Judge(tt.evidence.evidence(), StoreSettings{ExternalWrites: tt.evidence.writes}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// A second reading decides nothing if it agrees. Otherwise the row is unknown, whatever else is known.
func TestRowsOfTwoReadings(t *testing.T) {
	for name, tt := range map[string]struct {
		content, second string
		want            Verdict
	}{
		"agrees":                   {"b", "b", verdict(RowContentCorrupt, "")},
		"differs":                  {"b", "a", verdict(RowUnknown, detailTransport)},
		"differs, first discarded": {"unknown", "a", verdict(RowUnknown, detailTransport)},
		"unknown":                  {"b", "unknown", verdict(RowUnknown, "content did not answer")},
	} {
		e := symbolic{c: tt.content, s: "a", m: "a", a: "a"}.evidence()
		e.Second = said(tt.second)
		if got := Judge(e, StoreSettings{}); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

// The numbers, findings and outcomes of rows are on the wire.
func TestVerdictsOfRows(t *testing.T) {
	for _, want := range []Verdict{
		{Row: 1, Finding: "pass", Outcome: pb.Verdict_VERDICT_PASS},
		{Row: 2, Finding: "content-corrupt", Outcome: pb.Verdict_VERDICT_FAIL},
		{Row: 3, Finding: "store-digest-wrong", Outcome: pb.Verdict_VERDICT_FAIL},
		{Row: 4, Finding: "store-digest-wrong-unread", Outcome: pb.Verdict_VERDICT_FAIL},
		{Row: 5, Finding: "manifest-wrong", Outcome: pb.Verdict_VERDICT_FAIL},
		{Row: 6, Finding: "audit-mismatch", Outcome: pb.Verdict_VERDICT_FAIL},
		{Row: 7, Finding: "audit-missing", Outcome: pb.Verdict_VERDICT_FAIL},
		{Row: 8, Finding: "content-missing", Outcome: pb.Verdict_VERDICT_MISSING},
		{Row: 9, Finding: "not-captured", Outcome: pb.Verdict_VERDICT_NOT_CAPTURED},
		{Row: 10, Finding: "not-captured-update", Outcome: pb.Verdict_VERDICT_NOT_CAPTURED},
		{Row: 11, Finding: "moot", Outcome: pb.Verdict_VERDICT_MOOT},
		{Row: 12, Finding: "unknown", Outcome: pb.Verdict_VERDICT_UNKNOWN},
		{Row: 13, Finding: "replaced", Outcome: pb.Verdict_VERDICT_FAIL},
		{Row: 14, Finding: "no-quorum", Outcome: pb.Verdict_VERDICT_FAIL},
		{Row: 15, Finding: "unverified", Outcome: pb.Verdict_VERDICT_UNVERIFIED},
		{Row: 16, Finding: "resurrected", Outcome: pb.Verdict_VERDICT_FAIL},
	} {
		if got := verdict(want.Row, ""); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	for _, row := range []Row{0, 17, 255} {
		if got := verdict(row, ""); got.Row != RowUnknown || got.Finding != "unknown" {
			t.Errorf("row %d: got %+v", row, got)
		}
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
	of := func(content, stored, manifest, audit Evidence) EvidenceSet {
		return EvidenceSet{Content: content, Stored: stored, Manifest: manifest, Audit: audit}
	}
	tests := map[string]struct {
		evidence EvidenceSet
		want     Row
	}{
		"records with one each":                      {of(all, none, live("md5", "1"), live("sha256", "2")), 1},
		"store's digest is of an unknown algorithm":  {of(all, live("crc64nvme", "9"), all, all), 1},
		"one record incomparable, the other agrees":  {of(all, none, live("sha512", "3"), all), 15},
		"one record incomparable, the other differs": {of(all, none, live("sha512", "3"), live("md5", "8")), 13},
		"incomparable, but as the other":             {of(unread, live("md5", "1"), live("sha256", "2"), all), 1},
		"incomparable, and the other differs":        {of(unread, live("md5", "8"), live("sha256", "2"), all), 4},
		"unread and incomparable":                    {of(unread, live("crc64nvme", "9"), all, all), 15},
		"one digest of two differs":                  {of(live("md5", "1", "sha256", "7"), none, all, all), 13},
		"one digest of the store's two differs":      {of(all, live("md5", "1", "sha256", "7"), all, all), 3},
		"corrupt, by the audit log": {
			of(live("md5", "8", "sha256", "9"), live("md5", "1"), live("sha256", "2"), all), 2,
		},
		"incomparable and alone": {of(all, all, live("sha512", "3"), none), 15},
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
	v := Judge(EvidenceSet{Content: digests(b), Stored: digests(a), Manifest: digests(a), Audit: digests(a)},
		StoreSettings{})
	fmt.Printf("%d %s\n", v.Row, v.Finding)
	// Output: 2 content-corrupt
}
