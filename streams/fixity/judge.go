// Package fixity checks copies: it reads a copy again, compares what was read with what
// the store, the manifest and the audit log say, and concludes.
//
// A check of one copy ends in exactly one result, whatever happens; a place that did
// not answer is unknown, which is neither a mismatch nor an absence and moves nothing.
// Checking twice is checking twice: it changes nothing the second time. What is to be
// concluded is decided by two pure functions, Judge and Conclude.
package fixity

import (
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

// A Piece is what one of the four places said of a copy.
//
// The content is digests, absent, unread or unknown; the store says digests, none
// (present without one), absent or unknown; the manifest says digests, none (no row),
// tombstone or unknown; the audit log says digests, none (no row, or the newest is a delete)
// or unknown. A live row without digests is digests with an empty set. Any other state is
// taken for unknown.
type Piece struct {
	State   pb.EvidenceState
	Digests digest.Set
	// Claimed digests were told by somebody and have never agreed with bytes.
	Claimed bool
}

// Evidence is what the four places said of one copy.
type Evidence struct {
	Content, Stored, Manifest, Audit Piece
	// Newer: the store says that its object is newer than the manifest's.
	Newer bool
}

// A Verdict is the row of the table that a set of evidence falls under.
type Verdict struct {
	// Row is 1 to 16.
	Row int32
	// Finding is the word for the row; where the row is a fault it is the kind of its incident.
	Finding string
	// Outcome is what the row comes to once it is concluded.
	Outcome pb.Verdict
	Detail  string
}

// verdict returns row with its finding and outcome.
func verdict(row int32, detail string) Verdict {
	v := Verdict{Row: row, Outcome: pb.Verdict_VERDICT_FAIL, Detail: detail}
	switch row {
	case 1:
		v.Finding, v.Outcome = "pass", pb.Verdict_VERDICT_PASS
	case 2:
		v.Finding = "content-corrupt"
	case 3:
		v.Finding = "store-digest-wrong"
	case 4:
		v.Finding = "store-digest-wrong-unread"
	case 5:
		v.Finding = "manifest-corrected"
	case 6:
		v.Finding = "audit-mismatch"
	case 7:
		v.Finding = "audit-missing"
	case 8:
		v.Finding, v.Outcome = "content-missing", pb.Verdict_VERDICT_MISSING
	case 9:
		v.Finding, v.Outcome = "not-captured", pb.Verdict_VERDICT_NOT_CAPTURED
	case 10:
		v.Finding, v.Outcome = "not-captured-update", pb.Verdict_VERDICT_NOT_CAPTURED
	case 11:
		v.Finding, v.Outcome = "moot", pb.Verdict_VERDICT_MOOT
	case 13:
		v.Finding = "replaced"
	case 14:
		v.Finding = "no-quorum"
	case 15:
		v.Finding, v.Outcome = "unverified", pb.Verdict_VERDICT_UNVERIFIED
	case 16:
		v.Finding = "resurrected"
	default:
		v.Row, v.Finding, v.Outcome = 12, "unknown", pb.Verdict_VERDICT_UNKNOWN
	}
	return v
}

// Details that Judge gives.
const (
	detailPresence     = "content and store do not agree whether it is there"
	detailClaim        = "claim"
	detailNoDigests    = "no digests on record"
	detailUnreadable   = "needs the bytes, or a digest from the store"
	detailIncomparable = "needs a digest of an algorithm that is on record"
)

// Judge says which row of the table in spec/fixity.md the evidence falls under: the
// first rule that matches. It is total.
func Judge(e Evidence, s StoreSettings) Verdict {
	if place := e.unanswered(); place != "" {
		return verdict(12, place+" did not answer")
	}
	unread := e.Content.State == pb.EvidenceState_EVIDENCE_STATE_UNREAD
	gone := e.Stored.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT
	if !unread && gone != (e.Content.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT) {
		return verdict(12, detailPresence)
	}
	if gone {
		if e.Manifest.present() || e.Audit.present() {
			return verdict(8, "")
		}
		return verdict(11, "")
	}
	if unread {
		if len(e.Stored.Digests) == 0 {
			return verdict(15, detailUnreadable)
		}
		return e.against(e.Stored.Digests, s)
	}
	// A store's digest that cannot be compared with the bytes is none.
	if e.Content.Digests.Compare(e.Stored.Digests) == digest.Disagree {
		return e.divided()
	}
	return e.against(e.Content.Digests, s)
}

// unanswered names a place that did not answer, if there is one.
func (e Evidence) unanswered() string {
	if place := e.unseen(); place != "" {
		return place
	}
	switch {
	case !e.Manifest.recorded() && !e.Manifest.tombstone():
		return "manifest"
	case !e.Audit.recorded():
		return "audit log"
	}
	return ""
}

// unseen is unanswered for content and store.
func (e Evidence) unseen() string {
	switch e.Content.State {
	case pb.EvidenceState_EVIDENCE_STATE_DIGESTS:
		if len(e.Content.Digests) == 0 {
			return "content"
		}
	case pb.EvidenceState_EVIDENCE_STATE_ABSENT, pb.EvidenceState_EVIDENCE_STATE_UNREAD:
	default:
		return "content"
	}
	switch e.Stored.State {
	case pb.EvidenceState_EVIDENCE_STATE_DIGESTS, pb.EvidenceState_EVIDENCE_STATE_NONE, pb.EvidenceState_EVIDENCE_STATE_ABSENT:
		return ""
	}
	return "store"
}

// recorded says that the manifest or the audit log answered.
func (p Piece) recorded() bool {
	return p.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS || p.State == pb.EvidenceState_EVIDENCE_STATE_NONE
}

// tombstone says that the row of the manifest is one.
func (p Piece) tombstone() bool { return p.State == pb.EvidenceState_EVIDENCE_STATE_TOMBSTONE }

// present says that there is a live row.
func (p Piece) present() bool { return p.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS }

// telling says that there is a live row with digests.
func (p Piece) telling() bool { return p.present() && len(p.Digests) > 0 }

// bare says that there is a live row without digests.
func (e Evidence) bare() bool {
	return e.Manifest.present() && !e.Manifest.telling() || e.Audit.present() && !e.Audit.telling()
}

// divided is rule d: the bytes are not what the store says.
func (e Evidence) divided() Verdict {
	x, ref := e.Content.Digests, e.reference()
	switch {
	case x.Compare(ref.digests) == digest.Agree:
		return verdict(3, "")
	case x.Compare(ref.verified) == digest.Disagree && (ref.both || e.Stored.Digests.Compare(ref.verified) == digest.Agree):
		return verdict(2, "")
	}
	return verdict(14, e.claim(x))
}

// relation is how a row of manifest or audit log stands to x.
type relation int

const (
	none relation = iota
	same
	other
	incomparable
)

func relate(x digest.Set, p Piece) relation {
	if !p.telling() {
		return none
	}
	switch x.Compare(p.Digests) {
	case digest.Agree:
		return same
	case digest.Disagree:
		return other
	}
	return incomparable
}

// against is rule e: x, on which content and store agree, against what is on record.
func (e Evidence) against(x digest.Set, s StoreSettings) Verdict {
	m, a := e.relations(x)
	switch {
	case e.Manifest.tombstone():
		return verdict(16, "")
	case m == incomparable || a == incomparable:
		return verdict(15, detailIncomparable)
	case m == none && a == none:
		if e.bare() {
			return verdict(9, detailNoDigests)
		}
		return verdict(9, "")
	case m == same && a == same:
		return verdict(1, "")
	case m == same && a == none:
		return verdict(7, "")
	case m == same:
		return verdict(6, "")
	case a == same:
		return verdict(5, "")
	case e.Content.State == pb.EvidenceState_EVIDENCE_STATE_UNREAD:
		return verdict(4, e.claim(x))
	case e.Newer && m == other && !e.Manifest.Claimed && s.ExternalWrites:
		return verdict(10, "")
	case x.Compare(e.reference().verified) == digest.Disagree:
		return verdict(13, "")
	}
	return verdict(14, e.claim(x))
}

// relations says how manifest and audit log stand to x. What cannot be compared with x
// stands as the other does where the two agree, and is as good as none where the
// other differs from x: a difference is never hidden.
func (e Evidence) relations(x digest.Set) (m, a relation) {
	m, a = relate(x, e.Manifest), relate(x, e.Audit)
	if (m == incomparable) == (a == incomparable) {
		return m, a
	}
	agree := e.Manifest.Digests.Compare(e.Audit.Digests) == digest.Agree
	known := m
	if m == incomparable {
		known = a
	}
	stand := incomparable
	switch {
	case known == none:
	case agree:
		stand = known
	case known == other:
		stand = none
	}
	if m == incomparable {
		return stand, a
	}
	return m, stand
}

// A reference is R: what manifest and audit log say together.
type reference struct {
	digests  digest.Set // empty where they contradict each other
	verified digest.Set // the part that is not merely claimed
	both     bool       // M = A
}

func (e Evidence) reference() reference {
	m, a := e.Manifest, e.Audit
	switch {
	case !m.telling() && !a.telling():
		return reference{}
	case !a.telling():
		return reference{digests: m.Digests, verified: m.verified()}
	case !m.telling():
		return reference{digests: a.Digests, verified: a.verified()}
	}
	how := m.Digests.Compare(a.Digests)
	if how == digest.Disagree {
		return reference{}
	}
	return reference{
		digests:  m.Digests.Union(a.Digests),
		verified: m.verified().Union(a.verified()),
		both:     how == digest.Agree,
	}
}

func (p Piece) verified() digest.Set {
	if p.Claimed {
		return nil
	}
	return p.Digests
}

// claim is the detail of a disagreement with digests that are only claimed.
func (e Evidence) claim(x digest.Set) string {
	for _, p := range [...]Piece{e.Manifest, e.Audit} {
		if p.Claimed && relate(x, p) == other {
			return detailClaim
		}
	}
	return ""
}
