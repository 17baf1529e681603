package main

import (
	"bufio"
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
	"syscall"
	"time"
)

// An event is a line of go test -json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of what does not build
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// run runs go test -json with args, keeps its events in the file log, and prints those that a person wants to read. A
// go test that fails is an exitCode.
func run(ctx context.Context, log string, args []string, stdout, stderr io.Writer) (err error) {
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return err
	}
	kept, err := os.Create(log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // go test waits for its children, which end by the signal
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p := newPrinter(stdout, slices.Contains(args, "-race"))
	read := readEvents(io.TeeReader(out, kept), p.print)
	err = cmd.Wait()
	endGroup(cmd) // of an interrupted run a test may go on
	p.end()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 && read == nil {
		return exitCode(exit.ExitCode())
	}
	return errors.Join(err, read)
}

// An exitCode is that of a go test that has printed why it failed.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("go test: exit status %d", int(c)) }

// endGroup kills what is left of the process group of a command that has ended.
func endGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // there is mostly none left
}

// readEvents calls each for every line of r. A line that is no event is the output of a package without a name.
func readEvents(r io.Reader, each func(event)) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "build-output", Output: string(line)}
			}
			each(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// A printer prints what a person wants to read of a run: one line for each package, and of the tests that fail, all.
type printer struct {
	w            io.Writer
	detect       bool                     // data races
	buffered     map[key]*strings.Builder // output of the tests that run, and of the packages
	raceReports  map[string]*strings.Builder
	shuffleSeeds map[string]string // of the order of tests, by package
	rapidSeeds   map[string]string // of the values of rapid, by package: those of the first test that failed with some
	failed       []key
}

// A key names a test, or without Test a package.
type key struct{ Package, Test string }

func newPrinter(w io.Writer, detect bool) *printer {
	said, race := map[key]*strings.Builder{}, map[string]*strings.Builder{}
	return &printer{w: w, detect: detect, buffered: said, raceReports: race, shuffleSeeds: map[string]string{},
		rapidSeeds: map[string]string{}}
}

const (
	raceFence   = "==================\n"
	raceWarning = "WARNING: DATA RACE\n"
)

func (p *printer) print(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(p.w, e.Output)
	case "output":
		p.output(k, e.Output)
	case "pass", "skip":
		p.finish(k, false)
	case "fail":
		p.failed = append(p.failed, k)
		p.finish(k, true)
	}
}

// output keeps what a test or its package printed. The report of a data race is printed at once: it may stand in the
// output of another test, which passes.
func (p *printer) output(k key, text string) {
	if race := p.raceReports[k.Package]; race != nil {
		race.WriteString(text)
		if text == raceFence {
			fmt.Fprint(p.w, race.String())
			delete(p.raceReports, k.Package)
		}
		return
	}
	if seed, ok := strings.CutPrefix(text, "-test.shuffle "); ok {
		p.shuffleSeeds[k.Package] = strings.TrimSpace(seed)
	}
	if m := rapidSeed.FindStringSubmatch(text); m != nil && p.rapidSeeds[k.Package] == "" {
		p.rapidSeeds[k.Package] = m[1]
	}
	if p.buffered[k] == nil {
		p.buffered[k] = new(strings.Builder)
	}
	if text == raceWarning {
		fmt.Fprint(p.w, k.Package+" "+k.Test+":\n")
		p.raceReports[k.Package] = new(strings.Builder)
		p.raceReports[k.Package].WriteString(raceFence + raceWarning)
		return
	}
	if !noise.MatchString(text) {
		p.buffered[k].WriteString(text)
	}
}

// noise is the output about tests that begin, pause and pass, and the fence before the report of a data race.
var noise = regexp.MustCompile(`^(=== (RUN|PAUSE|CONT|NAME) .*|\s*--- (PASS|SKIP): .*|={18}|PASS|FAIL)\n$`)

// finish prints a test that failed, and the line that ends a package. Tests that had not ended when their package
// failed are those that a panic or the end of the process cut off.
func (p *printer) finish(k key, failed bool) {
	if k.Test != "" {
		if said := p.buffered[k]; failed && said != nil {
			fmt.Fprintf(p.w, "%s %s:\n%s", k.Package, k.Test, said)
		}
		delete(p.buffered, k)
		return
	}
	for running, said := range p.buffered {
		if running.Package != k.Package || running.Test == "" {
			continue
		}
		if failed {
			fmt.Fprintf(p.w, "%s %s, which did not end:\n%s", running.Package, running.Test, said)
			p.failed = append(p.failed, running)
		}
		delete(p.buffered, running)
	}
	if race := p.raceReports[k.Package]; race != nil {
		fmt.Fprint(p.w, race.String())
		delete(p.raceReports, k.Package)
	}
	if said := p.buffered[k]; said != nil {
		for line := range strings.Lines(said.String()) {
			if failed || strings.HasPrefix(line, "ok ") {
				fmt.Fprint(p.w, line)
			}
		}
	}
	delete(p.buffered, k)
}

// end prints what of a package was left when go test ended before it, and how to repeat what failed.
func (p *printer) end() {
	for k, said := range p.buffered {
		fmt.Fprintf(p.w, "%s %s, which did not end:\n%s", k.Package, k.Test, said)
	}
	if len(p.failed) == 0 {
		return
	}
	tests := map[string][]string{}
	for _, k := range p.failed {
		top, _, _ := strings.Cut(k.Test, "/")
		if top != "" && !slices.Contains(tests[k.Package], top) {
			tests[k.Package] = append(tests[k.Package], top)
		} else if tests[k.Package] == nil {
			tests[k.Package] = []string{}
		}
	}
	fmt.Fprint(p.w, "FAIL\n")
	for pkg, names := range tests {
		fmt.Fprintln(p.w, "repeat:", repeat(p.detect, pkg, names, p.shuffleSeeds[pkg], p.rapidSeeds[pkg]))
	}
}

// repeat is the command that runs tests of a package once more, at the same level, in the same order and with the same
// random values.
func repeat(race bool, pkg string, tests []string, shuffle, rapid string) string {
	cmd := "go test -count=1"
	if race {
		cmd = "go test -race -count=1"
	}
	for _, level := range []string{"MILLRACE_SOAK", "MILLRACE_INTEGRATION"} {
		if value := os.Getenv(level); value != "" {
			cmd = level + "=" + value + " " + cmd
		}
	}
	if shuffle != "" {
		cmd += " -shuffle=" + shuffle
	}
	if len(tests) > 0 {
		slices.Sort(tests)
		cmd += " -run '^(" + strings.Join(tests, "|") + ")$'"
	}
	cmd += " " + pkg
	if rapid != "" {
		cmd += " -rapid.seed=" + rapid
	}
	return cmd
}
