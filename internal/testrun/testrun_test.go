package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
)

// lines are the events of package p: "ACTION TEST OUTPUT", without a test if that is "-".
func lines(t *testing.T, events ...string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	for _, line := range events {
		parts := strings.SplitN(line, " ", 3)
		e := event{Action: parts[0], Package: "p", Test: strings.TrimPrefix(parts[1], "-")}
		if len(parts) > 2 {
			e.Output = parts[2] + "\n"
		}
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(text, '\n'))
	}
	return &b
}

func TestPrinter(t *testing.T) {
	for name, c := range map[string]struct {
		events []string
		want   string
	}{
		"all pass": {[]string{"output - -test.shuffle 7", "output A === RUN   A", "output A chatter",
			"output A --- PASS: A (0.00s)", "pass A", "skip B", "output - PASS", "output - ok  \tp\t1.2s", "pass -"},
			"ok  \tp\t1.2s\n"},
		"one fails": {[]string{"output - -test.shuffle 7", "output A === RUN   A", "output A/s     a_test.go:1: no",
			"output A/s     --- FAIL: A/s (0.00s)", "output A --- FAIL: A (0.00s)", "fail A/s", "fail A",
			"output B chatter", "pass B", "output - FAIL", "output - FAIL\tp\t1.2s", "fail -"},
			"p A/s:\n    a_test.go:1: no\n    --- FAIL: A/s (0.00s)\np A:\n--- FAIL: A (0.00s)\n" +
				"-test.shuffle 7\nFAIL\tp\t1.2s\nFAIL\nA/s a_test.go:1: no\n" +
				"repeat: go test -race -count=1 -shuffle=7 -run '^(A)$' p\n"},
		"a panic": {[]string{"output A     a_test.go:1: begun", "output A panic: test timed out after 1s",
			"output A goroutine 1", "output - FAIL\tp\t1.2s", "fail -"},
			"p A, not finished:\n    a_test.go:1: begun\npanic: test timed out after 1s\ngoroutine 1\nFAIL\tp\t1.2s\nFAIL\n" +
				"A a_test.go:1: begun\n" +
				"repeat: go test -race -count=1 -run '^(A)$' p\n"},
		"a race in the output of a test that passes": {[]string{"output A ==================",
			"output A WARNING: DATA RACE", "output B goroutine 7", "output A ==================", "pass A",
			"output - FAIL\tp\t1.2s", "fail -"},
			"p A:\n==================\nWARNING: DATA RACE\ngoroutine 7\n==================\nFAIL\tp\t1.2s\nFAIL\n" +
				"repeat: go test -race -count=1 p\n"},
		"it does not build": {[]string{"build-output - # p", "build-output - a.go:1: syntax error",
			"output - FAIL\tp [build failed]", "fail -"},
			"# p\na.go:1: syntax error\nFAIL\tp [build failed]\nFAIL\nrepeat: go test -race -count=1 p\n"},
		"go test ends before the package": {[]string{"output A half a"}, "p A, not finished:\nhalf a\n"},
		"no tests":                        {[]string{"output - ?   \tp\t[no test files]", "skip -"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MILLRACE_SOAK", "")
			t.Setenv("MILLRACE_INTEGRATION", "")
			var out bytes.Buffer
			p := newPrinter(&out, true)
			if err := readEvents(lines(t, c.events...), p.print); err != nil {
				t.Fatal(err)
			}
			p.end()
			if out.String() != c.want {
				t.Errorf("got\n%s\nwant\n%s", out.String(), c.want)
			}
		})
	}
}

func TestLastLogged(t *testing.T) {
	long := strings.Repeat("x", 2*maxLine)
	text := "=== RUN A\n    a_test.go:1: first\n        and more\n" +
		"    a_test.go:2: node (exit status 0), end of its output:\n        level=INFO\n        a_test.go:3: " + long + "\n"
	want := []string{"a_test.go:1: first\n", "and more\n", ("a_test.go:3: " + long)[:maxLine] + "...\n"}
	if got := lastLogged(text); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	entry := "    a_test.go:1: first\n" + strings.Repeat("        more\n", 100) + "        the last\n"
	if got := lastLogged(entry); len(got) != 1+maxEntry || got[0] != "a_test.go:1: first\n" ||
		got[maxEntry] != "the last\n" {
		t.Errorf("of a long entry: %q", got)
	}
	if got := lastLogged(strings.Repeat(text, maxLogged)); len(got) != maxLogged || got[maxLogged-1] != want[2] {
		t.Errorf("got %d lines, of which the last is %q", len(got), got[maxLogged-1])
	}
}

