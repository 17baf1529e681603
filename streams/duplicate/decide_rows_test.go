package duplicate

import (
	"reflect"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

func repairCases() map[string]decisionCase {
	moot := Decision{Row: "C0", Result: "repair-moot", CheckDestination: true}
	both := Decision{Row: "C0", Result: "repair-moot", CheckSource: true, CheckDestination: true}
	repaired := Decision{Row: "C0", action: actCopy, Result: "repaired", Expected: md5of(a)}
	return map[string]decisionCase{
		"corrupt":               {func(*Observation) {}, repaired},
		"outside of any policy": {func(s *Observation) { s.Rules = policy.Rules{} }, moot},
		"the store was taken out": {func(s *Observation) {
			s.Rules.Pairs = []policy.Pair{{Source: "1", Destination: "3"}}
		}, moot},
		"taken out, and unseen": {func(s *Observation) {
			s.Rules.Pairs, s.Source, s.Destination = nil, Side{}, Side{}
		}, moot},
		"of a primary": {func(s *Observation) {
			s.Rules.Pairs = []policy.Pair{{Source: "2", Destination: "1"}}
		}, repaired},
		"from beside the pairs": {func(s *Observation) {
			s.Rules.Pairs = []policy.Pair{{Source: "3", Destination: "2"}}
		}, repaired},
		"missing": {func(s *Observation) {
			s.Destination.Presence, s.Command.Repair.Failed = Absent, nil
		}, repaired},
		"nothing is read yet": {func(s *Observation) {
			s.recordsState = recordsUnread
		}, Decision{Row: "C0", action: actReadRecords}},
		"records unknown": {func(s *Observation) {
			s.recordsState = recordsFailed
		}, Decision{Row: "C0", action: actFail}},
		"audit unknown": {func(s *Observation) {
			s.Destination.Record.Audit = nil
		}, Decision{Row: "C0", action: actFail}},
		"source unknown": {func(s *Observation) { s.Source = Side{} }, Decision{Row: "C0", action: actFail}},
		"destination unknown": {func(s *Observation) {
			s.Destination.Presence = Unknown
		}, Decision{Row: "C0", action: actFail}},
		"no order":                {func(s *Observation) { s.Command.Repair = nil }, moot},
		"no good copy":            {func(s *Observation) { s.Source.Presence = Absent }, both},
		"another object is there": {func(s *Observation) { s.Destination.Object.Version = "d2" }, moot},
		"repaired, on record": {func(s *Observation) {
			s.copied("d1", a)
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.Command.Repair.Failed.Version = "d0"
		}, moot},
		"repaired, and never published": {func(s *Observation) {
			s.copied("d2", a)
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
		}, Decision{Row: "C0", Result: "repair-moot", Announce: true}},
		"gone meanwhile":          {func(s *Observation) { s.Destination.Presence = Absent }, moot},
		"back meanwhile":          {func(s *Observation) { s.Command.Repair.Failed = nil }, moot},
		"manifest: other content": {func(s *Observation) { s.Destination.Record.Manifest = row(live, "d1", b, 3) }, moot},
		"audit: read before a report that the manifest was read after": {func(s *Observation) {
			s.Destination.Record.Manifest = row(live, "d2", b, 4)
		}, moot},
		"manifest: read before a report that the audit log was read after": {func(s *Observation) {
			s.Destination.Record.Audit = row(tomb, "d1", a, 4)
		}, moot},
		"audit: other content": {func(s *Observation) { s.Destination.Record.Audit = row(live, "d1", b, 3) }, moot},
		"manifest: no row":     {func(s *Observation) { s.Destination.Record.Manifest = row(none, "", "", 0) }, moot},
		"audit: a tombstone":   {func(s *Observation) { s.Destination.Record.Audit = row(tomb, "d1", a, 4) }, moot},
		"manifest and audit differ in an algorithm that the order lacks": {func(s *Observation) {
			s.Destination.Record.Manifest.Digests["sha256"], s.Destination.Record.Audit.Digests["sha256"] = "00", "01"
		}, moot},
		"order: other content": {func(s *Observation) { s.Command.Repair.Digests = md5of(b) }, moot},
		"order: no digests":    {func(s *Observation) { s.Command.Repair.Digests = nil }, moot},
		"the good copy is not": {func(s *Observation) { s.Source = there("v1", b, 2) }, both},
		"only claimed": {func(s *Observation) {
			s.Destination.Record.Manifest.Provenance = pb.Provenance_PROVENANCE_CLAIMED
			s.Destination.Record.Audit.Provenance = pb.Provenance_PROVENANCE_CLAIMED
		}, moot},
		"claimed, and once checked": {func(s *Observation) {
			s.Destination.Record.Manifest.Provenance = pb.Provenance_PROVENANCE_CLAIMED
			s.Destination.Record.Audit.Provenance = pb.Provenance_PROVENANCE_CLAIMED
			s.Destination.Record.LastPass = stamp(4)
		}, repaired},
	}
}

func TestDecideRepairs(t *testing.T) {
	for name, tt := range repairCases() {
		t.Run("C0: "+name, func(t *testing.T) {
			got := Decide(observation(func(s *Observation) {
				s.Command.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
				s.copied("d1", b)
				s.Command.Repair = &pb.RepairOrder{Incident: "i", Digests: md5of(a), Failed: record.Identity(s.Destination.Object)}
				s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
				s.Destination.Record.Audit = row(live, "d1", a, 3)
				tt.observe(s)
			}))
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// A spaceCase is a case of the space table, named as a decisionCase.
type spaceCase struct {
	observation spaceObservation
	want        Decision
}

func spaceCases() map[string]spaceCase {
	about := storage.Space{Name: "photos", Properties: map[string]string{"k": "v"}, ACL: map[string]string{"all": "r"}}
	present, absent := spaceSide{Presence: Present, Space: about}, spaceSide{Presence: Absent}
	plain := spaceSide{Presence: Present, Space: storage.Space{Name: "photos"}}
	holding := func(p Presence) spaceSide { return spaceSide{Presence: Present, Items: p} }
	command := &pb.DuplicationCommand{Account: "acme", Space: "photos", SourceStore: "1", DestinationStore: "2"}
	rules := policy.Rules{Pairs: []policy.Pair{pair}}
	return map[string]spaceCase{
		"S0: no space id": {spaceObservation{Command: &pb.DuplicationCommand{}, Rules: rules},
			Decision{Row: "S0", action: actFail, Result: "no-space-id"}},
		"C12: not in the policy": {spaceObservation{Command: command}, Decision{Row: "C12", Result: "not-in-policy"}},
		"S5: source unknown": {spaceObservation{command, rules, spaceSide{}, absent, false},
			Decision{Row: "S5", action: actFail}},
		"S5: destination unknown": {spaceObservation{command, rules, present, spaceSide{}, false},
			Decision{Row: "S5", action: actFail}},
		"S5: whether it holds items": {spaceObservation{command, rules, absent, holding(Unknown), false},
			Decision{Row: "S5", action: actFail}},
		"S1: create": {spaceObservation{command, rules, present, absent, false},
			Decision{Row: "S1", action: actCreateSpace, Result: "created"}},
		"S1b: alike": {spaceObservation{command, rules, present, present, false},
			Decision{Row: "S1b", Result: "in-sync"}},
		"S1b: not alike": {spaceObservation{command, rules, present, plain, false},
			Decision{Row: "S1b", Result: "not-acted"}},
		"S2: deleted, and empty": {spaceObservation{command, rules, absent, holding(Absent), false},
			Decision{Row: "S2", Result: "not-acted"}},
		"S3: deleted, with items yet": {spaceObservation{command, rules, absent, holding(Present), false},
			Decision{Row: "S3", Result: "not-empty"}},
		"S4: neither": {spaceObservation{command, rules, absent, absent, false},
			Decision{Row: "S4", Result: "gone"}},
	}
}

func TestDecideSpace(t *testing.T) {
	for name, tt := range spaceCases() {
		t.Run(name, func(t *testing.T) {
			if got := decideSpace(tt.observation); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}
