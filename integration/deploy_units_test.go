package integration

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
)

// deployFiles returns the files below deploy with one of the extensions, by their path below the root.
func deployFiles(t *testing.T, extensions ...string) map[string]string {
	t.Helper()
	files := map[string]string{}
	walkRepository(t, func(name string, d fs.DirEntry) {
		if strings.HasPrefix(name, "deploy/") && !d.IsDir() && slices.Contains(extensions, path.Ext(name)) {
			files[name] = readDocument(t, name)
		}
	})
	return files
}

// A grace is the time that a service manager gives a process of millrace to stop.
type grace struct {
	of   string        // the service in the file
	time time.Duration // 0: none is set
}

// unitGraces returns the grace of a unit that runs millrace.
func unitGraces(text string) ([]grace, error) {
	values := unit(text)
	if !slices.ContainsFunc(values["ExecStart"], runsRoles) {
		return nil, nil
	}
	g := grace{of: "the unit"}
	var err error
	if set := values["TimeoutStopSec"]; len(set) > 0 {
		g.time, err = time.ParseDuration(strings.Replace(set[len(set)-1], "min", "m", 1))
	}
	return []grace{g}, err
}

// composeGraces returns the graces of the services that run roles.
func composeGraces(text string) ([]grace, error) {
	var file struct {
		Services map[string]struct {
			Command any
			Grace   string `yaml:"stop_grace_period"`
		}
	}
	// A key beside a merge that has it too is no duplicate: it wins.
	if err := yaml.UnmarshalWithOptions([]byte(text), &file, yaml.AllowDuplicateMapKey()); err != nil {
		return nil, err
	}
	var all []grace
	for name, s := range file.Services {
		if words, ok := s.Command.([]any); ok {
			s.Command = strings.Trim(fmt.Sprint(words), "[]")
		}
		if command, ok := s.Command.(string); ok && runsRoles("millrace "+command) {
			g := grace{of: name}
			if s.Grace != "" {
				var err error
				if g.time, err = time.ParseDuration(s.Grace); err != nil {
					return nil, err
				}
			}
			all = append(all, g)
		}
	}
	return all, nil
}

// runsRoles reports whether a command runs roles.
func runsRoles(command string) bool {
	words := strings.Fields(command)
	i := slices.IndexFunc(words, func(w string) bool { return w == "run" || w == "standalone" })
	return i > 0 && path.Base(words[i-1]) == "millrace"
}

// unit returns the values of each key of a unit, in order.
func unit(text string) map[string][]string {
	values := map[string][]string{}
	for _, line := range strings.Split(text, "\n") {
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			values[key] = append(values[key], value)
		}
	}
	return values
}

// graceFault returns what is wrong with a grace: it must be above the drain and what a stop takes besides, or the
// process is killed while it stops. The file must say which setting it follows.
func graceFault(g grace, text string) string {
	const margin = 10 * time.Second
	if least := config.Default().Roles.Drain + app.StopGrace + margin; g.time < least {
		return fmt.Sprintf("%s has %v to stop, want at least %v: roles.drain, app.StopGrace and a margin",
			g.of, g.time, least)
	}
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "#") && strings.Contains(line, "roles.drain") {
			return ""
		}
	}
	return "no comment says what to change when roles.drain is changed"
}

// Each grace period in deploy is above the time that a process of millrace takes to stop.
func TestGracePeriods(t *testing.T) {
	for name, kind := range map[string]struct {
		extensions []string
		graces     func(text string) ([]grace, error)
	}{
		"systemd": {[]string{".service"}, unitGraces},
		"compose": {[]string{".yaml", ".yml"}, composeGraces},
	} {
		found := 0
		files := deployFiles(t, kind.extensions...)
		for file, text := range files {
			all, err := kind.graces(text)
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
			found += len(all)
			for _, g := range all {
				if fault := graceFault(g, text); fault != "" {
					t.Errorf("%s: %s", file, fault)
				}
			}
		}
		_, err := os.Stat(filepath.Join(root, "deploy", "compose.yaml"))
		if found == 0 && (name != "compose" || err == nil) {
			t.Errorf("%s: no process of millrace in %d files below deploy", name, len(files))
		}
	}
}

func TestGraceFault(t *testing.T) {
	const comment = "# above roles.drain\n"
	for name, tt := range map[string]struct {
		graces func(string) ([]grace, error)
		text   string
		faults int
	}{
		"unit":                {unitGraces, comment + "ExecStart=/usr/bin/millrace run\nTimeoutStopSec=2min\n", 0},
		"unit, seconds":       {unitGraces, comment + "ExecStart=/usr/bin/millrace run\nTimeoutStopSec=90s\n", 0},
		"unit, too short":     {unitGraces, comment + "ExecStart=/usr/bin/millrace run\nTimeoutStopSec=75s\n", 1},
		"unit without one":    {unitGraces, comment + "ExecStart=/usr/bin/millrace run\n", 1},
		"unit, no comment":    {unitGraces, "ExecStart=/usr/bin/millrace run\nTimeoutStopSec=2min\n", 1},
		"unit of another":     {unitGraces, "ExecStart=/usr/bin/kafka run\n", 0},
		"compose":             {composeGraces, comment + "services: {a: {command: [run, x], stop_grace_period: 90s}}", 0},
		"compose, a string":   {composeGraces, comment + "services: {a: {command: run x, stop_grace_period: 1m20s}}", 1},
		"compose, whole":      {composeGraces, comment + "services: {a: {command: millrace standalone}}", 1},
		"compose without one": {composeGraces, comment + "services: {a: {command: [run]}, b: {command: [store, init]}}", 1},
		"compose of another":  {composeGraces, "services: {a: {image: kafka}}", 0},
		"compose with anchors": {composeGraces, comment + "x: &x {stop_grace_period: 5s}\n" +
			"services:\n  a: {<<: *x, command: [run]}\n" +
			"  b: {<<: *x, command: [run], stop_grace_period: 90s}", 1},
		"a policy, not compose": {composeGraces, "defaultPolicies: [{srcStoreId: 1}]", 0},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := tt.graces(tt.text)
			must(t, err)
			var faults []string
			for _, g := range all {
				if fault := graceFault(g, tt.text); fault != "" {
					faults = append(faults, fault)
				}
			}
			if len(faults) != tt.faults {
				t.Errorf("got %q, want %d", faults, tt.faults)
			}
		})
	}
}

