package extract_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/extract"
	"github.com/millrace/millrace/streams/storage"
)

var dated = time.Date(2019, 5, 6, 7, 8, 9, 123e6, time.UTC)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func content(text string) extract.Content {
	sum := sha256.Sum256([]byte(text))
	return extract.Content{Size: int64(len(text)), Modified: dated,
		Digests: digest.Set{digest.SHA256: hex.EncodeToString(sum[:]), "crc0": "00"}}
}

func unsized(text string) extract.Content {
	c := content(text)
	c.Size = storage.UnknownSize
	return c
}

// reads returns a place whose bytes are those of the readers.
func reads(store string, open func() io.Reader) extract.Place {
	return extract.Place{Store: store, Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(open()), nil
	}}
}

// has returns a place with these bytes, cut one that fails after them, and fails one that fails before.
func has(store, text string) extract.Place {
	return reads(store, func() io.Reader { return strings.NewReader(text) })
}

func cut(store, text string, err error) extract.Place {
	return reads(store, func() io.Reader { return io.MultiReader(strings.NewReader(text), iotest.ErrReader(err)) })
}

func fails(store string, err error) extract.Place {
	return extract.Place{Store: store, Open: func(context.Context) (io.ReadCloser, error) { return nil, err }}
}

// describe returns an outcome as RESULT from STORE: STORE STATE.
func describe(o extract.Outcome) string {
	text := string(o.Result)
	if o.From != nil {
		text += " from " + o.From.Store
	}
	for i, f := range o.Faults {
		text += []string{": ", ", "}[min(i, 1)] + f.Store + " " + string(f.State)
	}
	return text
}

// A tree is a directory for files, in a directory that must stay as it is.
type tree struct {
	*extract.Dir
	t    *testing.T
	path string
}

func newTree(t *testing.T) *tree {
	t.Helper()
	x := &tree{t: t, path: filepath.Join(t.TempDir(), "out")}
	must(t, os.Mkdir(x.path, 0o755))
	var err error
	x.Dir, err = extract.OpenDir(x.path)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(x.Sync(), x.Close())) })
	return x
}

// files returns the bytes of all files below the directory and beside it.
func (x *tree) files() map[string]string {
	x.t.Helper()
	all := map[string]string{}
	must(x.t, filepath.WalkDir(filepath.Dir(x.path), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Type() == fs.ModeSymlink {
			return err
		}
		name, err := filepath.Rel(x.path, path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		all[name] = string(b)
		return err
	}))
	return all
}

func (x *tree) extract(name, text string, places ...extract.Place) extract.Outcome {
	x.t.Helper()
	o, err := x.Extract(x.t.Context(), name, content(text), places)
	must(x.t, err)
	return o
}

