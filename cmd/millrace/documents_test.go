package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A block is a fenced block of a document. The word after its language is the mark, which GitHub does not show.
type block struct {
	document       string
	line           int
	language, mark string
	text           string
}

func (b *block) String() string { return fmt.Sprintf("%s:%d", b.document, b.line) }

// Marks of a block. A block of commands without a mark is run by "make test".
const (
	markCluster = "cluster" // run by "make integration", with Kafka and ClickHouse
	markMake    = "make"    // targets of the Makefile, which are not run
	markTest    = "test="   // the test that runs these commands: PACKAGE.NAME
	markFile    = "file="   // not commands: the content of a file that commands of the document read
)

// readDocuments returns the text of each Markdown file of the repository, and of each example in YAML, by its path.
func readDocuments(t *testing.T) map[string]string {
	t.Helper()
	documents := map[string]string{}
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		skip := []string{"bin", "dist", "testdata", "node_modules"}
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name != "." && strings.HasPrefix(d.Name(), ".") || slices.Contains(skip, d.Name())):
			return fs.SkipDir
		case path.Ext(name) == ".md", path.Ext(name) == ".yaml" && strings.HasPrefix(name, "examples/"):
			text, err := fs.ReadFile(root, name)
			documents[name] = string(text)
			return err
		}
		return nil
	})
	must(t, err)
	return documents
}

// readBlocks returns the fenced blocks of each document. Other forms of blocks are faults.
func readBlocks(t *testing.T) map[string][]*block {
	t.Helper()
	all := map[string][]*block{}
	for name, text := range readDocuments(t) {
		var open *block
		blank := true
		for i, line := range strings.Split(text, "\n") {
			info, isFence := strings.CutPrefix(line, "```")
			switch {
			case path.Ext(name) != ".md":
			case isFence && open == nil:
				open = &block{document: name, line: i + 1}
				open.language, open.mark, _ = strings.Cut(info, " ")
				all[name] = append(all[name], open)
			case isFence:
				open = nil
			case open != nil:
				open.text += line + "\n"
			case blank && strings.HasPrefix(line, "    "), strings.HasPrefix(strings.TrimSpace(line), "```"):
				t.Errorf("%s:%d: a block must be fenced, with its language, and not be indented", name, i+1)
			}
			blank = strings.TrimSpace(line) == ""
		}
	}
	return all
}

// Each block of commands in a document is run by a test, or marked as one that is not. The subcommand, the flags and
// the arguments of each line are valid.
func TestCommandsInBlocks(t *testing.T) {
	t.Parallel()
	languages := []string{"sh", "sql", "yaml", "json", "text", "mermaid"}
	for _, blocks := range readBlocks(t) {
		for _, b := range blocks {
			test, isTest := strings.CutPrefix(b.mark, markTest)
			switch {
			case !slices.Contains(languages, b.language):
				t.Errorf("%s: its language is %q, want one of %v", b, b.language, languages)
			case b.language != "sh" && b.mark != "" && !strings.HasPrefix(b.mark, markFile),
				b.language == "sh" && !isTest && !slices.Contains([]string{"", markCluster, markMake}, b.mark):
				t.Errorf("%s: a block of language %s has no mark %q", b, b.language, b.mark)
			case isTest && !testExists(t, test):
				t.Errorf("%s: there is no test %s", b, test)
			}
			if b.language != "sh" {
				continue
			}
			for _, line := range strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n") {
				if b.mark == markMake && line != "" && !strings.HasPrefix(line, "make ") {
					t.Errorf("%s: not a target: %s", b, line)
				}
				if err := checkCommand(t, line, true); err != nil {
					t.Errorf("%s: %s: %v", b, line, err)
				}
			}
		}
	}
}

func testExists(t *testing.T, name string) bool {
	t.Helper()
	dir, function, _ := strings.Cut(name, ".")
	files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
	must(t, err)
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		must(t, err)
		return strings.Contains(string(text), "\nfunc "+function+"(t *testing.T)")
	})
}

