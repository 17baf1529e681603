package clickhouse

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// auditLog is the table audit_log: one row for each report of a change. Reports of one change differ by their
// offset.
func auditLog() *table[*pb.Change] {
	type r = row[*pb.Change]
	return newTable("audit_log",
		func(x r) string { return x.m.GetId() },
		func(x r) *timestamppb.Timestamp { return x.m.GetTime() },
		timestamp("ingested", func(x r) *timestamppb.Timestamp { return timestamppb.New(x.Timestamp) }),
		lowCard("op", func(x r) string { return opName(x.m.GetOp()) }),
		lowCard("account", func(x r) string { return x.m.GetAccount() }),
		lowCard("store", func(x r) string { return x.m.GetStore() }),
		text("space", func(x r) string { return x.m.GetSpace() }),
		text("item", func(x r) string { return x.m.GetItem() }),
		text("source_space", func(x r) string { return x.m.GetSourceSpace() }),
		text("source_item", func(x r) string { return x.m.GetSourceItem() }),
		text("version", func(x r) string { return x.m.GetVersion() }),
		text("etag", func(x r) string { return x.m.GetEtag() }),
		int64s("size", func(x r) int64 { return schemas.SizeOf(x.m) }),
		digests("digests", func(x r) map[string]string { return x.m.GetDigests() }),
		lowCard("provenance", func(x r) string { return provenanceName(x.m.GetProvenance()) }),
		lowCard("media_type", func(x r) string { return x.m.GetMediaType() }),
		stringMap("properties", func(x r) map[string]string { return x.m.GetProperties() }),
		stringMap("acl", func(x r) map[string]string { return x.m.GetAcl() }),
		flag("properties_unknown", func(x r) bool { return x.m.GetPropertiesUnknown() }),
		text("sequence", func(x r) string { return x.m.GetSequence() }),
		lowCard("user", func(x r) string { return x.m.GetUser() }),
		lowCard("agent", func(x r) string { return x.m.GetAgent() }),
		lowCard("origin", func(x r) string { return originName(x.m.GetOrigin()) }),
		text("cause", func(x r) string { return x.m.GetCause() }),
		nullableTime("source_time", func(x r) *timestamppb.Timestamp { return x.m.GetSourceTime() }),
		uint32s("source_ns", func(x r) uint32 { return belowMillis(x.m.GetSourceTime()) }),
		text("modified", func(x r) string { return dateText(x.m.GetModified()) }),
		text("source_version", func(x r) string { return x.m.GetSourceVersion() }),
		text("approved", func(x r) string { return x.m.GetApproved() }),
		stringMap("evidence", func(x r) map[string]string { return x.m.GetEvidence() }),
		uint16s("richness", func(x r) uint16 { return richness(x.m) }),
	)
}

// dateText returns the date of a file as text, since no column of times has all of its years; "" if there is none.
func dateText(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}

// richness ranks the reports of one change by their digests: verified before claimed, then more before fewer, then
// reports of a client or a notification before those of a check or a sweep. Completions are ranked alike, between
// claimed and verified reports: of two, the view takes the first.
func richness(c *pb.Change) uint16 {
	if schemas.IsCompletion(c) {
		return 1 << 8
	}
	n := uint16(min(len(c.GetDigests()), 127)) << 1
	if c.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED {
		n |= 1 << 8
	}
	if o := c.GetOrigin(); o != pb.Origin_ORIGIN_FIXITY && o != pb.Origin_ORIGIN_SWEEP {
		n |= 1
	}
	return n
}

// The tables name enum values as the schema does, in lower case and without the prefix: OP_SET_ACL is set_acl.
func opName(v pb.Op) string         { return enumWord(pb.Op_name[int32(v)], "OP_") }
func originName(v pb.Origin) string { return enumWord(pb.Origin_name[int32(v)], "ORIGIN_") }
func provenanceName(v pb.Provenance) string {
	return enumWord(pb.Provenance_name[int32(v)], "PROVENANCE_")
}
func verdictName(v pb.Verdict) string   { return enumWord(pb.Verdict_name[int32(v)], "VERDICT_") }
func metadataName(v pb.Metadata) string { return enumWord(pb.Metadata_name[int32(v)], "METADATA_") }
func outcomeName(v pb.Outcome) string   { return enumWord(pb.Outcome_name[int32(v)], "OUTCOME_") }
func stateName(v pb.EvidenceState) string {
	return enumWord(pb.EvidenceState_name[int32(v)], "EVIDENCE_STATE_")
}
func incidentState(v pb.IncidentState) string {
	return enumWord(pb.IncidentState_name[int32(v)], "INCIDENT_STATE_")
}
func fixityReason(v pb.FixityReason) string {
	return enumWord(pb.FixityReason_name[int32(v)], "FIXITY_REASON_")
}
func duplicationReason(v pb.DuplicationReason) string {
	return enumWord(pb.DuplicationReason_name[int32(v)], "DUPLICATION_REASON_")
}

// enumWord converts the name of an enum value to its name in the tables. The unspecified value is the empty string.
func enumWord(name, prefix string) string {
	name = strings.TrimPrefix(name, prefix)
	if name == "UNSPECIFIED" {
		return ""
	}
	return strings.ToLower(name)
}
