package inventory

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

func TestChange(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	at := time.Date(2020, 1, 2, 3, 4, 5, 6_789_000, time.UTC)
	e := Entry{At: Position{"l", 1}, Space: "maps", Item: "a/b", Size: 7, Digests: digest.Set{"md5": emptyMD5}, Time: at,
		Version: "v", ETag: "e", Media: "text/plain"}
	target := Target{Account: "acme", Store: "1", User: "ann", Default: now.Add(-time.Hour)}
	got, err := target.Change(e)
	must(t, err)
	want := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "maps", Item: "a/b", Version: "v", Etag: "e", Size: 7,
		Digests:    map[string]string{"md5": emptyMD5},
		Provenance: pb.Provenance_PROVENANCE_CLAIMED, MediaType: "text/plain",
		Time: timestamppb.New(time.Date(2020, 1, 2, 3, 4, 5, 6_000_000, time.UTC)),
		User: "ann", Agent: "import", Origin: pb.Origin_ORIGIN_IMPORT,
	}
	want.Id = schemas.ChangeID(want)
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}

	// Whoever imports, and when, changes no id; without a time of its own a row gets the default.
	other := Target{Account: "acme", Store: "1", User: "bob", Default: now.Add(-2 * time.Hour)}
	if again, err := other.Change(e); err != nil || again.GetId() != got.GetId() {
		t.Errorf("another id by another user: %v, %v", again, err)
	}
	bare, err := target.Change(Entry{Space: "maps", Item: "a", Size: -1})
	if err != nil || bare.GetSize() != 0 || !bare.GetSizeUnknown() || bare.GetProvenance() != 0 ||
		!bare.GetTime().AsTime().Equal(target.Default) {
		t.Errorf("a bare row is %v, %v", bare, err)
	}
}

