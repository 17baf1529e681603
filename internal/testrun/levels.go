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
	"maps"
	"os"
	"os/exec"
	"path"
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

// A levelPkg is a package with tests of a level. Suites are the import paths of the packages that its tests import and
// that call package need.
type levelPkg struct {
	pkg
	suites []string
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
		used := slices.DeleteFunc(slices.Concat(p.TestImports, p.XTestImports),
			func(i string) bool { return !slices.Contains(suites, i) })
		if len(used) > 0 || matches[p.ImportPath] {
			found = append(found, levelPkg{p, used})
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

// testNames returns the names of the tests that match calls or use a suite, also through functions and variables of
// their package. Methods of the same name count as one, so tests that reach no call may be returned too.
func testNames(packages []levelPkg, calls *regexp.Regexp) ([]string, error) {
	var names []string
	for _, p := range packages {
		seeds := []string{calls.String()}
		for _, suite := range p.suites {
			seeds = append(seeds, `\b`+regexp.QuoteMeta(path.Base(suite))+`\.`)
		}
		uses, reached, err := declared(&p.pkg, regexp.MustCompile(strings.Join(seeds, "|")))
		if err != nil {
			return nil, err
		}
		for len(reached) > 0 {
			last := reached[len(reached)-1]
			reached = reached[:len(reached)-1]
			if strings.HasPrefix(last, "Test") {
				names = append(names, last)
			}
			for name, used := range uses {
				if used[last] {
					reached = append(reached, name)
					delete(uses, name)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// declared returns the identifiers that each function and variable of a package's test files uses, and apart from
// these the names of those whose text matches seed.
func declared(p *pkg, seed *regexp.Regexp) (uses map[string]map[string]bool, seeds []string, err error) {
	uses = map[string]map[string]bool{}
	for _, name := range p.tests() {
		file := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		for _, d := range parsed.Decls {
			used := map[string]bool{}
			var visit func(ast.Node) bool
			visit = func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					used["."+n.Sel.Name] = true
					ast.Inspect(n.X, visit)
					return false
				case *ast.Ident:
					used[n.Name] = true
				}
				return true
			}
			ast.Inspect(d, visit)
			isSeed := seed.Match(text[d.Pos()-parsed.FileStart : d.End()-parsed.FileStart])
			for _, name := range declaredNames(d) {
				if isSeed {
					seeds = append(seeds, name)
				}
				if uses[name] == nil {
					uses[name] = map[string]bool{}
				}
				maps.Copy(uses[name], used) // methods of different types may have the same name
			}
		}
	}
	for _, name := range seeds {
		delete(uses, name)
	}
	return uses, seeds, nil
}

// declaredNames returns the names of the function or of the variables that d declares. Those of methods begin with a
// dot.
func declaredNames(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			return []string{"." + d.Name.Name}
		}
		return []string{d.Name.Name}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				for _, name := range v.Names {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}
