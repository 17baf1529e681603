package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/inventory"
)

// An import that is stopped or fails reports its progress and how to continue.
func TestImportStopped(t *testing.T) {
	r := importReport{check: &inventory.Check{Rows: 50, Skipped: 2},
		done: inventory.Progress{Published: 9, Skipped: 1, Next: 11}}
	const want = "9 of 48 rows are published; the same command continues with --from 11"
	ctx, stop := context.WithCancel(t.Context())
	var out bytes.Buffer
	broker := errors.New("no broker")
	if err := new(importFlags).stoppedError(ctx, &out, r, broker); !errors.Is(err, broker) ||
		!strings.Contains(err.Error(), want) || exitCode(ctx, err) != exitError {
		t.Errorf("failed: %v", err)
	}
	stop()
	if err := new(importFlags).stoppedError(ctx, &out, r, ctx.Err()); exitCode(ctx, err) != exitInterrupted ||
		!strings.Contains(out.String(), "stopped: "+want) {
		t.Errorf("stopped: %v, %q", err, out.String())
	}
}

func TestImportDelimiter(t *testing.T) {
	for word, want := range map[string]rune{"": 0, "tab": '\t', ";": ';', "|": '|', "¦": '¦'} {
		if got, err := delimiter(word); got != want || err != nil {
			t.Errorf("%q: %q, %v", word, got, err)
		}
	}
	for _, word := range []string{"ab", `"`, "\n", "\xff"} {
		if got, err := delimiter(word); !errors.Is(err, usage.Err) {
			t.Errorf("%q: %q, %v", word, got, err)
		}
	}
}
