// Package storagetest is the contract test of storage drivers and decorators, and a store with scripted
// faults.
//
// The contract covers every method and every error of storage.Store, unusual item ids, sorted listings
// against a model, races, and failing streams. Optional features are tested if the store's Capabilities
// declare them.
package storagetest

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// An Option configures the suite for the stores under test.
type Option func(*suite)

type suite struct {
	open          func(*testing.T) storage.Store
	kept          func(t *testing.T, s storage.Store, space, item string) [][]byte
	twin          func(t *testing.T, s storage.Store, id string) storage.Store
	refused       func(item string, beside []string) bool
	refusedSpaces func(name string) bool
	only          []string
	except        []string
}

// WithKept sets a function that returns all kept bytes of an item, oldest first. Stores with
// Capabilities.KeepsReplaced need it.
func WithKept(f func(t *testing.T, s storage.Store, space, item string) [][]byte) Option {
	return func(x *suite) { x.kept = f }
}

// WithTwin sets a function that opens the data of s a second time, as the store named id, or with the id of
// s if id is empty.
func WithTwin(f func(t *testing.T, s storage.Store, id string) storage.Store) Option {
	return func(x *suite) { x.twin = f }
}

// WithRefused sets which ids a store may refuse while the items beside are present: with ErrName, and never
// by storing them under another id.
func WithRefused(f func(item string, beside []string) bool) Option {
	return func(x *suite) { x.refused = f }
}

// WithRefusedSpaces is WithRefused for space names.
func WithRefusedSpaces(f func(name string) bool) Option {
	return func(x *suite) { x.refusedSpaces = f }
}

// Only runs the named parts of the suite.
func Only(parts ...string) Option { return func(x *suite) { x.only = parts } }

// Except skips the named parts of the suite.
func Except(parts ...string) Option { return func(x *suite) { x.except = parts } }

// Run checks that the stores returned by open, each empty and without a marker, keep the contract of
// storage.Store.
func Run(t *testing.T, open func(t *testing.T) storage.Store, opts ...Option) {
	x := &suite{open: open}
	for _, o := range opts {
		o(x)
	}
	first := x.open(t)
	can := first.Capabilities()
	_, keeper := first.(storage.Keeper)
	applies := map[string]bool{ // parts that apply to some stores only
		"Nesting":     len(x.keepable(nested())) == len(nested()),
		"PutTooLarge": can.MaxItemBytes > 0,
		"Keep":        can.KeepsReplaced && x.kept != nil,
		"Kept":        can.KeepsReplaced && keeper,
		"KeptOddIDs":  can.KeepsReplaced && keeper,
	}
	for name, f := range map[string]func(*testing.T){
		"Capabilities":    x.capabilities,
		"Spaces":          x.spaces,
		"SpaceErrors":     x.spaceErrors,
		"Marker":          x.marker,
		"OddIDs":          x.oddIDs,
		"BadNames":        x.badNames,
		"Nesting":         x.nesting,
		"List":            x.list,
		"ListModel":       x.listModel,
		"ListLong":        x.listLong,
		"ListCancelled":   x.listCancelled,
		"Put":             x.put,
		"PutLarge":        x.putLarge,
		"PutCondition":    x.putCondition,
		"PutDigests":      x.putDigests,
		"PutBroken":       x.putBroken,
		"PutVersions":     x.putVersions,
		"PutOriginal":     x.putOriginal,
		"AbsentAt":        x.absentAt,
		"OpenPinned":      x.openPinned,
		"OpenWhileChange": x.openWhileChange,
		"PutTooLarge":     x.putTooLarge,
		"NotApplied":      x.notApplied,
		"Ended":           x.ended,
		"PutSource":       x.putSource,
		"Properties":      x.properties,
		"PropertyValues":  x.propertyValues,
		"PropertyBytes":   x.propertyBytes,
		"Delete":          x.delete,
		"Keep":            x.keep,
		"Kept":            x.listKept,
		"KeptOddIDs":      x.keptOddIDs,
		"RacePut":         x.racePut,
		"RaceReplace":     x.raceReplace,
		"RaceDelete":      x.raceDelete,
		"RaceNeighbours":  x.raceNeighbours,
	} {
		applies, some := applies[name]
		if (applies || !some) && (len(x.only) == 0 || slices.Contains(x.only, name)) && !slices.Contains(x.except, name) {
			t.Run(name, f)
		}
	}
}

