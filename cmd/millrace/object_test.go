package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/restore"
)

func TestRestoreRequest(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	why := restoreFlags{reason: "ransom"}
	for name, tt := range map[string]struct {
		arg  string
		edit func(*restoreFlags)
		want string // space, item, prefix, time; or the fault
	}{
		"a deleted item": {"acme/s/a/b", func(*restoreFlags) {}, "s a/b false -"},
		"odd ids":        {"acme/s//../%2F/é", func(*restoreFlags) {}, "s /../%2F/é false -"},
		"at a time": {"acme/s/a", func(f *restoreFlags) { f.at = "2026-02-01T00:00:00+01:00" },
			"s a false 2026-01-31T23:00:00Z"},
		"at a day":    {"acme/s/a", func(f *restoreFlags) { f.at = "2026-02-01" }, "s a false 2026-02-01T00:00:00Z"},
		"a while ago": {"acme/s/a", func(f *restoreFlags) { f.at = "2h" }, "s a false 2026-03-01T10:00:00Z"},
		"a version":   {"acme/s/a", func(f *restoreFlags) { f.version = "v1" }, "s a false -"},
		"a prefix": {"acme/s/a", func(f *restoreFlags) { f.prefix, f.at = true, "1h" },
			"s a true 2026-03-01T11:00:00Z"},
		"a space": {"acme/s", func(f *restoreFlags) { f.prefix, f.at = true, "1h" },
			"s  true 2026-03-01T11:00:00Z"},
		"a space with a slash": {"acme/s/", func(f *restoreFlags) { f.prefix, f.at = true, "1h" },
			"s  true 2026-03-01T11:00:00Z"},
		"a dry run":              {"acme/s/a", func(f *restoreFlags) { f.dryRun, f.reason = true, "" }, "s a false -"},
		"no item":                {"acme/s/", func(*restoreFlags) {}, "is not ACCOUNT/SPACE/ITEM"},
		"an id that is too long": {"acme/s/" + strings.Repeat("a", 1025), func(*restoreFlags) {}, "1025"},
		"no reason":              {"acme/s/a", func(f *restoreFlags) { f.reason = "" }, "--reason is missing"},
		"no time":                {"acme/s/a", func(f *restoreFlags) { f.at = "yesterday" }, "is not a time"},
		"the future":             {"acme/s/a", func(f *restoreFlags) { f.at = "2026-03-02" }, "in the future"},
		"time and version":       {"acme/s/a", func(f *restoreFlags) { f.at, f.version = "1h", "v" }, "exclude each other"},
		"a prefix without time":  {"acme/s/a", func(f *restoreFlags) { f.prefix = true }, "--prefix needs --at"},
		"waiting for nothing":    {"acme/s/a", func(f *restoreFlags) { f.dryRun, f.wait = true, true }, "exclude each other"},
	} {
		t.Run(name, func(t *testing.T) {
			f := why
			tt.edit(&f)
			r, err := f.request(tt.arg, now)
			if err != nil {
				if !errors.Is(err, usage.Err) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want a usage error with %q", err, tt.want)
				}
				return
			}
			at := "-"
			if !r.At.IsZero() {
				at = r.At.UTC().Format(time.RFC3339)
			}
			if got := fmt.Sprint(r.Space, " ", r.Item, " ", r.Prefix, " ", at); got != tt.want || r.By.Reason != f.reason {
				t.Errorf("got %q, %+v, want %q", got, r, tt.want)
			}
		})
	}
}

func TestRestoreResult(t *testing.T) {
	report := app.RestoreReport{Source: "1", Stores: []string{"1", "2"}, Items: 2,
		Copies: map[restore.Verdict]int64{restore.Ordered: 1, restore.Already: 3}}
	failed := []read.FailedRestoration{{Item: "a", Store: "2", Result: "restore-failed", Detail: "no good bytes"}}
	for name, tt := range map[string]struct {
		edit func(*restoreResult)
		want error
		text string
	}{
		"fine": {func(*restoreResult) {}, nil,
			"2 items, content of store 1, for store 1, store 2\n3 copies: already\n1 copies: ordered\n"},
		"a copy without bytes": {func(r *restoreResult) {
			r.Copies = map[restore.Verdict]int64{restore.NoBytes: 1}
			r.Choices = []restore.Choice{{Item: "a", Store: "2", Verdict: restore.NoBytes, Detail: "none"}}
		}, errPartly, "1 copies: no-bytes\nstore 2, \"a\": no-bytes: none\n"},
		"an order that failed": {func(r *restoreResult) {
			r.Outcome = &app.RestoreOutcome{Results: map[string]int64{"restore-failed": 1}, Failed: failed}
		}, errFindings, "1 orders: restore-failed\nstore 2, \"a\": restore-failed: no good bytes\n"},
		"a dry run": {func(r *restoreResult) { r.DryRun = true }, nil, "1 copies: would be ordered\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := restoreResult{RestoreReport: report}
			tt.edit(&r)
			var b bytes.Buffer
			f := &restoreFlags{dryRun: r.DryRun, output: &output{form: formText}}
			if err := r.print(&b, f); err != nil || !strings.Contains(b.String(), tt.text) {
				t.Errorf("got %q, %v, want %q", b.String(), err, tt.text)
			}
			if err := r.verdict(); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// A restore into a source that takes nothing is refused, and so is its dry run: both say why, and what to do.
func TestRefusedRestore(t *testing.T) {
	need.Integration(t)
	k := newKept(t)
	quiet := new(bytes.Buffer)
	k.sweep(exitOK) // the copies of store 2 are made meanwhile
	before := time.Now().UTC().Format(time.RFC3339Nano)
	must(t, os.Remove(filepath.Join(k.path("1"), "maps", "item-1")))
	account := filepath.Join(t.TempDir(), "acme.yaml")
	must(t, os.WriteFile(account, fmt.Appendf(nil, "id: acme\nstores:\n"+
		"  - {id: '1', root: %s, primary: true, repair: 'off'}\n  - {id: '2', root: %s}\n", k.path("1"), k.path("2")), 0o600))
	k.run(t.Context(), exitOK, quiet, "account", "set", account, "--reason", "test")
	args := []string{"object", "restore", "acme/maps/", "--prefix", "--at", before}
	for name, flags := range map[string][]string{"a dry run": {"--dry-run"}, "a restore": {"--wait", "--reason", "test"}} {
		said := new(bytes.Buffer)
		out := k.run(t.Context(), exitPrecondition, said, append(args, flags...)...)
		for _, text := range []string{`nothing is restored: store 1: it has repair: off: "item-1": `,
			`'millrace object export "acme/maps/" DIR --at ` + before + "' writes it to a directory"} {
			if !strings.Contains(said.String(), text) {
				t.Errorf("%s: got %q, want %q", name, said.String(), text)
			}
		}
		if strings.Contains(out, "1 copies: refused") != (name == "a dry run") {
			t.Errorf("%s: printed %q", name, out)
		}
	}
}
