package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
)

// Waiting for a repair ends when the incident is closed, and when the steward has accepted the
// approval and no repair is running.
func TestRepairEnded(t *testing.T) {
	const (
		waiting   = pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
		repairing = pb.IncidentState_INCIDENT_STATE_REPAIRING
		open      = pb.IncidentState_INCIDENT_STATE_OPEN
	)
	step := func(action, ref, detail string) *pb.IncidentStep {
		return &pb.IncidentStep{Action: action, Ref: ref, Detail: detail}
	}
	incident := func(id string, state pb.IncidentState, steps ...*pb.IncidentStep) *pb.Incident {
		return &pb.Incident{Id: id, State: state, Steps: append([]*pb.IncidentStep{step("opened", "c1", "")}, steps...)}
	}
	approved, ordered := step("approved", "a", "go on"), step("repair-ordered", "a", "2")
	for name, tt := range map[string]struct {
		before, now *pb.Incident
		over        bool
		open        string
	}{
		"closed":        {incident("i", waiting), nil, true, ""},
		"another one":   {incident("i", waiting), incident("j", waiting), true, ""},
		"not taken yet": {incident("i", waiting), incident("i", waiting), false, ""},
		"seen again":    {incident("i", open), incident("i", open, step("seen-again", "c2", "")), false, ""},
		"under way":     {incident("i", waiting), incident("i", repairing, approved, ordered), false, ""},
		"no good copy": {incident("i", waiting), incident("i", open, approved, step("no-good-copy", "a", "")), true,
			"no-good-copy"},
		"no digests": {incident("i", open), incident("i", open, approved, step("no-verified-digests", "a", "")),
			true, "no-verified-digests"},
		"failed": {incident("i", waiting),
			incident("i", open, approved, ordered,
				step("repair-failed", "r", "no space left")), true, "repair-failed: no space left"},
		"did not help": {incident("i", waiting),
			incident("i", waiting, approved, ordered, step("repaired", "r", ""),
				step("approval-asked", "c2", "")), true, "approval-asked"},
		"accepting": {incident("i", open), incident("i", repairing, step("accept-ordered", "a", "")), false, ""},
		"recorded": {incident("i", open), incident("i", repairing, step("accept-ordered", "a", ""),
			step("corrected", "c2", "change")), false, ""},
		"not accepted": {incident("i", open), incident("i", open, step("accept-ordered", "a", ""),
			step("seen-again", "c2", ""), step("accept-refused", "c2", "unread")), true, "accept-refused: unread"},
		"is ignored": {incident("i", repairing), incident("i", repairing), false, ""},
		"was ignored": {incident("i", repairing), incident("i", open, step("repair-failed", "r", "")), true,
			"repair-failed"},
		"outdated": {incident("i", open), incident("i", open, step("decision-outdated", "a", "decide again"),
			step("seen-again", "", "3 copies are missing")), true, "decision-outdated: decide again"},
		"repaired, unproved": {incident("i", waiting),
			incident("i", repairing, approved, ordered, step("repaired", "r", "")), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			over, open := repairEnded(tt.now, tt.before, "a")
			if over != tt.over || open != tt.open {
				t.Errorf("got %t, %q, want %t, %q", over, open, tt.over, tt.open)
			}
		})
	}
}

