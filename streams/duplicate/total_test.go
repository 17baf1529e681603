package duplicate

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/need"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// may holds the actions of each row.
var may = map[Row][]action{
	RowRepair:                   {actNothing, actFail, actReadRecords, actCopy},
	RowRepairProperties:         {actNothing, actFail, actReadRecords, actRepairProperties},
	RowNotInPolicy:              {actNothing},
	RowUnknown:                  {actFail, actReadRecords, actReadLists},
	RowExcluded:                 {actNothing},
	RowNoDigest:                 {actReadBytes},
	RowSourceSuspect:            {actNothing},
	RowSourceResurrected:        {actNothing},
	RowSourceNewer:              {actWait},
	RowDestinationNotAsRecorded: {actNothing, actCopy},
	RowInSync:                   {actNothing},
	RowPropertiesUnknown:        {actNothing},
	RowPropertiesDiffer:         {actNothing, actSetProperties},
	RowSourceOlder:              {actWait},
	RowContentDiffers:           {actNothing, actCopy, actWait},
	RowSourceUnrecorded:         {actCopy},
	RowDestinationAbsent:        {actCopy},
	RowSourceMissing:            {actWait},
	RowSourceDeleted:            {actDelete},
	RowDeleteHeld:               {actNothing, actDelete},
	RowOrphan:                   {actNothing},
	RowDestinationNewer:         {actNothing},
	RowBothAbsent:               {actNothing},
	RowAllCopiesMissing:         {actWait},
}

