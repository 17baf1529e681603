package integration

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
)

// TestDemoKilled checks that a demo that is killed at random times ends like an uninterrupted one: the same manifest
// except for ids and times, no missing item, no duplicate row.
func TestDemoKilled(t *testing.T) {
	need.Full(t)
	demoKilled(t, need.Amount(3, 10, 30))
}

// demoKilled kills demos with the given arguments at random times, and then lets one finish.
func demoKilled(t *testing.T, kills int, args ...string) {
	t.Helper()
	dir := tree(t, 80)
	spared, killed := filepath.Join(t.TempDir(), "spared"), filepath.Join(t.TempDir(), "killed")
	begun := time.Now()
	code, s, stderr := demo(t, append(args, "--state", spared, dir)...)
	wantAll(t, code, s, stderr, 80)
	whole := time.Since(begun)

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d; a whole run took %v", seed, whole)
	random := rand.New(rand.NewPCG(seed, 0))
	for n := 0; n < kills; {
		after := 100*time.Millisecond + time.Duration(random.Int64N(int64(whole)/3))
		switch code := killAfter(t, after,
			append(append([]string{"demo", "-o", "json"}, args...), "--state", killed, dir)...); {
		case code < 0:
			n++
			t.Logf("kill %d after %v", n, after)
		case code == 0: // it ended before the kill: start over
			must(t, os.RemoveAll(killed))
		case code == 3 && redriveDead(t, killed):
		default:
			t.Fatalf("it was not killed and ended with exit code %d", code)
		}
	}
	code, s, stderr = demo(t, append(args, "--state", killed, dir)...)
	for code == 3 && redriveDead(t, killed) {
		code, s, stderr = demo(t, append(args, "--state", killed, dir)...)
	}
	wantAll(t, code, s, stderr, 80)

	want, got := manifestOf(t, spared), manifestOf(t, killed)
	for key, is := range got {
		if want[key] != is {
			t.Errorf("%s: %s, without kills: %s", key, is, want[key])
		}
	}
	for key := range want {
		if _, ok := got[key]; !ok {
			t.Errorf("%s is missing", key)
		}
	}
}

// redriveDead redrives messages that were blamed for the death of processes, and reports whether there were any. A
// message is blamed if three processes die while they handle it, even if it is not the cause.
func redriveDead(t *testing.T, dir string) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binaries(t), "dead", "redrive", "--state", dir,
		"--cause", "processes that died", "--reason", "the test killed them").CombinedOutput()
	if err != nil {
		t.Fatalf("redrive: %v: %s", err, out)
	}
	t.Logf("%s", out)
	return !strings.Contains(string(out), "redriven 0 ")
}

// killAfter runs the command and kills it. It returns -1, or the exit code if the command had already exited.
func killAfter(t *testing.T, after time.Duration, args ...string) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binaries(t), args...)
	must(t, cmd.Start())
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // it may have ended
	defer timer.Stop()
	_ = cmd.Wait() // ProcessState has the exit status
	return cmd.ProcessState.ExitCode()
}

// manifestOf returns the manifest of every copy, without ids and times. It fails the test if a view has duplicate rows.
func manifestOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	t.Setenv("PATH", filepath.Dir(binaries(t))+string(os.PathListSeparator)+os.Getenv("PATH"))
	log := slog.New(slog.DiscardHandler)
	state, err := statedir.Open(t.Context(), statedir.Config{
		Dir: dir, Log: log, Progress: t.Output(), WithoutBroker: true,
	})
	must(t, err)
	defer func() {
		if err := state.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	cfg, _, err := config.Load(config.Sources{File: statedir.ConfigFile(dir)})
	must(t, err)
	state.Configure(cfg)
	db, err := app.OpenDB(t.Context(), cfg, log)
	must(t, err)
	defer db.Close()
	rows, err := clickhousetest.Views(t.Context(), cfg.ClickHouse.Addresses[0], cfg.ClickHouse.Database)
	must(t, err)
	for view, n := range rows {
		if n.Rows != n.IDs {
			t.Errorf("%s: %d rows of %d messages", view, n.Rows, n.IDs)
		}
	}
	if len(rows) == 0 || rows["audit_log"].Rows == 0 {
		t.Errorf("no rows in the audit log: %v", rows)
	}
	all := map[string]string{}
	for _, store := range []string{"1", "2", "3"} {
		maps.Copy(all, live(t, db, store))
	}
	return all
}

func live(t *testing.T, db *clickhouse.DB, store string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := read.EachLive(context.WithoutCancel(t.Context()), db,
		schemas.Copy{Account: "acme", Store: store, Space: "files"},
		func(k schemas.KnownCopy) error {
			m := k.Record.GetManifest()
			found[k.String()] = fmt.Sprintf("%d bytes, sha256 %s, %s", m.GetSize(), m.GetDigests()[digest.SHA256],
				m.GetMediaType())
			return nil
		})
	must(t, err)
	return found
}