// Waiting for a list ends when its items have results, not when its incident is closed: it may have been closed before.
func TestListEnded(t *testing.T) {
	ordered, p := "deletes-ordered", func(items, ended uint64) read.ListProgress {
		return read.ListProgress{Items: items, Ended: ended}
	}
	for name, tt := range map[string]struct {
		result   string
		progress read.ListProgress
		want     bool
	}{
		"approved after it was closed": {"", p(3, 0), false},
		"ordered after it was closed":  {ordered, p(3, 0), false},
		"some have ended":              {ordered, p(3, 2), false},
		"all have ended":               {ordered, p(3, 3), true},
		"ended, and still ordering":    {"", p(3, 3), false},
		"all is over":                  {ordered, p(0, 0), true},
	} {
		l := listEnd{read.DecisionResult{Result: tt.result}, tt.progress}
		if got := l.isOver(); got != tt.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// The flags of incident list become a selection, or a usage error.
func TestIncidentSelection(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	of := schemas.Copy{Account: "acme", Store: "2", Space: "photos"}
	for name, tt := range map[string]struct {
		flags incidentFilter
		want  read.IncidentSelection
		wrong bool
	}{
		"none":    {},
		"a space": {flags: incidentFilter{of: of}, want: read.IncidentSelection{Of: of}},
		"kinds": {flags: incidentFilter{kinds: []string{"replaced", "no-quorum"}},
			want: read.IncidentSelection{Kinds: []string{"replaced", "no-quorum"}}},
		"all": {flags: incidentFilter{all: true}, want: read.IncidentSelection{Closed: true}},
		"since": {flags: incidentFilter{since: "2026-03-01"},
			want: read.IncidentSelection{Since: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}},
		"older than": {flags: incidentFilter{olderThan: "7d"}, want: read.IncidentSelection{Before: now.AddDate(0, 0, -7)}},
		"a range": {flags: incidentFilter{since: "9d", olderThan: "7d"},
			want: read.IncidentSelection{Since: now.AddDate(0, 0, -9), Before: now.AddDate(0, 0, -7)}},
		"no duration":        {flags: incidentFilter{olderThan: "2026-03-01"}, wrong: true},
		"a negative age":     {flags: incidentFilter{olderThan: "-7d"}, wrong: true},
		"no time":            {flags: incidentFilter{since: "yesterday"}, wrong: true},
		"pending":            {flags: incidentFilter{of: of, pending: true}, want: read.IncidentSelection{Of: of}},
		"pending, all":       {flags: incidentFilter{pending: true, all: true}, wrong: true},
		"pending, of a kind": {flags: incidentFilter{pending: true, kinds: []string{"replaced"}}, wrong: true},
		"pending, since":     {flags: incidentFilter{pending: true, since: "7d"}, wrong: true},
		"groups":             {flags: incidentFilter{of: of, groups: true}, want: read.IncidentSelection{Of: of}},
		"groups, all":        {flags: incidentFilter{groups: true, all: true}, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tt.flags.selection(now)
			if errors.Is(err, usage.Err) != tt.wrong || !tt.wrong && !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

// A program that reads the incidents learns which digests a copy should have, and which it has.
func TestIncidentsHaveTheirDigests(t *testing.T) {
	var out bytes.Buffer
	rows := rowsOf([]*pb.Incident{
		{Kind: "content-corrupt", Expected: map[string]string{"md5": "aa"}, Found: map[string]string{"md5": "bb"}},
		{Kind: "deletes-held"},
	}, incidentOf)
	must(t, printList(&out, &output{form: formNDJSON}, rows, incidentTable()))
	corrupt, held, _ := strings.Cut(out.String(), "\n")
	if !strings.Contains(corrupt, `"expected":{"md5":"aa"},"found":{"md5":"bb"}`) ||
		!strings.Contains(held, `"expected":null,"found":null`) {
		t.Errorf("printed %s", out.String())
	}
}

// The line of a list whose decision keeps copies says how many, by whom and since when; others say nothing.
func TestIncidentsHaveWhatIsKept(t *testing.T) {
	at := time.Date(2026, 12, 1, 23, 0, 0, 0, time.UTC)
	for n, want := range map[int64]string{0: "opened: of 2",
		12: "opened: of 2; 12 copies are kept as they are by decision of alice, 2026-12-01"} {
		r := incidentOf(listOf("2", "a", "brake-1"))
		must(t, r.keptBy(held.Decision{By: "alice", At: at}, n, nil))
		if got := incidentTable().cells(r); got[len(got)-1] != want || r.Kept != n {
			t.Errorf("got %q, kept %d, want %q", got, r.Kept, want)
		}
	}
}

// Keys are arguments, or lines of stdin; each counts once.
func TestIncidentKeys(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		stdin string
		want  []string
	}{
		"arguments": {[]string{"a", "b"}, "", []string{"a", "b"}},
		"twice":     {[]string{"a", "b", "a"}, "", []string{"a", "b"}},
		"stdin": {[]string{"-"}, "-////k/s\r\n\nacme/1/p/a b/k\nacme/1/p/a b/k",
			[]string{"-////k/s", "acme/1/p/a b/k"}},
		"nothing there": {[]string{"-"}, "\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newIncidentClose()
			c.SetIn(strings.NewReader(tt.stdin))
			got, err := incidentKeys(c, tt.args)
			if !slices.Equal(got, tt.want) || errors.Is(err, usage.Err) != (tt.want == nil) {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// Each incident is decided about on its own, as it was when the command read it. The exit code is that of a failure if
// nothing was decided, and 4 otherwise.
func TestDecideEach(t *testing.T) {
	open := []*pb.Incident{{Account: "acme", Kind: "a"}, {Account: "acme", Kind: "b"},
		{Account: "-", Kind: "behind", Subject: "t"}}
	refused := fmt.Errorf("%w: there is no repair", precondition.Err)
	for name, tt := range map[string]struct {
		keys []string
		fail map[string]error // by kind
		made []string         // kinds
		code int
		text string
	}{
		"all":              {[]string{"acme////a", "acme////b"}, nil, []string{"a", "b"}, exitOK, ""},
		"without its dash": {[]string{"////behind/t"}, nil, []string{"behind"}, exitOK, ""},
		"one is refused": {[]string{"acme////a", "acme////b", "-////behind/t"}, map[string]error{"a": refused},
			[]string{"b", "behind"}, exitPartly, "partly done: 2 of 3 incidents: precondition: there is no repair"},
		"one is not open": {[]string{"acme////x", "acme////b"}, nil, []string{"b"}, exitPartly, `the key "acme////x"`},
		"all are refused": {[]string{"acme////a", "acme////b"}, map[string]error{"a": refused, "b": refused}, nil,
			exitPrecondition, "there is no repair"},
		"none is open": {[]string{"acme////x", "acme////y"}, nil, nil, exitError, `the key "acme////y"`},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := decideEach(t.Context(), tt.keys, byKey(open), func(i *pb.Incident) (decision, error) {
				return decision{incident: i}, tt.fail[i.GetKind()]
			})
			var kinds []string
			for _, d := range made {
				kinds = append(kinds, d.incident.GetKind())
			}
			if code := exitCode(t.Context(), err); !slices.Equal(kinds, tt.made) || code != tt.code {
				t.Errorf("decided %q, exit code %d, %v, want %q and %d", kinds, code, err, tt.made, tt.code)
			}
			if err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("the error is %q, want %q", err, tt.text)
			}
		})
	}
}

// A command that is interrupted decides nothing more.
func TestDecideEachIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	open := []*pb.Incident{{Account: "acme", Kind: "a"}, {Account: "acme", Kind: "b"}, {Account: "acme", Kind: "c"}}
	asked := 0
	keys := []string{"acme////a", "acme////b", "acme////c"}
	made, err := decideEach(ctx, keys, byKey(open), func(i *pb.Incident) (decision, error) {
		if asked++; asked == 1 {
			return decision{incident: i}, nil
		}
		cancel()
		return decision{}, ctx.Err()
	})
	if code := exitCode(ctx, err); asked != 2 || len(made) != 1 || code != exitInterrupted {
		t.Errorf("asked %d times, made %d decisions, exit code %d, %v", asked, len(made), code, err)
	}
}

// A check is a finding if the copy is not as on record, or has lost its properties.
func TestFindingsOfChecks(t *testing.T) {
	for name, tt := range map[string]struct {
		row  checkRow
		want bool
	}{
		"requested":    {checkRow{}, false},
		"pass":         {checkRow{Verdict: "pass", Metadata: "intact"}, false},
		"moot":         {checkRow{Verdict: "moot"}, false},
		"fail":         {checkRow{Verdict: "fail"}, true},
		"missing":      {checkRow{Verdict: "missing"}, true},
		"not captured": {checkRow{Verdict: "not_captured"}, true},
		"properties":   {checkRow{Verdict: "pass", Metadata: "damaged"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := incidentChecks{rows: []checkRow{{Verdict: "pass"}, tt.row}}
			if err := r.findings(); errors.Is(err, errFindings) != tt.want {
				t.Errorf("got %v, want a finding: %t", err, tt.want)
			}
		})
	}
}

// A check without a final result is no success. Findings come first.
func TestFindingsOfRounds(t *testing.T) {
	for name, tt := range map[string]struct {
		verdicts   map[string]int64
		unanswered int64
		code       int
		text       string
	}{
		"all pass":          {map[string]int64{"pass": 5}, 0, exitOK, ""},
		"one has no result": {map[string]int64{"pass": 4}, 1, exitPartly, "1 checks have no final result"},
		"none has a result": {nil, 5, exitPartly, "5 checks have no final result"},
		"one fails":         {map[string]int64{"pass": 4, "fail": 1}, 0, exitFindings, "1 copies failed"},
		"one fails, one has none": {map[string]int64{"pass": 3, "fail": 1}, 1, exitFindings,
			"1 checks have no final result"},
	} {
		t.Run(name, func(t *testing.T) {
			r := sweepReport{Requested: 5, Verdicts: tt.verdicts, Unanswered: tt.unanswered}
			err := r.findings()
			if code := exitCode(t.Context(), err); code != tt.code || !strings.Contains(fmt.Sprint(err), tt.text) {
				t.Errorf("exit code %d, %v, want %d, %q", code, err, tt.code, tt.text)
			}
			var text, doc bytes.Buffer
			for form, out := range map[string]*bytes.Buffer{formText: &text, formJSON: &doc} {
				must(t, r.print(out, &sweepFlags{wait: true, output: &output{form: form}}))
			}
			inText := strings.Contains(text.String(), fmt.Sprintf("%d checks: no final result\n", tt.unanswered))
			inDoc := strings.Contains(doc.String(), fmt.Sprintf(`"unanswered": %d`, tt.unanswered))
			if lost := tt.unanswered > 0; inText != lost || inDoc != lost {
				t.Errorf("printed %s%s", &text, &doc)
			}
		})
	}
}

// listOf returns the incident of a list.
func listOf(store, space, list string) *pb.Incident {
	i := &pb.Incident{Account: "acme", Store: store, Space: space, Kind: incident.DeletesHeld, Subject: list,
		State: pb.IncidentState_INCIDENT_STATE_OPEN, Steps: []*pb.IncidentStep{{Action: "opened", Detail: "of " + store}}}
	if strings.HasPrefix(list, "rewrites") {
		i.Kind = incident.RewritesHeld
	}
	return i
}

// The open lists of one kind and space are one line of the table, which names their destinations.
func TestByEvent(t *testing.T) {
	closed := listOf("3", "a", "brake-1")
	closed.State = pb.IncidentState_INCIDENT_STATE_CLOSED
	copies := &pb.Incident{Account: "acme", Store: "2", Space: "a", Item: "x", Kind: "content-missing"}
	const one, two = "acme/2/a//deletes-held/brake-1", "acme/3/a//deletes-held/brake-2"
	for name, tt := range map[string]struct {
		all  []*pb.Incident
		want []string // keys
		last string   // of the first
	}{
		"none":     {nil, nil, ""},
		"one list": {[]*pb.Incident{listOf("2", "a", "brake-1")}, []string{one}, "opened: of 2"},
		"no list":  {[]*pb.Incident{copies}, []string{"acme/2/a/x/content-missing"}, "-"},
		"two destinations": {[]*pb.Incident{listOf("2", "a", "brake-1"), copies, listOf("3", "a", "brake-2")},
			[]string{"--event acme/a", "acme/2/a/x/content-missing"},
			"deletes-held; store 2, brake-1, open: opened: of 2; store 3, brake-2, open: opened: of 3"},
		"one is closed": {[]*pb.Incident{listOf("2", "a", "brake-1"), closed},
			[]string{one, "acme/3/a//deletes-held/brake-1"}, "opened: of 2"},
		"two spaces": {[]*pb.Incident{listOf("3", "a", "brake-2"), listOf("2", "b", "brake-1")},
			[]string{two, "acme/2/b//deletes-held/brake-1"}, "opened: of 3"},
		"deletes and rewrites": {[]*pb.Incident{listOf("2", "a", "brake-1"), listOf("2", "a", "rewrites-1")},
			[]string{one, "acme/2/a//rewrites-held/rewrites-1"}, "opened: of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			got := byEvent(rowsOf(tt.all, incidentOf))
			keys := rowsOf(got, func(r incidentRow) string { return r.Key })
			if !slices.Equal(keys, tt.want) {
				t.Errorf("got %q, want %q", keys, tt.want)
			}
			if len(got) > 0 && orDash(got[0].Last) != tt.last {
				t.Errorf("the last step is %q, want %q", got[0].Last, tt.last)
			}
		})
	}
}

// A decision about an event is about each open list of the space. If one fails the check, it is about none.
func TestListsOfAnEvent(t *testing.T) {
	const rewrites, deletes = "acme/2/a//rewrites-held/rewrites-1", "acme/3/a//deletes-held/brake-1"
	open := byKey([]*pb.Incident{listOf("3", "a", "brake-1"), listOf("2", "a", "rewrites-1"),
		listOf("2", "a/b", "brake-1"), {Account: "acme", Store: "2", Space: "a", Kind: incident.SpaceMissing}})
	refused := fmt.Errorf("%w: decided before", precondition.Err)
	for name, tt := range map[string]struct {
		of    string
		fails string // the store of the list that fails
		want  []string
		code  int
	}{
		"all":             {"acme/a", "", []string{rewrites, deletes}, exitOK},
		"one fails":       {"acme/a", "3", nil, exitPrecondition},
		"one was decided": {"acme/a", "decided 3", []string{rewrites}, exitOK},
		"another space":   {"acme/a/b", "3", []string{"acme/2/a%2Fb//deletes-held/brake-1"}, exitOK},
		"none is open":    {"acme/c", "", nil, exitError},
		"another account": {"a", "", nil, exitError},
	} {
		t.Run(name, func(t *testing.T) {
			keys, err := open.event(tt.of, func(i *pb.Incident) error {
				switch i.GetStore() {
				case tt.fails:
					return refused
				case strings.TrimPrefix(tt.fails, "decided "):
					return app.ErrNothingWaits
				}
				return nil
			})
			if code := exitCode(t.Context(), err); !slices.Equal(keys, tt.want) || code != tt.code {
				t.Errorf("got %q, exit code %d, %v", keys, code, err)
			}
		})
	}
}
