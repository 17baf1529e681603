package inventory

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/digest"
)

func found(t testing.TB, r *repeats) []repeat {
	t.Helper()
	var all []repeat
	must(t, r.Find(t.Context(), func(x repeat) error { all = append(all, x); return nil }))
	slices.SortFunc(all, func(a, b repeat) int { return cmp.Compare(a.Item, b.Item) })
	return all
}

func TestRepeats(t *testing.T) {
	at := func(n int64) Position { return Position{fmt.Sprintf("f%d", n%2), n} }
	for name, c := range map[string]struct {
		rows []Entry // of item x
		want []repeat
	}{
		"once":             {[]Entry{{At: at(1), Size: 1}}, nil},
		"alike":            {[]Entry{{At: at(1), Size: 1}, {At: at(2), Size: 1}}, []repeat{{"x", 2, at(1), at(2), ""}}},
		"another size":     {[]Entry{{At: at(1), Size: 0}, {At: at(2), Size: 1}}, []repeat{{"x", 2, at(1), at(2), "size"}}},
		"a size, and none": {[]Entry{{At: at(1), Size: -1}, {At: at(2), Size: 1}}, []repeat{{"x", 2, at(1), at(2), ""}}},
		"another algorithm": {[]Entry{{At: at(1), Size: -1, Digests: digest.Set{"md5": emptyMD5}},
			{At: at(2), Size: -1, Digests: digest.Set{"sha1": emptySHA1}}}, []repeat{{"x", 2, at(1), at(2), ""}}},
		"another digest": {[]Entry{{At: at(1), Size: -1, Digests: digest.Set{"md5": emptyMD5, "sha1": emptySHA1}},
			{At: at(2), Size: -1, Digests: digest.Set{"sha1": emptySHA1}},
			{At: at(3), Size: -1, Digests: digest.Set{"md5": otherMD5}}}, []repeat{{"x", 3, at(1), at(3), "md5"}}},
		"another version": {[]Entry{{At: at(1), Size: 1, Version: "a"}, {At: at(2), Size: 1, Version: "b"}},
			[]repeat{{"x", 2, at(1), at(2), "version"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepeats(t.TempDir())
			defer r.Close()
			for _, e := range c.rows {
				must(t, r.Add("x", e))
			}
			must(t, r.Add("y", c.rows[0]))
			if got := found(t, r); !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// More rows than fit into memory are compared too, and the temporary file has no name.
func TestRepeatsOnDisk(t *testing.T) {
	tmp := t.TempDir()
	r := newRepeats(tmp)
	defer r.Close()
	const n = 40_000
	path := strings.Repeat("a path of some length, as archives have them/", 16)
	for i := range int64(n) {
		e := Entry{At: Position{"list", i + 1}, Size: i % 7, Digests: digest.Set{"md5": emptyMD5, "sha256": emptySHA256}}
		item := fmt.Sprint(path, i)
		if i%10_000 == 9_999 {
			item = "again"
		}
		must(t, r.Add(item, e))
	}
	want := []repeat{{"again", 4, Position{"list", 10_000}, Position{"list", 20_000}, "size"}}
	if got := found(t, r); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("the temporary folder holds %v, %v", left, err)
	}
}