// everyObservation yields all combinations of the values that the table distinguishes; in "make test" each seventh one.
func everyObservation(yield func(Observation) bool) {
	read := func(s Side, d string) Side { s.Read = md5of(d); return s }
	sources := []Side{{}, {Presence: Absent}, {Presence: 99}, there("v1", a, 2), there("v1", b, 2), there("v1", "", 2),
		read(there("v1", "", 2), a), read(there("v1", "", 2), b), there("v2", a, 3), there("v2", b, 3), there("v2", "", 3),
		read(there("v2", "", 3), b)}
	destinations := []Side{{}, {Presence: Absent}, there("d1", a, 3), there("d1", b, 3), there("d1", "", 3),
		read(there("d1", "", 3), b)}
	named := there("d1", a, 3)
	named.Object.Properties.MediaType = "image/jpeg"
	from := func(s Side, version string, h int) Side {
		s.Object.Original = storage.Original{Modified: hour(h), Version: version}
		return s
	}
	lost := func(s Side) Side { s.lose(); return s }
	sources = append(sources, lost(there("v1", a, 2)))
	destinations = append(destinations, named, lost(there("d1", a, 3)), from(there("d1", a, 6), "v1", 2),
		from(there("d1", b, 6), "v1", 2), there("d1", a, 6))
	sourceRows := []*pb.Record{nil, row(none, "", "", 0), row(live, "v1", a, 2), row(live, "v1", "", 2),
		row(live, "v2", b, 3), row(tomb, "v1", a, 1), row(tomb, "v1", a, 4)}
	checked := row(live, "v1", b, 2)
	checked.Origin = pb.Origin_ORIGIN_FIXITY
	sourceRows = append(sourceRows, adopted(row(tomb, "v1", a, 4)), checked, unsized(row(live, "", "", 2)),
		typed(row(live, "v1", a, 2)), of(typed(row(live, "v1", a, 2)), "v0", md5of(b)),
		of(typed(row(live, "v1", "", 2)), "v0", nil))
	made := row(live, "d1", a, 3)
	made.SourceTime = stamp(2)
	destinationRows := []*pb.Record{nil, row(none, "", "", 0), made, row(live, "d1", b, 3), row(tomb, "d1", a, 4),
		row(live, "d1", a, 5), adopted(row(live, "d1", b, 3)),
		unsized(row(live, "", "", 3)), typed(row(live, "d1", a, 3)), of(typed(row(live, "d1", a, 3)), "d0", md5of(b))}
	causes := []func(*Observation){
		func(s *Observation) {},
		func(s *Observation) { s.setCause(pb.Op_OP_ADD, "v1", "", 2) },
		func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "", "", 2)
			s.Command.Size, s.Command.SizeUnknown = 0, true
		},
		func(s *Observation) { s.setCause(pb.Op_OP_SET_PROPERTIES, "v1", a, 2) },
		func(s *Observation) { s.setCause(pb.Op_OP_DELETE, "v1", a, 4) },
		func(s *Observation) {
			s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
			s.Command.ChangeTime = (*timestamppb.Timestamp)(nil)
		},
		func(s *Observation) { s.old = true },
		func(s *Observation) { s.Command.IfAbsent = true },
		func(s *Observation) { s.Command.Approved = "me" },
		func(s *Observation) { s.setCause(pb.Op_OP_DELETE, "v1", a, 4); s.Command.Approved = "me" },
		func(s *Observation) { s.setCause(pb.Op_OP_DELETE, "v1", a, 4); s.Command.IfAbsent = true },
		func(s *Observation) { s.setCause(pb.Op_OP_DELETE, "v1", a, 4); s.Rules.Since = hour(5) },
		func(s *Observation) { s.setCause(pb.Op_OP_DELETE, "v1", a, 4); s.Rules.Propagated = hour(5) },
		func(s *Observation) { s.Rules.Pairs = nil },
		func(s *Observation) { s.Rules.MaxSize = 1; s.Source.Object.Size = 2 },
		func(s *Observation) { s.Rules.Start = hour(3) },
		func(s *Observation) { s.Rules.ExcludeLists = make([]policy.ExcludeList, 1) },
		func(s *Observation) { s.listed(digests("00000000000000000000000000000000")) },
		func(s *Observation) { s.listed(digests(strings.Repeat("0", 64))) },
		func(s *Observation) { s.Hold = &policy.Hold{Reason: "a lawsuit"} },
		func(s *Observation) {
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
			s.Hold = &policy.Hold{Reason: "a lawsuit"}
		},
		func(s *Observation) { s.Rules.Deletes = policy.KeepCopy },
		func(s *Observation) { s.Rules.Deletes = policy.Approve },
		func(s *Observation) { s.bySweep(row(live, "v1", a, 2), row(none, "", "", 0)) },
		func(s *Observation) { s.bySweep(row(tomb, "v1", a, 4), made) },
		func(s *Observation) { s.bySweep(nil, nil); s.chained() },
		func(s *Observation) {
			s.Command.Reason, s.Rules.Pairs = pb.DuplicationReason_DUPLICATION_REASON_REPAIR, nil
			s.Command.Repair = &pb.RepairOrder{Digests: md5of(a), Failed: record.Identity(object("d1", b, 3))}
		},
		func(s *Observation) {
			s.Command.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
			s.Command.Repair = &pb.RepairOrder{Digests: md5of(a), Failed: record.Identity(object("d1", b, 3))}
		},
		func(s *Observation) {
			s.Command.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
			s.Command.Repair = &pb.RepairOrder{Digests: md5of(a), Failed: record.Identity(object("d1", a, 3)),
				Properties: true}
		},
	}
	n, each := 0, need.Amount(7, 1, 1)
	for _, source := range sources {
		for _, destination := range destinations {
			for _, setCause := range causes {
				for _, fresh := range []recordsState{recordsUnread, recordsRead, recordsFailed} {
					for i, from := range sourceRows {
						for j, to := range destinationRows {
							if fresh != recordsRead && i+j > 0 {
								continue // the records are not read
							}
							if n++; n%each != 0 {
								continue
							}
							s := observation(func(s *Observation) { s.Source, s.Destination = source, destination })
							setCause(&s)
							if s.recordsState = fresh; fresh == recordsRead {
								s.records(from, to)
							}
							if !yield(s) {
								return
							}
						}
					}
				}
			}
		}
	}
}

func TestDecideIsTotal(t *testing.T) {
	rows, n := map[Row]bool{}, 0
	for s := range everyObservation {
		n++
		d := Decide(s)
		if fault := wrong(s, d); fault != "" {
			t.Fatalf("%s\nsource %+v\ndestination %+v\ncommand %v\nfresh %d\ndecision %+v", fault, s.Source, s.Destination,
				s.Command, s.recordsState, d)
		}
		if !reflect.DeepEqual(d, Decide(s)) {
			t.Fatalf("decided twice, two decisions: %+v", s)
		}
		rows[d.Row] = true
	}
	if got, want := slices.Sorted(maps.Keys(rows)), slices.Sorted(maps.Keys(may)); !slices.Equal(got, want) {
		t.Errorf("rows that were reached: got %v, want %v", got, want)
	}
	if n < 30_000 {
		t.Errorf("only %d combinations", n)
	}
}

