package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// slowest is the number of tests and of packages that slow prints.
const slowest = 20

// duration is how long a test or a package took, in seconds.
type duration struct {
	key
	seconds float64
}

// slow prints the slowest tests and packages of the run in log.
func slow(log string, w io.Writer) error {
	f, err := os.Open(log)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist: make test and make integration write the logs of their runs", log)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	tests, packages, err := durations(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", log, err)
	}
	fmt.Fprintln(w, "slowest tests (seconds, without their subtests)")
	for _, s := range tests[:min(slowest, len(tests))] {
		fmt.Fprintf(w, "%8.2f  %s %s\n", s.seconds, s.Package, s.Test)
	}
	fmt.Fprintln(w, "slowest packages (seconds)")
	for _, s := range packages[:min(slowest, len(packages))] {
		fmt.Fprintf(w, "%8.2f  %s\n", s.seconds, s.Package)
	}
	return nil
}

// durations returns the durations of tests and packages, longest first. The duration of a test excludes its subtests,
// which have entries of their own.
func durations(r io.Reader) (tests, packages []duration, err error) {
	took := map[key]float64{}
	err = readEvents(r, func(e event) {
		if e.Action == "pass" || e.Action == "fail" {
			took[key{e.Package, e.Test}] += e.Elapsed
		}
	})
	own := map[key]float64{}
	for k, seconds := range took {
		own[k] += seconds
		if i := strings.LastIndex(k.Test, "/"); i > 0 {
			own[key{k.Package, k.Test[:i]}] -= seconds
		}
	}
	for k, seconds := range own {
		if k.Test == "" {
			packages = append(packages, duration{k, seconds})
		} else {
			tests = append(tests, duration{k, max(0, seconds)}) // parallel subtests may sum up to more than their parent
		}
	}
	for _, all := range [][]duration{tests, packages} {
		slices.SortFunc(all, func(a, b duration) int {
			return cmp.Or(-cmp.Compare(a.seconds, b.seconds), cmp.Compare(a.Package, b.Package), cmp.Compare(a.Test, b.Test))
		})
	}
	return tests, packages, err
}
