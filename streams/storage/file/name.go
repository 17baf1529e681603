package file

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// The encoding of an id as a path. A segment of the id is a name in the file system, unchanged if possible. Names that
// are not possible are written with tokens:
//
//	%25  a percent sign that would otherwise begin a token
//	%00  the byte 0
//	%2E  a dot, in the segments "." and ".." (and in the space .millrace)
//	%2F  a slash in the name of a space
//	%2B  a plus in the space lost+found
//	%-   an empty segment
//	%+   at the end of a directory name: the segment, which is longer than a name
//	     can be, continues in the directory
//	%=   at the end of a file name: the alternate name of an item, used if a
//	     directory has the item's own name
//
// Any other percent sign is literal, so names like 100% and a%20b stay as users wrote them. A name on disk that
// differs from the encoding of its decoded text is not an item.
const (
	tokenEmpty = "%-"
	tokenMore  = "%+"
	tokenAlt   = "%="
)

const (
	nameMax  = 255
	splitMax = 240 // bytes of each part of a split segment; below nameMax, so the last part is never short
)

// ownDir is the directory in the root for everything that is not an item.
const ownDir = ".millrace"

// lostFound is created by some file systems. It is not a space.
const lostFound = "lost+found"

// An itemPath holds the paths of one item, relative to the root.
type itemPath struct {
	space string // the space's directory
	item  string // the id
	path  string // of the file under its own name
	alt   string // of the file under its alternate name, used if path is a directory
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
		return "", retry.Permanent(fmt.Errorf("space name %q needs %d bytes: %w", name, len(dir), storage.ErrName))
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

// segment encodes one segment of an item id as a name, or as several names joined with slashes.
func segment(seg string, alt bool) string {
	limit, suffix := nameMax, ""
	if alt {
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

// units splits a name into encoded units. A split segment is divided between units only.
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

// decode returns the text of one name on disk, and in end the token tokenMore or tokenAlt that it ends with, if any. ok
// is false if a token is where none is allowed.
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

// decodeSpace returns the name of the space in this directory.
func decodeSpace(dir string) (string, bool) {
	name, _, ok := decode(dir, true)
	return name, ok && storage.CheckSpace(name) == nil && spaceName(name) == dir
}