// wrong returns the fault of a decision, whichever row applies.
func wrong(s Observation, d Decision) string {
	repair := s.Command.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR
	unobserved := func(s Side) bool { return s.Presence != Present && s.Presence != Absent }
	writes := d.action == actCopy || d.action == actSetProperties || d.action == actDelete
	switch {
	case s.Hold != nil && d.Row == RowBothAbsent && d.Announce:
		return "takes a copy under a hold for deleted"
	case !slices.Contains(may[d.Row], d.action):
		return "the row has another action"
	case slices.Contains([]action{actFail, actReadRecords, actReadLists, actReadBytes}, d.action) != (d.Result == ""):
		return "a command ends without a result, or goes on with one"
	case (unobserved(s.Source) || unobserved(s.Destination)) &&
		d.action != actFail && d.action != actReadLists && d.Row != RowNotInPolicy && !(repair && !s.inPolicy()):
		return "decides on a side that was not observed"
	case writes && !s.inPolicy():
		return "writes outside of the policy"
	case writes && !repair && s.Hold != nil && s.Destination.Presence == Present:
		return "changes a copy under a hold"
	case writes && !repair && len(s.lists) < len(s.Rules.ExcludeLists):
		return "writes without the exclusion lists"
	case d.action == actCopy && !repair && s.Source.Object.Modified.Before(s.Rules.Start):
		return "copies content that is too old"
	case d.action == actReadRecords && s.recordsState != recordsUnread:
		return "reads the records twice"
	case d.action == actReadBytes && !(d.ReadSource && s.Source.Presence == Present && len(s.Source.Read) == 0 ||
		d.ReadDestination && s.Destination.Presence == Present && len(s.Destination.Read) == 0):
		return "reads nothing, or twice"
	case d.Row == RowBothAbsent && d.Result == "gone" && isLive(s.Destination.Record.GetManifest()) != d.Announce:
		return "a live row remains of a copy that is gone, or another is announced as deleted"
	case d.Row == RowBothAbsent && d.Announce:
		return wrongGone(s, d)
	case d.Row == RowInSync && d.AnnounceSource == s.sourceKnown():
		return "the source's digests are on no record, or are announced though they are"
	case d.Row == RowInSync, d.Row == RowPropertiesUnknown, d.Row == RowPropertiesDiffer:
		return wrongProperties(s, d)
	case d.action == actRepairProperties &&
		(s.recordsState != recordsRead || s.Destination.Object.Version != "d1" || !s.Destination.Object.PropertiesUnknown ||
			len(s.Destination.Record.GetManifest().GetProperties()) == 0):
		return "sets properties that are not lost, or on stale records"
	case d.action == actCopy:
		return cmp.Or(wrongCopy(s, d, repair), wrongProperties(s, d))
	case d.action == actDelete:
		return wrongDelete(s, d)
	}
	return ""
}

// isAltered reports whether the manifest has other properties of the side's content than its store reports.
func isAltered(s Side) bool {
	r, o := s.Record.GetManifest(), s.Object
	return s.Presence == Present && !o.PropertiesUnknown && isLive(r) && r.GetMediaType() != "" &&
		r.GetPropertiesOf() == nil && !record.Properties(r).Equal(o.Properties, false) &&
		(r.GetVersion() == o.Version || digest.Set(r.GetDigests()).Compare(s.digests()) == digest.Agree)
}

