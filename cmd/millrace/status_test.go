package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// One screen has the copies, the work and what waits for a person. What is unknown is not 0.
func TestStatus(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	letters, size, seconds := int64(3), int64(77), 90.4
	full := app.Overview{
		Stores: []app.StoreOverview{{StoreName: app.StoreName{Account: "acme", Store: "1"}, Copies: 1000, Verified: 999,
			Share: 0.999, Overdue: 1, Failing: 2, Unknown: 3, Bytes: 4096, Burn: 1},
			{StoreName: app.StoreName{Account: "acme", Store: "2"}, Share: 1}},
		Work: []app.RoleBacklog{{Role: schemas.RoleChecker, Records: 500, Bytes: &size, Seconds: &seconds},
			{Role: schemas.RoleCopier, Records: 7}},
		Incidents: []read.IncidentCount{{Kind: "content-corrupt", Open: 2, Waiting: 1, Oldest: now.Add(-time.Hour)}},
		Waiting:   1, DeadLetters: &letters, Paused: []string{"role copier"}, Inactive: []string{"zoo"},
		Unserved: []schemas.Role{schemas.RolePlanner, schemas.RoleSteward},
	}
	for name, tt := range map[string]struct {
		o    app.Overview
		want string
	}{
		"everything": {full, `
STORE COPIES BYTES VERIFIED SHARE OVERDUE FAILING UNKNOWN BURN
acme/1 1000 4096 999 99.9% 1 2 3 1.00
acme/2 0 0 0 100.0% 0 0 0 0.00

ROLE MESSAGES TO HANDLE TIME LEFT
checker 500 1m30s
copier 7 unknown

OPEN INCIDENTS NUMBER AWAITING APPROVAL OLDEST
content-corrupt 2 1 1h0m0s

1 incidents wait for a decision: millrace incident list
3 dead letters: millrace dead list
paused: role copier
inactive accounts: zoo
roles that no process runs: planner, steward
`},
		"nothing": {app.Overview{}, `
no copies are on record

no messages wait for a role

no incident is open

0 incidents wait for a decision: millrace incident list
many dead letters: millrace dead list
`},
	} {
		var out bytes.Buffer
		must(t, printStatus(&out, tt.o, now))
		got := "\n"
		for line := range strings.Lines(out.String()) {
			got += strings.Join(strings.Fields(line), " ") + "\n"
		}
		if got != tt.want {
			t.Errorf("%s: got%swant%s", name, got, tt.want)
		}
	}
}

// A dry run of checks prints how many there are, their bytes, and how long they take if that is known.
func TestDryRunOfChecks(t *testing.T) {
	seconds := 43200.0
	f := &sweepFlags{dryRun: true, all: true, output: &output{form: formText}}
	r := sweepReport{Sweep: "fixity", DryRun: true, Requested: 4, Bytes: 28, Seconds: &seconds,
		Rounds: []sweepRound{{Account: "acme", Store: "1", Space: "photos", Requested: 4, Bytes: 28}}}
	const checks = "space photos in store acme/1: 4 checks of 28 bytes would be requested\n"
	const times = "they take 12h0m0s at least, by the rates of the last 30 days and the budgets\n"
	printed := func() string {
		t.Helper()
		var out bytes.Buffer
		must(t, r.print(&out, f))
		return out.String()
	}
	if got := printed(); got != checks+times {
		t.Errorf("got %q", got)
	}
	r.Seconds = nil
	if got := printed(); got != checks {
		t.Errorf("of unknown time: got %q", got)
	}
	f.output.form, r.Seconds = formJSON, &seconds
	var got map[string]any
	must(t, json.Unmarshal([]byte(printed()), &got))
	if got["requested"] != 4.0 || got["requested_bytes"] != 28.0 || got["seconds"] != seconds || got["dry_run"] != true {
		t.Errorf("got %v", got)
	}
}
