package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
)

// summary is the output of the demo with -o json.
type summary struct {
	OK       bool
	Items    int
	Adopted  int
	Missed   []string
	Skipped  []struct{ Path, Reason string }
	Findings []struct {
		Harm     string
		Store    string
		Expected int32 `json:"expected_row"`
		Row      int32
		Found    bool
		Repaired bool
	}
	Stores []struct {
		Store, Driver            string
		Items, Verified, Deleted int64
	}
	Rounds []struct {
		Name, Store, Result string
		Complete            bool
		Checked, Findings   int64
	}
}

// demo runs the command and returns its exit code, the summary in its last line, and stderr.
func demo(t *testing.T, args ...string) (int, summary, string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binaries(t), append([]string{"demo", "-o", "json"}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var s summary
	if lines := strings.Split(strings.TrimSpace(stdout.String()), "\n"); stdout.Len() > 0 {
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil {
			t.Fatalf("the last line of the demo is not JSON: %v\n%s", err, stdout.String())
		}
	}
	return cmd.ProcessState.ExitCode(), s, stderr.String()
}

// wantAll checks that the demo completed for the given number of items.
func wantAll(t *testing.T, code int, s summary, stderr string, items int) {
	t.Helper()
	if code != 0 || !s.OK {
		t.Fatalf("exit code %d, ok %v, missed %q\n%s", code, s.OK, s.Missed, stderr)
	}
	if s.Items != items || s.Adopted != 1 {
		t.Errorf("%d items and %d adopted, want %d and 1", s.Items, s.Adopted, items)
	}
	if len(s.Findings) != 5 || len(s.Stores) != 3 {
		t.Fatalf("%d findings of %d stores, want 5 of 3", len(s.Findings), len(s.Stores))
	}
	for i, row := range []int32{2, 2, 8, 13, 0} {
		if f := s.Findings[i]; f.Row != row || !f.Found || !f.Repaired {
			t.Errorf("finding %d: %+v, want row %d, found and repaired", i, f, row)
		}
	}
	wantRounds := map[string]bool{"sweep store 1/1": true, "sweep all stores/1": true, "sweep all stores/2": true,
		"sweep all stores/3": true, "check the adopted file/1": true}
	rounds := map[string]bool{}
	for _, r := range s.Rounds {
		rounds[r.Name+"/"+r.Store] = r.Complete
	}
	if !maps.Equal(rounds, wantRounds) || len(s.Rounds) != len(wantRounds) {
		t.Errorf("rounds with reports: %+v, want one of each of %v, complete", s.Rounds, wantRounds)
	}
	for _, st := range s.Stores {
		// One was deleted, and one adopted.
		if st.Items != int64(items) || st.Verified != int64(items) || st.Deleted != 1 {
			t.Errorf("store %s: %+v, want %d items and as many verified, 1 deleted", st.Store, st, items)
		}
	}
}

func TestDemo(t *testing.T) {
	dir := tree(t, 60)
	must(t, os.Symlink("a/b", filepath.Join(dir, "link")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "not-\xff-utf8"), []byte("x"), 0o644))
	code, s, stderr := demo(t, dir)
	wantAll(t, code, s, stderr, 60)
	if len(s.Skipped) != 3 {
		t.Errorf("skipped %+v, want the link, the fifo and the name that is not UTF-8", s.Skipped)
	}
	for _, r := range s.Rounds {
		want, checked, findings := "success", int64(59), int64(0) // one of 60 was deleted
		switch {
		case r.Name == "sweep store 1":
			checked = 60
		case r.Name == "check the adopted file":
			checked = 1
		case r.Store != "1":
			want, findings = "findings", 2
		}
		if r.Result != want || r.Checked != checked || r.Findings != findings {
			t.Errorf("round %+v, want %s with %d checked copies and %d findings", r, want, checked, findings)
		}
	}
}

