package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/app"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/kafka/deadletter"
)

// leaves returns the commands without subcommands, with their arguments.
func leaves(c *cobra.Command) map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	for _, sub := range c.Commands() {
		if sub.Runnable() && !(sub.HasSubCommands() && sub.Flags().Lookup("state") == nil) && !sub.Hidden {
			all[strings.TrimPrefix(sub.CommandPath(), "millrace ")] = sub
		}
		for words, leaf := range leaves(sub) {
			all[words] = leaf
		}
	}
	return all
}

// Every command that prints a list or a document has -o, and refuses other forms with exit code 2;
// the commands without -o are listed here. Lists have the forms table, json and ndjson.
func TestEveryListHasForms(t *testing.T) {
	lists := []string{"store list", "store check", "dead list", "dead redrive", "dead discard", "incident list",
		"incident show", "incident check", "object show", "object versions", "object dry-run", "space list", "space show",
		"policy list", "policy history", "policy plan", "policy unmanaged", "account list", "account history",
		"pause", "pause list", "sweep list", "sweep status", "sweep report", "job list", "job history", "schedule list",
		"fixity status", "fixity overdue", "fixity rounds"}
	documents := []string{"demo", "dead show", "store probe", "outbox check", "outbox salvage", "import",
		"verify", "rebuild", "sweep start", "fixity check", "fixity import", "fixity analysis", "status", "migrate", "health",
		"policy show", "policy set", "policy remove", "policy import", "object restore", "object delete",
		"object export", "account show", "account set", "account remove", "audit export"}
	none := []string{"standalone", "run", "version", "config check", "config print", "incident approve", "incident accept",
		"incident refuse", "incident close",
		"space back", "space gone", "store init", "workers", "sweep pause", "sweep resume", "sweep skip",
		"job start", "job pause", "job resume", "schedule set", "schedule reset",
		"policy check", "policy diff", "account diff", "import-config"}
	for words, c := range leaves(newRoot()) {
		if noun, _, _ := strings.Cut(words, " "); noun == "bench" || noun == "resume" ||
			noun == "pause" && !slices.Contains(lists, words) || words == "object get" { // its -o is a file
			continue
		}
		var forms []string
		if f := c.Flags().Lookup("output"); f != nil {
			o, ok := f.Value.(*output)
			if !ok || f.Shorthand != "o" {
				t.Errorf("%s: -o is not an output", words)
				continue
			}
			forms = o.forms
		}
		switch {
		case slices.Contains(lists, words):
			if want := []string{formTable, formJSON, formNDJSON}; !slices.Equal(forms, want) {
				t.Errorf("%s: it has the forms %q, want %q", words, forms, want)
			}
		case slices.Contains(documents, words):
			if len(forms) != 2 || forms[1] != formJSON {
				t.Errorf("%s: it has the forms %q, want one for a terminal, and json", words, forms)
			}
		case words == "fixity report":
			if want := []string{formJSON, "csv", "tsv", "html"}; !slices.Equal(forms, want) {
				t.Errorf("%s: it has the forms %q, want %q", words, forms, want)
			}
		case !slices.Contains(none, words) || forms != nil:
			t.Errorf("%s: it has the forms %q; name it here as a list, a document, or neither", words, forms)
		}
		if forms == nil {
			continue
		}
		var out, stderr bytes.Buffer
		code := run(t.Context(), append(strings.Fields(words), "-o", "xml"), &out, &stderr)
		want := (&output{forms: forms}).choices() + `, not "xml"`
		if code != exitUsage || !strings.Contains(stderr.String(), want) || out.Len() > 0 {
			t.Errorf("%s -o xml: exit code %d, %q, want %d and %q", words, code, stderr.String(), exitUsage, want)
		}
	}
}

