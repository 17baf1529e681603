package schemas_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The expected ids come from another implementation: SHA-256 over the parts, each after its length as a varint, cut to
// 128 bits. Ids must stay the same in all versions.
func TestID(t *testing.T) {
	for name, tt := range map[string]struct {
		parts []string
		want  string
	}{
		"no parts":       {nil, "e3b0c44298fc1c149afbf4c8996fb924"},
		"one empty":      {[]string{""}, "6e340b9cffb37a989ca544e6bb780a2c"},
		"two":            {[]string{"a", "b"}, "fa4a350f5906021e27b2caf19409319e"},
		"the two joined": {[]string{"ab"}, "3502aac2f2e29890633f7992adb58fb3"},
		"long":           {[]string{string(slices.Repeat([]byte("a"), 200)), "é"}, "71c7985202502acd17be2c01c79ea935"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := schemas.ID(tt.parts...); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestChangeID(t *testing.T) {
	digests := map[string]string{
		"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"md5":    "d41d8cd98f00b204e9800998ecf8427e",
	}
	const added, deleted, byDigest = "aae5a35bb2c9c7378ea0be53d3f815e6", "90fb926f623205efa7ae85bf9fc6a462",
		"60077d63952729ecfb07a96d9c6bd1aa"
	const addOp, deleteOp, set, create = pb.Op_OP_ADD, pb.Op_OP_DELETE, pb.Op_OP_SET_PROPERTIES, pb.Op_OP_CREATE_SPACE
	type pairs = map[string]string
	is := func(*pb.Change) {}
	rebuilt := func(c *pb.Change) {
		c.Digests, c.User, c.Origin, c.Cause, c.Etag, c.Size = digests, "ann", pb.Origin_ORIGIN_SWEEP, "x", "e1", 5
		c.MediaType, c.Properties, c.Acl = "image/png", pairs{"colour": "red"}, pairs{"ann": "read"}
	}
	withDigests := func(c *pb.Change) { c.Version, c.Digests, c.Etag, c.Size = "", digests, "e1", 5 }
	bare := func(etag string, size int64) func(*pb.Change) {
		return func(c *pb.Change) {
			c.Version, c.Etag, c.Size, c.SizeUnknown = "", etag, max(size, 0), size < 0
		}
	}
	has := func(media string, properties, acl pairs) func(*pb.Change) {
		return func(c *pb.Change) {
			c.MediaType, c.Properties, c.Acl = media, properties, acl
			if schemas.IsSpaceOp(c.Op) {
				c.Item, c.Version = "", ""
			}
		}
	}
	for name, tt := range map[string]struct {
		op   pb.Op
		edit func(*pb.Change)
		want string
	}{
		"add":                         {addOp, is, added},
		"copy counts as add":          {pb.Op_OP_COPY, is, added},
		"other fields do not count":   {pb.Op_OP_UPDATE, rebuilt, added},
		"delete":                      {deleteOp, is, deleted},
		"delete, of another size":     {deleteOp, rebuilt, deleted},
		"digests replace the version": {pb.Op_OP_COPY, withDigests, byDigest},
		"neither of them":             {addOp, bare("e1", 5), "c2cb680a14ed3a5a3ee1539e8eb230df"},
		"another ETag":                {addOp, bare("e2", 5), "70dfb15c55e21bfcc1838d8197082e94"},
		"another size":                {addOp, bare("e1", 7), "f2e2426bcc95274522b53acb209defec"},
		"unknown size":                {addOp, bare("e1", -1), "15c4940e380fb186ff0f21ba7a92a397"},
		"empty item":                  {addOp, bare("e1", 0), "6266f39382700dba43badb7bd3cfdccf"},
		"bare delete":                 {deleteOp, bare("e1", 5), "bc9058e5a74dac607bf1ea739bed24b6"},
		"no properties":               {set, is, "e2d51c62580adabe281c3a1838c15c2b"},
		"red":                         {set, has("", pairs{"colour": "red"}, nil), "7697d67fc633b0c22ea65a36de2d0455"},
		"blue":                        {set, has("", pairs{"colour": "blue"}, nil), "a386ea0e3d39427eb5842d9f8514eb75"},
		"red and more": {set, has("", pairs{"a": "b", "colour": "red"}, nil),
			"4de88aaf43f6d4dd31c4cb8b1f664c2c"},
		"media type": {set, has("image/png", pairs{"colour": "red"}, nil),
			"620446d6571132a6e0b70abd0ea5630e"},
		"properties of a space": {pb.Op_OP_SET_SPACE_PROPERTIES, has("", pairs{"a": "b"}, nil),
			"47c57cc3d2a467f7e06088d5680e366d"},
		"ACL":                   {pb.Op_OP_SET_ACL, has("", nil, pairs{"a": "b"}), "0763cd650ee02df9b0b91626eb884835"},
		"another ACL":           {pb.Op_OP_SET_ACL, has("", nil, pairs{"a": "c"}), "5a7e62200e0221c0c5a13491c95d3c6c"},
		"space":                 {create, has("", nil, nil), "252d17de772576c0dc1e1ad3d9dcc104"},
		"space with properties": {create, has("", pairs{"a": "b"}, nil), "69389c8bbb9682fa20cfabb1b65fa90c"},
		"space with an ACL":     {create, has("", nil, pairs{"a": "b"}), "8b3481e62e82ec7f75d31f3a078844e0"},
		"space with both":       {create, has("", pairs{"a": "b"}, pairs{"a": "b"}), "c50d32c4d027e59e6d50eadeeb6a7994"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &pb.Change{
				Op: tt.op, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg", Version: "7",
				Time: timestamppb.New(time.UnixMilli(1777863721987).Add(654 * time.Microsecond)),
			}
			tt.edit(c)
			if got := schemas.ChangeID(c); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestNewID(t *testing.T) {
	a, b := schemas.NewID(), schemas.NewID()
	if len(a) != 32 || a == b {
		t.Errorf("got %s and %s, want two ids of 128 bits", a, b)
	}
}

func TestKey(t *testing.T) {
	for name, tt := range map[string]struct {
		parts []string
		want  string
	}{
		"none":        {nil, ""},
		"plain":       {[]string{"acme", "photos", "a.jpg"}, "acme/photos/a.jpg"},
		"slashes":     {[]string{"acme", "photos", "/a//b/"}, "acme/photos/%2Fa%2F%2Fb%2F"},
		"per cent":    {[]string{"%", "100%25", "é"}, "%25/100%2525/é"},
		"empty parts": {[]string{"", "", ""}, "//"},
		"longer parts": {[]string{string(slices.Repeat([]byte("a"), 300)), "b"}, string(slices.Repeat([]byte("a"), 300)) +
			"/b"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := schemas.Key(tt.parts...); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Different items have different keys, and different lists of parts have different ids.
func TestKeysAndIDsAreInjective(t *testing.T) {
	// Few characters, including the escaped ones, make near collisions likely.
	part := rapid.StringOfN(rapid.RuneFrom([]rune("a/%25F\x00")), 0, 4, -1)
	parts := rapid.SliceOfN(part, 1, 4)
	need.Check(t, func(t *rapid.T) {
		a, b := parts.Draw(t, "a"), parts.Draw(t, "b")
		same := slices.Equal(a, b)
		if got := schemas.SplitKey(schemas.Key(a...)); !slices.Equal(got, a) {
			t.Errorf("the parts of the key of %q are %q", a, got)
		}
		if got := schemas.Key(a...) == schemas.Key(b...); got != same {
			t.Errorf("keys %q and %q of %q and %q", schemas.Key(a...), schemas.Key(b...), a, b)
		}
		if got := schemas.ID(a...) == schemas.ID(b...); got != same {
			t.Errorf("ids of %q and %q", a, b)
		}
	})
}

// All copies of an item share its key.
func TestItemKeyIgnoresTheStore(t *testing.T) {
	e, _ := schemas.Lookup(schemas.Changes)
	a, b := change(), change()
	b.Store, b.Digests = "2", maps.Clone(a.Digests)
	if e.Key(a) != e.Key(b) || schemas.ChangeID(a) == schemas.ChangeID(b) {
		t.Errorf("keys %s and %s, ids %s and %s", e.Key(a), e.Key(b), schemas.ChangeID(a), schemas.ChangeID(b))
	}
}

// A completion has the id of the Change that it completes, in both encodings. Only a verified report of a content
// completes another one.
func TestCompletionID(t *testing.T) {
	id := schemas.ID("completed")
	for name, tt := range map[string]struct {
		edit func(*pb.Change)
		want bool
	}{
		"add":         {func(*pb.Change) {}, true},
		"update":      {func(c *pb.Change) { c.Op = pb.Op_OP_UPDATE }, true},
		"copy":        {func(c *pb.Change) { c.Op = pb.Op_OP_COPY }, true},
		"delete":      {func(c *pb.Change) { c.Op = pb.Op_OP_DELETE }, false},
		"properties":  {func(c *pb.Change) { c.Op = pb.Op_OP_SET_PROPERTIES }, false},
		"claimed":     {func(c *pb.Change) { c.Provenance = pb.Provenance_PROVENANCE_CLAIMED }, false},
		"unspecified": {func(c *pb.Change) { c.Provenance = pb.Provenance_PROVENANCE_UNSPECIFIED }, false},
		"no evidence": {func(c *pb.Change) { c.Evidence = nil }, false},
		"upper case":  {func(c *pb.Change) { c.Evidence[schemas.Completes] = strings.ToUpper(id) }, false},
		"too short":   {func(c *pb.Change) { c.Evidence[schemas.Completes] = id[1:] }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := &pb.Change{
				Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a", Size: 3,
				Time:       timestamppb.New(time.UnixMilli(1777863721987)),
				Provenance: pb.Provenance_PROVENANCE_VERIFIED, Digests: map[string]string{"blake3": "00ff"},
				Evidence: map[string]string{schemas.Completes: id},
			}
			if tt.edit(c); schemas.IsCompletion(c) {
				t.Error("a completion without an id")
			}
			inJSON, err := protojson.Marshal(c)
			must(t, err)
			binary, err := c.MarshalVT()
			must(t, err)
			for content, value := range map[string][]byte{schemas.ContentJSON: inJSON, schemas.ContentProtobuf: binary} {
				body, err := schemas.Decode(schemas.Changes, contentType(content), value)
				must(t, err)
				got := body.(*pb.Change)
				if (got.GetId() == id) != tt.want || schemas.IsCompletion(got) != tt.want {
					t.Errorf("%s: id %s, completion %t, want %t", content, got.GetId(), schemas.IsCompletion(got), tt.want)
				}
			}
		})
	}
}
