package file

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func TestItemPath(t *testing.T) {
	long := strings.Repeat("x", 300)
	tests := map[string]struct{ item, path, beside string }{
		"ordinary": {"a/b c/ü.txt", "s/a/b c/ü.txt", "s/a/b c/ü.txt%="},
		"hidden":   {".git/config", "s/.git/config", "s/.git/config%="},
		"percent":  {"100%/a%20b/%2F/%%", "s/100%/a%20b/%2F/%%", "s/100%/a%20b/%2F/%%%="},
		"like a token": {"%25/%2E/%00/%-/a%+/a%=", "s/%2525/%252E/%2500/%25-/a%25+/a%25=",
			"s/%2525/%252E/%2500/%25-/a%25+/a%25=%="},
		"dots":            {"./../...", "s/%2E/%2E%2E/...", "s/%2E/%2E%2E/...%="},
		"slashes":         {"/a//b/", "s/%-/a/%-/b/%-", "s/%-/a/%-/b/%-%="},
		"zero":            {"a\x00", "s/a%00", "s/a%00%="},
		"longest name":    {long[:255], "s/" + long[:255], "s/" + long[:240] + "%+/" + long[:15] + "%="},
		"too long a name": {long, "s/" + long[:240] + "%+/" + long[:60], "s/" + long[:240] + "%+/" + long[:60] + "%="},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := newItemPath("s", tt.item)
			want := itemPath{space: "s", item: tt.item, path: tt.path, alt: tt.beside}
			if err != nil || got != want {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
			}
		})
	}
}

func TestSpaceDir(t *testing.T) {
	for name, want := range map[string]string{
		"photos": "photos", ".millrace": "%2Emillrace", ".": "%2E", "..": "%2E%2E", "a/b": "a%2Fb", "%2F": "%252F",
		"lost+found": "lost%2Bfound", ".millraces": ".millraces", "a+b": "a+b", "50%": "50%",
	} {
		got, err := spaceDir(name)
		if got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", name, got, err, want)
		}
		if back, ok := decodeSpace(got); back != name || !ok {
			t.Errorf("%q: got back %q, %v", name, back, ok)
		}
	}
	if _, err := spaceDir(strings.Repeat("/", 200)); !errors.Is(err, storage.ErrName) {
		t.Errorf("a space whose name does not fit: got %v, want ErrName", err)
	}
	for _, dir := range []string{"%2Ea", "a%2Bb", "%-", "a%+", "a%=", "\xff", "%25"} {
		if name, ok := decodeSpace(dir); ok {
			t.Errorf("directory %q was taken for space %q", dir, name)
		}
	}
}

// checkPath checks that a path is valid, does not leave the root, and decodes to its id.
func checkPath(t interface{ Fatalf(string, ...any) }, item, path string, beside bool) {
	id, pieces := "", ""
	names := strings.Split(path, "/")
	if len(path) > 4000 || names[0] != "s" {
		t.Fatalf("%q: got path of %d bytes %q", item, len(path), path)
	}
	for i, name := range names[1:] {
		if name == "" || name == "." || name == ".." || len(name) > nameMax || strings.ContainsRune(name, 0) ||
			!utf8.ValidString(name) {
			t.Fatalf("%q: got name %q", item, name)
		}
		text, end, ok := decode(name, false)
		last := i == len(names)-2
		if !ok || (end == tokenAlt) != (last && beside) || last && end == tokenMore {
			t.Fatalf("%q: got name %q, which reads %q, end %q, ok %v", item, name, text, end, ok)
		}
		if pieces += text; end != tokenMore {
			if id += pieces; !last {
				id += "/"
			}
			pieces = ""
		}
	}
	if id != item {
		t.Fatalf("%q: path %q reads %q", item, path, id)
	}
}

func TestItemPathIsReversible(t *testing.T) {
	for _, item := range storagetest.OddIDs() {
		p, err := newItemPath("s", item)
		must(t, err)
		checkPath(t, item, p.path, false)
		checkPath(t, item, p.alt, true)
	}
	piece := rapid.OneOf(rapid.SampledFrom([]string{"%", "%25", "%2E", "%+", "%-", "%=", ".", "..", "/", "\x00",
		strings.Repeat("é", 119)}), rapid.String())
	need.Check(t, func(t *rapid.T) {
		item := strings.Join(rapid.SliceOfN(piece, 1, 12).Draw(t, "pieces"), "")
		p, err := newItemPath("s", item)
		if storage.CheckItem(item) != nil {
			if !errors.Is(err, storage.ErrName) {
				t.Fatalf("%q: got %v, want ErrName", item, err)
			}
			return
		}
		checkPath(t, item, p.path, false)
		checkPath(t, item, p.alt, true)
	})
}

// The paths and alternate paths of different ids are different, and no path of an item is only a directory of its own
// name.
func TestItemPathsDiffer(t *testing.T) {
	seen := map[string]string{}
	ids := storagetest.OddIDs()
	for _, item := range slices.Clone(ids) {
		p, _ := newItemPath("s", item)
		for _, path := range []string{p.path, p.alt} { // where these are ids themselves
			if id := strings.TrimPrefix(path, "s/"); len(id) <= storage.MaxItemID {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	for _, item := range slices.Compact(ids) {
		p, err := newItemPath("s", item)
		must(t, err)
		for _, path := range []string{p.path, p.alt} {
			if other, ok := seen[path]; ok {
				t.Errorf("%q and %q share %q", item, other, path)
			}
			seen[path] = item
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, name := range []string{"a", "%25", "%-", "%-%=", "a%+", "%2", "%", "%%+", "%2E%2E"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if text, ok := decodeSpace(name); ok && spaceName(text) != name {
			t.Errorf("%q reads %q, which is written %q", name, text, spaceName(text))
		}
		decode(name, false)
	})
}