// The first place with good bytes gives them, whatever is wrong with those before, and each of these is reported for
// what it is. Nothing else becomes a file, or is printed.
func TestPlaces(t *testing.T) {
	const text = "the bytes"
	away, gone := errors.New("away"), fmt.Errorf("stat: %w", storage.ErrNotFound)
	guess := has("9", "other one")
	guess.Guessed = true
	for name, tt := range map[string]struct {
		places []extract.Place
		want   string
	}{
		"a good one": {[]extract.Place{has("1", text), fails("2", away)}, "exported from 1"},
		"absent":     {[]extract.Place{fails("1", gone), has("2", text)}, "exported from 2: 1 absent"},
		"without its space": {[]extract.Place{fails("1", storage.ErrNoSpace), has("2", text)},
			"exported from 2: 1 absent"},
		"unknown":            {[]extract.Place{fails("1", away), has("2", text)}, "exported from 2: 1 unknown"},
		"other bytes":        {[]extract.Place{has("1", "THE bytes"), has("2", text)}, "exported from 2: 1 mismatch"},
		"too short":          {[]extract.Place{has("1", "the"), has("2", text)}, "exported from 2: 1 mismatch"},
		"too long":           {[]extract.Place{has("1", text+"."), has("2", text)}, "exported from 2: 1 mismatch"},
		"empty":              {[]extract.Place{has("1", ""), has("2", text)}, "exported from 2: 1 mismatch"},
		"without an end":     {[]extract.Place{reads("1", newEndless), has("2", text)}, "exported from 2: 1 mismatch"},
		"failing at its end": {[]extract.Place{cut("1", text, away), has("2", text)}, "exported from 2: 1 unknown"},
		"changing meanwhile": {[]extract.Place{cut("1", "the ", storage.ErrChanged), has("2", text)},
			"exported from 2: 1 unknown"},
		"an error that wraps EOF": {[]extract.Place{cut("1", text, fmt.Errorf("gzip: %w", io.EOF))}, "lacking: 1 unknown"},
		"a wrong guess":           {[]extract.Place{guess, has("2", text)}, "exported from 2"},
		"none":                    {nil, "lacking"},
		"none is good": {[]extract.Place{fails("1", gone), fails("2", away), has("3", "x"), guess},
			"lacking: 1 absent, 2 unknown, 3 mismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			files, printed := map[string]string{}, ""
			if strings.HasPrefix(tt.want, "exported") {
				files["a/b c/é"], printed = text, text
			}
			x := newTree(t)
			o := x.extract("a/b c/é", text, tt.places...)
			if got := x.files(); describe(o) != tt.want || !reflect.DeepEqual(got, files) || o.Bytes != int64(len(printed)) {
				t.Errorf("got %+v, want %s; the files are %q", o, tt.want, got)
			}
			var out bytes.Buffer
			o, err := extract.Stream(t.Context(), &out, content(text), tt.places)
			if err != nil || describe(o) != tt.want || out.String() != printed {
				t.Errorf("printed: got %+v, %v, want %s; it printed %q", o, err, tt.want, out.String())
			}
		})
	}
}

type endless struct{}

func newEndless() io.Reader { return endless{} }

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A file has the date of the content, and is not there before it is complete. One that is there is verified, and never
// replaced, whatever it is.
func TestFiles(t *testing.T) {
	const text = "the bytes"
	never := fails("1", errors.New("it was read"))
	for name, tt := range map[string]struct {
		before func(x *tree) error
		file   string
		place  extract.Place
		want   string
	}{
		"a new one": {nil, "a/b", has("1", text), "exported from 1"},
		"in a directory that is there": {func(x *tree) error { return os.Mkdir(filepath.Join(x.path, "a"), 0o755) }, "a/b",
			has("1", text), "exported from 1"},
		"the right bytes are there": {func(x *tree) error { return x.file("a", text) }, "a", never, "present"},
		"other bytes are there":     {func(x *tree) error { return x.file("a", "THE bytes") }, "a", never, "differs"},
		"fewer bytes are there":     {func(x *tree) error { return x.file("a", "the") }, "a", never, "differs"},
		"a link is there": {func(x *tree) error {
			return errors.Join(x.file("b", text), os.Symlink("b", filepath.Join(x.path, "a")))
		}, "a", never, "differs"},
		"a directory is there": {func(x *tree) error { return os.Mkdir(filepath.Join(x.path, "a"), 0o755) }, "a", never,
			"differs"},
		"below a file": {func(x *tree) error { return x.file("a", text) }, "a/b", never, "differs"},
		"below a link to a file": {func(x *tree) error {
			return errors.Join(x.file("b", text), os.Symlink("b", filepath.Join(x.path, "a")))
		}, "a/c", never, "differs"},
		"another process makes it": {nil, "a", extract.Place{Store: "1"}, "differs"},
		"another process makes the same one": {nil, "a", extract.Place{Store: "1", Kept: text},
			"present"},
		"lacking": {nil, "a/b", has("1", "x"), "lacking: 1 mismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTree(t)
			if tt.before != nil {
				must(t, tt.before(x))
			}
			want := x.files()
			if tt.place.Open == nil {
				tt.place.Open = func(context.Context) (io.ReadCloser, error) {
					must(t, x.file(tt.file, tt.place.Kept))
					return io.NopCloser(strings.NewReader(text)), nil
				}
				want[tt.file] = tt.place.Kept
			}
			if o := x.extract(tt.file, text, tt.place); describe(o) != tt.want {
				t.Errorf("got %+v, want %s", o, tt.want)
			}
			if strings.HasPrefix(tt.want, "exported") {
				want[tt.file] = text
				info, err := os.Stat(filepath.Join(x.path, tt.file))
				if must(t, err); !info.ModTime().Equal(dated) {
					t.Errorf("the date is %v, want %v", info.ModTime(), dated)
				}
				if o := x.extract(tt.file, text, never); o.Result != extract.Present {
					t.Errorf("again: got %+v, want that it is present", o)
				}
			}
			if got := x.files(); !reflect.DeepEqual(got, want) {
				t.Errorf("the files are %q, want %q", got, want)
			}
		})
	}
}

