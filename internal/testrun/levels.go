package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// printLevels prints the packages that have tests of a level.
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
	_, err = fmt.Fprintln(w, strings.Join(found, "\n"))
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

// levels returns the packages with tests that match calls, and the packages with tests that import a matching non-test
// package, which is a shared suite. Package need itself is excluded.
func levels(packages []pkg, calls *regexp.Regexp) ([]string, error) {
	var found, suites []string
	for _, p := range packages {
		if strings.HasSuffix(p.ImportPath, "/internal/need") {
			continue
		}
		suite, err := anyMatches(p.Dir, p.GoFiles, calls)
		if err != nil {
			return nil, err
		}
		tests, err := anyMatches(p.Dir, append(slices.Clone(p.TestGoFiles), p.XTestGoFiles...), calls)
		if err != nil {
			return nil, err
		}
		if suite {
			suites = append(suites, p.ImportPath)
		}
		if tests {
			found = append(found, p.ImportPath)
		}
	}
	for _, p := range packages {
		imports := append(slices.Clone(p.TestImports), p.XTestImports...)
		if slices.ContainsFunc(imports, func(i string) bool { return slices.Contains(suites, i) }) {
			found = append(found, p.ImportPath)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

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
