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

// What backslashes in paths are taken for.
const (
	BackslashRefuse = ""      // a fault: the name may come from Windows, or hold one
	BackslashSlash  = "slash" // what Windows has between parts
	BackslashKeep   = "keep"  // part of the name
)

// agent is what Changes say of the way in.
const agent = "import"

// maxAhead is how far ahead of the clock a time may be.
const maxAhead = 5 * time.Minute

// A Target says which copies the rows of a listing are, and turns them into Changes. It is for one reading.
type Target struct {
	Account, Store string
	Space          string // of all rows; empty: the one that each row names
	Strip, Prefix  string // of items: what is taken away, and what is put in front
	Backslash      string // in paths
	Default        time.Time
	Now            time.Time
	User           string // who imports

	only string // the space that rows name, where Space is put in its place
}

// Change is what an entry says happened: op ADD, origin import, digests claimed. Its id is a function of the entry,
// of t, and, where the entry has no time, of t.Default. The error is a *Fault.
func (t *Target) Change(e Entry) (*pb.Change, error) {
	space, reason := t.space(e)
	if reason != "" {
		return nil, &Fault{e.At, reason}
	}
	item, reason := t.item(e)
	if reason != "" {
		return nil, &Fault{e.At, reason}
	}
	when := e.Time
	if when.IsZero() {
		when = t.Default
	}
	if when.Sub(t.Now) > maxAhead {
		return nil, &Fault{e.At, fmt.Sprintf("the time %s of %.200q is in the future", when.UTC().Format(time.RFC3339), e.Item)}
	}
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: t.Account, Store: t.Store, Space: space, Item: item,
		Version: e.Version, Etag: e.ETag, Size: max(e.Size, 0), SizeUnknown: e.Size < 0, MediaType: e.Media,
		Time: timestamppb.New(when.UTC().Truncate(time.Millisecond)), User: t.User, Agent: agent, Origin: pb.Origin_ORIGIN_IMPORT,
	}
	if len(e.Digests) > 0 {
		c.Digests, c.Provenance = e.Digests, pb.Provenance_PROVENANCE_CLAIMED
	}
	c.Id = schemas.ChangeID(c)
	// What cannot be sent is found before anything is.
	if _, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c}); err != nil {
		var d *schemas.DecodeError
		if errors.As(err, &d) {
			return nil, &Fault{e.At, d.Field + " " + d.Reason}
		}
		return nil, &Fault{e.At, err.Error()}
	}
	return c, nil
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

// item is the name that an entry's item has in the store.
func (t *Target) item(e Entry) (item, reason string) {
	item = e.Item
	if !e.Key && strings.Contains(item, `\`) {
		switch t.Backslash {
		case BackslashSlash:
			item = strings.ReplaceAll(item, `\`, "/")
		case BackslashRefuse:
			return "", fmt.Sprintf(`there is a backslash in %.200q; say with --backslash slash or keep whether it stands between parts`, item)
		}
	}
	if !e.Key {
		for strings.HasPrefix(item, "./") {
			item = strings.TrimLeft(item[2:], "/")
		}
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
	case slices.ContainsFunc(strings.Split(item, "/"), func(part string) bool { return part == "" || part == "." || part == ".." }):
		return "", fmt.Sprintf("%.200q is no plain path: it has a part that is empty, . or ..", item)
	}
	return t.Prefix + item, ""
}

// stripped takes t.Strip away: from a path whole parts, from a key what is written.
func (t *Target) stripped(item string, key bool) (string, bool) {
	if key {
		return strings.CutPrefix(item, t.Strip)
	}
	strip := strings.TrimRight(strings.TrimPrefix(t.Strip, "./"), "/")
	rest, ok := strings.CutPrefix(item, strip+"/")
	return rest, ok
}
