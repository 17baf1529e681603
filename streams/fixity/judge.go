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
type Evidence struct {
	State   pb.EvidenceState
	Digests digest.Set
	// Claimed digests were told by somebody and have never agreed with bytes.
	Claimed bool
}

// Evidence is what the four places said of one copy.
type EvidenceSet struct {
	Content, Stored, Manifest, Audit Evidence
	// Newer: the store says that its object is newer than the manifest's.
	Newer bool
}

// A Verdict is the row of the table that a set of evidence falls under.
type Verdict struct {
	Row Row
	// Finding is the word for the row; where the row is a fault it is the kind of its incident.
	Finding string
	// Outcome is what the row comes to once it is concluded.
	Outcome pb.Verdict
	Detail  string
}

// verdict returns the verdict of row; a number that is no row counts as unknown.
func verdict(row Row, detail string) Verdict {
	if row < RowPass || row > RowResurrected {
		row = RowUnknown
	}
	return Verdict{Row: row, Finding: row.String(), Outcome: row.outcome(), Detail: detail}
}

// Details that Judge gives.
const (
	detailPresence     = "content and store do not agree whether it is there"
	detailClaim        = "claim"
	detailNoDigests    = "no digests on record"
	detailUnreadable   = "needs the bytes, or a digest from the store"
	detailIncomparable = "needs a digest of an algorithm that is on record"
)

// Judge says which row of the table in docs/decisions-fixity.md the evidence falls under: the
// first rule that matches. It is total.
func Judge(e EvidenceSet, s StoreSettings) Verdict {
	if place := e.unanswered(); place != "" {
		return verdict(RowUnknown, place+" did not answer")
	}
	unread := e.Content.State == pb.EvidenceState_EVIDENCE_STATE_UNREAD
	gone := e.Stored.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT
	if !unread && gone != (e.Content.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT) {
		return verdict(RowUnknown, detailPresence)
	}
	if gone {
		if e.Manifest.isLive() || e.Audit.isLive() {
			return verdict(RowContentMissing, "")
		}
		return verdict(RowMoot, "")
	}
	if unread {
		if len(e.Stored.Digests) == 0 {
			return verdict(RowUnverified, detailUnreadable)
		}
		return e.compareRecords(e.Stored.Digests, s)
	}
	// A store's digest that cannot be compared with the bytes is none.
	if e.Content.Digests.Compare(e.Stored.Digests) == digest.Disagree {
		return e.storeMismatch()
	}
	return e.compareRecords(e.Content.Digests, s)
}

// unanswered names a place that did not answer, if there is one.
func (e EvidenceSet) unanswered() string {
	if place := e.unansweredByStore(); place != "" {
		return place
	}
	switch {
	case !e.Manifest.isAnswer() && !e.Manifest.isTombstone():
		return "manifest"
	case !e.Audit.isAnswer():
		return "audit log"
	}
	return ""
}

// unseen is unanswered for content and store.
func (e EvidenceSet) unansweredByStore() string {
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
func (p Evidence) isAnswer() bool {
	return p.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS || p.State == pb.EvidenceState_EVIDENCE_STATE_NONE
}

// tombstone says that the row of the manifest is one.
func (p Evidence) isTombstone() bool { return p.State == pb.EvidenceState_EVIDENCE_STATE_TOMBSTONE }

// present says that there is a live row.
func (p Evidence) isLive() bool { return p.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS }

// telling says that there is a live row with digests.
func (p Evidence) hasDigests() bool { return p.isLive() && len(p.Digests) > 0 }

// bare says that there is a live row without digests.
func (e EvidenceSet) withoutDigests() bool {
	return e.Manifest.isLive() && !e.Manifest.hasDigests() || e.Audit.isLive() && !e.Audit.hasDigests()
}

// divided is rule d: the bytes are not what the store says.
func (e EvidenceSet) storeMismatch() Verdict {
	x, ref := e.Content.Digests, e.reference()
	switch {
	case x.Compare(ref.digests) == digest.Agree:
		return verdict(RowStoreDigestWrong, "")
	case x.Compare(ref.verified) == digest.Disagree && (ref.both || e.Stored.Digests.Compare(ref.verified) == digest.Agree):
		return verdict(RowContentCorrupt, "")
	}
	return verdict(RowNoQuorum, e.claimDetail(x))
}

// relation is how a row of manifest or audit log stands to x.
type relation int

const (
	none relation = iota
	same
	other
	incomparable
)

func relate(x digest.Set, p Evidence) relation {
	if !p.hasDigests() {
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
func (e EvidenceSet) compareRecords(x digest.Set, s StoreSettings) Verdict {
	m, a := e.relations(x)
	switch {
	case e.Manifest.isTombstone():
		return verdict(RowResurrected, "")
	case m == incomparable || a == incomparable:
		return verdict(RowUnverified, detailIncomparable)
	case m == none && a == none:
		if e.withoutDigests() {
			return verdict(RowNotCaptured, detailNoDigests)
		}
		return verdict(RowNotCaptured, "")
	case m == same && a == same:
		return verdict(RowPass, "")
	case m == same && a == none:
		return verdict(RowAuditMissing, "")
	case m == same:
		return verdict(RowAuditMismatch, "")
	case a == same:
		return verdict(RowManifestWrong, "")
	case e.Content.State == pb.EvidenceState_EVIDENCE_STATE_UNREAD:
		return verdict(RowStoreDigestWrongUnread, e.claimDetail(x))
	case e.Newer && m == other && !e.Manifest.Claimed && s.ExternalWrites:
		return verdict(RowUpdateNotCaptured, "")
	case x.Compare(e.reference().verified) == digest.Disagree:
		return verdict(RowReplaced, "")
	}
	return verdict(RowNoQuorum, e.claimDetail(x))
}

// relations says how manifest and audit log stand to x. What cannot be compared with x
// stands as the other does where the two agree, and is as good as none where the
// other differs from x: a difference is never hidden.
func (e EvidenceSet) relations(x digest.Set) (m, a relation) {
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

func (e EvidenceSet) reference() reference {
	m, a := e.Manifest, e.Audit
	switch {
	case !m.hasDigests() && !a.hasDigests():
		return reference{}
	case !a.hasDigests():
		return reference{digests: m.Digests, verified: m.verified()}
	case !m.hasDigests():
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

func (p Evidence) verified() digest.Set {
	if p.Claimed {
		return nil
	}
	return p.Digests
}

// claim is the detail of a disagreement with digests that are only claimed.
func (e EvidenceSet) claimDetail(x digest.Set) string {
	for _, p := range [...]Evidence{e.Manifest, e.Audit} {
		if p.Claimed && relate(x, p) == other {
			return detailClaim
		}
	}
	return ""
}