// A line that is no event is printed: it may be the reason why there are none.
func TestPrinterNoEvent(t *testing.T) {
	var out bytes.Buffer
	if err := readEvents(strings.NewReader("fatal: no memory"),
		newPrinter(&out, false).print); err != nil || out.String() != "fatal: no memory" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func TestSpans(t *testing.T) {
	text := `{"Action":"pass","Package":"p","Test":"A/s","Elapsed":2}
{"Action":"pass","Package":"p","Test":"A","Elapsed":5}
{"Action":"pass","Package":"p","Test":"B/s","Elapsed":4}
{"Action":"fail","Package":"p","Test":"B","Elapsed":0}
{"Action":"skip","Package":"p","Test":"C","Elapsed":9}
{"Action":"fail","Package":"p","Elapsed":6}
{"Action":"pass","Package":"q","Elapsed":7}
`
	tests, packages, err := durations(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	wantTests := []duration{{key{"p", "B/s"}, 4}, {key{"p", "A"}, 3}, {key{"p", "A/s"}, 2}, {key{"p", "B"}, 0}}
	if !reflect.DeepEqual(tests, wantTests) {
		t.Errorf("tests: got %v, want %v", tests, wantTests)
	}
	if want := []duration{{key{"q", ""}, 7}, {key{"p", ""}, 6}}; !reflect.DeepEqual(packages, want) {
		t.Errorf("packages: got %v, want %v", packages, want)
	}
}

func TestLevels(t *testing.T) {
	dir := t.TempDir()
	const head = "package p\n\n"
	for name, body := range map[string]string{
		"suite.go": "func Start(t testing.TB) { need.Full" + "(t) }",
		"call_test.go": "func TestCall(t *testing.T) {\n\tt.Run(``, func(t *testing.T) { need.Full" + "(t) })\n}\n\n" +
			"func TestQuick() {}",
		"other_test.go": "func TestOther(t *testing.T) { need.Missing" + "(t) }\n\nfunc TestSuite(t *testing.T) {\n" +
			"\tsuite.Start(t)\n}\n\nfunc TestMethod(t *testing.T) { world{}.start(t) }\n\ntype world struct{}\n\n" +
			"func (world) start(t *testing.T) { suite.Start(t) }",
		"helper_test.go": "func TestHelped(t *testing.T) { helper(t) }\n\nfunc helper(t *testing.T) { rows(t) }\n\n" +
			"var rows = func(t *testing.T) { need.Full" + "(t) }\n\nfunc TestAlone(t *testing.T) {}",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(head+body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	calls := regexp.MustCompile(`need\.Full\(`)
	packages := []pkg{
		{ImportPath: "m/internal/need", Dir: dir, GoFiles: []string{"suite.go"}},
		{ImportPath: "m/suite", Dir: dir, GoFiles: []string{"suite.go"}},
		{ImportPath: "m/runs-the-suite", Dir: dir, TestGoFiles: []string{"other_test.go"}, XTestImports: []string{"m/suite"}},
		{ImportPath: "m/calls", Dir: dir, TestGoFiles: []string{"call_test.go"}, TestImports: []string{"m/internal/need"}},
		{ImportPath: "m/neither", Dir: dir, GoFiles: []string{"other_test.go"}, TestImports: []string{"m/internal/need"}},
	}
	found, err := levels(packages, calls)
	if err != nil {
		t.Fatal(err)
	}
	if want := []levelPkg{{packages[3], []string{}}, {packages[2], []string{"m/suite"}}}; !reflect.DeepEqual(found, want) {
		t.Errorf("got %v, want %v", found, want)
	}
	names, err := testNames(found, calls)
	if want := []string{"TestCall", "TestMethod", "TestSuite"}; err != nil || !reflect.DeepEqual(names, want) {
		t.Errorf("got %v, %v, want %v", names, err, want)
	}
	helped := pkg{ImportPath: "m/helped", Dir: dir, TestGoFiles: []string{"helper_test.go"}}
	names, err = testNames([]levelPkg{{helped, nil}}, calls)
	if want := []string{"TestHelped"}; err != nil || !reflect.DeepEqual(names, want) {
		t.Errorf("got %v, %v, want %v", names, err, want)
	}
}

// Quick packages run first, in turns, until each has enough runs; then the package with the shortest total time.
func TestNext(t *testing.T) {
	second := time.Second
	for name, c := range map[string]struct {
		records map[string]*record
		want    string
	}{
		"the quick one with fewer runs": {map[string]*record{
			"a": {Runs: 3, Shortest: second}, "b": {Runs: 2, Shortest: second}, "c": {Runs: 1, Shortest: 11 * second},
		}, "b"},
		"a quick one with enough runs": {map[string]*record{
			"a": {Runs: 20, Shortest: second, Total: 20 * second}, "b": {Runs: 19, Shortest: 9 * second}, "c": {Runs: 1},
		}, "b"},
		"the shortest in all": {map[string]*record{
			"a": {Runs: 20, Shortest: second, Total: 90 * second}, "b": {Runs: 30, Shortest: second, Total: 80 * second},
			"c": {Runs: 1, Shortest: 50 * second, Total: 50 * second},
		}, "c"},
	} {
		t.Run(name, func(t *testing.T) {
			c.records["c"].Shortest = max(c.records["c"].Shortest, quickRun)
			h := &flakyRun{records: c.records}
			if got := h.next([]string{"a", "b", "c"}); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// module writes a module whose package good passes, and whose package bad fails in every second run, and goes there.
func module(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module example.org/m\n\ngo 1.26\n",
		"good/a_test.go": "package good\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {}\n",
		"bad/a_test.go": "package bad\n\nimport (\n\"os\"\n\"testing\"\n)\n\nfunc TestBad(t *testing.T) {\n" +
			"if os.Mkdir(\"there\", 0o755) != nil {\nos.Remove(\"there\")\nt.Error(\"it is there\")\n}\n}\n",
		"none/none.go": "package none\n",
		"stubborn/a_test.go": "package stubborn\n\nimport (\n\"os\"\n\"os/signal\"\n" +
			"\"strconv\"\n\"testing\"\n\"time\"\n)\n\n" +
			"func TestStubborn(t *testing.T) {\nsignal.Ignore(os.Interrupt)\n" +
			"os.WriteFile(\"pid\", []byte(strconv.Itoa(os.Getpid())), 0o644)\ntime.Sleep(time.Minute)\n}\n",
		"broken/a_test.go": "package broken\n\nfunc TestBroken(\n",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

// The exit code is that of go test, and the log has what slow needs.
func TestRun(t *testing.T) {
	need.Integration(t)
	module(t)
	log := filepath.Join("bin", "test.json")
	for _, c := range []struct {
		name string
		code int
		args []string
		says []string
	}{
		{"good", 0, []string{"./good", "./none"}, []string{"ok  \texample.org/m/good"}},
		{"bad", 1, []string{"-count=2", "./good", "./bad"}, []string{"a_test.go:11: it is there", "--- FAIL: TestBad",
			"FAIL\texample.org/m/bad", "MILLRACE_INTEGRATION=", " go test -count=1"}},
		{"broken", 1, []string{"./good", "./broken"},
			[]string{"a_test.go:3:18: expected", "[setup failed]", "ok  \texample.org/m/good"}},
		{"no such package", 1, []string{"./nosuch"}, []string{"nosuch"}},
	} {
		var out, stderr bytes.Buffer
		code := command(t.Context(), append([]string{"run", log}, c.args...), &out, &stderr)
		out.Write(stderr.Bytes())
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.name, code, c.code)
		}
		for _, want := range c.says {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, out.String())
			}
		}
	}
	var out, stderr bytes.Buffer
	if code := command(t.Context(), []string{"run", log, "./good"}, &out, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out.String(), stderr.String())
	}
	if code := command(t.Context(), []string{"slow", log}, &out, &stderr); code != 0 || !strings.Contains(out.String(),
		"example.org/m/good TestGood\n") {
		t.Errorf("slow: exit code %d: %s", code, out.String())
	}
	stderr.Reset()
	if code := command(t.Context(), []string{"slow", log + ".none"}, &out,
		&stderr); code == 0 || !strings.Contains(stderr.String(), "make test") {
		t.Errorf("slow without a log: exit code %d: %s", code, stderr.String())
	}
}

// An interrupt ends a test that ignores it, too.
func TestInterrupt(t *testing.T) {
	need.Full(t)
	module(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		var out bytes.Buffer
		ended <- command(ctx, []string{"run", filepath.Join("bin", "test.json"), "./stubborn"}, &out, &out)
	}()
	var pid int
	for pid == 0 {
		select {
		case code := <-ended:
			t.Fatalf("it ended by itself with exit code %d", code)
		case <-time.After(50 * time.Millisecond):
		}
		text, _ := os.ReadFile(filepath.Join("stubborn", "pid")) // not there, or half written: later
		pid, _ = strconv.Atoi(string(text))
	}
	stop()
	if code := <-ended; code == 0 {
		t.Error("exit code 0")
	}
	for range 100 { // a killed process goes when its new parent has seen it
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(text), ") Z ") {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Error("the test goes on")
}

// What does not compile, and what go does not list, is an error that says so.
func TestErrors(t *testing.T) {
	need.Integration(t)
	t.Setenv("CGO_ENABLED", "1")
	module(t)
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a package that does not compile": {[]string{"flaky", "bin", "5s", "./broken"}, "a_test.go:3"},
		"a package that is not there":     {[]string{"flaky", "bin", "5s", "./nosuch"}, "nosuch"},
		"no such level":                   {[]string{"levels", "long"}, "want short or full"},
	} {
		var out, stderr bytes.Buffer
		if code := command(t.Context(), c.args, &out, &stderr); code != 2 || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s: exit code %d, %s", name, code, stderr.String())
		}
	}
}

// A stopper interrupts a command when it prints the mark.
type stopper struct {
	bytes.Buffer
	mark string
	stop context.CancelFunc
}

func (s *stopper) Write(p []byte) (int, error) {
	defer func() {
		if strings.Contains(s.String(), s.mark) {
			s.stop()
		}
	}()
	return s.Buffer.Write(p)
}

// What fails is printed with the command that repeats it; a stop is clean, and a later call goes on counting.
func TestFlaky(t *testing.T) {
	need.Full(t)
	if _, err := exec.LookPath("gcc"); err != nil {
		need.Missing(t, need.Program("gcc"), err)
	}
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	t.Setenv("CGO_ENABLED", "1") // which the race detector needs
	module(t)
	begin := func(want int, limit string, says ...string) record {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		out := stopper{mark: "repeat: ", stop: stop}
		if code := command(ctx, []string{"flaky", "bin", limit, "./good", "./bad", "./none"}, &out, &out); code != want {
			t.Errorf("exit code %d, want %d", code, want)
		}
		for _, s := range append(says, "repeat the command to continue") {
			if !strings.Contains(out.String(), s) {
				t.Errorf("no %q in\n%s", s, out.String())
			}
		}
		h := &flakyRun{dir: "bin", records: map[string]*record{"example.org/m/bad": {}}}
		if err := h.load(); err != nil {
			t.Fatal(err)
		}
		return *h.records["example.org/m/bad"]
	}
	if got := begin(0, "0s"); got.Runs != 0 {
		t.Errorf("without time: %+v", got)
	}
	for n := 1; n <= 2; n++ {
		got := begin(1, "1h", "FAIL example.org/m/bad", "it is there", "go test -race -count=1 -shuffle=",
			" -run '^(TestBad)$' example.org/m/bad\n")
		if got.Runs != 2*n || got.Failures != n {
			t.Errorf("call %d: %+v, want %d runs, of which %d failed", n, got, 2*n, n)
		}
	}
}
