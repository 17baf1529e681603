package record

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

var (
	at   = time.Date(2026, 9, 1, 12, 0, 0, 123_987_654, time.FixedZone("", 3600))
	atMS = timestamppb.New(time.Date(2026, 9, 1, 11, 0, 0, 123_000_000, time.UTC))
	c    = schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg"}
	full = storage.Object{
		Item: "a/b.jpg", Size: 7, Modified: at, Version: "v7", ETag: "e7",
		Digests:    digest.Set{digest.MD5: "00ff"},
		Properties: storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}},
	}
)

func TestChanges(t *testing.T) {
	bare := storage.Object{Item: "a/b.jpg", Modified: at, Version: "v1"}
	unknown := full // but for the flag, which counts
	unknown.PropertiesUnknown = true
	tests := map[string]struct{ got, want *pb.Change }{
		"content": {Content(c, full), &pb.Change{
			Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg",
			Version: "v7", Etag: "e7", Size: 7, Digests: map[string]string{"md5": "00ff"},
			Provenance: pb.Provenance_PROVENANCE_VERIFIED, MediaType: "image/jpeg",
			Properties: map[string]string{"by": "me"}, Time: atMS,
		}},
		"content without digests claims no provenance": {Content(c, bare), &pb.Change{
			Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg", Version: "v1", Time: atMS,
		}},
		"a size that is not known is not 0": {Content(c, storage.Object{Size: storage.UnknownSize, Modified: at}), &pb.Change{
			Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg", SizeUnknown: true, Time: atMS,
		}},
		"properties that are not known are not none": {Content(c, unknown), &pb.Change{
			Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg", Version: "v7", Etag: "e7", Size: 7,
			Digests: map[string]string{"md5": "00ff"}, Provenance: pb.Provenance_PROVENANCE_VERIFIED, Time: atMS,
			PropertiesUnknown: true,
		}},
		"delete of what nobody saw": {Delete(c, storage.Deleted{Object: storage.Object{Size: storage.UnknownSize}, Time: at}), &pb.Change{
			Op: pb.Op_OP_DELETE, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg", SizeUnknown: true, Time: atMS,
		}},
		"delete has the time of the delete": {Delete(c, storage.Deleted{Object: full, Time: at.Add(time.Second)}), &pb.Change{
			Op: pb.Op_OP_DELETE, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg",
			Version: "v7", Etag: "e7", Size: 7, Digests: map[string]string{"md5": "00ff"},
			Provenance: pb.Provenance_PROVENANCE_VERIFIED, Time: timestamppb.New(atMS.AsTime().Add(time.Second)),
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if !proto.Equal(tt.got, tt.want) {
				t.Errorf("got  %v\nwant %v", tt.got, tt.want)
			}
		})
	}
}

func TestContentSharesNothing(t *testing.T) {
	o := full
	o.Digests = digest.Set{digest.MD5: "00ff"}
	ch := Content(c, o)
	o.Digests[digest.MD5] = "changed"
	if ch.Digests["md5"] != "00ff" {
		t.Error("a Change shares its digests with the object it was made of")
	}
}

// A Change that is rebuilt from stat, whose time has more digits, and told as an update,
// is the one that was sent.
func TestSealIsStable(t *testing.T) {
	sent := Seal(Content(c, full))
	rebuilt := full
	rebuilt.Modified = at.Truncate(time.Millisecond)
	again := Content(c, rebuilt)
	again.Op, again.User = pb.Op_OP_UPDATE, "somebody"
	if got := Seal(again).GetId(); got != sent.GetId() || got == "" {
		t.Errorf("got id %q, want %q", got, sent.GetId())
	}
	other := full
	other.Version = "v8"
	if Seal(Content(c, other)).GetId() == sent.GetId() {
		t.Error("another version has the same id")
	}
}

func TestIs(t *testing.T) {
	change := func(f func(*storage.Object)) storage.Object { o := full; f(&o); return o }
	noVersion := change(func(o *storage.Object) { o.Version = "" })
	plain := change(func(o *storage.Object) { o.Version, o.ETag = "", "" })
	tests := map[string]struct {
		o    storage.Object
		id   *pb.Identity
		want bool
	}{
		"itself":                         {full, Identity(full), true},
		"same version":                   {change(func(o *storage.Object) { o.Size = 1 }), Identity(full), true},
		"other version":                  {change(func(o *storage.Object) { o.Version = "v8" }), Identity(full), false},
		"same etag":                      {full, Identity(noVersion), true},
		"other etag":                     {change(func(o *storage.Object) { o.ETag = "e8" }), Identity(noVersion), false},
		"same time and size":             {full, Identity(plain), true},
		"other size":                     {change(func(o *storage.Object) { o.Size = 8 }), Identity(plain), false},
		"later by a nanosecond":          {change(func(o *storage.Object) { o.Modified = at.Add(1) }), Identity(plain), false},
		"identity of nothing is nothing": {storage.Object{}, &pb.Identity{}, false},
		"no identity":                    {full, nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Is(tt.o, tt.id); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
