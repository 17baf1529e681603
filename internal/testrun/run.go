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

// event is a line of go test -json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a package that does not build
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// run runs go test -json with args, writes the events to the file log, and prints a summary. If go test fails, the
// error is an exitCode.
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // go test waits for its children, which the signal stops
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
	endGroup(cmd) // after an interrupt a test may still run
	p.end()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 && read == nil {
		return exitCode(exit.ExitCode())
	}
	return errors.Join(err, read)
}

// exitCode is the exit code of a go test that has already printed the reason.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("go test: exit status %d", int(c)) }

// endGroup kills the remaining processes in the group of a command that has exited.
func endGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually fails, because no process is left
}

// readEvents calls each for every line of r. A line that is not JSON becomes an event without a package.
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

// printer prints the summary of a run: one line per package, and all output of failed tests.
type printer struct {
	w            io.Writer
	detect       bool                     // the race detector is on
	buffered     map[key]*strings.Builder // output of running tests and of packages
	raceReports  map[string]*strings.Builder
	shuffleSeeds map[string]string // seed of the test order, by package
	rapidSeeds   map[string]string // seed of the first failed rapid test, by package
	failed       []key
	logged       map[key][]string // the last lines that each failed test logged itself
}

// key identifies a test, or a package if Test is empty.
type key struct{ Package, Test string }

func newPrinter(w io.Writer, detect bool) *printer {
	buffered, races := map[key]*strings.Builder{}, map[string]*strings.Builder{}
	return &printer{w: w, detect: detect, buffered: buffered, raceReports: races, shuffleSeeds: map[string]string{},
		rapidSeeds: map[string]string{}, logged: map[key][]string{}}
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

// output buffers output of a test or package. It prints the report of a data race at once, because the report may be
// part of the output of another test that passes.
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

// Limits of what the end of a run repeats of a failed test.
const (
	maxLogged = 60  // lines
	maxEntry  = 15  // of an entry, after its first one
	maxLine   = 300 // bytes of a line
)

// loggedLine matches the first line of t.Log or t.Error.
var loggedLine = regexp.MustCompile(`^\s+\w+_test\.go:\d+: `)

// lastLogged returns the last lines of an output that the test logged itself, without the output of its processes, and
// of long entries the first line and the last ones.
func lastLogged(output string) (last []string) {
	skip, first := true, 0 // first: of the entry, in last
	for line := range strings.Lines(output) {
		if loggedLine.MatchString(line) {
			skip, first = strings.Contains(line, "end of its output"), len(last)
		} else if !strings.HasPrefix(line, "        ") { // of the test's runner
			skip = true
		}
		if skip {
			continue
		}
		if line = strings.TrimSpace(line); len(line) > maxLine {
			line = strings.ToValidUTF8(line[:maxLine], "") + "..."
		}
		if last = append(last, line+"\n"); len(last)-first > maxEntry+1 {
			last = slices.Delete(last, first+1, first+2)
		}
	}
	return last[max(0, len(last)-maxLogged):]
}

// noise matches lines about tests that start, pause or pass, and the line before the report of a data race.
var noise = regexp.MustCompile(`^(=== (RUN|PAUSE|CONT|NAME) .*|\s*--- (PASS|SKIP): .*|={18}|PASS|FAIL)\n$`)

// finish prints a failed test, and the final line of a package. Tests still running when their package fails were cut
// off by a panic or the end of the process.
func (p *printer) finish(k key, failed bool) {
	if k.Test != "" {
		if text := p.buffered[k]; failed && text != nil {
			fmt.Fprintf(p.w, "%s %s:\n%s", k.Package, k.Test, text)
			p.logged[k] = lastLogged(text.String())
		}
		delete(p.buffered, k)
		return
	}
	for running, text := range p.buffered {
		if running.Package != k.Package || running.Test == "" {
			continue
		}
		if failed {
			fmt.Fprintf(p.w, "%s %s, not finished:\n%s", running.Package, running.Test, text)
			p.failed = append(p.failed, running)
			p.logged[running] = lastLogged(text.String())
		}
		delete(p.buffered, running)
	}
	if race := p.raceReports[k.Package]; race != nil {
		fmt.Fprint(p.w, race.String())
		delete(p.raceReports, k.Package)
	}
	if text := p.buffered[k]; text != nil {
		for line := range strings.Lines(text.String()) {
			if failed || strings.HasPrefix(line, "ok ") {
				fmt.Fprint(p.w, line)
			}
		}
	}
	delete(p.buffered, k)
}

// end prints the buffered output of unfinished packages, and the commands that repeat the failures.
func (p *printer) end() {
	for k, text := range p.buffered {
		fmt.Fprintf(p.w, "%s %s, not finished:\n%s", k.Package, k.Test, text)
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
	for _, k := range p.failed { // again, because the output of processes may be long
		for _, line := range p.logged[k] {
			fmt.Fprintf(p.w, "%s %s", k.Test, line)
		}
	}
	for pkg, names := range tests {
		fmt.Fprintln(p.w, "repeat:", repeat(p.detect, pkg, names, p.shuffleSeeds[pkg], p.rapidSeeds[pkg]))
	}
}

// repeat returns the command that runs tests of a package again at the same level, in the same order and with the same
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