const roleUnit = "deploy/systemd/millrace@.service"

// The unit fits the program: its exit codes, its notices and its largest drain.
func TestUnit(t *testing.T) {
	values := unit(readDocument(t, roleUnit))
	for key, want := range map[string]string{
		"Type":                     "notify",
		"ExecStart":                "/usr/bin/millrace run --config /etc/millrace/millrace.yaml --roles %I",
		"User":                     "millrace",
		"Restart":                  "on-failure",
		"RestartPreventExitStatus": "2", // usage; a precondition may be met at any time
		"Environment":              "GOTRACEBACK=crash",
		"LimitCORE":                "0",
		"StartLimitIntervalSec":    "0",
		"WatchdogSec":              "1min",
		"ProtectSystem":            "strict",
		"StateDirectory":           "millrace",
		"EnvironmentFile":          "-/etc/millrace/environment",
		"SystemCallFilter":         "@system-service cachestat, ~@privileged",
	} {
		if got := strings.Join(values[key], ", "); got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
	for _, key := range []string{"NotifyAccess", "ReadWritePaths"} { // main; a drop-in names them
		if values[key] != nil {
			t.Errorf("%s is set", key)
		}
	}
	graces, err := unitGraces(readDocument(t, roleUnit))
	if err != nil || len(graces) != 1 || graces[0].time <= config.MaxDrain+app.StopGrace {
		t.Errorf("it has %v to stop (%v), want more than the largest drain and %v", graces, err, app.StopGrace)
	}
}

// With the environment of the unit, the abort of the watchdog ends a Go program by a signal, and not with exit code 2,
// after which the unit would not be started again.
func TestWatchdogAborts(t *testing.T) {
	const child = "MILLRACE_TEST_ABORTED"
	if os.Getenv(child) != "" {
		fmt.Println("up")
		time.Sleep(time.Minute)
		return
	}
	set := unit(readDocument(t, roleUnit))["Environment"]
	for name, tt := range map[string]struct {
		env      []string
		signaled bool
	}{
		"as the unit":     {set, true},
		"without setting": {[]string{"GOTRACEBACK=single"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			// The soft limit keeps the abort from leaving a core file, as LimitCORE does.
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `ulimit -c 0; exec "$0" "$@"`, os.Args[0],
				"-test.run=^TestWatchdogAborts$")
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), append([]string{child + "=1"}, tt.env...)...)
			out, err := cmd.StdoutPipe()
			must(t, errors.Join(err, cmd.Start()))
			if _, err := io.ReadFull(out, make([]byte, len("up"))); err != nil {
				t.Error(err)
			}
			if err := cmd.Process.Signal(syscall.SIGABRT); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
			ended, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if ended.Signaled() != tt.signaled || !tt.signaled && ended.ExitStatus() != 2 {
				t.Errorf("it ended with %v", cmd.ProcessState)
			}
		})
	}
}

// systemd accepts the unit, and finds its sandbox good.
func TestUnitInSystemd(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		need.Missing(t, need.Program("systemd-analyze"), err)
	}
	file := filepath.Join(t.TempDir(), path.Base(roleUnit))
	text := strings.Replace(readDocument(t, roleUnit), "/usr/bin/millrace ", "/bin/true ", 1) // it must exist
	must(t, os.WriteFile(file, []byte(text), 0o644))
	for _, args := range [][]string{{"verify", "--man=no", file}, {"security", "--offline=true", "--threshold=30", file}} {
		out, err := exec.CommandContext(t.Context(), analyze, args...).CombinedOutput()
		if err != nil || args[0] == "verify" && strings.Contains(string(out), path.Base(roleUnit)) {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}

// The page about the supply chain names the version of libchdb that is loaded.
func TestLibraryInDocuments(t *testing.T) {
	pinned := regexp.MustCompile(`library(?:Package|Version) +=\s+"([^"]+)"`).FindAllStringSubmatch(
		readDocument(t, "sinks/clickhouse/embedded/fetch.go"), -1)
	if len(pinned) != 2 {
		t.Fatalf("got %q", pinned)
	}
	for _, p := range pinned {
		if !strings.Contains(readDocument(t, "docs/deploy/supply-chain.md"), p[1]) {
			t.Errorf("docs/deploy/supply-chain.md does not name %s", p[1])
		}
	}
}
