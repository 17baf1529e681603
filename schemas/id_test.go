package schemas_test

import (
	"maps"
	"slices"
	"testing"
	"time"

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
	base := func(op pb.Op) *pb.Change {
		return &pb.Change{
			Op: op, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg", Version: "7",
			Time: timestamppb.New(time.UnixMilli(1777863721987).Add(654 * time.Microsecond)),
		}
	}
	const added, deleted, byDigest = "aae5a35bb2c9c7378ea0be53d3f815e6", "90fb926f623205efa7ae85bf9fc6a462",
		"60077d63952729ecfb07a96d9c6bd1aa"
	rebuilt := base(pb.Op_OP_UPDATE)
	rebuilt.Digests, rebuilt.User, rebuilt.Origin, rebuilt.Cause = digests, "ann", pb.Origin_ORIGIN_SWEEP, "x"
	withoutVersion := base(pb.Op_OP_COPY)
	withoutVersion.Version, withoutVersion.Digests = "", digests
	for name, tt := range map[string]struct {
		change *pb.Change
		want   string
	}{
		"add":                         {base(pb.Op_OP_ADD), added},
		"copy counts as add":          {base(pb.Op_OP_COPY), added},
		"other fields do not count":   {rebuilt, added},
		"delete":                      {base(pb.Op_OP_DELETE), deleted},
		"digests replace the version": {withoutVersion, byDigest},
	} {
		t.Run(name, func(t *testing.T) {
			if got := schemas.ChangeID(tt.change); got != tt.want {
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
