package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// pkg is a package in the output of go list.
type pkg struct {
	ImportPath                         string
	Dir                                string
	GoFiles, TestGoFiles, XTestGoFiles []string
	TestImports, XTestImports          []string
}

// printLevels prints the arguments of "go test" for the tests of a level: the packages that have tests of it and, for
// the short level, the names of the tests. The other tests of these packages run in "make test".
func printLevels(ctx context.Context, level string, w io.Writer) error {
	calls := map[string]*regexp.Regexp{
		"short": regexp.MustCompile(`\bneed\.Integration\(`),
		"full":  regexp.MustCompile(`\bneed\.(Integration|Full|Amount|Check)\(`),
	}[level]
	if calls == nil {
		return fmt.Errorf("unknown level %q: want short or full", level)
	}
	packages, err := list(ctx, "./...")
	if err != nil {
		return err
	}
	found, err := levels(packages, calls)
	if err != nil {
		return err
	}
	var args []string
	if level == "short" {
		names, err := testNames(found, calls)
		if err != nil {
			return err
		}
		args = append(args, "-run=^("+strings.Join(names, "|")+")$")
	}
	for _, p := range found {
		args = append(args, p.ImportPath)
	}
	_, err = fmt.Fprintln(w, strings.Join(args, "\n"))
	return err
}

// list returns the packages that match patterns.
func list(ctx context.Context, patterns ...string) ([]pkg, error) {
	out, err := exec.CommandContext(ctx, "go", append([]string{"list", "-json"}, patterns...)...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return nil, fmt.Errorf("list packages: %w\n%s", err, exit.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var packages []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
}

// A levelPkg is a package with tests of a level. If suite is true, it imports a shared suite that calls package need,
// so any of its tests may be of the level.
type levelPkg struct {
	pkg
	suite bool
}

// levels returns the packages with tests that match calls, and the packages with tests that import a matching non-test
// package, which is a shared suite. Package need itself is excluded.
func levels(packages []pkg, calls *regexp.Regexp) ([]levelPkg, error) {
	var suites []string
	matches := map[string]bool{}
	for _, p := range packages {
		if strings.HasSuffix(p.ImportPath, "/internal/need") {
			continue
		}
		suite, err := anyMatches(p.Dir, p.GoFiles, calls)
		if err != nil {
			return nil, err
		}
		if suite {
			suites = append(suites, p.ImportPath)
		}
		if matches[p.ImportPath], err = anyMatches(p.Dir, p.tests(), calls); err != nil {
			return nil, err
		}
	}
	var found []levelPkg
	for _, p := range packages {
		suite := slices.ContainsFunc(slices.Concat(p.TestImports, p.XTestImports),
			func(i string) bool { return slices.Contains(suites, i) })
		if suite || matches[p.ImportPath] {
			found = append(found, levelPkg{p, suite})
		}
	}
	slices.SortFunc(found, func(a, b levelPkg) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	return found, nil
}

// tests returns the names of the package's test files.
func (p *pkg) tests() []string { return slices.Concat(p.TestGoFiles, p.XTestGoFiles) }

func anyMatches(dir string, files []string, calls *regexp.Regexp) (bool, error) {
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return false, err
		}
		if calls.Match(text) {
			return true, nil
		}
	}
	return false, nil
}

// testNames returns the names of the tests that match calls, and of all tests of packages that use a suite. A call
// outside a test is an error in the other packages: the tests that make it would be missed.
func testNames(packages []levelPkg, calls *regexp.Regexp) ([]string, error) {
	var names []string
	for _, p := range packages {
		for _, name := range p.tests() {
			path := filepath.Join(p.Dir, name)
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			for _, d := range file.Decls {
				matches := calls.Match(text[d.Pos()-file.FileStart : d.End()-file.FileStart])
				f, ok := d.(*ast.FuncDecl)
				switch test := ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test"); {
				case test && (matches || p.suite):
					names = append(names, f.Name.Name)
				case !test && matches && !p.suite:
					return nil, fmt.Errorf("%s: call %s in the test itself, not in what it calls", path, calls)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