var (
	fenced    = regexp.MustCompile("(?ms)^```.*?^```$")
	codeSpan  = regexp.MustCompile("`([^`]+)`")
	inComment = regexp.MustCompile(`(?m)^# +(millrace [^#\n]*)`)
	// quoted is the beginning of texts of errors, and of flags of other programs.
	quoted = regexp.MustCompile(`^(outbox (is|has|could)|store refuses|--reset-offsets|--sidecar)`)
)

// The commands that a document names in its text exist, with their flags: code that begins with millrace, with a
// command that has subcommands, with make, or with a flag.
func TestCommandsInText(t *testing.T) {
	t.Parallel()
	nouns := map[string]bool{}
	for _, c := range newRoot().Commands() {
		nouns[c.Name()] = c.HasSubCommands()
	}
	named := 0
	check := func(document, command string) {
		if program.MatchString(command) {
			named++
		}
		if err := checkCommand(t, command, false); err != nil {
			t.Errorf("%s: %s: %v", document, command, err)
		}
	}
	for name, text := range readDocuments(t) {
		for _, comment := range inComment.FindAllStringSubmatch(text, -1) {
			check(name, comment[1])
		}
		for _, paragraph := range strings.Split(fenced.ReplaceAllString(text, ""), "\n\n") {
			for _, span := range codeSpan.FindAllStringSubmatch(paragraph, -1) {
				command := strings.Join(strings.Fields(span[1]), " ")
				first, rest, _ := strings.Cut(command, " ")
				switch {
				case quoted.MatchString(command):
				case strings.HasPrefix(first, "--"):
					if name != "docs/benchmarks.md" && !isFlag(first) {
						t.Errorf("%s: no command has the flag %s", name, command)
					}
				case nouns[first] && rest != "":
					check(name, "millrace "+command)
				default:
					check(name, command)
				}
			}
		}
	}
	if named < 100 {
		t.Errorf("%d commands in the text of all documents: too few, the search has a fault", named)
	}
}

// isFlag reports whether a command has a flag.
func isFlag(name string) bool {
	for _, c := range leaves(newRoot()) {
		c.InitDefaultHelpFlag()
		if c.Flags().Lookup(strings.TrimPrefix(name, "--")) != nil {
			return true
		}
	}
	return false
}

var (
	comment = regexp.MustCompile(`(^| )#.*`)
	word    = regexp.MustCompile(`"[^"]*"|'[^']*'|[^\s"']+`)
	program = regexp.MustCompile(`^(?:\./bin/)?(millrace) |^(?:[A-Z_]+=\S+ )*(make) `)
)

// checkCommand returns an error if line is a command of millrace or make that does not exist. The arguments must be
// complete in a block; a text may leave out all of them.
func checkCommand(t *testing.T, line string, complete bool) error {
	t.Helper()
	line = comment.ReplaceAllString(line, "")
	found := program.FindStringSubmatch(line)
	if found == nil {
		return nil
	}
	var args []string
	for _, w := range word.FindAllString(strings.TrimPrefix(line, found[0]), -1) {
		args = append(args, strings.Trim(w, `"'`))
	}
	if found[2] != "" {
		return checkTargets(t, args)
	}
	if args[0] == "NOUN" {
		return nil
	}
	root := newRoot()
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(escapeIncidentKeys(args))
	if err != nil || c.DisableFlagParsing {
		return err
	}
	c.InitDefaultHelpFlag()
	if last := len(rest) - 1; !complete && last >= 0 {
		if f := c.Flags().Lookup(strings.TrimPrefix(rest[last], "--")); f != nil && f.NoOptDefVal == "" {
			rest = rest[:last] // a text may leave out the value of a flag
		}
	}
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	if given := c.Flags().Args(); complete || len(given) > 0 {
		return c.ValidateArgs(given)
	}
	return nil
}

// checkTargets returns an error if the Makefile does not have the targets, or not the variables that are set.
func checkTargets(t *testing.T, targets []string) error {
	t.Helper()
	makefile, err := os.ReadFile("../../Makefile")
	must(t, err)
	for _, target := range targets {
		pattern := `(?m)^` + target + `:`
		if name, _, ok := strings.Cut(target, "="); ok {
			pattern = `(?m)^` + name + ` *[?:]?=`
		}
		if !regexp.MustCompile(pattern).Match(makefile) {
			return fmt.Errorf("the Makefile has no %s", target)
		}
	}
	return nil
}