// One row for each rule about names, spaces and times.
func TestTarget(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	for name, c := range map[string]struct {
		target Target
		entry  Entry
		want   string // space/item, or "! " and what the fault says
	}{
		"as it is":                {Target{}, Entry{Item: "a/b c"}, "s/a/b c"},
		"dots in front":           {Target{}, Entry{Item: ".//./a/b"}, "s/a/b"},
		"a name of dots":          {Target{}, Entry{Item: "a/...b"}, "s/a/...b"},
		"the parent":              {Target{}, Entry{Item: "a/../b"}, "! not a plain path"},
		"the folder itself":       {Target{}, Entry{Item: "a/./b"}, "! not a plain path"},
		"an empty part":           {Target{}, Entry{Item: "a//b"}, "! not a plain path"},
		"a folder":                {Target{}, Entry{Item: "a/"}, "! not a plain path"},
		"absolute":                {Target{}, Entry{Item: "/srv/a"}, "! absolute path"},
		"absolute, stripped":      {Target{Strip: "/srv"}, Entry{Item: "/srv/a"}, "s/a"},
		"stripped with its slash": {Target{Strip: "/srv/"}, Entry{Item: "/srv/a"}, "s/a"},
		"dots stripped":           {Target{Strip: "./data"}, Entry{Item: "./data/a"}, "s/a"},
		"whole parts only":        {Target{Strip: "/srv"}, Entry{Item: "/srv2/a"}, `! does not begin with "/srv"`},
		"all of it stripped":      {Target{Strip: "a/b"}, Entry{Item: "a/b"}, `! does not begin with`},
		"another beginning":       {Target{Strip: "data"}, Entry{Item: "a"}, "! does not begin with"},
		"stripped to the parent":  {Target{Strip: "data"}, Entry{Item: "data/../a"}, "! not a plain path"},
		"prefixed":                {Target{Prefix: "old/"}, Entry{Item: "a"}, "s/old/a"},
		"stripped and prefixed":   {Target{Strip: "data", Prefix: "bag-1/"}, Entry{Item: "data/a"}, "s/bag-1/a"},
		"backslash":               {Target{}, Entry{Item: `a\b`}, "! there is a backslash"},
		"backslash between parts": {Target{Backslash: BackslashSlash}, Entry{Item: `.\a\b`}, "s/a/b"},
		"backslash in a name":     {Target{Backslash: BackslashKeep}, Entry{Item: `a\b`}, `s/a\b`},
		"a drive":                 {Target{Backslash: BackslashSlash}, Entry{Item: `C:\a`}, "! absolute path"},
		"a drive, stripped":       {Target{Backslash: BackslashSlash, Strip: "C:/a"}, Entry{Item: `C:\a\b`}, "s/b"},
		"the parent, by Windows":  {Target{Backslash: BackslashSlash}, Entry{Item: `..\a`}, "! not a plain path"},
		"a key as it is":          {Target{}, Entry{Item: `/..//a\b/`, Key: true}, `s//..//a\b/`},
		"a key stripped":          {Target{Strip: "a"}, Entry{Item: "ab", Key: true}, "s/b"},
		"a key of nothing":        {Target{Strip: "ab"}, Entry{Item: "ab", Key: true}, "! no name is left"},
		"NUL":                     {Target{}, Entry{Item: "a\x00", Key: true}, "! a NUL"},
		"no name":                 {Target{}, Entry{}, "! no name is left"},
		"too long": {Target{}, Entry{Item: strings.Repeat("x", 1025)},
			"! item has 1025 bytes, at most 1024"},
		"as long as it may be":      {Target{}, Entry{Item: strings.Repeat("x", 1024)}, "s/" + strings.Repeat("x", 1024)},
		"not UTF-8":                 {Target{}, Entry{Item: "\xff", Key: true}, "! item"},
		"a space of its own":        {Target{Space: "-"}, Entry{Space: "maps", Item: "a"}, "maps/a"},
		"a space that is said":      {Target{Space: "mine"}, Entry{Space: "maps", Item: "a"}, "mine/a"},
		"no space":                  {Target{Space: "-"}, Entry{Item: "a"}, "! names no space; say with --space"},
		"a time to come":            {Target{}, Entry{Item: "a", Time: now.AddDate(174, 0, 0)}, "s/a"},
		"a time before all":         {Target{}, Entry{Item: "a", Time: time.Unix(-1, 0)}, "! time -1 s"},
		"a digest of a wrong shape": {Target{}, Entry{Item: "a", Digests: digest.Set{"md5": "zz"}}, `! digests`},
		"too much":                  {Target{}, Entry{Item: "a", ETag: strings.Repeat("x", 300<<10)}, "! bytes, at most"},
	} {
		t.Run(name, func(t *testing.T) {
			target, e := c.target, c.entry
			target.Account, target.Store, target.Default = "acme", "1", now
			switch target.Space {
			case "":
				target.Space = "s"
			case "-":
				target.Space = ""
			}
			got, err := target.Change(e)
			want, bad := strings.CutPrefix(c.want, "! ")
			var f *Fault
			switch {
			case bad && (!errors.As(err, &f) || !strings.Contains(err.Error(), want)):
				t.Errorf("got %v, %v, want a fault with %q", got, err, want)
			case !bad && (err != nil || got.GetSpace()+"/"+got.GetItem() != want):
				t.Errorf("got %v, %v, want %q", got, err, want)
			}
		})
	}
	// Items of two spaces are not put into one.
	target := Target{Account: "acme", Store: "1", Space: "all", Default: now}
	for _, e := range []Entry{{Space: "a", Item: "x"}, {Space: "a", Item: "y"}} {
		if _, err := target.Change(e); err != nil {
			t.Error(err)
		}
	}
	if _, err := target.Change(Entry{Space: "b", Item: "x"}); err == nil ||
		!strings.Contains(err.Error(), "would mix them") {
		t.Errorf("a second space: %v", err)
	}
}
