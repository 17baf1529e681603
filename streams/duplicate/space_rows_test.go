package duplicate

import (
	"reflect"
	"testing"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

// A spaceCase is a case of the space table, named as a decisionCase.
type spaceCase struct {
	observation SpaceObservation
	want        Decision
}

func spaceRecord(state pb.RecordState, h int, origin pb.Origin) *pb.Record {
	return &pb.Record{State: state, Time: ms(hour(h)), Origin: origin}
}

// presentSpace is a space that both stores have.
func presentSpace(edit func(*SpaceObservation)) SpaceObservation {
	about := storage.Space{Name: "photos", Properties: map[string]string{"k": "v"}, ACL: map[string]string{"all": "r"}}
	s := SpaceObservation{
		Command: &pb.DuplicationCommand{Account: "acme", Space: "photos", SourceStore: "1", DestinationStore: "2",
			ChangeTime: ms(hour(4))},
		Rules:  policy.Rules{Pairs: []policy.Pair{pair}, Deletes: policy.Propagate, Since: hour(1)},
		Source: SpaceSide{Presence: Present, Space: about},
		Destination: SpaceSide{Presence: Present, Space: about,
			Record: spaceRecord(live, 4, pb.Origin_ORIGIN_DUPLICATION)},
	}
	edit(&s)
	return s
}

// deletedSpace is a source whose space a client deleted at hour 4, and an empty space of hour 2 at the destination.
func deletedSpace(edit func(*SpaceObservation)) SpaceObservation {
	return presentSpace(func(s *SpaceObservation) {
		s.Source = SpaceSide{Presence: Absent, Record: spaceRecord(tomb, 4, pb.Origin_ORIGIN_CLIENT)}
		s.Destination.Items, s.Destination.Record = Absent, spaceRecord(live, 2, pb.Origin_ORIGIN_DUPLICATION)
		edit(s)
	})
}

func heldSpace(row Row) Decision {
	return Decision{Row: row, Result: "held", Detail: `hold of prefix "" until ` +
		hour(99).UTC().Format(time.RFC3339) + ": a lawsuit"}
}

// spaceCases are the cases of the space table.
func spaceCases() map[string]spaceCase {
	cases := presentSpaceCases()
	for name, tt := range deletedSpaceCases() {
		cases[name] = tt
	}
	return cases
}

func presentSpaceCases() map[string]spaceCase {
	with := func(edit func(*SpaceObservation), d Decision) spaceCase { return spaceCase{presentSpace(edit), d} }
	other := storage.Space{Name: "photos", Properties: map[string]string{"k": "v"}}
	folded := storage.Space{Name: "photos", Properties: map[string]string{"K": "v"}, ACL: map[string]string{"all": "r"}}
	lost := storage.Space{Name: "photos", PropertiesUnknown: true}
	unknown := Decision{Row: "S5", action: actFail}
	set := Decision{Row: "S1b", action: actSetSpace, Result: "properties-set"}
	inSync := Decision{Row: "S1b", Result: "in-sync"}
	hold := &policy.Hold{Until: hour(99), Reason: "a lawsuit"}
	return map[string]spaceCase{
		"S0: no space id": with(func(s *SpaceObservation) { s.Command = &pb.DuplicationCommand{} },
			Decision{Row: "S0", action: actFail, Result: "no-space-id"}),
		"C12: not in the policy": with(func(s *SpaceObservation) { s.Rules.Pairs = nil },
			Decision{Row: "C12", Result: "not-in-policy"}),
		"S5: source unknown":      with(func(s *SpaceObservation) { s.Source = SpaceSide{} }, unknown),
		"S5: destination unknown": with(func(s *SpaceObservation) { s.Destination = SpaceSide{} }, unknown),
		"S5: whether it is on record": with(func(s *SpaceObservation) {
			s.Destination.Record = &pb.Record{}
		}, unknown),
		"S1: create": with(func(s *SpaceObservation) { s.Destination = SpaceSide{Presence: Absent} },
			Decision{Row: "S1", action: actCreateSpace, Result: "created"}),
		"S1b: alike": with(func(*SpaceObservation) {}, inSync),
		"S1b: alike, and the records were not read": with(func(s *SpaceObservation) { s.Destination.Record = nil },
			Decision{Row: "S1b", action: actReadRecords, Result: "in-sync"}),
		"S1b: alike, and not on record": with(func(s *SpaceObservation) {
			s.Destination.Record = &pb.Record{State: none}
		}, Decision{Row: "S1b", Result: "in-sync", Announce: true}),
		"S1b: alike, and the record is older than the change": with(func(s *SpaceObservation) {
			s.Destination.Record = spaceRecord(live, 3, pb.Origin_ORIGIN_DUPLICATION)
		}, Decision{Row: "S1b", Result: "in-sync", Announce: true}),
		"S1b: alike but for the case of names": with(func(s *SpaceObservation) {
			s.Destination.Space, s.FoldCase = folded, true
		}, inSync),
		"S1b: the case of names counts":   with(func(s *SpaceObservation) { s.Destination.Space = folded }, set),
		"S1b: another ACL":                with(func(s *SpaceObservation) { s.Destination.Space = other }, set),
		"S1b: unknown at the destination": with(func(s *SpaceObservation) { s.Destination.Space = lost }, set),
		"S1b: unknown at the source": with(func(s *SpaceObservation) { s.Source.Space = lost },
			Decision{Row: "S1b", Result: "properties-unknown"}),
		"S1b: a hold": with(func(s *SpaceObservation) { s.Destination.Space, s.Hold = other, hold }, heldSpace("S1b")),
	}
}

func deletedSpaceCases() map[string]spaceCase {
	with := func(edit func(*SpaceObservation), d Decision) spaceCase { return spaceCase{deletedSpace(edit), d} }
	unknown := Decision{Row: "S5", action: actFail}
	kept, orphan := Decision{Row: "S2", Result: "kept"}, Decision{Row: "S2", Result: "orphan"}
	ordered := func(approval bool) Decision {
		return Decision{Row: "S2", action: actDelete, Result: "deletion-ordered", Deleted: hour(4), NeedsApproval: approval}
	}
	from := func(state pb.RecordState, h int, origin pb.Origin) func(*SpaceObservation) {
		return func(s *SpaceObservation) { s.Source.Record = spaceRecord(state, h, origin) }
	}
	const client = pb.Origin_ORIGIN_CLIENT
	return map[string]spaceCase{
		"S5: whether it holds items": with(func(s *SpaceObservation) { s.Destination.Items = Unknown }, unknown),
		"S5: whether the source was deleted": with(func(s *SpaceObservation) {
			s.Source.Record = &pb.Record{}
		}, unknown),
		"S5: when the destination was made": with(func(s *SpaceObservation) {
			s.Destination.Record = &pb.Record{}
		}, unknown),
		"S2: deleted, and empty": with(func(*SpaceObservation) {}, ordered(false)),
		"S2: the records were not read": with(func(s *SpaceObservation) { s.Source.Record = nil },
			Decision{Row: "S2", action: actReadRecords}),
		"S2: by the deleter of a chain": with(from(tomb, 4, pb.Origin_ORIGIN_DUPLICATION), ordered(false)),
		"S2: as a sweep guesses":        with(from(tomb, 4, pb.Origin_ORIGIN_SWEEP), ordered(true)),
		"S2: as an import says":         with(from(tomb, 4, pb.Origin_ORIGIN_IMPORT), ordered(true)),
		"S2: the rule is approve":       with(func(s *SpaceObservation) { s.Rules.Deletes = policy.Approve }, ordered(true)),
		"S2: the rule is keep":          with(func(s *SpaceObservation) { s.Rules.Deletes = policy.KeepCopy }, kept),
		"S2: older than the rule":       with(func(s *SpaceObservation) { s.Rules.Since = hour(4) }, kept),
		"S2: older than the end of approval": with(func(s *SpaceObservation) {
			s.Rules.Propagated = hour(4)
		}, ordered(true)),
		"S2: older than the pair": with(func(s *SpaceObservation) {
			s.Rules.Added = map[policy.Pair]time.Time{pair: hour(5)}
		}, kept),
		"S2: a hold": with(func(s *SpaceObservation) {
			s.Hold = &policy.Hold{Until: hour(99), Reason: "a lawsuit"}
		}, heldSpace("S2")),
		"S2: no delete on record":      with(func(s *SpaceObservation) { s.Source.Record = &pb.Record{State: none} }, orphan),
		"S2: created since its delete": with(from(live, 5, client), orphan),
		"S2: a client made the destination later": with(func(s *SpaceObservation) {
			s.Destination.Record = spaceRecord(live, 4, client)
		}, Decision{Row: "S2", Result: "kept-newer"}),
		"S3: deleted, with items yet": with(func(s *SpaceObservation) { s.Destination.Items = Present },
			Decision{Row: "S3", action: actWait, Result: "not-empty"}),
		"S4: neither": with(func(s *SpaceObservation) { s.Destination = SpaceSide{Presence: Absent} },
			Decision{Row: "S4", Result: "gone"}),
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

// Every combination has a row. Only what is known changes a store: a delete needs a tombstone of the source and an
// empty destination, and a write a source that knows its properties.
func TestDecideSpaceIsTotal(t *testing.T) {
	presences := []Presence{Unknown, Present, Absent}
	records := []*pb.Record{nil, {}, {State: none}, spaceRecord(live, 3, pb.Origin_ORIGIN_CLIENT),
		spaceRecord(tomb, 4, pb.Origin_ORIGIN_CLIENT), spaceRecord(tomb, 4, pb.Origin_ORIGIN_SWEEP)}
	spaces := []storage.Space{{Name: "photos"}, {Name: "photos", ACL: map[string]string{"all": "r"}},
		{Name: "photos", PropertiesUnknown: true}}
	holds := []*policy.Hold{nil, {Reason: "a lawsuit"}}
	deletes := []policy.Deletes{policy.Propagate, policy.Approve, policy.KeepCopy}
	check := func(s SpaceObservation) {
		d := decideSpace(s)
		from, to := s.Source, s.Destination
		switch d.action {
		case actDelete:
			if from.Presence != Absent || to.Presence != Present || to.Items != Absent || !isTombstone(from.Record) ||
				s.Hold != nil || s.Rules.Deletes == policy.KeepCopy || d.Deleted.IsZero() ||
				!d.NeedsApproval && (s.Rules.Deletes != policy.Propagate || from.Record.GetOrigin() != pb.Origin_ORIGIN_CLIENT) {
				t.Errorf("%+v: deletes", s)
			}
		case actSetSpace:
			if from.Presence != Present || to.Presence != Present || from.Space.PropertiesUnknown || s.Hold != nil {
				t.Errorf("%+v: sets properties", s)
			}
		case actCreateSpace:
			if from.Presence != Present || to.Presence != Absent {
				t.Errorf("%+v: creates", s)
			}
		case actWait:
			if d.Row != RowSpaceNotEmpty {
				t.Errorf("%+v: waits in row %s", s, d.Row)
			}
		}
		if d.Row == "" || d.Result == "" && d.action != actFail && d.action != actReadRecords {
			t.Errorf("%+v: got %+v", s, d)
		}
	}
	for code := range 3 * 3 * 3 * 6 * 6 * 2 * 3 * 3 {
		next := func(of int) (i int) { i, code = code%of, code/of; return i }
		check(presentSpace(func(s *SpaceObservation) {
			s.Source = SpaceSide{Presence: presences[next(3)], Record: records[next(6)], Space: spaces[next(3)]}
			s.Destination = SpaceSide{Presence: presences[next(3)], Items: presences[next(3)], Record: records[next(6)],
				Space: spaces[0]}
			s.Hold, s.Rules.Deletes = holds[next(2)], deletes[next(3)]
		}))
	}
}
