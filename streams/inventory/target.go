package inventory

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The meanings of backslashes in paths.
const (
	BackslashRefuse = ""      // a fault, because it may be a separator or part of a name
	BackslashSlash  = "slash" // a separator, as on Windows
	BackslashKeep   = "keep"  // part of the name
)

// agent is the agent of the Changes.
const agent = "import"

// A Target maps the rows of a listing to copies and converts them to Changes. It serves one reading.
type Target struct {
	Account, Store string
	Space          string // space of all rows; empty means the space of each row
	Strip, Prefix  string // prefix to remove from items, and prefix to add then
	SkipOthers     bool   // an item without Strip is ErrOther instead of a fault
	Backslash      string // meaning of backslashes in paths
	Default        time.Time
	User           string // the user of the Changes

	only string // the space of the rows that Space replaces; a second one is a fault
}

// ErrOther reports an entry whose item does not begin with Target.Strip.
var ErrOther = errors.New("the item does not begin with the prefix")

// Change returns the Change for an entry: op ADD, origin import, claimed digests. Its id is a function of the entry, of
// t and, if the entry has no time, of t.Default. The error is a *Fault.
func (t *Target) Change(e Entry) (*pb.Change, error) {
	at, err := t.Copy(e)
	if err != nil {
		return nil, err
	}
	when := e.Time
	if when.IsZero() {
		when = t.Default
	}
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: t.Account, Store: t.Store, Space: at.Space, Item: at.Item,
		Version: e.Version, Etag: e.ETag, Size: max(e.Size, 0), SizeUnknown: e.Size < 0, MediaType: e.Media,
		Time: timestamppb.New(when.UTC().Truncate(time.Millisecond)), User: t.User, Agent: agent,
		Origin: pb.Origin_ORIGIN_IMPORT,
	}
	if len(e.Digests) > 0 {
		c.Digests, c.Provenance = e.Digests, pb.Provenance_PROVENANCE_CLAIMED
	}
	c.Id = schemas.ChangeID(c)
	// Find Changes that cannot be encoded before any is published.
	if _, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c}); err != nil {
		var d *schemas.DecodeError
		if errors.As(err, &d) {
			return nil, &Fault{e.At, d.Field + " " + d.Reason}
		}
		return nil, &Fault{e.At, err.Error()}
	}
	return c, nil
}

// Copy returns the copy that an entry is about. The error is a *Fault, or ErrOther.
func (t *Target) Copy(e Entry) (schemas.Copy, error) {
	if t.SkipOthers && t.Strip != "" {
		if item, reason := t.plain(e); reason == "" {
			if _, ok := t.stripped(item, e.Key); !ok {
				return schemas.Copy{}, ErrOther
			}
		}
	}
	space, reason := t.space(e)
	if reason != "" {
		return schemas.Copy{}, &Fault{e.At, reason}
	}
	item, reason := t.item(e)
	if reason != "" {
		return schemas.Copy{}, &Fault{e.At, reason}
	}
	return schemas.Copy{Account: t.Account, Store: t.Store, Space: space, Item: item}, nil
}

func (t *Target) space(e Entry) (space, reason string) {
	switch {
	case t.Space == "" && e.Space == "":
		return "", "the row names no space; say with --space which it is"
	case t.Space == "":
		return e.Space, ""
	case e.Space == "":
		return t.Space, ""
	case t.only == "":
		t.only = e.Space
	case t.only != e.Space:
		return "", fmt.Sprintf("the row is of space %q and others of %q; --space would mix them", e.Space, t.only)
	}
	return t.Space, ""
}

// item returns the name of an entry's item in the store. If it is invalid, reason is not empty.
func (t *Target) item(e Entry) (item, reason string) {
	item, reason = t.plain(e)
	if reason != "" {
		return "", reason
	}
	if t.Strip != "" {
		rest, ok := t.stripped(item, e.Key)
		if !ok {
			return "", fmt.Sprintf("%.200q does not begin with %q, which is to be stripped", item, t.Strip)
		}
		item = rest
	}
	switch {
	case item == "":
		return "", "no name is left of the item"
	case strings.IndexByte(item, 0) >= 0:
		return "", fmt.Sprintf("there is a NUL in %.200q", item)
	case e.Key:
	case item[0] == '/', len(item) > 1 && item[1] == ':' && t.Backslash == BackslashSlash:
		return "", fmt.Sprintf("%.200q is an absolute path; --strip takes its beginning away", item)
	case slices.ContainsFunc(strings.Split(item, "/"), func(part string) bool {
		return part == "" || part == "." ||
			part == ".."
	}):
		return "", fmt.Sprintf("%.200q is not a plain path: it has a part that is empty, . or ..", item)
	}
	return t.Prefix + item, ""
}

// plain returns the item without backslashes that are separators, and without a leading "./".
func (t *Target) plain(e Entry) (item, reason string) {
	item = e.Item
	if !e.Key && strings.Contains(item, `\`) {
		switch t.Backslash {
		case BackslashSlash:
			item = strings.ReplaceAll(item, `\`, "/")
		case BackslashRefuse:
			return "", fmt.Sprintf(
				`there is a backslash in %.200q; say with --backslash slash or keep whether it is a separator`, item)
		}
	}
	if !e.Key {
		for strings.HasPrefix(item, "./") {
			item = strings.TrimLeft(item[2:], "/")
		}
	}
	return item, ""
}

// stripped removes t.Strip: whole parts from a path, and a plain prefix from a key.
func (t *Target) stripped(item string, key bool) (string, bool) {
	if key {
		return strings.CutPrefix(item, t.Strip)
	}
	strip := strings.TrimRight(strings.TrimPrefix(t.Strip, "./"), "/")
	rest, ok := strings.CutPrefix(item, strip+"/")
	return rest, ok
}