func (x *tree) file(name, text string) error {
	return os.WriteFile(filepath.Join(x.path, name), []byte(text), 0o600)
}

// Names that a file cannot have are reported. No name leads out of the directory, also not through a link.
func TestNames(t *testing.T) {
	x := newTree(t)
	must(t, os.Symlink(filepath.Dir(x.path), filepath.Join(x.path, "out")))
	long := strings.Repeat("é", 127) + "e"
	for _, name := range []string{"a", "a b/ c", "é/🎞️", "100%", `back\slash`, "...", "f/..b", "-rf", "new\nline",
		"~",
		"CON", long, strings.Repeat("d/", 500) + "deep"} {
		if o := x.extract(name, name, has("1", name)); o.Result != extract.Exported {
			t.Errorf("%q: got %+v, want a file", name, o)
		}
	}
	files := x.files()
	for _, name := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../../b", "a/./b", "b/..", "nul\x00",
		long + "e", "b/" + long + "e/c"} {
		if o := x.extract(name, "x", has("1", "x")); o.Result != extract.Unnamed || o.Detail == "" {
			t.Errorf("%q: got %+v, want that it cannot be a file", name, o)
		}
	}
	if o, err := x.Extract(t.Context(), "out/a", content("x"), []extract.Place{has("1", "x")}); err == nil ||
		!strings.Contains(err.Error(), filepath.Join(x.path, "out/a")) {
		t.Errorf("through a link that leads out: got %+v, %v, want an error that names the file", o, err)
	}
	if got := x.files(); !reflect.DeepEqual(got, files) {
		t.Errorf("the files are now %q", got)
	}
}

// Empty files, contents of unknown size and without digests, and large ones.
func TestContents(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 600<<10)
	for name, tt := range map[string]struct {
		content extract.Content
		text    string
		result  extract.Result
	}{
		"empty":                       {content(""), "", extract.Exported},
		"not empty":                   {content(""), "a", extract.Lacking},
		"of unknown size":             {unsized("abc"), "abc", extract.Exported},
		"other bytes of unknown size": {unsized("abc"), "abd", extract.Lacking},
		"large":                       {content(big), big, extract.Exported},
		"without digests":             {extract.Content{Size: 1}, "a", extract.Lacking},
		"only foreign digests":        {extract.Content{Size: 1, Digests: digest.Set{"crc0": "00"}}, "a", extract.Lacking},
		"without a date":              {extract.Content{Size: 0, Digests: content("").Digests}, "", extract.Exported},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTree(t)
			o, err := x.Extract(t.Context(), "a", tt.content, []extract.Place{has("1", tt.text)})
			must(t, err)
			got, there := x.files()["a"]
			if o.Result != tt.result || there != (tt.result == extract.Exported) || there && got != tt.text {
				t.Errorf("got %+v, a file: %t, want %s", o, there, tt.result)
			}
			var out bytes.Buffer
			o, err = extract.Stream(t.Context(), &out, tt.content, []extract.Place{has("1", tt.text)})
			if must(t, err); o.Result != tt.result || (out.String() == tt.text) != (there || tt.text == "") {
				t.Errorf("printed: got %+v, %d bytes, want %s", o, out.Len(), tt.result)
			}
		})
	}
}