// Space names that every kind of store accepts, also as bucket names.
const (
	space      = "space-one"
	emptySpace = "space-empty"
	noSpace    = "no-such-space"
)

// mayRefuse reports whether an id may be refused beside the present ones.
func (x *suite) mayRefuse(item string, beside []string) bool {
	return x.refused != nil && x.refused(item, beside)
}

// keepable returns those of the ids that the store must be able to hold together.
func (x *suite) keepable(ids []string) (some []string) {
	for _, id := range ids {
		if !x.mayRefuse(id, some) {
			some = append(some, id)
		}
	}
	return some
}

// earlier reports whether a is before b at the store's time resolution.
func earlier(s storage.Store, a, b time.Time) bool {
	r := s.Capabilities().TimeResolution
	return a.Truncate(r).Before(b.Truncate(r))
}

// store opens a store and creates the space.
func (x *suite) store(t *testing.T) storage.Store {
	t.Helper()
	s := x.open(t)
	if err := s.CreateSpace(t.Context(), storage.Space{Name: space}); err != nil {
		t.Fatalf("CreateSpace: %v", err)
	}
	return s
}

type tb interface {
	Helper()
	Context() context.Context
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

// put stores content with the options as changed by edit, and fails the test on an error.
func put(t tb, s storage.Store, item, content string, edit ...func(*storage.PutOptions)) storage.Object {
	t.Helper()
	o, err := tryPut(t, s, item, content, edit...)
	if err != nil {
		t.Fatalf("Put(%q): %v", item, err)
	}
	return o
}

func tryPut(t tb, s storage.Store, item, content string, edit ...func(*storage.PutOptions)) (storage.Object, error) {
	o := storage.PutOptions{Size: storage.UnknownSize}
	for _, e := range edit {
		e(&o)
	}
	return s.Put(t.Context(), space, item, strings.NewReader(content), o)
}

func absent(o *storage.PutOptions) { o.Absent = true }

func version(v string) func(*storage.PutOptions) {
	return func(o *storage.PutOptions) { o.Version = v }
}

// has checks with Stat and Open that the item is present with this content.
func has(t tb, s storage.Store, item, content string) storage.Object {
	t.Helper()
	o, err := s.Stat(t.Context(), space, item)
	if err != nil {
		t.Fatalf("Stat(%q): %v", item, err)
	}
	if o.Item != item || o.Size != int64(len(content)) || o.Version == "" || o.Modified.IsZero() {
		t.Fatalf("Stat(%q): got %+v, want its id, size %d, a version and a time", item, o, len(content))
	}
	if o.Digests.Compare(sums(content)) == digest.Disagree {
		t.Fatalf("Stat(%q): got digests %v, want %v", item, o.Digests, sums(content))
	}
	got, opened, err := read(t, s, item, o.Version)
	if err != nil || got != content {
		t.Fatalf("Open(%q): got %d bytes %.40q, %v, want %d bytes %.40q", item, len(got), got, err, len(content), content)
	}
	same(t, "Open", opened, o)
	return o
}

func read(t tb, s storage.Store, item, version string) (string, storage.Object, error) {
	r, o, err := s.Open(t.Context(), space, item, version)
	if err != nil {
		return "", o, err
	}
	b, err := io.ReadAll(r)
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	return string(b), o, err
}

// same compares two Objects in all fields.
func same(t tb, call string, got, want storage.Object) {
	t.Helper()
	if got.Item != want.Item || got.Size != want.Size || got.Version != want.Version || got.ETag != want.ETag ||
		!got.Modified.Equal(want.Modified) || !maps.Equal(got.Digests, want.Digests) ||
		got.Properties.MediaType != want.Properties.MediaType || !maps.Equal(got.Properties.User, want.Properties.User) ||
		got.Original != want.Original {
		t.Fatalf("%s: got  %+v\nwant %+v", call, got, want)
	}
}

func sums(content string) digest.Set {
	m, s := md5.Sum([]byte(content)), sha256.Sum256([]byte(content))
	return digest.Set{digest.MD5: hex.EncodeToString(m[:]), digest.SHA256: hex.EncodeToString(s[:])}
}

// lacks checks that the item is absent, with every method.
func lacks(t tb, s storage.Store, item string) {
	t.Helper()
	gone(t, s, item)
	if slices.Contains(ids(t, s, ""), item) {
		t.Fatalf("List has %q, which is absent", item)
	}
}

func gone(t tb, s storage.Store, item string) {
	t.Helper()
	if _, err := s.Stat(t.Context(), space, item); !errors.Is(err, storage.ErrNotFound) {
		t.Fatalf("Stat(%q): got %v, want ErrNotFound", item, err)
	}
	for _, version := range []string{"", "1"} {
		if _, _, err := s.Open(t.Context(), space, item, version); !errors.Is(err, storage.ErrNotFound) {
			t.Fatalf("Open(%q, version %q): got %v, want ErrNotFound", item, version, err)
		}
	}
}

// ids returns the item ids of the space after an id.
func ids(t tb, s storage.Store, after string) []string {
	t.Helper()
	list := []string{}
	for o, err := range storage.Sorted(after, s.List(t.Context(), space, after)) {
		if err != nil {
			t.Fatalf("List after %q: %v", after, err)
		}
		list = append(list, o.Item)
	}
	return list
}

func wantErr(t tb, call string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", call, err, want)
	}
}