// wrongProperties returns the fault of a decision about properties that a store cannot report.
func wrongProperties(s Observation, d Decision) string {
	lost := func(s Side) bool {
		r := s.Record.GetManifest()
		return s.Object.PropertiesUnknown && isLive(r) && len(r.GetProperties()) > 0 && r.GetPropertiesOf() == nil
	}
	unread := func(s Side) bool { return s.Object.PropertiesUnknown && s.Record.GetManifest() == nil }
	source, destination := lost(s.Source), lost(s.Destination)
	altered, toAltered := isAltered(s.Source), isAltered(s.Destination)
	switch {
	case (d.Announce || d.AnnounceProperties) && toAltered && s.recordsState == recordsRead && d.Row != RowRepair &&
		(altered || s.Source.Object.PropertiesUnknown):
		return "puts altered properties on record"
	case d.action == actSetProperties && (altered || s.recordsState != recordsRead):
		return "copies properties that are not on record of the source"
	case unread(s.Source) || unread(s.Destination) && d.action != actCopy:
		return "decides without the record of unknown properties"
	case d.action == actSetProperties && s.Source.Object.PropertiesUnknown:
		return "copies unknown properties"
	case d.action == actSetProperties && destination &&
		s.Source.Object.Properties.MediaType == s.Destination.Record.GetManifest().GetMediaType():
		return "sets properties that were lost"
	case d.Row == RowInSync && (source || destination):
		return "takes lost properties for equal ones"
	case d.Row == RowPropertiesUnknown &&
		((source || altered) && !d.CheckSource || destination && !d.CheckDestination ||
			d.CheckDestination && !destination && !toAltered || !source && !destination && !altered && !toAltered):
		return "checks another side than the one that has lost its properties"
	case d.action == actCopy && d.Row != RowRepair && source && !d.CheckSource:
		return "copies from a side with lost properties without a check"
	}
	return ""
}

func wrongCopy(s Observation, d Decision, repair bool) string {
	over, from, to := s.Destination.Presence == Present, s.Source.Record.GetManifest(), s.Destination.Record.GetManifest()
	known, _ := s.sourceRow()
	switch {
	case !repair && s.old && s.recordsState != recordsRead:
		return "copies an old change without the records"
	case !repair && isLive(from) && contentOf(from).compare(s.Source) == digest.Disagree:
		return "copies older content than the newest on record"
	case !repair && over && from.GetState() != 0 && isLive(to) && to.GetSourceTime() == nil &&
		to.GetOrigin() == pb.Origin_ORIGIN_UNSPECIFIED &&
		contentOf(to).matches(s.Destination) && to.GetTime().AsTime().After(s.Source.Object.Modified) &&
		to.GetTime().AsTime().After(from.GetTime().AsTime()):
		return "overwrites what a client has written to the destination since"
	case s.Source.Presence != Present:
		return "copies an absent source"
	case over && s.Command.GetIfAbsent():
		return "overwrites although if_absent is set"
	case d.Expected.Compare(s.Source.digests()) == digest.Disagree:
		return "copies a source that is not as expected"
	case !repair && isTombstone(s.Source.Record.GetManifest()) &&
		!s.Source.Record.GetManifest().GetTime().AsTime().Before(s.Source.Object.Modified):
		return "copies a source that is under its tombstone"
	case over && !repair && s.Destination.Object.Original.Version == s.Source.Object.Version && s.foundOnly():
		return "overwrites a copy of the same version because of a check"
	case bySweep(s.Command) && s.Rules.Pairs[0].Destination == s.Command.GetSourceStore() && s.foundOnly():
		return "copies an orphan further along a chain"
	case over && bySweep(s.Command) && s.Destination.Record.GetManifest().GetOrigin() == pb.Origin_ORIGIN_SWEEP:
		return "overwrites what another program wrote, because of a sweep"
	case over && !repair && !reportedByClient(s.Command) && s.Command.GetApproved() == "" &&
		(!isLive(known) || unreported(known)):
		return "overwrites with content that no client has reported"
	case len(d.Expected) == 0 && (repair || s.recordsState != recordsRead && s.Source.Record == nil):
		return "copies without digests, or without fresh records"
	case over && len(d.Expected) == 0 && (!d.ReadTwice || s.sameVersionDiffers()):
		return "overwrites after one reading, or a copy of the same version"
	case len(d.Expected) == 0 && isLive(s.Source.Record.GetManifest()) &&
		len(s.Source.Record.GetManifest().GetDigests()) > 0:
		return "ignores the digests of the manifest"
	case repair && (s.recordsState != recordsRead || !over || s.Destination.Object.Version != "d1"):
		return "repairs another object, or on stale records"
	}
	return ""
}

