package file

import (
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/streams/storage"
)

// ItemAt returns the item for a slash-separated path below the root. ok is false if no item can have this path. It does
// not access the file system.
func ItemAt(path string) (space, item string, ok bool) {
	dir, rest, cut := strings.Cut(path, "/")
	if space, ok = decodeSpace(dir); !ok || !cut || !utf8.ValidString(rest) {
		return "", "", false
	}
	var id strings.Builder
	names := strings.Split(rest, "/")
	for i, name := range names {
		text, end, ok := decode(name, false)
		last := i == len(names)-1
		if !ok || last && end == tokenMore || !last && end == tokenAlt {
			return "", "", false
		}
		id.WriteString(text)
		if !last && end != tokenMore {
			id.WriteByte('/')
		}
	}
	item = id.String()
	if storage.CheckItem(item) != nil {
		return "", "", false
	}
	p := itemPathIn(dir, item)
	return space, item, p.path == path || p.alt == path
}
