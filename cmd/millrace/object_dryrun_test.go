package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/need"
)

// A dry run reports what a copy would do, and does not do it.
func TestDryRunOfAnItem(t *testing.T) {
	need.Integration(t)
	k := newKept(t)
	quiet := new(bytes.Buffer)
	k.sweep(exitOK) // the copies of store 2 are made meanwhile
	dryRun := func() string {
		t.Helper()
		return k.run(t.Context(), exitOK, quiet, "object", "dry-run", "acme/maps/item-1", "--from", "1", "--to", "2", "-o",
			"ndjson")
	}
	if got := dryRun(); got != `{"row":"C2","would_be":"in-sync"}`+"\n" {
		t.Errorf("of a copy that is there: %s", got)
	}
	name := filepath.Join(k.path("2"), "maps", "item-1")
	must(t, os.Remove(name))
	if got := dryRun(); got != `{"row":"C5","would_be":"copied"}`+"\n" {
		t.Errorf("of a copy that is lost: %s", got)
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dry run copied: %v", err)
	}
	out := k.run(t.Context(), exitOK, quiet, "object", "show", "acme/maps/item-1")
	if !strings.Contains(out, "C5 dry-run would be copied") {
		t.Errorf("the history does not have the dry run: %s", out)
	}
	for _, args := range [][]string{{"acme/maps", "--from", "1", "--to", "2"}, {"acme/maps/item-1", "--from", "1"},
		{"acme/maps/item-1", "--from", "1", "--to", "1"}} {
		k.run(t.Context(), exitUsage, quiet, append([]string{"object", "dry-run"}, args...)...)
	}
	k.run(t.Context(), exitPrecondition, quiet, "object", "dry-run", "acme/maps/item-1", "--from", "1", "--to", "9")
}
