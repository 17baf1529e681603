package clickhouse

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
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
		lowCard("op", func(x r) string { return enumName(x.m.GetOp()) }),
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
		lowCard("provenance", func(x r) string { return enumName(x.m.GetProvenance()) }),
		lowCard("media_type", func(x r) string { return x.m.GetMediaType() }),
		stringMap("properties", func(x r) map[string]string { return x.m.GetProperties() }),
		stringMap("acl", func(x r) map[string]string { return x.m.GetAcl() }),
		flag("properties_unknown", func(x r) bool { return x.m.GetPropertiesUnknown() }),
		text("sequence", func(x r) string { return x.m.GetSequence() }),
		lowCard("user", func(x r) string { return x.m.GetUser() }),
		lowCard("agent", func(x r) string { return x.m.GetAgent() }),
		lowCard("origin", func(x r) string { return enumName(x.m.GetOrigin()) }),
		text("cause", func(x r) string { return x.m.GetCause() }),
		nullableTime("source_time", func(x r) *timestamppb.Timestamp { return x.m.GetSourceTime() }),
		uint32s("source_ns", func(x r) uint32 { return belowMillis(x.m.GetSourceTime()) }),
		text("modified", func(x r) string { return nanoText(x.m.GetModified()) }),
		text("source_version", func(x r) string { return x.m.GetSourceVersion() }),
		text("approved", func(x r) string { return x.m.GetApproved() }),
		stringMap("evidence", func(x r) map[string]string { return x.m.GetEvidence() }),
		uint16s("richness", func(x r) uint16 { return richness(x.m) }),
	)
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

// enumName returns the name of an enum value in the tables: that of the schema in lower case and without the prefix, so
// OP_SET_ACL is set_acl. The unspecified value, and one that the schema does not have, is the empty string.
func enumName(v protoreflect.Enum) string {
	values := v.Descriptor().Values()
	value := values.ByNumber(v.Number())
	if v.Number() == 0 || value == nil {
		return ""
	}
	prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(value.Name()), prefix))
}
