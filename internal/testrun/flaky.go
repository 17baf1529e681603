package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	quickRun   = 10 * time.Second // a package with a shorter run runs at least quickRuns times
	quickRuns  = 20
	busyLoops  = 2
	runTimeout = "15m" // timeout of one run of a package
)

// errFailed is returned if a test failed.
var errFailed = errors.New("a test failed")

// record counts the runs of one build of a package's tests.
type record struct {
	Package  string
	Build    string // SHA-256 of the test binary and the files in testdata
	Runs     int
	Failures int
	Total    time.Duration // of all runs
	Shortest time.Duration
}

// quick reports whether the package must run quickRuns times.
func (r *record) quick() bool { return r.Runs > 0 && r.Shortest < quickRun }

// flakyRun runs packages repeatedly.
type flakyRun struct {
	dir     string // directory of test binaries, records and the output of failed runs
	w       io.Writer
	folders map[string]string // source directory by package
	rapid   map[string]bool   // by compiled package: it has the flags of rapid
	records map[string]*record
	failed  bool
}

// flaky runs packages in turns until limit is over, with busy loops in parallel: first each package once, then the
// quick ones until they have run quickRuns times, then always the one with the shortest total time. It keeps the counts
// of each build in dir, and a later call continues from them. A started run is not cut off by limit.
func flaky(ctx context.Context, dir string, limit time.Duration, patterns []string, w io.Writer) error {
	h := &flakyRun{dir: dir, w: w, folders: map[string]string{}, rapid: map[string]bool{}, records: map[string]*record{}}
	packages, err := list(ctx, patterns...)
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), h.load()); err != nil {
		return err
	}
	var names []string
	for _, p := range packages {
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			h.folders[p.ImportPath] = p.Dir
			names = append(names, p.ImportPath)
		}
	}
	if len(names) == 0 {
		return errors.New("no package has tests")
	}
	return h.runLoaded(ctx, limit, names)
}

// runLoaded runs the packages while busy loops occupy processors.
func (h *flakyRun) runLoaded(ctx context.Context, limit time.Duration, names []string) error {
	end := time.Now().Add(limit)
	busy, stop := context.WithCancel(ctx)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + busyLoops))
	var loops errgroup.Group
	for range busyLoops {
		loops.Go(func() error {
			for busy.Err() == nil { // keep a processor busy
			}
			return nil
		})
	}
	err := h.runTurns(ctx, end, names)
	stop()
	err = errors.Join(err, loops.Wait())
	h.print(names)
	if err == nil && h.failed {
		return errFailed
	}
	return err
}

func (h *flakyRun) runTurns(ctx context.Context, end time.Time, names []string) error {
	fewest := slices.Clone(names) // fewest runs first, so that repeated short calls reach all packages
	slices.SortStableFunc(fewest, func(a, b string) int { return cmp.Compare(h.runs(a), h.runs(b)) })
	for _, name := range fewest { // a new build starts from zero
		if ctx.Err() != nil || time.Now().After(end) {
			return nil //nolint:nilerr // an interrupt is not a failure
		}
		err := h.compile(ctx, name)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // an interrupted run has not failed
		}
		if err != nil {
			return err
		}
		if h.records[name].Runs == 0 {
			if err := h.runOnce(ctx, name); err != nil {
				return err
			}
		}
	}
	for time.Now().Before(end) && ctx.Err() == nil {
		if err := h.runOnce(ctx, h.next(names)); err != nil {
			return err
		}
	}
	return nil
}

// runs returns how often the tests of a package have run, in any build.
func (h *flakyRun) runs(name string) int {
	if r := h.records[name]; r != nil {
		return r.Runs
	}
	return 0
}

// next returns the package to run next.
func (h *flakyRun) next(names []string) string {
	return slices.MinFunc(names, func(a, b string) int {
		ra, rb := h.records[a], h.records[b]
		da, db := ra.quick() && ra.Runs < quickRuns, rb.quick() && rb.Runs < quickRuns
		switch {
		case da && db:
			return cmp.Compare(ra.Runs, rb.Runs)
		case da:
			return -1
		case db:
			return 1
		}
		return cmp.Compare(ra.Total, rb.Total)
	})
}