// Large contents are printed while they are read. A place that fails is continued by the next one, and wrong bytes are
// reported, since they cannot be taken back.
func TestPrintLarge(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 600<<10)
	half, away := big[:len(big)-100], errors.New("away")
	for name, tt := range map[string]struct {
		places []extract.Place
		want   string
		detail string
	}{
		"good":          {[]extract.Place{has("1", big)}, "exported from 1", ""},
		"failing early": {[]extract.Place{cut("1", "0123", away), has("2", big)}, "exported from 2: 1 unknown", ""},
		"failing late":  {[]extract.Place{cut("1", half, away), has("2", big)}, "exported from 2: 1 unknown", ""},
		"failing for good": {[]extract.Place{cut("1", half, away), fails("2", away)}, "lacking: 1 unknown, 2 unknown",
			"incomplete"},
		"wrong at its end": {[]extract.Place{has("1", half+strings.Repeat("x", 100)), has("2", big)}, "lacking: 1 mismatch",
			"wrong"},
		"continued, others": {[]extract.Place{cut("1", half, away), has("2", "x"+big)}, "lacking: 1 unknown, 2 mismatch",
			"wrong"},
		"continued, short": {[]extract.Place{cut("1", half, away), has("2", "x")}, "lacking: 1 unknown, 2 mismatch",
			"wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			o, err := extract.Stream(t.Context(), &out, content(big), tt.places)
			if must(t, err); describe(o) != tt.want || !strings.Contains(o.Detail, tt.detail) || o.Bytes != int64(out.Len()) {
				t.Errorf("got %+v after %d bytes, want %s, %q", o, out.Len(), tt.want, tt.detail)
			}
			if o.Result == extract.Exported && out.String() != big {
				t.Error("it printed other bytes")
			}
		})
	}
	full := errors.New("full")
	o, err := extract.Stream(t.Context(), failing{full}, content("a"), []extract.Place{has("1", "a")})
	if !errors.Is(err, full) {
		t.Errorf("to a writer that fails: got %+v, %v", o, err)
	}
}

type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }

// What is cut off at any read leaves neither a file nor a part of one, and is no fault of a place.
func TestInterrupted(t *testing.T) {
	const text = "some bytes"
	for reads := range len(text) + 1 {
		x := newTree(t)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		place := extract.Place{Store: "1", Open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(&stopping{iotest.OneByteReader(strings.NewReader(text)), reads, stop}), nil
		}}
		o, err := x.Extract(ctx, "a/b", content(text), []extract.Place{place, has("2", text)})
		if !errors.Is(err, context.Canceled) || o.Result != "" || len(x.files()) > 0 {
			t.Errorf("after %d reads: got %+v, %v, files %q", reads, o, err, x.files())
		}
		if _, err := extract.Stream(ctx, io.Discard, content(text), []extract.Place{place}); !errors.Is(err,
			context.Canceled) {
			t.Errorf("printing: got %v", err)
		}
	}
}

// A stopping reader cancels before a read.
type stopping struct {
	io.Reader
	left int
	stop func()
}

func (s *stopping) Read(p []byte) (int, error) {
	if s.left--; s.left < 0 {
		s.stop()
	}
	return s.Reader.Read(p)
}

// Several items are written at once, also into the same directories, and several processes may write the same one.
func TestAtOnce(t *testing.T) {
	x := newTree(t)
	var wg sync.WaitGroup
	results := make([]extract.Result, 60)
	for i := range results {
		name := fmt.Sprintf("d%d/e/%d", i%3, i%10)
		wg.Go(func() {
			o, err := x.Extract(t.Context(), name, content(name), []extract.Place{has("1", name)})
			if results[i] = o.Result; err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	exported := 0
	for _, r := range results {
		if r == extract.Exported {
			exported++
		} else if r != extract.Present {
			t.Errorf("got %s", r)
		}
	}
	files := x.files()
	for name, text := range files {
		if name != text {
			t.Errorf("%s has the bytes %q", name, text)
		}
	}
	if exported != len(files) || len(files) != 30 {
		t.Errorf("exported %d, and there are %d files, want 30", exported, len(files))
	}
}
