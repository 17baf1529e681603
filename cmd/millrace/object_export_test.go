package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/extract"
)

// The items of a state are exported and read, continued, and never written over a file.
func TestExportOfKept(t *testing.T) {
	need.Integration(t)
	k := newKept(t) // no role has published its policies yet
	dir, stderr := t.TempDir(), new(bytes.Buffer)
	export := func(ctx context.Context, code int) *app.ExportReport {
		t.Helper()
		var r app.ExportReport
		out := k.run(ctx, code, stderr, "object", "export", "acme/maps", filepath.Join(dir, "maps"), "--store", "1", "-o",
			"json")
		if err := json.Unmarshal([]byte(out), &r); err != nil || strings.Count(out, "\n") != 1 {
			t.Fatalf("want one line of JSON, got %v: %s", err, out)
		}
		return &r
	}
	ctx := t.Context()
	if r := export(ctx, exitOK); r.Exported != keptItems || r.Lacking != 0 || r.Source != "1" {
		t.Errorf("got %+v, want %d exported", r, keptItems)
	}
	if !strings.Contains(stderr.String(), `"step":"export (items)"`) {
		t.Errorf("it shows no progress: %s", stderr.String())
	}
	name := filepath.Join(dir, "maps", "item-1")
	must(t, errors.Join(os.WriteFile(name, []byte("mine"), 0o600), os.Remove(filepath.Join(dir, "maps", "item-0"))))
	if r := export(ctx, exitPartly); r.Exported != 1 || r.Present != keptItems-2 || r.Differ != 1 ||
		r.Items[0].Item != "item-1" {
		t.Errorf("again: got %+v", r)
	}
	must(t, os.WriteFile(filepath.Join(k.path("1"), "maps", "item-2"), []byte("damaged 2"), 0o600))
	stderr.Reset()
	if out := k.run(ctx, exitPartly, stderr, "object", "get", "acme/maps/item-2", "--store", "1"); out != "" ||
		!strings.Contains(stderr.String(), "store 1: mismatch (") {
		t.Errorf("a damaged item: got %q, %s", out, stderr.String())
	}
	stderr.Reset()
	out := k.run(ctx, exitOK, stderr, "object", "get", "acme/maps/item-3", "--store", "1")
	if out != "content 3" || stderr.Len() > 0 {
		t.Errorf("an item: got %q, %s", out, stderr.String())
	}
	one := filepath.Join(dir, "one")
	for _, want := range []string{"one: 9 bytes from store 1", "is there already"} {
		stderr.Reset()
		out := k.run(ctx, exitOK, stderr, "object", "get", "acme/maps/item-3", "--store", "1", "-o", one)
		if b, err := os.ReadFile(one); err != nil || string(b) != "content 3" || out != "" ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("into a file: got %q, %v, %q, %s", b, err, out, stderr.String())
		}
	}
	stderr.Reset()
	k.run(ctx, exitError, stderr, "object", "get", "acme/maps/item-4", "--store", "1", "-o", one)
	if !strings.Contains(stderr.String(), one+" is there with other bytes") {
		t.Errorf("over another file: %s", stderr.String())
	}
	k.run(ctx, exitPrecondition, stderr, "object", "get", "acme/maps/none", "--store", "1")
	k.run(ctx, exitPrecondition, stderr, "object", "export", "acme/map", dir, "--store", "1")
	k.run(ctx, exitPrecondition, stderr, "incident", "show", "acme/2/maps//deletes-held/brake-1") // nothing is held
	k.run(ctx, exitPrecondition, stderr, "incident", "show", "acme/2/maps//deletes-held/brake-77")
	k.run(ctx, exitPrecondition, stderr, "object", "export", "acme/maps", dir, "--store", "9")
}

func TestOutputFile(t *testing.T) {
	for name, tt := range map[string]struct {
		file, item string
		terminal   bool
		want       string
	}{
		"a pipe":            {"", "a/b", false, ""},
		"a terminal":        {"", "a/b", true, "b"},
		"one part":          {"", "b", true, "b"},
		"a file":            {"c/d", "a/b", false, "c/d"},
		"a terminal, asked": {"-", "a/b", true, ""},
		"no last part":      {"", "a/", true, "usage"},
		"a last part of ..": {"", "a/..", true, "usage"},
		"too long a part":   {"", strings.Repeat("a", 256), true, "usage"},
	} {
		got, err := outputFile(tt.file, tt.item, tt.terminal)
		if errors.Is(err, usage.Err) {
			got = "usage"
		}
		if got != tt.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, tt.want)
		}
	}
}

func TestPrintExport(t *testing.T) {
	r := &app.ExportReport{Source: "1", Exported: 2, Present: 3, Lacking: 1, Unnamed: 1, Bytes: 9, More: 4}
	r.Items = []app.ExportedItem{
		{Item: "a\n", Outcome: extract.Outcome{Result: extract.Exported, From: &extract.Place{Store: "2", Kept: "k"},
			Faults: []extract.Fault{{Place: extract.Place{Store: "1"}, State: extract.Absent}}}},
		{Item: "b", Outcome: extract.Outcome{Result: extract.Lacking, Detail: "none", Faults: []extract.Fault{
			{Place: extract.Place{Store: "1"}, State: extract.Unknown, Detail: "away"}}}},
	}
	want := `"a\n": exported from store 2, kept k; store 1: absent
"b": lacking: none; store 1: unknown (away)
and 4 more
content of store 1: 2 items exported (9 bytes), 3 present, 1 lacking, 0 differ, 1 unnamed
`
	var b bytes.Buffer
	if err := printExport(&b, r, &output{form: formText}); err != nil || b.String() != want {
		t.Errorf("got %v\n%swant\n%s", err, b.String(), want)
	}
}