// compile builds the test binary of a package, and starts a new record if the build has changed.
func (h *flakyRun) compile(ctx context.Context, name string) error {
	args := []string{"test", "-c", "-race", "-ldflags=-w", "-o", h.binary(name), name}
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile the tests of %s: %w\n%s", name, err, out)
	}
	f, err := os.Open(h.binary(name))
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if err := hashTestdata(sum, filepath.Join(h.folders[name], "testdata")); err != nil {
		return err
	}
	build := hex.EncodeToString(sum.Sum(nil))
	if r := h.records[name]; r == nil || r.Build != build {
		h.records[name] = &record{Package: name, Build: build}
	}
	usage, err := exec.CommandContext(ctx, h.binary(name), "-h").CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return err
	}
	h.rapid[name] = bytes.Contains(usage, []byte("-rapid.nofailfile"))
	return nil
}

// hashTestdata writes the names and contents of the files below folder to sum. The folder may be missing.
func hashTestdata(sum io.Writer, folder string) error {
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if path == folder && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
}

func (h *flakyRun) binary(name string) string {
	return filepath.Join(h.dir, strings.ReplaceAll(name, "/", "_")+".test")
}

// runOnce runs the tests of a package in its directory and records the result. A run that ctx cuts off is not recorded.
func (h *flakyRun) runOnce(ctx context.Context, name string) error {
	seed := fmt.Sprint(rand.Int64N(1 << 53))
	args := []string{"-test.shuffle=" + seed, "-test.timeout=" + runTimeout, "-test.paniconexit0"}
	if h.rapid[name] {
		args = append(args, "-rapid.nofailfile") // a fail file would make every later run fail
	}
	binary, err := filepath.Abs(h.binary(name))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = h.folders[name]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals reach its children too
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(begun)
	if cmd.Process != nil {
		endGroup(cmd)
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // an interrupted run has not failed
	}
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		if !errors.Is(err, exec.ErrWaitDelay) {
			return fmt.Errorf("run the tests of %s: %w", name, err)
		}
		out = append(out, "a child process of the tests kept their output open\n"...)
	}
	r := h.records[name]
	if r.Runs == 0 || took < r.Shortest {
		r.Shortest = took
	}
	r.Runs++
	r.Total += took
	if err != nil {
		r.Failures++
		h.failed = true
		if err := h.report(r, seed, out); err != nil {
			return err
		}
	}
	return h.save()
}

var (
	failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: ([^/ ]+)`)
	rapidSeed  = regexp.MustCompile(`-rapid\.seed=(\d+)`)
)

// report prints a failed run and the command that repeats it, and saves its output.
func (h *flakyRun) report(r *record, seed string, out []byte) error {
	var tests []string
	for _, m := range failedTest.FindAllSubmatch(out, -1) {
		if name := string(m[1]); !slices.Contains(tests, name) {
			tests = append(tests, name)
		}
	}
	random := ""
	if m := rapidSeed.FindSubmatch(out); m != nil {
		random = string(m[1])
	}
	file := fmt.Sprintf("%s-%.8s-%d.log", strings.TrimSuffix(h.binary(r.Package), ".test"), r.Build, r.Failures)
	fmt.Fprintf(h.w, "FAIL %s, run %d, output in %s\n%s", r.Package, r.Runs, file, out)
	fmt.Fprintln(h.w, "repeat:", repeat(true, r.Package, tests, seed, random))
	return os.WriteFile(file, out, 0o644)
}

// print prints the counts of each package.
func (h *flakyRun) print(names []string) {
	short := 0
	fmt.Fprintf(h.w, "%6s %9s %9s  package\n", "runs", "failures", "shortest")
	for _, name := range names {
		r := h.records[name]
		if r == nil {
			r = &record{}
		}
		fmt.Fprintf(h.w, "%6d %9d %8.1fs  %s\n", r.Runs, r.Failures, r.Shortest.Seconds(), name)
		if r.Runs == 0 || r.quick() && r.Runs < quickRuns {
			short++
		}
	}
	if short > 0 {
		fmt.Fprintf(h.w, "%d packages have not run often enough: repeat the command to continue\n", short)
	}
}

func (h *flakyRun) state() string { return filepath.Join(h.dir, "runs.json") }

func (h *flakyRun) load() error {
	text, err := os.ReadFile(h.state())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &h.records); err != nil {
		return fmt.Errorf("read %s: %w", h.state(), err)
	}
	return nil
}

// save writes the records atomically, because the process may be killed during a later run.
func (h *flakyRun) save() error {
	text, err := json.MarshalIndent(h.records, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.state()+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(h.state()+".new", h.state())
}
