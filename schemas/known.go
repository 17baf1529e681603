package schemas

import pb "github.com/millrace/millrace/schemas/millrace/v1"

// WithoutProperties returns r without media types and properties, which shares the rest
// with r; nil for nil. A message that carries what is on record of a content takes it
// from here: a Change may fill a message with its properties alone, and a record of the
// manifest and one of the audit log together are twice as long.
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
		Size: r.GetSize(), SizeUnknown: r.GetSizeUnknown(), Version: r.GetVersion(), Etag: r.GetEtag(), Time: r.GetTime(), ChangeId: r.GetChangeId(),
		SourceTime: r.GetSourceTime(), SourceVersion: r.GetSourceVersion(), Origin: r.GetOrigin(),
	}
}

// SizeOf returns the size in bytes that a message reports, or -1 if it is unknown.
func SizeOf(m interface {
	GetSize() int64
	GetSizeUnknown() bool
}) int64 {
	if m.GetSizeUnknown() {
		return -1
	}
	return m.GetSize()
}
