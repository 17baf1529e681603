package file

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// How an id is written as a path. A segment of the id is a name of the file system,
// unchanged wherever that is possible. What is not possible is written with tokens:
//
//	%25  a percent sign, where it would begin a token
//	%00  the byte 0
//	%2E  a dot, in the segments "." and ".." (and of the space .millrace)
//	%2F  a slash in the name of a space
//	%2B  a plus in the space lost+found
//	%-   an empty segment
//	%+   at the end of a directory's name: the segment, which is longer than a name
//	     can be, goes on inside
//	%=   at the end of a file's name: the item whose own name is that of a directory
//
// All else after a percent sign is itself, so names like 100% and a%20b are as people
// wrote them. A name on disk that is not what its text would be written as is no item.
const (
	tokenEmpty = "%-"
	tokenMore  = "%+"
	tokenAlt   = "%="
)

const (
	nameMax  = 255
	splitMax = 240 // of a segment that is split; what is left over is then never short
)

// ownDir holds all that is not items, in the root.
const ownDir = ".millrace"

// lostFound is made by file systems, and is nobody's.
const lostFound = "lost+found"

// place is where an item is kept, as paths below the root.
type itemPath struct {
	space string // the space's directory
	item  string // the id
	path  string // of the file, where it has the name of the id
	alt   string // of the file, where a directory has that name
}

func newItemPath(space, item string) (itemPath, error) {
	dir, err := spaceDir(space)
	if err != nil {
		return itemPath{}, err
	}
	if err := storage.CheckItem(item); err != nil {
		return itemPath{}, retry.Permanent(err)
	}
	return itemPathIn(dir, item), nil
}

func itemPathIn(dir, item string) itemPath {
	path, last := dir+"/", item
	if i := strings.LastIndexByte(item, '/'); i >= 0 {
		last = item[i+1:]
		for seg := range strings.SplitSeq(item[:i], "/") {
			path += segment(seg, false) + "/"
		}
	}
	return itemPath{space: dir, item: item, path: path + segment(last, false), alt: path + segment(last, true)}
}

// spaceDir returns the name of a space's directory.
func spaceDir(name string) (string, error) {
	if err := storage.CheckSpace(name); err != nil {
		return "", retry.Permanent(err)
	}
	dir := spaceName(name)
	if len(dir) > nameMax {
		return "", retry.Permanent(fmt.Errorf("space name %q takes %d bytes: %w", name, len(dir), storage.ErrName))
	}
	return dir, nil
}

func spaceName(name string) string {
	switch name {
	case ownDir:
		return "%2E" + ownDir[1:]
	case lostFound:
		return strings.Replace(lostFound, "+", "%2B", 1)
	}
	return strings.Join(units(name, true), "")
}

// segment writes one segment of an item id: a name, or several joined with slashes.
func segment(seg string, beside bool) string {
	limit, suffix := nameMax, ""
	if beside {
		limit, suffix = nameMax-len(tokenAlt), tokenAlt
	}
	if seg == "" {
		return tokenEmpty + suffix
	}
	if len(seg) <= limit && seg[0] != '.' && strings.IndexByte(seg, '%') < 0 && strings.IndexByte(seg, 0) < 0 {
		return seg + suffix
	}
	us := units(seg, false)
	left := 0
	for _, u := range us {
		left += len(u)
	}
	var b strings.Builder
	for left > limit {
		n := 0
		for ; n+len(us[0]) <= splitMax; us = us[1:] {
			b.WriteString(us[0])
			n += len(us[0])
		}
		left -= n
		b.WriteString(tokenMore + "/")
	}
	for _, u := range us {
		b.WriteString(u)
	}
	return b.String() + suffix
}

// units cuts a name into pieces that may stand at the end of a name on disk, each as
// it is written.
func units(name string, space bool) []string {
	switch name {
	case ".":
		return []string{"%2E"}
	case "..":
		return []string{"%2E", "%2E"}
	}
	var us []string
	for i := 0; i < len(name); {
		_, n := utf8.DecodeRuneInString(name[i:])
		u := name[i : i+n]
		switch {
		case u == "\x00":
			u = "%00"
		case u == "/" && space:
			u = "%2F"
		case u == "%" && token(name[i:], space) != "":
			u = "%25"
		}
		us = append(us, u)
		i += n
	}
	return us
}

// token returns the token that s begins with, or "".
func token(s string, space bool) string {
	if len(s) < 2 || s[0] != '%' {
		return ""
	}
	switch s[1] {
	case '-', '+', '=':
		return s[:2]
	}
	if len(s) < 3 {
		return ""
	}
	switch s[:3] {
	case "%25", "%2E", "%00":
		return s[:3]
	case "%2F", "%2B":
		if space {
			return s[:3]
		}
	}
	return ""
}

// decode reads one name on disk: its text, and whether it ends in tokenMore or
// tokenBeside (else end is empty). ok is false for tokens where none may be.
func decode(name string, space bool) (text, end string, ok bool) {
	if strings.IndexByte(name, '%') < 0 {
		return name, "", true
	}
	var b strings.Builder
	for rest := name; rest != ""; {
		t := token(rest, space)
		switch t {
		case "":
			b.WriteByte(rest[0])
			rest = rest[1:]
			continue
		case "%25":
			b.WriteByte('%')
		case "%2E":
			b.WriteByte('.')
		case "%00":
			b.WriteByte(0)
		case "%2F":
			b.WriteByte('/')
		case "%2B":
			b.WriteByte('+')
		case tokenEmpty:
			if len(rest) != len(name) || rest != tokenEmpty && rest != tokenEmpty+tokenAlt {
				return "", "", false
			}
		default:
			if len(rest) != 2 || space {
				return "", "", false
			}
			return b.String(), t, true
		}
		rest = rest[len(t):]
	}
	return b.String(), "", true
}

// decodeSpace returns the space whose directory has this name.
func decodeSpace(dir string) (string, bool) {
	name, _, ok := decode(dir, true)
	return name, ok && storage.CheckSpace(name) == nil && spaceName(name) == dir
}
