package integration

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = ".."

// markdownFiles returns the documents of the repository, as slash-separated paths below its root.
func markdownFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	walkRepository(t, func(name string, d fs.DirEntry) {
		if !d.IsDir() && path.Ext(name) == ".md" {
			files = append(files, name)
		}
	})
	return files
}

// walkRepository calls visit for each file and directory that belongs to the module: not for hidden directories, build
// output, test data, and modules of their own.
func walkRepository(t *testing.T, visit func(name string, d fs.DirEntry)) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if d.IsDir() && name != "." {
			base := d.Name()
			if strings.HasPrefix(base, ".") || slices.Contains([]string{"bin", "dist", "testdata", "node_modules"}, base) {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
				return fs.SkipDir
			}
		}
		visit(name, d)
		return nil
	})
	must(t, err)
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	must(t, err)
	return string(text)
}

// compareSets reports what only one of the two lists has, and what the first one has twice.
func compareSets(t *testing.T, what string, listed, present []string) {
	t.Helper()
	slices.Sort(listed)
	for i, name := range listed {
		if i > 0 && listed[i-1] == name {
			t.Errorf("%s lists %s twice", what, name)
		}
		if !slices.Contains(present, name) {
			t.Errorf("%s lists %s, which does not exist", what, name)
		}
	}
	for _, name := range present {
		if !slices.Contains(listed, name) {
			t.Errorf("%s does not list %s", what, name)
		}
	}
	if len(listed) == 0 {
		t.Errorf("%s lists nothing", what)
	}
}

var mapRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// The file map of ARCHITECTURE.md has one line for each package of the module.
func TestFileMap(t *testing.T) {
	_, section, found := strings.Cut(readDocument(t, "ARCHITECTURE.md"), "\n## File map\n")
	if !found {
		t.Fatal("ARCHITECTURE.md has no section File map")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var listed, present []string
	for _, row := range mapRow.FindAllStringSubmatch(section, -1) {
		listed = append(listed, row[1])
	}
	walkRepository(t, func(name string, d fs.DirEntry) {
		if dir := path.Dir(name); !d.IsDir() && path.Ext(name) == ".go" && !slices.Contains(present, dir) {
			present = append(present, dir)
		}
	})
	compareSets(t, "the file map of ARCHITECTURE.md", listed, present)
}

var indexRow = regexp.MustCompile(`(?m)^\| \[[^\]]+\]\(([^)]+)\) \|`)

// The index of a folder of documents has one line for each of its pages, and for each of its folders.
func TestIndexOfDocuments(t *testing.T) {
	for folder, index := range map[string]string{
		"docs": "index.md", "docs/decisions": "README.md", "docs/deploy": "README.md",
	} {
		var listed, present []string
		for _, row := range indexRow.FindAllStringSubmatch(readDocument(t, path.Join(folder, index)), -1) {
			listed = append(listed, row[1])
		}
		walkRepository(t, func(name string, d fs.DirEntry) {
			switch {
			case path.Dir(name) != folder || path.Base(name) == index:
			case d.IsDir():
				present = append(present, path.Join(path.Base(name), "README.md"))
			case path.Ext(name) == ".md":
				present = append(present, path.Base(name))
			}
		})
		compareSets(t, path.Join(folder, index), listed, present)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code    = regexp.MustCompile("(?s)```.*?```")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the fragments by which a link can name the headings of a document, as GitHub makes them.
func anchors(text string) []string {
	var names []string
	for _, h := range heading.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		name := dropped.ReplaceAllString(strings.ToLower(h[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// Each relative link of a document leads to a file that exists, and to a heading that it has.
func TestLinksOfDocuments(t *testing.T) {
	for _, name := range markdownFiles(t) {
		text := readDocument(t, name)
		for _, l := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			if strings.Contains(l[1], "://") || strings.HasPrefix(l[1], "mailto:") {
				continue
			}
			file, fragment, _ := strings.Cut(l[1], "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s, which does not exist", name, l[1])
				continue
			}
			if fragment != "" && !slices.Contains(anchors(readDocument(t, target)), fragment) {
				t.Errorf("%s links to %s, which has no such heading", name, l[1])
			}
		}
	}
}

var (
	testName = regexp.MustCompile(`\b((?:Test|Benchmark|Fuzz)[A-Z]\w*)(\*?)`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`)
)

// Each test that ARCHITECTURE.md and the decisions name exists. A name that ends in * stands for all that begin so.
func TestTestsNamedInDocuments(t *testing.T) {
	var tests []string
	walkRepository(t, func(name string, d fs.DirEntry) {
		if !d.IsDir() && strings.HasSuffix(name, "_test.go") {
			for _, f := range testFunc.FindAllStringSubmatch(readDocument(t, name), -1) {
				tests = append(tests, f[1])
			}
		}
	})
	for _, name := range markdownFiles(t) {
		if name != "ARCHITECTURE.md" && path.Dir(name) != "docs/decisions" {
			continue
		}
		for _, n := range testName.FindAllStringSubmatch(readDocument(t, name), -1) {
			named := func(test string) bool { return test == n[1] || n[2] == "*" && strings.HasPrefix(test, n[1]) }
			if !slices.ContainsFunc(tests, named) {
				t.Errorf("%s names %s, which does not exist", name, n[0])
			}
		}
	}
}
