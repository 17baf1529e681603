package schemas

import pb "github.com/millrace/millrace/schemas/millrace/v1"

// WithoutProperties returns r without media types and properties. The result shares everything else with r; it is nil
// if r is nil. Messages that carry records use it because properties have no smaller bound than MaxBytes: those of the
// manifest and of the audit log together could exceed the size limit of a message.
func WithoutProperties(r *pb.CopyRecord) *pb.CopyRecord {
	if r == nil {
		return nil
	}
	return &pb.CopyRecord{
		Manifest: withoutProperties(r.GetManifest()), Audit: withoutProperties(r.GetAudit()),
		LastPass: r.GetLastPass(), LastAttempt: r.GetLastAttempt(),
	}
}

func withoutProperties(r *pb.Record) *pb.Record {
	if r == nil {
		return nil
	}
	return &pb.Record{
		State: r.GetState(), Digests: r.GetDigests(), Provenance: r.GetProvenance(),
		Size: r.GetSize(), SizeUnknown: r.GetSizeUnknown(), Version: r.GetVersion(), Etag: r.GetEtag(),
		Time: r.GetTime(), ChangeId: r.GetChangeId(),
		SourceTime: r.GetSourceTime(), SourceVersion: r.GetSourceVersion(), Origin: r.GetOrigin(),
	}
}

// SizeOf returns the size in bytes that m reports, or -1 if it is unknown.
func SizeOf(m interface {
	GetSize() int64
	GetSizeUnknown() bool
}) int64 {
	if m.GetSizeUnknown() {
		return -1
	}
	return m.GetSize()
}