// foundOnly reports whether only a sweep or a check has reported the source's content.
func (s Observation) foundOnly() bool {
	row, _ := s.sourceRow()
	reported := s.reported()
	return !reportedByClient(s.Command) &&
		(!reported.empty() && reported.matches(s.Source) || unreported(row) || row.GetState() == none)
}

// sourceKnown reports whether any digests of the source are on record.
func (s Observation) sourceKnown() bool {
	from, _ := s.sourceRow()
	return len(from.GetDigests())+len(s.reported().digests) > 0
}

// wrongGone returns the fault of an announced delete that was not observed.
func wrongGone(s Observation, d Decision) string {
	reported := s.Command.GetCauseOp() == pb.Op_OP_DELETE
	from, to := s.Source.Record.GetManifest(), s.Destination.Record.GetManifest()
	held := to.GetTime()
	if to.GetSourceTime() != nil {
		held = to.GetSourceTime()
	}
	proven := from.GetState() == tomb && !from.GetTime().AsTime().Before(held.AsTime())
	switch {
	case s.Source.Presence != Absent || s.Destination.Presence != Absent || !isLive(to):
		return "announces a delete of a copy that is present or already recorded as deleted"
	case from.GetState() != tomb && !reported || isLive(from) && !d.Deleted.After(from.GetTime().AsTime()):
		return "announces a delete without proof"
	case !(reported && (s.Command.GetApproved() != "" || s.byClient(held.AsTime()))) &&
		(s.Command.GetIfAbsent() && !proven || from.GetOrigin() == pb.Origin_ORIGIN_SWEEP):
		return "takes an unconfirmed delete for a fact"
	case d.Deleted.Before(held.AsTime()):
		return "announces a delete that is older than the content"
	case s.Rules.DeletesOf(pairOf(s.Command), d.Deleted) != policy.Propagate:
		return "announces a delete that the rule does not propagate"
	}
	return ""
}

// byClient reports whether a client's delete that is later than the content caused the command.
func (s Observation) byClient(content time.Time) bool {
	return !s.Command.GetIfAbsent() && s.Command.GetChangeTime().AsTime().After(content)
}

func wrongDelete(s Observation, d Decision) string {
	reported := s.Command.GetCauseOp() == pb.Op_OP_DELETE
	tombstone, known := s.sourceRow()
	switch {
	case s.Source.Presence != Absent || s.Destination.Presence != Present:
		return "deletes while the source is present or the copy absent"
	case !known || tombstone.GetState() != tomb && !reported:
		return "deletes without proof"
	case isLive(tombstone) && !d.Deleted.After(tombstone.GetTime().AsTime()):
		return "deletes content that is newer than the delete"
	case s.Rules.Deletes == policy.KeepCopy:
		return "deletes although the rule is keep"
	case s.Rules.Deletes == policy.Approve && !d.NeedsApproval:
		return "deletes without approval"
	case tombstone.GetOrigin() == pb.Origin_ORIGIN_SWEEP && !d.NeedsApproval &&
		!(reported && (s.Command.GetApproved() != "" || s.byClient(hour(2)))):
		return "carries out an unconfirmed delete"
	case d.Deleted.Before(hour(2)) || d.Deleted.After(hour(4).Add(time.Second)):
		return "deletes at an odd time"
	}
	return ""
}

// For each observation, reading the records and bytes that decisions ask for leads to one that ends.
func TestDecideEnds(t *testing.T) {
	for s := range everyObservation {
		for steps := 0; ; steps++ {
			d := Decide(s)
			switch d.action {
			case actReadRecords:
				s.records(row(live, "v1", a, 2), row(none, "", "", 0))
			case actReadLists:
				s.listed(digests())
			case actReadBytes:
				if d.ReadSource {
					s.Source.Read = md5of(a)
				}
				if d.ReadDestination {
					s.Destination.Read = md5of(b)
				}
			default:
				steps = -1
			}
			if steps < 0 {
				break
			}
			if steps > 4 {
				t.Fatalf("still asks for more: %+v of %+v", d, s)
			}
		}
	}
}
