package schemas

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// WithoutProperties returns r without media types and properties, but with a hash of them. The result shares everything
// else with r; it is nil if r is nil. Messages that carry records use it because properties have no smaller bound than
// MaxBytes: those of the manifest and of the audit log together could exceed the size limit of a message.
func WithoutProperties(r *pb.CopyRecord) *pb.CopyRecord {
	if r == nil {
		return nil
	}
	return &pb.CopyRecord{
		Manifest: withoutProperties(r.GetManifest()), Audit: withoutProperties(r.GetAudit()),
		LastPass: r.GetLastPass(), LastAttempt: r.GetLastAttempt(), PropertiesHash: propertiesHash(r),
	}
}

// UnknownProperties is the CopyRecord.properties_hash of a record whose properties are not known.
const UnknownProperties = 1

// propertiesHash returns CopyRecord.properties_hash of r, which has the hash already if it was made by
// WithoutProperties.
func propertiesHash(r *pb.CopyRecord) int64 {
	m := r.GetManifest()
	switch {
	case r.GetPropertiesHash() != 0:
		return r.GetPropertiesHash()
	case m.GetState() != pb.RecordState_RECORD_STATE_LIVE:
		return 0
	case m.GetPropertiesClaimed():
		return PropertiesHash("", nil)
	}
	return PropertiesHash(m.GetMediaType(), m.GetProperties())
}

// PropertiesHash returns a hash of the media type and properties of an item that ignores the case of names, as some
// stores do. It is greater than UnknownProperties.
func PropertiesHash(mediaType string, properties map[string]string) int64 {
	names := slices.SortedFunc(maps.Keys(properties), func(a, b string) int {
		if c := strings.Compare(strings.ToLower(a), strings.ToLower(b)); c != 0 {
			return c
		}
		return strings.Compare(properties[a], properties[b])
	})
	b := binary.AppendUvarint(nil, uint64(len(mediaType)))
	b = append(b, mediaType...)
	for _, name := range names {
		for _, s := range [...]string{strings.ToLower(name), properties[name]} {
			b = binary.AppendUvarint(b, uint64(len(s)))
			b = append(b, s...)
		}
	}
	sum := sha256.Sum256(b)
	return max(int64(binary.BigEndian.Uint64(sum[:])>>1), UnknownProperties+1)
}

func withoutProperties(r *pb.Record) *pb.Record {
	if r == nil {
		return nil
	}
	return &pb.Record{
		State: r.GetState(), Digests: r.GetDigests(), Provenance: r.GetProvenance(), Claims: r.GetClaims(),
		Size: r.GetSize(), SizeUnknown: r.GetSizeUnknown(), Version: r.GetVersion(), Etag: r.GetEtag(),
		Time: r.GetTime(), ChangeId: r.GetChangeId(),
		SourceTime: r.GetSourceTime(), SourceVersion: r.GetSourceVersion(), Origin: r.GetOrigin(),
		Reported: r.GetReported(), SourceEffective: r.GetSourceEffective(), Disputed: r.GetDisputed(),
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