// printed prints n rows of each list in a form.
func printed(t *testing.T, n int) map[string]func(io.Writer, *output) error {
	t.Helper()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var (
		stores    []app.StoreInfo
		abilities []app.Capability
		incidents []incidentRow
		pauses    []pauseRow
		events    []read.Event
		causes    []*causeRow
		letters   []letterRow
		policies  []policyRow
		revisions []revisionRow
		splits    []splitRow
		reports   []read.RoundReport
		jobs      []read.Iteration
	)
	for i := range n {
		name := fmt.Sprintf("%d\x1b[31m\nx", i) // what others chose
		stores = append(stores, app.StoreInfo{Account: "a", Store: name, State: app.StoreOK})
		abilities = append(abilities, app.Capability{Name: name, Value: "yes"})
		incidents = append(incidents, incidentOf(&pb.Incident{Account: "a", Item: name, Opened: timestamppb.New(at)}))
		pauses = append(pauses, pauseOf(&pb.Control{Account: name, Paused: true, Reason: name}))
		events = append(events, read.Event{Time: at, Kind: "change", What: name})
		causes = append(causes, &causeRow{deadCause: deadCause{Error: name}, Open: 1, First: at, Last: at})
		letters = append(letters, rowOf(&deadletter.Letter{ID: name, Time: at, Error: name}))
		policies = append(policies, policyRowOf(app.PolicyInfo{Account: "a", Fault: errors.New(name)}))
		splits = append(splits, splitRowOf(app.SplitStatus{Account: "a", Space: name, Started: at, Error: name}))
		reports = append(reports, read.RoundReport{Account: "a", Space: name, Detail: name})
		jobs = append(jobs, read.Iteration{Name: name, Counts: map[string]int64{name: 1}})
		revisions = append(revisions, revisionRow{Revision: 1, Time: at, By: name, Location: name, Reason: name})
	}
	return map[string]func(io.Writer, *output) error{
		"stores":    func(w io.Writer, o *output) error { return showStores(w, o, stores) },
		"abilities": func(w io.Writer, o *output) error { return printList(w, o, abilities, abilityTable()) },
		"incidents": func(w io.Writer, o *output) error { return printList(w, o, incidents, incidentTable()) },
		"pauses":    func(w io.Writer, o *output) error { return printList(w, o, pauses, pauseTable()) },
		"events":    func(w io.Writer, o *output) error { return printList(w, o, events, eventTable()) },
		"causes":    func(w io.Writer, o *output) error { return printList(w, o, causes, causeTable()) },
		"letters":   func(w io.Writer, o *output) error { return printList(w, o, letters, letterTable()) },
		"policies":  func(w io.Writer, o *output) error { return printList(w, o, policies, policyTable()) },
		"splits":    func(w io.Writer, o *output) error { return printList(w, o, splits, splitTable()) },
		"reports":   func(w io.Writer, o *output) error { return printList(w, o, reports, reportTable()) },
		"jobs":      func(w io.Writer, o *output) error { return printList(w, o, jobs, jobTable()) },
		"revisions": func(w io.Writer, o *output) error { return printList(w, o, revisions, revisionTable()) },
	}
}

// A list is one array as json, [] if it is empty; one object per line as ndjson; and a header and a
// line per row as table, whatever the names contain.
func TestFormsOfLists(t *testing.T) {
	for _, n := range []int{0, 1, 3} {
		for name, list := range printed(t, n) {
			text := func(form string) string {
				var out bytes.Buffer
				if err := list(&out, &output{form: form}); err != nil {
					t.Fatalf("%d %s as %s: %v", n, name, form, err)
				}
				return out.String()
			}
			var array []map[string]any
			if got := text(formJSON); json.Unmarshal([]byte(got), &array) != nil || array == nil || len(array) != n {
				t.Errorf("%d %s as json: %q", n, name, got)
			}
			objects := 0
			for line := range strings.Lines(text(formNDJSON)) {
				var object map[string]any
				if err := json.Unmarshal([]byte(line), &object); err != nil || fmt.Sprint(object) != fmt.Sprint(array[objects]) {
					t.Errorf("%d %s as ndjson: line %q: %v, want %v", n, name, line, err, array[objects])
				}
				objects++
			}
			if objects != n {
				t.Errorf("%d %s as ndjson: %d lines", n, name, objects)
			}
			got := text(formTable)
			if strings.Count(got, "\n") != n+1 || strings.ContainsRune(got, '\x1b') {
				t.Errorf("%d %s as a table: %q", n, name, got)
			}
		}
	}
}
