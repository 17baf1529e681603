package duplicate

import (
	"reflect"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
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
