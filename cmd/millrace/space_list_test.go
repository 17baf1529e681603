package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

func spaceViews() []app.SpaceView {
	first := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	rules := policy.Rules{Revision: 3, Pairs: []policy.Pair{{Source: "1", Destination: "2"}}, Deletes: policy.Approve,
		Holds: []policy.Hold{{Reason: "a lawsuit"}}}
	info := func(store string) app.SpaceInfo {
		return app.SpaceInfo{SpaceSummary: read.SpaceSummary{Space: "photos", Store: store, Items: 2, Bytes: 9, First: first},
			Account: "acme", Record: app.SpaceLive, Scope: policy.ScopeOwn, Rules: rules}
	}
	source, destination, other := info("1"), info("2"), info("3")
	source.CopiedTo, destination.CopyOf = []string{"2"}, []string{"1"}
	destination.Incidents = []*pb.Incident{{Account: "acme", Store: "2", Space: "photos", Kind: "space-missing"}}
	return []app.SpaceView{
		{SpaceInfo: source, State: app.SpaceExists, Space: storage.Space{Properties: map[string]string{"of": "ann"}},
			Before: read.SpaceSize{Store: "1", At: time.Date(2026, 8, 15, 12, 0, 0, 0, time.UTC), Items: 1, Bytes: 12}},
		{SpaceInfo: destination, State: app.SpaceAbsent, Limits: brake.Limits{MaxShare: 0.1, MaxCount: 1000}, Hour: 4,
			Month: 5},
		{SpaceInfo: other, State: app.SpaceUnknown, Err: errors.New("no answer")},
	}
}

func TestSpaceTables(t *testing.T) {
	var rows []spaceRow
	var views []spaceView
	for _, v := range spaceViews() {
		rows, views = append(rows, spaceRowOf(v.SpaceInfo)), append(views, spaceViewOf(v))
	}
	var out bytes.Buffer
	must(t, errors.Join(printList(&out, &output{form: formTable}, rows, spaceTable()),
		printList(&out, &output{form: formTable}, views, spaceViewTable())))
	key := schemas.IncidentKey(spaceViews()[1].Incidents[0])
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
