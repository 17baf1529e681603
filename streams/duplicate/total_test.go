package duplicate

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/storage"
)

// may holds what each row may lead to.
var may = map[Row][]action{
	RowRepair:                   {actNothing, actFail, actReadRecords, actCopy},
	RowNotInPolicy:              {actNothing},
	RowUnknown:                  {actFail, actReadRecords},
	RowExcluded:                 {actNothing},
	RowNoDigest:                 {actReadBytes},
	RowSourceSuspect:            {actNothing},
	RowSourceResurrected:        {actNothing},
	RowSourceNewer:              {actWait},
	RowDestinationNotAsRecorded: {actNothing, actCopy},
	RowInSync:                   {actNothing},
	RowPropertiesUnknown:        {actNothing},
	RowPropertiesDiffer:         {actSetProperties},
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

// everySight yields every combination of what the table distinguishes.
func everySight(yield func(Observation) bool) {
	read := func(s Side, d string) Side { s.Read = md5of(d); return s }
	sources := []Side{{}, {Presence: Absent}, {Presence: 99}, there("v1", a, 2), there("v1", b, 2), there("v1", "", 2),
		read(there("v1", "", 2), a), read(there("v1", "", 2), b), there("v2", a, 3), there("v2", b, 3), there("v2", "", 3), read(there("v2", "", 3), b)}
	destinations := []Side{{}, {Presence: Absent}, there("d1", a, 3), there("d1", b, 3), there("d1", "", 3), read(there("d1", "", 3), b)}
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
	sourceRows := []*pb.Record{nil, row(none, "", "", 0), row(live, "v1", a, 2), row(live, "v1", "", 2), row(live, "v2", b, 3), row(tomb, "v1", a, 1), row(tomb, "v1", a, 4)}
	guess, adopted := row(tomb, "v1", a, 4), row(live, "v1", b, 2)
	guess.Origin, adopted.Origin = pb.Origin_ORIGIN_SWEEP, pb.Origin_ORIGIN_FIXITY
	sourceRows = append(sourceRows, guess, adopted, unsized(row(live, "", "", 2)), typed(row(live, "v1", a, 2)),
		of(typed(row(live, "v1", a, 2)), "v0", md5of(b)), of(typed(row(live, "v1", "", 2)), "v0", nil))
	made := row(live, "d1", a, 3)
	made.SourceTime = stamp(2)
	destinationRows := []*pb.Record{nil, row(none, "", "", 0), made, row(live, "d1", b, 3), row(tomb, "d1", a, 4), row(live, "d1", a, 5),
		unsized(row(live, "", "", 3)), typed(row(live, "d1", a, 3)), of(typed(row(live, "d1", a, 3)), "d0", md5of(b))}
	tells := []func(*Observation){
		func(s *Observation) {},
		func(s *Observation) { s.tell(pb.Op_OP_ADD, "v1", "", 2) },
		func(s *Observation) { s.tell(pb.Op_OP_ADD, "", "", 2); s.Command.Size, s.Command.SizeUnknown = 0, true },
		func(s *Observation) { s.tell(pb.Op_OP_DELETE, "v1", a, 4) },
		func(s *Observation) {
			s.tell(pb.Op_OP_UNSPECIFIED, "", "", 0)
			s.Command.ChangeTime = (*timestamppb.Timestamp)(nil)
		},
		func(s *Observation) { s.Command.IfAbsent = true },
		func(s *Observation) { s.Command.IfAbsent, s.Command.CarriedDelete = true, stamp(4) },
		func(s *Observation) { s.Command.Approved = "me" },
		func(s *Observation) { s.tell(pb.Op_OP_DELETE, "v1", a, 4); s.Command.Approved = "me" },
		func(s *Observation) { s.tell(pb.Op_OP_DELETE, "v1", a, 4); s.Command.IfAbsent = true },
		func(s *Observation) { s.tell(pb.Op_OP_DELETE, "v1", a, 4); s.Rules.Since = hour(5) },
		func(s *Observation) { s.Rules.Pairs = nil },
		func(s *Observation) { s.Rules.MaxSize = 1; s.Source.Object.Size = 2 },
		func(s *Observation) { s.Rules.Deletes = policy.KeepCopy },
		func(s *Observation) { s.Rules.Deletes = policy.Approve },
		func(s *Observation) { s.bySweep(row(live, "v1", a, 2), row(none, "", "", 0)) },
		func(s *Observation) { s.bySweep(row(tomb, "v1", a, 4), made) },
		func(s *Observation) {
			s.Command.Reason, s.Rules.Pairs = pb.DuplicationReason_DUPLICATION_REASON_REPAIR, nil
			s.Command.Repair = &pb.RepairOrder{Digests: md5of(a), Failed: record.Identity(object("d1", b, 3))}
		},
		func(s *Observation) {
			s.Command.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
			s.Command.Repair = &pb.RepairOrder{Digests: md5of(a), Failed: record.Identity(object("d1", b, 3))}
		},
	}
	for _, source := range sources {
		for _, destination := range destinations {
			for _, tell := range tells {
				for _, fresh := range []recordsState{recordsUnread, recordsRead, recordsFailed} {
					for i, from := range sourceRows {
						for j, to := range destinationRows {
							if fresh != recordsRead && i+j > 0 {
								continue // nobody has read rows
							}
							s := sight(func(s *Observation) { s.Source, s.Destination = source, destination })
							tell(&s)
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
	for s := range everySight {
		n++
		d := Decide(s)
		if fault := wrong(s, d); fault != "" {
			t.Fatalf("%s\nsource %+v\ndestination %+v\ncommand %v\nfresh %d\ndecision %+v", fault, s.Source, s.Destination, s.Command, s.recordsState, d)
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

// wrong returns what is wrong with a decision, whatever the row should be.
func wrong(s Observation, d Decision) string {
	repair := s.Command.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR
	unseen := s.Source.Presence != Present && s.Source.Presence != Absent || s.Destination.Presence != Present && s.Destination.Presence != Absent
	writes := d.action == actCopy || d.action == actSetProperties || d.action == actDelete
	switch {
	case !slices.Contains(may[d.Row], d.action):
		return "the row does not lead to this"
	case (d.action == actFail || d.action == actReadRecords || d.action == actReadBytes) != (d.Result == ""):
		return "a command ends without a word, or goes on with one"
	case unseen && d.action != actFail && d.Row != RowNotInPolicy && !(repair && !s.inPolicy()):
		return "decided on what nobody saw"
	case writes && !s.inPolicy():
		return "writes outside of the policy"
	case d.action == actReadRecords && s.recordsState != recordsUnread:
		return "asks twice"
	case d.action == actReadBytes && !(d.ReadSource && s.Source.Presence == Present && len(s.Source.Read) == 0 ||
		d.ReadDestination && s.Destination.Presence == Present && len(s.Destination.Read) == 0):
		return "reads nothing, or twice"
	case d.Row == RowBothAbsent && d.Result == "gone" && isLive(s.Destination.Record.GetManifest()) != d.Announce:
		return "a live row stays of what is gone, or another is announced as deleted"
	case d.Row == RowBothAbsent && d.Announce:
		return wrongGone(s, d)
	case d.Row == RowInSync && d.AnnounceSource == s.sourceKnown():
		return "the source's digests are on no record, or are announced though they are"
	case d.Row == RowInSync, d.Row == RowPropertiesUnknown, d.Row == RowPropertiesDiffer:
		return wrongProperties(s, d)
	case d.action == actCopy:
		return cmp.Or(wrongCopy(s, d, repair), wrongProperties(s, d))
	case d.action == actDelete:
		return wrongDelete(s, d)
	}
	return ""
}

// wrongProperties returns what is wrong with a decision about properties that a store cannot tell.
func wrongProperties(s Observation, d Decision) string {
	lost := func(s Side) bool {
		r := s.Record.GetManifest()
		return s.Object.PropertiesUnknown && isLive(r) && len(r.GetProperties()) > 0 && r.GetPropertiesOf() == nil
	}
	unread := func(s Side) bool { return s.Object.PropertiesUnknown && s.Record.GetManifest() == nil }
	source, destination := lost(s.Source), lost(s.Destination)
	switch {
	case unread(s.Source) || unread(s.Destination) && d.action != actCopy:
		return "decides without the record of what it cannot see"
	case d.action == actSetProperties && s.Source.Object.PropertiesUnknown:
		return "carries what is unknown"
	case d.action == actSetProperties && destination && s.Source.Object.Properties.MediaType == s.Destination.Record.GetManifest().GetMediaType():
		return "cures what was lost"
	case d.Row == RowInSync && (source || destination):
		return "takes what is lost for the same"
	case d.Row == RowPropertiesUnknown && (source && !d.CheckSource || d.CheckDestination != destination || !source && !destination):
		return "checks another side than the one that has lost its properties"
	case d.action == actCopy && d.Row != RowRepair && source && !d.CheckSource:
		return "copies what was lost without a word"
	}
	return ""
}

func wrongCopy(s Observation, d Decision, repair bool) string {
	over := s.Destination.Presence == Present
	switch {
	case s.Source.Presence != Present:
		return "copies what is not there"
	case over && s.Command.GetIfAbsent():
		return "copies over what is present"
	case d.Expected.Compare(s.Source.digests()) == digest.Disagree:
		return "copies what is not as known"
	case !repair && !reportedByClient(s.Command) && isTombstone(s.Source.Record.GetManifest()) && !s.Source.Record.GetManifest().GetTime().AsTime().Before(s.Source.Object.Modified) &&
		!(s.Command.GetCarriedDelete() != nil && d.CheckSource):
		return "copies what came back from the dead"
	case over && !repair && s.Destination.Object.Original.Version == s.Source.Object.Version && s.foundOnly():
		return "copies over a copy of this very version, on the word of a check"
	case len(d.Expected) == 0 && !d.Reference || len(d.Expected) > 0 && d.Reference:
		return "copies without knowing, or makes a second reference"
	case over && d.Reference && !d.ReadTwice:
		return "copies over on one reading"
	case d.Reference && isLive(s.Source.Record.GetManifest()) && len(s.Source.Record.GetManifest().GetDigests()) > 0:
		return "forgets what the manifest knows"
	case repair && (s.recordsState != recordsRead || !over || s.Destination.Object.Version != "d1"):
		return "repairs another object, or on stale records"
	}
	return ""
}

// foundOnly reports whether no one but a sweep or a check said what the source is.
func (s Observation) foundOnly() bool {
	row, _ := s.sourceRow()
	told := s.reported()
	return !reportedByClient(s.Command) && (!told.empty() && told.matches(s.Source) || unreported(row) || row.GetState() == none)
}

// sourceKnown reports whether any digests of the source are on record.
func (s Observation) sourceKnown() bool {
	from, _ := s.sourceRow()
	return len(from.GetDigests())+len(s.reported().digests) > 0
}

// wrongGone returns what is wrong with the announcement of a delete that no one saw.
func wrongGone(s Observation, d Decision) string {
	told := s.Command.GetCauseOp() == pb.Op_OP_DELETE
	from, to := s.Source.Record.GetManifest(), s.Destination.Record.GetManifest()
	held := to.GetTime()
	if to.GetSourceTime() != nil {
		held = to.GetSourceTime()
	}
	switch {
	case s.Source.Presence != Absent || s.Destination.Presence != Absent || !isLive(to):
		return "announces a delete of what is there, or is on record as gone"
	case from.GetState() != tomb && !told || isLive(from) && !d.Deleted.After(from.GetTime().AsTime()):
		return "announces a delete without proof"
	case !(told && s.Command.GetApproved() != "") && (s.Command.GetIfAbsent() || from.GetOrigin() == pb.Origin_ORIGIN_SWEEP):
		return "makes a guess a fact"
	case d.Deleted.Before(held.AsTime()):
		return "announces a delete that is older than what was held"
	case s.Rules.Deletes != policy.Propagate || !d.Deleted.After(s.Rules.Since):
		return "announces a delete that the rule does not let through"
	}
	return ""
}

func wrongDelete(s Observation, d Decision) string {
	told := s.Command.GetCauseOp() == pb.Op_OP_DELETE
	tombstone, known := s.sourceRow()
	switch {
	case s.Command.GetCarriedDelete() != nil:
		return "deletes what was to be copied again"
	case s.Source.Presence != Absent || s.Destination.Presence != Present:
		return "deletes while the source is there, or what is not"
	case !known || tombstone.GetState() != tomb && !told:
		return "deletes without proof"
	case isLive(tombstone) && !d.Deleted.After(tombstone.GetTime().AsTime()):
		return "deletes what was written since"
	case s.Rules.Deletes == policy.KeepCopy:
		return "deletes what the rule keeps"
	case s.Rules.Deletes == policy.Approve && !d.NeedsApproval:
		return "deletes without approval"
	case tombstone.GetOrigin() == pb.Origin_ORIGIN_SWEEP && !d.NeedsApproval && !(told && s.Command.GetApproved() != ""):
		return "deletes on a guess"
	case d.Deleted.Before(hour(2)) || d.Deleted.After(hour(4).Add(time.Second)):
		return "deletes at an odd time"
	}
	return ""
}

// Whatever is seen, reading what decisions ask for leads to one that ends.
func TestDecideEnds(t *testing.T) {
	for s := range everySight {
		for steps := 0; ; steps++ {
			d := Decide(s)
			switch d.action {
			case actReadRecords:
				s.records(row(live, "v1", a, 2), row(none, "", "", 0))
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
