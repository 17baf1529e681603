package restore_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/restore"
	"github.com/millrace/millrace/streams/storage"
)

func copied(of string, modified time.Time) func(*pb.Change) {
	return func(c *pb.Change) {
		c.Origin, c.SourceVersion = pb.Origin_ORIGIN_DUPLICATION, of
		c.SourceTime = timestamppb.New(modified)
	}
}

func repaired(c *pb.Change) { c.Origin = pb.Origin_ORIGIN_REPAIR }

// Bytes that leave the stores are verified with the proven digests, or else with those that were claimed.
func TestExpected(t *testing.T) {
	more := digest.Set{digest.MD5: one[digest.MD5], digest.SHA1: "0b"}
	for name, tt := range map[string]struct {
		item *restore.Item
		want digest.Set
	}{
		"verified":     {encrypted(), one},
		"only claimed": {encrypted(func(i *restore.Item) { i.Changes = []*pb.Change{add("1", 1, one, claimed)} }), one},
		"claimed, and verified of the copy": {encrypted(func(i *restore.Item) {
			i.Changes[0], i.Changes[1] = add("1", 1, one, claimed), add("2", 2, more)
		}), more},
		"reported twice, once without": {encrypted(func(i *restore.Item) {
			i.Changes = []*pb.Change{add("1", 1, nil, without), versioned(add("1", 2, one, claimed), "v1ns")}
			i.Changes[0].Version = "v1ns"
		}), one},
		"none": {encrypted(func(i *restore.Item) { i.Changes[0] = add("1", 1, nil, without) }), nil},
	} {
		if got := tt.item.Expected(tt.item.Changes[0]); !maps.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// The date of a file is that of the source's file, also of a copy, and of bytes that were repaired or restored.
func TestDate(t *testing.T) {
	old := time.Date(1999, 1, 2, 3, 4, 5, 0, time.UTC)
	hasDate := func(c *pb.Change) { c.Modified = timestamppb.New(old) }
	for name, tt := range map[string]struct {
		changes []*pb.Change // the last one is the content
		want    time.Time
	}{
		"of its write":           {[]*pb.Change{add("1", 1, one)}, hour(1)},
		"of its own":             {[]*pb.Change{add("1", 1, one, hasDate)}, old},
		"of the source":          {[]*pb.Change{add("1", 1, one), add("2", 2, one, copied("v1ns", hour(1)))}, hour(1)},
		"of a source before":     {[]*pb.Change{add("2", 2, one, copied("v", old))}, old},
		"before it was repaired": {[]*pb.Change{add("1", 1, one, hasDate), add("1", 4, one, repaired)}, old},
		"before it was restored": {[]*pb.Change{add("1", 1, one, hasDate), add("1", 2, two), removed("1", 3),
			add("1", 4, one, repaired)}, old},
		"repaired twice": {[]*pb.Change{add("1", 1, one, hasDate), add("1", 2, one, repaired), add("1", 3, one, repaired)},
			old},
		"repaired, known by its copy": {[]*pb.Change{add("2", 2, one, copied("v", old)), add("1", 4, one, repaired)}, old},
		"repaired, never known":       {[]*pb.Change{add("1", 2, two), add("1", 4, one, repaired)}, hour(4)},
		"written again":               {[]*pb.Change{add("1", 1, one, hasDate), add("1", 2, one)}, hour(2)},
	} {
		i := &restore.Item{Changes: tt.changes}
		if got := i.Date(tt.changes[len(tt.changes)-1]); !got.Equal(tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// Copies that have the content on record are tried first, then others, and then what is kept.
func TestWhereBytesAre(t *testing.T) {
	away := errors.New("away")
	current := func(edit ...func(*restore.Item)) *restore.Item {
		return encrypted(append([]func(*restore.Item){func(i *restore.Item) {
			i.Changes = []*pb.Change{add("1", 1, one), add("2", 2, one), add("0", 2, one), add("4", 1, two)}
			i.Looks = map[string]restore.Look{"1": {}, "2": there("v2ns", one), "3": there("v", one), "4": there("v1ns", two)}
		}}, edit...)...)
	}
	for name, tt := range map[string]struct {
		item                   *restore.Item
		holders, sure, guessed []string
		unknown                []string
	}{
		"current": {current(), []string{"1", "0", "2"}, []string{"3", "2, k"}, nil, nil},
		"older":   {encrypted(), nil, []string{"2, k"}, nil, nil},
		"deleted": {encrypted(func(i *restore.Item) { i.Changes = append(i.Changes[:2:2], removed("1", 3)) }),
			[]string{"2"}, []string{"2, k"}, nil, nil},
		"copied without digests": {current(func(i *restore.Item) {
			i.Changes[0] = add("1", 1, nil, without)
			i.Changes[1] = add("2", 2, nil, without, copied("v1ns", hour(1)))
		}), []string{"1", "2"}, nil, []string{"2, k"}, nil},
		"kept, and only the size agrees": {encrypted(func(i *restore.Item) {
			i.Kept["2"] = []storage.Kept{kept("k", "", nil), kept("l", "v2ns", one)}
		}), nil, []string{"2, l"}, []string{"2, k"}, nil},
		"stores that are away": {current(func(i *restore.Item) {
			i.Looks["3"], i.KeptUnknown["4"], i.Kept = restore.Look{Err: away}, away, nil
		}), []string{"1", "0", "2"}, nil, nil, []string{"3", "4"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := tt.item.Changes[0]
			sure, guessed, unknown := tt.item.Elsewhere(c)
			names := func(all []*pb.RestoreSource) (names []string) {
				for _, s := range all {
					name := s.GetStore()
					if s.GetKept() != "" {
						name += ", " + s.GetKept()
					}
					names = append(names, name)
				}
				return names
			}
			if got := tt.item.Holders(c); !slices.Equal(got, tt.holders) {
				t.Errorf("on record: got %q, want %q", got, tt.holders)
			}
			if !slices.Equal(names(sure), tt.sure) || !slices.Equal(names(guessed), tt.guessed) ||
				!slices.Equal(slices.Sorted(maps.Keys(unknown)), tt.unknown) {
				t.Errorf("got %q, %q, %v, want %q, %q, %q", names(sure), names(guessed), unknown, tt.sure, tt.guessed,
					tt.unknown)
			}
		})
	}
}
