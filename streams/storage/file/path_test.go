package file

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
)

func TestItemAt(t *testing.T) {
	long := strings.Repeat("x", 300)
	for path, want := range map[string][2]string{ // empty: not the path of an item
		"photos/a b.jpg":    {"photos", "a b.jpg"},
		"photos/2026/é/a":   {"photos", "2026/é/a"},
		"photos/100%/a%20b": {"photos", "100%/a%20b"},
		"photos/%-/%2E":     {"photos", "/."},
		"photos/a%=":        {"photos", "a"},
		"photos/" + long[:240] + "%+/" + long[:60]: {"photos", long},
		"a%2Fb/c":               {"a/b", "c"},
		"%2Emillrace/c":         {".millrace", "c"},
		".millrace/marker.json": {},
		"lost+found/x":          {},
		"photos":                {},
		"photos/":               {},
		"photos/a//b":           {},
		"photos/a%=/b":          {},
		"photos/a%+":            {},
		"photos/.":              {},
		"photos/\xff":           {},
		"photos/%2F":            {"photos", "%2F"},
		"":                      {},
	} {
		t.Run(path, func(t *testing.T) {
			space, item, ok := ItemAt(path)
			if ok != (want[1] != "") || ok && (space != want[0] || item != want[1]) {
				t.Errorf("got %q, %q, %v, want %q", space, item, ok, want)
			}
		})
	}
}

// ItemAt is the inverse of both paths of an item.
func TestItemAtIsInverse(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		space, item := rapid.StringN(1, 20, 60).Draw(t, "space"), rapid.StringN(1, 400, storage.MaxItemID).Draw(t, "item")
		p, err := newItemPath(space, item)
		if err != nil {
			return
		}
		for _, path := range []string{p.path, p.alt} {
			if s, i, ok := ItemAt(path); !ok || s != space || i != item {
				t.Errorf("at %q: got %q, %q, %v, want %q, %q", path, s, i, ok, space, item)
			}
		}
	})
}
