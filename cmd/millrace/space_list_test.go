package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
)

func spaceViews() []app.SpaceView {
	first, counted := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 8, 15, 12, 0, 0, 0, time.UTC)
	view := func(store, state string) app.SpaceView {
		return app.SpaceView{SpaceInfo: app.SpaceInfo{Account: "acme", Record: app.SpaceLive, Scope: policy.ScopeOwn,
			SpaceSummary: read.SpaceSummary{Space: "photos", Store: store, Items: 2, Bytes: 9, First: &first}},
			State: state, Deletes: policy.Approve, Holds: []policy.Hold{{Reason: "a lawsuit"}}}
	}
	source, destination := view("1", app.SpaceExists), view("2", app.SpaceAbsent)
	other := view("3", app.SpaceUnknown)
	source.CopiedTo, source.Properties = []string{"2"}, map[string]string{"of": "ann"}
	source.CountedAt, source.ItemsBefore, source.BytesBefore = &counted, 1, 12
	destination.CopyOf, destination.Incidents = []string{"1"}, []string{"acme:2:photos:space-missing"}
	destination.MaxShare, destination.MaxCount, destination.Hour, destination.Month = 0.1, 1000, 4, 5
	other.NotCopied, other.Error = "no pair of the policy has the store", "no answer"
	return []app.SpaceView{source, destination, other}
}

func TestSpaceTables(t *testing.T) {
	views := spaceViews()
	var rows []app.SpaceInfo
	for _, v := range views {
		rows = append(rows, v.SpaceInfo)
	}
	var out bytes.Buffer
	must(t, errors.Join(printList(&out, &output{form: formTable}, rows, spaceTable()),
		printList(&out, &output{form: formTable}, views, spaceViewTable())))
	key := views[1].Incidents[0]
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{
		"SPACE STORE RECORD ITEMS BYTES FIRST SEEN POLICY COPIES INCIDENTS",
		"acme/photos 1 live 2 9 2026-09-01T12:00:00Z own to 2 0",
		"acme/photos 2 live 2 9 2026-09-01T12:00:00Z own from 1 1",
		"acme/photos 3 live 2 9 2026-09-01T12:00:00Z own not copied: no pair of the policy has the store 0",
		"STORE STATE RECORD ITEMS BYTES GROWTH PROPERTIES POLICY COPIES DELETES LIMIT INCIDENTS ERROR",
		"1 exists live 2 9 +1 items, -3 bytes since 2026-08-15 1, ACL 0 own to 2 approve, holds: 1 - - -",
		"2 absent live 2 9 - - own from 1 approve, holds: 1 0.1, 1000 (4, 5) " + key + " -",
		"3 unknown live 2 9 - - own not copied: no pair of the policy has the store approve, holds: 1 - - no answer",
	}
	if len(got) != len(want) {
		t.Fatalf("got %d lines:\n%s", len(got), out.String())
	}
	for i := range want {
		if line := strings.Join(strings.Fields(got[i]), " "); line != want[i] {
			t.Errorf("got  %s\nwant %s", line, want[i])
		}
	}
}
