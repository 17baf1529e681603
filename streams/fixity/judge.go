// Package fixity checks copies: it reads the bytes of a copy, compares their digests with those of the store, the
// manifest and the audit log, and judges the copy by the table in docs/decisions-fixity.md.
//
// A check of one copy ends in exactly one result. A store or record that does not answer is unknown: never a mismatch,
// never an absence, and no reason for a correction. Tasks may be delivered in any order and more than once; a repeated
// check publishes another result, and a correction with the same effect.
//
// A check is a loop: it judges its evidence, and collects further evidence until the verdict needs no more. Three pure
// functions decide: Judge returns the row, needs the evidence that is still required, and Conclude whether the row is
// final.
package fixity

import (
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

// Evidence is the report of one of four places on a copy: the content, the store, the manifest or the audit log.
//
// States of the content are digests, absent, unread and unknown; of the store digests, none (present without a digest),
// absent and unknown; of the manifest digests, none (no row), tombstone and unknown; of the audit log digests, none (no
// row, or the newest is a delete) and unknown. A live row without digests has the state digests and an empty set. Any
// other state counts as unknown.
type Evidence struct {
	State   pb.EvidenceState
	Digests digest.Set
	// Claimed digests came from outside and were never compared with bytes.
	Claimed bool
}

// An EvidenceSet is the evidence of all four places of one copy.
type EvidenceSet struct {
	Content, Stored, Manifest, Audit Evidence
	// Second is a second reading of the content. Its state is unspecified if there was none.
	Second Evidence
	// Differs is another store whose copy has other verified digests of the same source content on record; empty if there
	// is none, or it was not asked.
	Differs string
	// Newer: by version, ETag and time the store's object is later than the manifest's.
	Newer bool
}

// A Verdict is the row of the table that an EvidenceSet falls under.
type Verdict struct {
	Row Row
	// Finding is Row.String().
	Finding string
	// Outcome is the verdict of the check when the row is concluded.
	Outcome pb.Verdict
	Detail  string
}

// verdict returns the verdict of row. A number that is no row is RowUnknown.
func verdict(row Row, detail string) Verdict {
	if row < RowPass || row > RowResurrected {
		row = RowUnknown
	}
	return Verdict{Row: row, Finding: row.String(), Outcome: row.outcome(), Detail: detail}
}

// Details that Judge sets.
const (
	detailPresence     = "content and store disagree whether the item is present"
	detailTransport    = "transport"
	detailClaim        = "claim"
	detailNoDigests    = "no digests on record"
	detailCopyDiffers  = "copy-differs: store "
	detailUnreadable   = "needs the bytes, or a digest from the store"
	detailIncomparable = "needs a digest of an algorithm that is on record"
)

// Judge returns the row of the table in docs/decisions-fixity.md for the evidence: the first that applies. It is pure
// and total.
func Judge(e EvidenceSet, s StoreSettings) Verdict {
	if e.readingsDiffer() {
		return verdict(RowUnknown, detailTransport)
	}
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
	// A store's digest of an algorithm that was not computed counts as none.
	if e.Content.Digests.Compare(e.Stored.Digests) == digest.Disagree {
		return e.storeMismatch()
	}
	return e.compareRecords(e.Content.Digests, s)
}

// unanswered returns the name of a place that is unknown, or "".
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

// readingsDiffer reports whether a second reading of the content has other digests than the first.
func (e EvidenceSet) readingsDiffer() bool {
	return e.Second.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS &&
		e.Second.Digests.Compare(e.Content.Digests) != digest.Agree
}

// unansweredByStore is unanswered for content and store.
func (e EvidenceSet) unansweredByStore() string {
	if e.Second.State == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN {
		return "content"
	}
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
	case pb.EvidenceState_EVIDENCE_STATE_DIGESTS, pb.EvidenceState_EVIDENCE_STATE_NONE,
		pb.EvidenceState_EVIDENCE_STATE_ABSENT:
		return ""
	}
	return "store"
}

// isAnswer reports whether manifest or audit log have digests or no row.
func (p Evidence) isAnswer() bool {
	return p.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS || p.State == pb.EvidenceState_EVIDENCE_STATE_NONE
}

// isTombstone reports whether the manifest's row is a tombstone.
func (p Evidence) isTombstone() bool { return p.State == pb.EvidenceState_EVIDENCE_STATE_TOMBSTONE }

// isLive reports whether there is a live row.
func (p Evidence) isLive() bool { return p.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS }

// hasDigests reports whether there is a live row with digests.
func (p Evidence) hasDigests() bool { return p.isLive() && len(p.Digests) > 0 }

// withoutDigests reports whether manifest or audit log have a live row without digests.
func (e EvidenceSet) withoutDigests() bool {
	return e.Manifest.isLive() && !e.Manifest.hasDigests() || e.Audit.isLive() && !e.Audit.hasDigests()
}

// storeMismatch judges if the bytes differ from the store's digest.
func (e EvidenceSet) storeMismatch() Verdict {
	x, ref := e.Content.Digests, e.reference()
	switch {
	case x.Compare(ref.digests) == digest.Agree:
		return verdict(RowStoreDigestWrong, "")
	case x.Compare(ref.verified) == digest.Disagree &&
		(ref.both || e.Stored.Digests.Compare(ref.verified) == digest.Agree):
		return verdict(RowContentCorrupt, "")
	}
	return verdict(RowNoQuorum, e.claimDetail(x))
}

// A relation compares a row of manifest or audit log with x.
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

// compareRecords compares x, the digests of content and store, with manifest and audit log.
func (e EvidenceSet) compareRecords(x digest.Set, s StoreSettings) Verdict {
	m, a := e.relations(x)
	switch {
	case e.Manifest.isTombstone():
		return verdict(RowResurrected, "")
	case m == incomparable || a == incomparable:
		return verdict(RowUnverified, detailIncomparable)
	case m == none && a == none && e.Differs != "":
		return verdict(RowNoQuorum, detailCopyDiffers+e.Differs)
	case m == none && a == none:
		if e.withoutDigests() {
			return verdict(RowNotCaptured, detailNoDigests)
		}
		return verdict(RowNotCaptured, "")
	case e.claimContradicted() && e.Content.State == pb.EvidenceState_EVIDENCE_STATE_UNREAD:
		return verdict(RowStoreDigestWrongUnread, detailClaim)
	case e.claimContradicted():
		return verdict(RowNoQuorum, detailClaim)
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

// relations compares manifest and audit log with x. A record that shares no algorithm with x has the relation of the
// other one if the two records agree, and counts as none if the other one differs from x: a difference is never hidden.
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

// A reference is the content that manifest and audit log together have on record.
type reference struct {
	digests  digest.Set // empty if they contradict each other
	verified digest.Set // without claimed digests
	both     bool       // manifest and audit log agree
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

// claimContradicted reports whether the audit log has verified digests that contradict a claim in the manifest. The
// bytes do not decide: they may be those of the claim.
func (e EvidenceSet) claimContradicted() bool {
	return e.Manifest.Claimed && !e.Audit.Claimed &&
		e.Manifest.Digests.Compare(e.Audit.Digests) == digest.Disagree
}

// claimDetail returns detailClaim if x differs from claimed digests.
func (e EvidenceSet) claimDetail(x digest.Set) string {
	for _, p := range [...]Evidence{e.Manifest, e.Audit} {
		if p.Claimed && relate(x, p) == other {
			return detailClaim
		}
	}
	return ""
}