// OddIDs returns item ids that are likely to break a store, sorted.
func OddIDs() []string {
	long := strings.Repeat("é", storage.MaxItemID/2)
	odd := []string{
		"plain", "with space", " ", ".", "..", "...", "./a", "../a", "a/.", "a/..", "a/../b", "../../../../etc/passwd",
		"a", "a/b", "a-b", "a/b/c", "a//b", "a/", "a//", "/", "//", "/a", "//a", "/a/", "a\x00b", "\x00",
		"%", "%%", "%2", "%2F", "%2f", "%2E", "%25", "%2525", "%00", "%+", "%-", "%=", "%f", "a%f", "a%+", "a%+/b", "%-/a",
		"100%",
		"emoji 🎞️", "new\nline", "tab\t", "back\\slash", `quote"`, "'", "*?[]{}$;&|<>", "~", "-rf", "a:b", "#", "+",
		"CON", "nul.txt", "trailing.", ".millrace", ".millrace/marker.json", ".hidden", "é", "e\u0301", "A", "\u202e",
		"\ufffd",
		long, strings.Repeat("a", storage.MaxItemID), strings.Repeat("/", storage.MaxItemID),
		strings.Repeat("../", 341) + "x",
		strings.Repeat("%", storage.MaxItemID), strings.Repeat("a/", 512), strings.Repeat("%25", 341),
		strings.Repeat("\x00", storage.MaxItemID),
	}
	for _, n := range []int{239, 240, 241, 254, 255, 256, 257, 511} {
		odd = append(odd, strings.Repeat("s", n), strings.Repeat("s", n)+"/t", "d/"+strings.Repeat("é", n/2)+"é")
	}
	slices.Sort(odd)
	return slices.Compact(odd)
}

func content(item string) string { return "content of " + item }

func equalBytes(t tb, what string, got, want [][]byte) {
	t.Helper()
	if !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
