package embedded

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

const libraryText = "these are the bytes of a library"

// The bill of materials of millrace-clickhouse names the pinned library.
func TestLibraryInSBOM(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/libchdb/component.json")
	must(t, err)
	purl := "pkg:npm/%40" + libraryPackage[1:] + "@" + libraryVersion
	for _, want := range []string{
		`"` + purl + `"`, `"version": "` + libraryVersion + `"`, `"content": "` + librarySHA256 + `"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("component.json lacks %s", want)
		}
	}
}

// archive returns an npm archive with one file.
func archive(t *testing.T, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(libraryText))}))
	if _, err := w.Write([]byte(libraryText)); err != nil {
		t.Fatal(err)
	}
	must(t, errors.Join(w.Close(), z.Close()))
	return b.Bytes()
}

// npm returns a fetcher of the archive, with a script in place of npm.
func npm(t *testing.T, packed []byte) fetcher {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "packed"), packed, 0o644))
	script := filepath.Join(dir, "npm")
	text := "#!/bin/sh\n[ \"$1 $2 $3 $5\" = 'pack --silent --pack-destination pkg@1' ] || exit 9\necho x >>" +
		dir + "/runs\ncp " + dir + "/packed \"$4/pkg-1.tgz\"\n"
	must(t, os.WriteFile(script, []byte(text), 0o755))
	whole, library := sha512.Sum512(packed), sha256.Sum256([]byte(libraryText))
	return fetcher{
		npm: script, spec: "pkg@1", integrity: "sha512-" + base64.StdEncoding.EncodeToString(whole[:]),
		sum: hex.EncodeToString(library[:]), size: int64(len(libraryText)), dir: filepath.Join(dir, "cache"),
	}
}

func TestFetch(t *testing.T) {
	f := npm(t, archive(t, "package/libchdb.so"))
	var progress bytes.Buffer
	path, err := f.fetch(t.Context(), &progress)
	must(t, err)
	if got, err := os.ReadFile(path); err != nil || string(got) != libraryText {
		t.Errorf("the library is %q, %v", got, err)
	}
	if !strings.Contains(progress.String(), "pkg@1") {
		t.Errorf("progress is %q, want it to name the package", progress.String())
	}
	f.npm = "/nonexistent/npm" // not needed again
	if again, err := f.fetch(t.Context(), nil); err != nil || again != path {
		t.Errorf("fetching again = %q, %v", again, err)
	}
	if left, _ := filepath.Glob(filepath.Join(f.dir, "fetch-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFetchAtOnce(t *testing.T) {
	f := npm(t, archive(t, "package/libchdb.so"))
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			path, err := f.fetch(t.Context(), nil)
			if err != nil {
				return err
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != libraryText {
				return fmt.Errorf("the library is %q, %w", got, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestFetchRefuses(t *testing.T) {
	good := archive(t, "package/libchdb.so")
	for name, tc := range map[string]struct {
		packed  []byte
		break_  func(*fetcher)
		want    string
		isWrong bool
	}{
		"other archive":      {good, func(f *fetcher) { f.integrity = "sha512-AAAA" }, "integrity", true},
		"other library":      {good, func(f *fetcher) { f.sum = strings.Repeat("0", 64) }, "sha256", true},
		"other size":         {good, func(f *fetcher) { f.size++ }, "bytes", true},
		"no library":         {archive(t, "package/readme"), nil, "no libchdb.so in the archive", true},
		"no npm":             {good, func(f *fetcher) { f.npm = "/nonexistent/npm" }, "npm, the package manager", false},
		"npm fails":          {good, func(f *fetcher) { f.spec = "other@1" }, "exit status 9", false},
		"cut archive":        {good[:len(good)/2], nil, "read the archive", false},
		"cache is no folder": {good, func(f *fetcher) { f.dir = f.npm }, "not a directory", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := npm(t, tc.packed)
			if tc.break_ != nil {
				tc.break_(&f)
			}
			path, err := f.fetch(t.Context(), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, errWrongLibrary) != tc.isWrong {
				t.Errorf("fetch = %q, %v, want an error with %q", path, err, tc.want)
			}
			if err != nil && !strings.Contains(err.Error(), "MILLRACE_LIBCHDB") {
				t.Errorf("the error %q does not say what to do", err)
			}
			if left, _ := filepath.Glob(filepath.Join(f.dir, "*")); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestFetchFindsWrongLibrary(t *testing.T) {
	f := npm(t, archive(t, "package/libchdb.so"))
	must(t, os.MkdirAll(f.dir, 0o755))
	must(t, os.WriteFile(filepath.Join(f.dir, libraryName), []byte("short"), 0o755))
	if _, err := f.fetch(t.Context(), nil); !errors.Is(err, errWrongLibrary) ||
		!strings.Contains(err.Error(), "remove it") {
		t.Errorf("fetch over a wrong file = %v, want it refused and said what to do", err)
	}
}
