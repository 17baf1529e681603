package schemas_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestWithoutProperties(t *testing.T) {
	full := func() *pb.CopyRecord {
		at := func(s int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: s} }
		r := &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Size: 1, Version: "v", MediaType: "a",
			Properties: map[string]string{"by": "me"},
			Claims:     map[string]string{"md5": "00"}, Time: at(1), Reported: at(2), SourceEffective: at(3), SourceTime: at(4)}
		return &pb.CopyRecord{Manifest: r, Audit: proto.CloneOf(r)}
	}
	hash := schemas.PropertiesHash("a", map[string]string{"BY": "me"}) // the case of names does not count
	empty := schemas.PropertiesHash("", nil)
	for name, tt := range map[string]struct {
		set  func(*pb.CopyRecord)
		hash int64
	}{
		"properties": {func(*pb.CopyRecord) {}, hash},
		"none": {func(r *pb.CopyRecord) {
			r.Manifest.MediaType, r.Manifest.Properties = "", nil
		}, empty},
		"only those of the audit log": {func(r *pb.CopyRecord) { r.Manifest = nil }, 0},
		"of a deleted item": {func(r *pb.CopyRecord) {
			r.Manifest.State = pb.RecordState_RECORD_STATE_TOMBSTONE
		}, 0},
		"claimed":            {func(r *pb.CopyRecord) { r.Manifest.PropertiesClaimed = true }, empty},
		"of another content": {func(r *pb.CopyRecord) { r.Manifest.PropertiesOf = &pb.Content{Version: "w"} }, hash},
		"a hash already":     {func(r *pb.CopyRecord) { r.Manifest.MediaType, r.PropertiesHash = "", hash }, hash},
	} {
		t.Run(name, func(t *testing.T) {
			r := full()
			tt.set(r)
			got := schemas.WithoutProperties(r)
			for _, m := range []*pb.Record{got.GetManifest(), got.GetAudit()} {
				if m != nil && (m.GetReported().GetSeconds() != 2 || m.GetSourceEffective().GetSeconds() != 3) {
					t.Errorf("lost a time: %v", m)
				}
				if m != nil && m.GetClaims()["md5"] != "00" {
					t.Errorf("lost the claims: %v", m)
				}
				if m.GetMediaType() != "" || m.GetProperties() != nil || m.GetPropertiesOf() != nil {
					t.Errorf("got %v", m)
				}
			}
			if got.GetPropertiesHash() != tt.hash {
				t.Errorf("hash %x, want %x", got.GetPropertiesHash(), tt.hash)
			}
			if again := schemas.WithoutProperties(got); !proto.Equal(again, got) {
				t.Errorf("again: got %v, want %v", again, got)
			}
		})
	}
	if schemas.WithoutProperties(nil) != nil {
		t.Error("nil became a record")
	}
}

// Each difference of a media type and properties is one of their hashes.
func TestPropertiesHash(t *testing.T) {
	seen := map[int64]int{}
	for i, p := range []struct {
		mediaType string
		user      map[string]string
	}{
		{"", nil}, {"a", nil}, {"", map[string]string{"a": ""}}, {"", map[string]string{"": "a"}},
		{"a", map[string]string{"b": "c"}}, {"a", map[string]string{"c": "b"}}, {"ab", map[string]string{"": "c"}},
		{"a", map[string]string{"b": "c", "d": "e"}}, {"a", map[string]string{"b": "cde"}},
		{"a", map[string]string{"b": "e", "d": "c"}},
	} {
		h := schemas.PropertiesHash(p.mediaType, p.user)
		if j, ok := seen[h]; ok || h <= 0 {
			t.Errorf("%d and %d have the hash %x", i, j, h)
		}
		seen[h] = i
	}
	// Such messages are stored, so a hash never changes.
	if got := schemas.PropertiesHash("image/jpeg", map[string]string{"by": "me"}); got != 0x405165f63fbd8016 {
		t.Errorf("got %x", got)
	}
}
