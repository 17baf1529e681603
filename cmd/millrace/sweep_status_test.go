package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/internal/need"
)

func TestProgressTable(t *testing.T) {
	at := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	split := func(state, space string, compared int64, share float64) app.SplitStatus {
		return app.SplitStatus{Sweep: "reconcile", Account: "acme", Store: "1", Space: space, State: state,
			Round: "r" + space, Started: at, Updated: at.Add(100 * time.Second), Compared: compared, Emitted: 2, Share: share,
			Bytes: 10 * compared, Next: at.Add(time.Hour)}
	}
	done, failed := split(app.SplitDone, "a", 9, -1), split(app.SplitFailed, "d", 100, 0.5)
	done.Finished = at
	failed.Failed, failed.Error = at.Add(time.Minute), "no answer"
	pair := split(app.SplitRunning, "e", 500, -1)
	pair.Sweep, pair.ByHand, pair.Destination, pair.Bytes, pair.Next = "duplication", true, "2", -1, time.Time{}
	done.Next = at.Add(30 * time.Minute)
	all := []app.SplitStatus{pair, {Sweep: "fixity", Account: "acme", Store: "1", State: app.SplitNever,
		Bytes: -1, Next: at.Add(2 * time.Hour)}, done,
		split(app.SplitRunning, "b", 1000, 0.25), split(app.SplitRunning, "c", 2000, 0.5), failed}
	for name, tc := range map[string]struct {
		all   []app.SplitStatus
		names []string
		want  string
	}{
		"all": {all, nil, `
duplication (by hand) all 1 running - 500 - 2 5/s - - - -
duplication (by hand) acme/1 to 2: e running re 500 - 2 5/s - - - -
fixity all 1 never - 0 - 0 - - - 2026-09-01T14:00:00Z -
reconcile all 1 done, 1 failed, 2 running - 3100 31000 6 30/s 37.8% - 2026-09-01T12:30:00Z no answer
reconcile acme/1: b running rb 1000 10000 2 10/s 25.0% 2026-09-01T12:06:40Z 2026-09-01T13:00:00Z -
reconcile acme/1: c running rc 2000 20000 2 20/s 50.0% 2026-09-01T12:03:20Z 2026-09-01T13:00:00Z -
reconcile acme/1: d failed rd 100 1000 2 1/s 50.0% - 2026-09-01T13:00:00Z no answer
`},
		"one, without failures": {all[:5], []string{"reconcile"}, `
reconcile all 1 done, 2 running - 3000 30000 4 30/s 37.5% 2026-09-01T12:06:40Z 2026-09-01T12:30:00Z -
reconcile acme/1: b running rb 1000 10000 2 10/s 25.0% 2026-09-01T12:06:40Z 2026-09-01T13:00:00Z -
reconcile acme/1: c running rc 2000 20000 2 20/s 50.0% 2026-09-01T12:03:20Z 2026-09-01T13:00:00Z -
`},
	} {
		var out bytes.Buffer
		sweeps := sweepStatesOf(tc.all, tc.names, at.Add(100*time.Second))
		must(t, printList(&out, &output{form: formTable}, progressLines(sweeps), progressTable()))
		got := "\n"
		for line := range strings.Lines(out.String()) {
			if line = strings.Join(strings.Fields(line), " "); !strings.HasPrefix(line, "SWEEP ") {
				got += line + "\n"
			}
		}
		if got != tc.want {
			t.Errorf("%s: got %swant %s", name, got, tc.want)
		}
	}
}

// The lists have the splits that had no round, the rounds by hand, and a store that does not answer.
func TestSweepLists(t *testing.T) {
	need.Full(t)
	k := newKept(t)
	stderr := new(bytes.Buffer)
	list := func(args ...string) (rows []map[string]any) {
		t.Helper()
		stderr.Reset()
		out := k.run(t.Context(), exitOK, stderr, append(args, "-o", "json")...)
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return rows
	}
	splits := func() (text string) {
		t.Helper()
		for _, r := range list("sweep", "list") {
			text += "\n" + sweepName(r["sweep"].(string), r["by_hand"].(bool))
			for _, key := range []string{"account", "store", "space", "destination", "state"} {
				text += " " + orDash(r[key].(string))
			}
			if (r["round"] == "") != (r["started"] == nil) || r["state"] == "done" && r["finished"] == nil {
				t.Errorf("got %v", r)
			}
		}
		return text
	}
	if got, want := splits(), `
fixity acme 1 maps - never
groups acme 1 maps - never
reconcile acme 1 maps - never
stats acme - - - never`; got != want {
		t.Errorf("at first: got %s\nwant %s", got, want)
	}
	k.run(t.Context(), exitOK, stderr, "sweep", "start", "reconcile", "--store", "1", "--wait")
	k.run(t.Context(), exitOK, stderr, "sweep", "pause", "fixity", "--reason", "test")
	must(t, os.Rename(k.path("2"), k.path("2")+".away"))
	if got, want := splits(), `
fixity acme 1 maps - paused
fixity acme 2 - - unknown
groups acme 1 maps - never
groups acme 2 - - unknown
reconcile acme 1 maps - never
reconcile acme 2 - - unknown
reconcile (by hand) acme 1 maps - done
stats acme - - - never`; got != want {
		t.Errorf("with a store away: got %s\nwant %s", got, want)
	}
	if !strings.Contains(stderr.String(), "store=2") {
		t.Errorf("it does not name the store: %s", stderr)
	}
	status := list("sweep", "status", "reconcile")
	if len(status) != 2 || status[1]["by_hand"] != true || len(status[1]["rounds"].([]any)) != 0 {
		t.Errorf("status: %v", status)
	}
	for _, args := range [][]string{{"sweep", "report", "reconcile", "--space", "maps"}, {"sweep", "report", "--all"},
		{"job", "list", "reconcile.demand"}, {"job", "history", "reconcile.demand/acme/1/maps", "--since", "1h"}} {
		rows := list(args...)
		if len(rows) != 1 || rows[0]["counts"].(map[string]any)["equal"] != float64(keptItems) {
			t.Errorf("%v: got %v", args, rows)
		}
	}
	k.run(t.Context(), exitOK, stderr, "sweep", "start", "stats", "--wait")
	rows := list("sweep", "report", "stats")
	for i, want := range []struct{ kind, store, count string }{
		{"stats", "1", "items"}, {"stats", "2", "items"}, {"stats/pair", "1", "destination_items"},
	} {
		if len(rows) != 3 || rows[i]["kind"] != want.kind || rows[i]["store"] != want.store || rows[i]["space"] != "maps" ||
			rows[i]["counts"].(map[string]any)[want.count] != float64(keptItems) {
			t.Fatalf("of the statistics: got %v", rows)
		}
	}
	if out := k.run(t.Context(), exitOK, stderr, "sweep", "skip", "reconcile", "--reason", "test"); !strings.Contains(out,
		"no such round is unfinished") {
		t.Errorf("skip printed %q", out)
	}
	for _, args := range [][]string{{"sweep", "report", "fixity"}, {"job", "history", "--since", "0s"}} {
		if rows := list(args...); len(rows) != 0 {
			t.Errorf("%v: got %v", args, rows)
		}
	}
}
