package clickhouse

import (
	"fmt"

	"github.com/ClickHouse/ch-go/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// duplicationLog is the table duplication_log: one row for the result of each command.
func duplicationLog() *table[*pb.DuplicationResult] {
	type r = row[*pb.DuplicationResult]
	return newTable("duplication_log",
		func(x r) string { return x.m.GetId() },
		func(x r) *timestamppb.Timestamp { return x.m.GetFinished() },
		text("command", func(x r) string { return x.m.GetCommand() }),
		text("cause", func(x r) string { return x.m.GetCause() }),
		lowCard("account", func(x r) string { return x.m.GetAccount() }),
		text("space", func(x r) string { return x.m.GetSpace() }),
		text("item", func(x r) string { return x.m.GetItem() }),
		lowCard("source_store", func(x r) string { return x.m.GetSourceStore() }),
		lowCard("destination_store", func(x r) string { return x.m.GetDestinationStore() }),
		lowCard("reason", func(x r) string { return enumName(x.m.GetReason()) }),
		lowCard("decision", func(x r) string { return x.m.GetDecision() }),
		lowCard("result", func(x r) string { return x.m.GetResult() }),
		lowCard("outcome", func(x r) string { return enumName(x.m.GetOutcome()) }),
		int64s("bytes", func(x r) int64 { return x.m.GetBytes() }),
		digests("digests", func(x r) map[string]string { return x.m.GetDigests() }),
		nullableTime("started", func(x r) *timestamppb.Timestamp { return x.m.GetStarted() }),
		int32s("attempt", func(x r) int32 { return x.m.GetAttempt() }),
		lowCard("error_class", func(x r) string { return x.m.GetErrorClass() }),
		text("error", func(x r) string { return x.m.GetError() }),
		text("detail", func(x r) string { return x.m.GetDetail() }),
		nullableTime("change_time", func(x r) *timestamppb.Timestamp { return x.m.GetChangeTime() }),
		nullableTime("planned", func(x r) *timestamppb.Timestamp { return x.m.GetPlanned() }),
		flag("newer", func(x r) bool { return x.m.GetNewer() }),
		lowCard("worker", func(x r) string { return x.m.GetWorker() }),
		lowCard("host", func(x r) string { return x.m.GetHost() }),
		lowCard("software", func(x r) string { return x.m.GetSoftware() }),
		text("incident", func(x r) string { return x.m.GetIncident() }),
		text("list", func(x r) string { return x.m.GetList() }),
		text("effect", func(x r) string { return x.m.GetEffect() }),
		text("source_version", func(x r) string { return x.m.GetSourceVersion() }),
		lowCard("would_be", func(x r) string { return x.m.GetWouldBe() }),
	)
}

// bitLog is the table bit_log: one row for the result of each check.
func bitLog() *table[*pb.FixityResult] {
	type r = row[*pb.FixityResult]
	columns := []column[r]{
		text("task", func(x r) string { return x.m.GetTask() }),
		text("cause", func(x r) string { return x.m.GetCause() }),
		lowCard("account", func(x r) string { return x.m.GetAccount() }),
		lowCard("store", func(x r) string { return x.m.GetStore() }),
		text("space", func(x r) string { return x.m.GetSpace() }),
		text("item", func(x r) string { return x.m.GetItem() }),
		lowCard("store_kind", func(x r) string { return x.m.GetStoreKind() }),
		lowCard("reason", func(x r) string { return enumName(x.m.GetReason()) }),
		lowCard("verdict", func(x r) string { return enumName(x.m.GetVerdict()) }),
		uint8s("row", func(x r) int32 { return x.m.GetRow() }),
		lowCard("finding", func(x r) string { return x.m.GetFinding() }),
		flag("final", func(x r) bool { return x.m.GetFinal() }),
		uint8s("level", func(x r) int32 { return x.m.GetEvidenceLevel() }),
	}
	for i, place := range evidenceNames {
		columns = append(columns,
			lowCard(place+"_state", func(x r) string { return enumName(evidence(x.m)[i].GetState()) }),
			lowCard(place+"_provenance", func(x r) string { return enumName(evidence(x.m)[i].GetProvenance()) }))
	}
	shared := func(x r) ([]sharedDigest, error) { return sharedDigests(x.m) }
	columns = append(columns,
		arrayOf("digest.algorithm", "Array(LowCardinality(String))", newLowCardinality, shared,
			func(h sharedDigest) string { return h.algorithm }),
		arrayOf("digest.value", "Array(String)", newText, shared, func(h sharedDigest) string { return h.digest }),
		arrayOf("digest.places", "Array(UInt8)", newBytes, shared, func(h sharedDigest) uint8 { return h.places }),
		int64s("bytes_read", func(x r) int64 { return x.m.GetBytesRead() }),
		int32s("recheck", func(x r) int32 { return x.m.GetRecheck() }),
		int32s("attempt", func(x r) int32 { return x.m.GetAttempt() }),
		lowCard("worker", func(x r) string { return x.m.GetWorker() }),
		lowCard("host", func(x r) string { return x.m.GetHost() }),
		lowCard("software", func(x r) string { return x.m.GetSoftware() }),
		text("round", func(x r) string { return x.m.GetRound() }),
		timestamp("finished", func(x r) *timestamppb.Timestamp { return x.m.GetFinished() }),
		text("detail", func(x r) string { return x.m.GetDetail() }),
	)
	columns = append(columns, objectColumns(func(x r) *pb.Identity { return x.m.GetObject() })...)
	columns = append(columns,
		nullableTime("next", func(x r) *timestamppb.Timestamp { return x.m.GetNext() }),
		flag("baseline", func(x r) bool { return x.m.GetBaseline() }),
		flag("overtaken", func(x r) bool { return x.m.GetOvertaken() }),
		lowCard("metadata", func(x r) string { return enumName(x.m.GetMetadata()) }),
		text("metadata_detail", func(x r) string { return x.m.GetMetadataDetail() }),
	)
	return newTable("bit_log",
		func(x r) string { return x.m.GetId() },
		func(x r) *timestamppb.Timestamp { return x.m.GetStarted() }, columns...,
	)
}

// objectColumns are the columns of the identity of a stored object.
func objectColumns[M any](get func(M) *pb.Identity) []column[M] {
	return []column[M]{
		text("object_version", func(m M) string { return get(m).GetVersion() }),
		text("object_etag", func(m M) string { return get(m).GetEtag() }),
		nullableTime("object_modified", func(m M) *timestamppb.Timestamp { return get(m).GetModified() }),
		uint32s("object_ns", func(m M) uint32 { return belowMillis(get(m).GetModified()) }),
		int64s("object_size", func(m M) int64 { return get(m).GetSize() }),
	}
}

// evidenceNames are the pieces of evidence, in the order of their bits in digest.places.
var evidenceNames = [5]string{"content", "stored", "manifest", "audit", "confirmed"}

func evidence(m *pb.FixityResult) [len(evidenceNames)]*pb.Evidence {
	return [...]*pb.Evidence{m.GetContent(), m.GetStored(), m.GetManifest(), m.GetAudit(), m.GetConfirmed()}
}

// A sharedDigest is a digest, and the pieces of evidence that have it.
type sharedDigest struct {
	algorithm, digest string // digest is in bytes
	places            uint8  // a bit for each piece of evidence
}

// sharedDigests returns each digest of a result once.
func sharedDigests(m *pb.FixityResult) ([]sharedDigest, error) {
	var all []sharedDigest
	var keys []string
	for i, e := range evidence(m) {
		keys = sortedKeys(keys, e.GetDigests())
	next:
		for _, k := range keys {
			b, err := appendHex(nil, e.GetDigests()[k])
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", evidenceNames[i], k, err)
			}
			for j := range all {
				if all[j].algorithm == k && all[j].digest == string(b) {
					all[j].places |= 1 << i
					continue next
				}
			}
			all = append(all, sharedDigest{k, string(b), 1 << i})
		}
	}
	return all, nil
}

func newText() *proto.ColStr { return new(proto.ColStr) }

func newBytes() *proto.ColUInt8 { return new(proto.ColUInt8) }
