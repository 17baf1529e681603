package schemas_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// change is a Change as the decorator makes them.
func change() *pb.Change {
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "2020/summer/img_0001.jpg",
		Version: "1712345678123456789-12345", Size: 12345,
		Digests: map[string]string{
			"md5":    "d41d8cd98f00b204e9800998ecf8427e",
			"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		},
		Provenance: pb.Provenance_PROVENANCE_VERIFIED, MediaType: "image/jpeg",
		Properties: map[string]string{"creator": "someone"},
		Time:       timestamppb.New(time.Date(2026, 5, 4, 3, 2, 1, 987e6, time.UTC)),
		User:       "ann", Agent: "emit", Origin: pb.Origin_ORIGIN_CLIENT,
	}
	c.Id = schemas.ChangeID(c)
	return c
}

// changes are those that a benchmark handles, by name.
func changes() map[string]*pb.Change {
	plain := change()
	plain.Properties, plain.User, plain.Sequence = nil, "", "12345"
	return map[string]*pb.Change{"file": plain, "file-with-properties": change()}
}

// The peer of both is the library, which makes or reads the value only: no key, no
// headers, no checks but UTF-8.

func BenchmarkEncodeChange(b *testing.B) {
	b.Run("peer", func(b *testing.B) {
		c := changes()["file"]
		b.ReportAllocs()
		for b.Loop() {
			if _, err := proto.Marshal(c); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, c := range changes() {
		b.Run(name, func(b *testing.B) {
			m := schemas.Message{Topic: schemas.Changes, Body: c}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := schemas.Encode(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeChange(b *testing.B) {
	b.Run("peer", func(b *testing.B) {
		value, err := proto.Marshal(changes()["file"])
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if err := proto.Unmarshal(value, new(pb.Change)); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, c := range changes() {
		b.Run(name, func(b *testing.B) {
			r, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := schemas.Decode(r.Topic, r.Headers, r.Value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