// TestDemoKept runs the commands that ask a kept demo about its checks: what they print is about all that the demo, and
// the commands before, have checked.
func TestDemoKept(t *testing.T) {
	need.Integration(t)
	state := filepath.Join(t.TempDir(), "kept")
	code, s, stderr := demo(t, "--keep", "--state", state, tree(t, 60))
	wantAll(t, code, s, stderr, 60)
	var checked struct{ Checked, Unanswered int }
	var prefixed struct {
		Checked int
		Rounds  []struct{ Round string }
	}
	kept(t, state, &checked, "fixity", "check", "--wait", "acme")
	kept(t, state, &prefixed, "fixity", "check", "--wait", "acme/2/files/a/")
	if checked.Checked != 180 || checked.Unanswered != 0 || prefixed.Checked != 1 || len(prefixed.Rounds) != 1 {
		t.Errorf("checked %+v and %+v, want 180 copies, and one of the prefix", checked, prefixed)
	}

	var rounds, all []struct {
		Round, Store, Result string
		Complete, Part       bool
		Comparison           *struct{ Extra int }
	}
	kept(t, state, &rounds, "fixity", "rounds")
	kept(t, state, &all, "fixity", "rounds", "--all")
	if len(rounds) != 3 || len(all) != 5+3+1 || !all[0].Part || all[0].Round != prefixed.Rounds[0].Round {
		t.Errorf("the newest rounds %+v, want one of each store; all %+v, want those of the demo and of the checks", rounds,
			all)
	}
	for _, r := range rounds {
		if r.Result != "success" || r.Part || (r.Comparison != nil) != (r.Store == "1") {
			t.Errorf("round %+v, want a success, compared with the listing in store 1, where the demo adopts a file", r)
		}
	}
	for _, r := range all {
		if !r.Complete {
			t.Errorf("round %+v has not ended with all results", r)
		}
	}

	lines := strings.Split(strings.TrimSuffix(output(t, state, "fixity", "report", "-o", "tsv"), "\n"), "\n")
	if len(lines) != 1+180 {
		t.Errorf("%d lines, want a header and a line for each of 180 copies", len(lines))
	}
	for _, line := range lines {
		if n := strings.Count(line, "\t") + 1; n != 11 {
			t.Errorf("%d columns, want 11: %q", n, line)
		}
	}
	type status struct {
		Share float64 `json:"verified_share"`
	}
	var spaces []status
	kept(t, state, &spaces, "fixity", "status")
	if !slices.Equal(spaces, []status{{1}, {1}, {1}}) {
		t.Errorf("status %+v, want all copies verified in three stores", spaces)
	}
}

// kept runs a command over a kept state, and reads its JSON.
func kept(t *testing.T, state string, into any, args ...string) {
	t.Helper()
	out := output(t, state, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

// output runs a command over a kept state, and returns what it prints.
func output(t *testing.T, state string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binaries(t), append(args, "--state", state)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, stderr.String())
	}
	return string(out)
}

// TestDemoInterrupted checks that an interrupted demo stops soon, and that the same command continues it.
func TestDemoInterrupted(t *testing.T) {
	need.Integration(t)
	dir, state := tree(t, 60), filepath.Join(t.TempDir(), "state")
	cmd := exec.CommandContext(t.Context(), binaries(t), "demo", "-o", "json", "--state", state, dir)
	stderr, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	stopAt(t, cmd, stderr, `"step":"write to store 1"`)
	begun := time.Now()
	err = cmd.Wait()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v to stop", took)
	}
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d (%v), want 130", code, err)
	}
	code, s, out := demo(t, "--state", state, dir)
	wantAll(t, code, s, out, 60)
}

// stopAt interrupts the process when it has printed a line that contains mark.
func stopAt(t *testing.T, cmd *exec.Cmd, out interface{ Read([]byte) (int, error) }, mark string) {
	t.Helper()
	var seen []byte
	buf := make([]byte, 4096)
	sent := false
	for {
		n, err := out.Read(buf)
		seen = append(seen, buf[:n]...)
		if !sent && bytes.Contains(seen, []byte(mark)) {
			sent = true
			must(t, cmd.Process.Signal(os.Interrupt))
		}
		if err != nil {
			break
		}
	}
	if !sent {
		t.Fatalf("no %s in:\n%s", mark, seen)
	}
}
