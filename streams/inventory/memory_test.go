package inventory

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/heaptest"
)

// bigOCFL writes an inventory of many files in many versions, and returns its size.
func bigOCFL(t *testing.T, path string, paths, versions int) int64 {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	w := bufio.NewWriter(f)
	fmt.Fprintf(w, `{"digestAlgorithm": "sha512", "head": "v%d", "versions": {`, versions)
	for v := 1; v <= versions; v++ {
		fmt.Fprintf(w, `"v%d": {"created": "2020-01-%02dT00:00:00Z", "state": {"": []`, v, v)
		for i := range paths {
			fmt.Fprintf(w, `, "%0128x": ["collection/part-%d/file-%08d.tif"]`, i, i/1000, i)
		}
		w.WriteString(map[bool]string{true: "}}},", false: "}},"}[v == versions])
	}
	w.WriteString(`"manifest": {"": []`)
	for i := range paths {
		fmt.Fprintf(w, `, "%0128x": ["v1/content/collection/part-%d/file-%08d.tif"]`, i, i/1000, i)
	}
	w.WriteString("}}")
	err = w.Flush()
	info, statErr := f.Stat()
	must(t, errors.Join(err, statErr, f.Close()))
	return info.Size()
}

// An OCFL inventory takes the memory of one version, and almost none for unknown parts.
func TestOCFLMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inventory.json")
	write := func(text string) func(*testing.T) int64 {
		return func(t *testing.T) int64 {
			must(t, os.WriteFile(path, []byte(text), 0o600))
			return int64(len(text))
		}
	}
	const mib = 1 << 20
	const slack = 4 * mib // allocations during garbage collection
	for name, tt := range map[string]struct {
		write func(*testing.T) int64
		rows  int
		most  float64 // times its size
	}{
		"one version":     {func(t *testing.T) int64 { return bigOCFL(t, path, 5_000, 1) }, 5_000, 2},
		"twenty versions": {func(t *testing.T) int64 { return bigOCFL(t, path, 2_000, 15) }, 2_000, 0.5},
		"one path, always": {write(
			`{"digestAlgorithm":"sha512","head":"v1","versions":{"v1":{"state":{}}},"manifest":{"aa":[` +
				strings.Repeat(`"",`, mib/2) + `""]}}`), 0, 0},
		"empty lists": {write(
			`{"digestAlgorithm":"sha512","head":"v1","versions":{"v1":{"state":{}}},"manifest":{"aa":[]` +
				strings.Repeat(`,"":[]`, mib/16) + `}}`), 0, 0},
		"ignored JSON": {write(`{"digestAlgorithm":"sha512","head":"v1","versions":{"v1":{"state":{}}},"x":[` +
			strings.Repeat(`{},`, mib/2) + `7],"manifest":{}}`), 0, 0},
		"versions of a name": {write(`{"digestAlgorithm":"sha512","head":"v1","manifest":{},"versions":{"v1":{}` +
			strings.Repeat(`,"v1":{}`, mib/16) + `}}`), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			size := tt.write(t)
			l, err := Open(path, Options{Format: OCFL})
			must(t, err)
			limit := tt.most*float64(size) + slack
			rows, got := 0, int64(0)
			for range 3 { // on a loaded machine garbage is counted too, but not each time
				rows = 0
				got = heaptest.Peak(func() {
					for _, err := range l.Entries() {
						if rows++; err != nil {
							t.Fatal(err)
						}
					}
				})
				if float64(got) <= limit {
					break
				}
			}
			t.Logf("of %d bytes %d are held, %.2f times", size, got, float64(got)/float64(size))
			if float64(got) > limit || rows != tt.rows {
				t.Errorf("got %d rows and %d bytes, want %d and at most %.1f times %d and %d", rows, got, tt.rows, tt.most,
					size, slack)
			}
		})
	}
}

// An inventory that needs too much memory is rejected before it takes the memory.
func TestOCFLTooMuch(t *testing.T) {
	o := &object{Listing: &Listing{path: "x"}, at: Position{File: "x"}}
	if err := errors.Join(o.reserve(maxOCFLHeld), o.reserve(0)); err != nil {
		t.Errorf("as much as can be: %v", err)
	}
	if err := o.reserve(1); !errors.Is(err, ErrInvalid) {
		t.Errorf("more: %v", err)
	}
}
