package record

import (
	"reflect"
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
	unknown := full // with properties, which the flag overrides
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
		"an unknown size is not 0": {Content(c, storage.Object{Size: storage.UnknownSize, Modified: at}), &pb.Change{
			Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg", SizeUnknown: true, Time: atMS,
		}},
		"unknown properties are not empty": {Content(c, unknown), &pb.Change{
			Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg", Version: "v7", Etag: "e7", Size: 7,
			Digests: map[string]string{"md5": "00ff"}, Provenance: pb.Provenance_PROVENANCE_VERIFIED, Time: atMS,
			PropertiesUnknown: true,
		}},
		"delete of an unknown content": {Delete(c, storage.Deleted{Object: storage.Object{Size: storage.UnknownSize},
			Time: at}), &pb.Change{
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
		t.Error("the Change shares its digests with the object")
	}
}

// A Change that is rebuilt from a stat, with another precision of time and as an update, has the id of the published
// one.
func TestSealIsStable(t *testing.T) {
	published := Seal(Content(c, full))
	rebuilt := full
	rebuilt.Modified = at.Truncate(time.Millisecond)
	again := Content(c, rebuilt)
	again.Op, again.User = pb.Op_OP_UPDATE, "somebody"
	if got := Seal(again).GetId(); got != published.GetId() || got == "" {
		t.Errorf("got id %q, want %q", got, published.GetId())
	}
	other := full
	other.Version = "v8"
	if Seal(Content(c, other)).GetId() == published.GetId() {
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
		"itself":                {full, Identity(full), true},
		"same version":          {change(func(o *storage.Object) { o.Size = 1 }), Identity(full), true},
		"other version":         {change(func(o *storage.Object) { o.Version = "v8" }), Identity(full), false},
		"same etag":             {full, Identity(noVersion), true},
		"other etag":            {change(func(o *storage.Object) { o.ETag = "e8" }), Identity(noVersion), false},
		"same time and size":    {full, Identity(plain), true},
		"other size":            {change(func(o *storage.Object) { o.Size = 8 }), Identity(plain), false},
		"later by a nanosecond": {change(func(o *storage.Object) { o.Modified = at.Add(1) }), Identity(plain), false},
		"empty identity":        {storage.Object{}, &pb.Identity{}, false},
		"no identity":           {full, nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Is(tt.o, tt.id); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestDescribes(t *testing.T) {
	a, b, sha1 := digest.Set{digest.MD5: "aa"}, digest.Set{digest.MD5: "bb"}, digest.Set{digest.SHA1: "aa"}
	own := &pb.Record{Version: "v1", Digests: a}
	other := &pb.Record{Version: "v1", Digests: a, PropertiesOf: &pb.Content{Version: "v0", Digests: b}}
	unread := &pb.Record{Version: "v1", Digests: a, PropertiesOf: &pb.Content{}}
	unnamed := &pb.Record{PropertiesOf: &pb.Content{Digests: b}}
	tests := map[string]struct {
		r       *pb.Record
		version string
		digests digest.Set
		want    digest.Agreement
	}{
		"the content on record":                                {own, "v1", a, digest.Agree},
		"its version, without digests":                         {own, "v1", nil, digest.Agree},
		"its version with other bytes":                         {own, "v1", b, digest.Agree},
		"its bytes in another version":                         {own, "v2", a, digest.Agree},
		"other bytes":                                          {own, "v2", b, digest.Disagree},
		"another version, without digests":                     {own, "v2", nil, digest.Incomparable},
		"another version, with digests of another algorithm":   {own, "v2", sha1, digest.Incomparable},
		"no version, and no digests":                           {&pb.Record{}, "", nil, digest.Incomparable},
		"properties of another content, by digests":            {other, "v2", b, digest.Agree},
		"properties of another content, the content on record": {other, "v1", a, digest.Disagree},
		"properties of another content, without digests":       {other, "v1", nil, digest.Incomparable},
		"properties of another content, by version":            {other, "v0", nil, digest.Agree},
		"properties of an unknown content":                     {unread, "v1", a, digest.Incomparable},
		"properties of another content without a version":      {unnamed, "", b, digest.Agree},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Describes(tt.r, tt.version, tt.digests); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestProperties(t *testing.T) {
	const live = pb.RecordState_RECORD_STATE_LIVE
	image := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	of := func(f func(*pb.Record)) *pb.Record {
		r := &pb.Record{State: live, MediaType: image.MediaType, Properties: image.User}
		f(r)
		return r
	}
	tests := map[string]struct {
		r    *pb.Record
		want storage.Properties
	}{
		"live":      {of(func(*pb.Record) {}), image},
		"claimed":   {of(func(r *pb.Record) { r.PropertiesClaimed = true }), storage.Properties{}},
		"deleted":   {of(func(r *pb.Record) { r.State = pb.RecordState_RECORD_STATE_TOMBSTONE }), storage.Properties{}},
		"no record": {nil, storage.Properties{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Properties(tt.r); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestAlters(t *testing.T) {
	live := func(mediaType string, user map[string]string) *pb.Record {
		return &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, MediaType: mediaType, Properties: user}
	}
	one, two := map[string]string{"by": "me"}, map[string]string{"by": "you"}
	claimed, deleted := live("a", one), live("a", one)
	claimed.PropertiesClaimed, deleted.State = true, pb.RecordState_RECORD_STATE_TOMBSTONE
	for name, tt := range map[string]struct {
		now    storage.Properties
		record *pb.Record
		want   bool
	}{
		"the same":                      {storage.Properties{MediaType: "a", User: one}, live("a", one), false},
		"another value":                 {storage.Properties{MediaType: "a", User: two}, live("a", one), true},
		"none":                          {storage.Properties{}, live("a", one), true},
		"more":                          {storage.Properties{MediaType: "a", User: one}, live("a", nil), true},
		"another media type":            {storage.Properties{MediaType: "b"}, live("a", nil), true},
		"a media type that was unknown": {storage.Properties{MediaType: "b", User: one}, live("", one), false},
		"names in another case":         {storage.Properties{User: map[string]string{"BY": "me"}}, live("", one), true},
		"nothing on record":             {storage.Properties{MediaType: "a", User: one}, live("", nil), false},
		"a claim":                       {storage.Properties{}, claimed, false},
		"deleted":                       {storage.Properties{}, deleted, false},
		"no record":                     {storage.Properties{MediaType: "a"}, nil, false},
	} {
		if got := Alters(tt.now, tt.record, false); got != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	if Alters(storage.Properties{User: map[string]string{"BY": "me"}}, live("", one), true) {
		t.Error("the case of names counts")
	}
}

func TestIsNewer(t *testing.T) {
	kafka, ahead := time.Date(2026, 5, 4, 3, 2, 1, 7e6, time.UTC), time.Date(2106, 2, 7, 6, 28, 15, 0, time.UTC)
	of := &pb.Record{Time: timestamppb.New(kafka)}
	of2106 := &pb.Record{Time: timestamppb.New(kafka), Reported: timestamppb.New(ahead)}
	for name, tt := range map[string]struct {
		r        *pb.Record
		modified time.Time
		want     bool
	}{
		"the time on record":              {of, kafka.Add(999), false},
		"later":                           {of, kafka.Add(time.Millisecond), true},
		"earlier":                         {of, kafka.Add(-time.Hour), false},
		"of 2106, untouched":              {of2106, ahead.Add(999), false},
		"of 2106, written again":          {of2106, kafka.Add(time.Hour), true},
		"of 2106, and older than Kafka's": {of2106, kafka.Add(-time.Hour), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsNewer(storage.Object{Modified: tt.modified}, tt.r); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
