package restore_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/restore"
	"github.com/millrace/millrace/streams/storage"
)

var (
	one = digest.Set{digest.MD5: "f97c5d29941bfb1b2fdab0874906ab82"}
	two = digest.Set{digest.MD5: "b8a9f715dbb64fd5c56e7783c6820a61"}
)

func hour(h int) time.Time { return time.Date(2026, 3, 1, h, 0, 0, 0, time.UTC) }

// add returns the Change of a verified content of 3 bytes, whose version is that of the hour.
func add(store string, h int, sums digest.Set, edit ...func(*pb.Change)) *pb.Change {
	c := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: store, Space: "s", Item: "i", Size: 3,
		Version: "v" + time.Duration(h).String(), Digests: sums, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Time: timestamppb.New(hour(h)), Origin: pb.Origin_ORIGIN_CLIENT}
	for _, e := range edit {
		e(c)
	}
	c.Id = schemas.ChangeID(c)
	return c
}

func removed(store string, h int) *pb.Change {
	return add(store, h, nil, func(c *pb.Change) { c.Op, c.Version, c.Provenance = pb.Op_OP_DELETE, "", 0 })
}

func claimed(c *pb.Change) { c.Provenance = pb.Provenance_PROVENANCE_CLAIMED }

func without(c *pb.Change) { c.Digests, c.Provenance = nil, 0 }

func object(version string, sums digest.Set) storage.Object {
	return storage.Object{Item: "i", Size: 3, Version: version, Modified: hour(1), Digests: sums}
}

func there(version string, sums digest.Set) restore.Look {
	return restore.Look{Present: true, Object: object(version, sums)}
}

func kept(id, version string, sums digest.Set) storage.Kept {
	return storage.Kept{ID: id, Object: object(version, sums), At: hour(3)}
}

// encrypted returns an item whose content one of hour 1 was replaced by two in hour 3 in the source 1 and in the copy
// 2, which has kept the replaced bytes.
func encrypted(edit ...func(*restore.Item)) *restore.Item {
	i := &restore.Item{Account: "acme", Space: "s", ID: "i",
		Changes: []*pb.Change{add("1", 1, one), add("2", 2, one), add("1", 3, two), add("2", 4, two)},
		Looks:   map[string]restore.Look{"1": there("v3ns", two), "2": there("v4ns", two)},
		Kept:    map[string][]storage.Kept{"2": {kept("k", "v2ns", one)}}, KeptUnknown: map[string]error{},
	}
	for _, e := range edit {
		e(i)
	}
	return i
}

func TestChoose(t *testing.T) {
	away := errors.New("away")
	for name, tt := range map[string]struct {
		item    *restore.Item
		store   string
		verdict restore.Verdict
		sources []string
	}{
		"replaced, kept by another store": {encrypted(), "1", restore.Ordered, []string{"2, kept k"}},
		"replaced, kept by the store":     {encrypted(), "2", restore.Ordered, []string{"2, kept k"}},
		"a copy has it": {encrypted(func(i *restore.Item) { i.Looks["2"] = there("v2ns", one) }), "1", restore.Ordered,
			[]string{"2", "2, kept k"}},
		"back already": {encrypted(func(i *restore.Item) { i.Looks["1"] = there("v9", one) }), "1", restore.Already, nil},
		"back already by the version on record": {encrypted(func(i *restore.Item) { i.Looks["1"] = there("v1ns", nil) }),
			"1", restore.Already, nil},
		"a version of no record": {encrypted(func(i *restore.Item) { i.Looks["1"] = there("v9", nil) }), "1",
			restore.Ordered, []string{"2, kept k"}},
		"deleted": {encrypted(func(i *restore.Item) {
			i.Changes, i.Looks["1"] = append(i.Changes, removed("1", 5)), restore.Look{}
		}), "1", restore.Ordered, []string{"2, kept k"}},
		"lost": {encrypted(func(i *restore.Item) { i.Looks["1"] = restore.Look{} }), "1", restore.Ordered,
			[]string{"2, kept k"}},
		"the store is away": {encrypted(func(i *restore.Item) { i.Looks["1"] = restore.Look{Err: away} }), "1",
			restore.Unknown, nil},
		"another store is away": {encrypted(func(i *restore.Item) { i.Looks["2"] = restore.Look{Err: away} }), "1",
			restore.Ordered, []string{"2, kept k"}},
		"the store with the bytes is away": {encrypted(func(i *restore.Item) {
			i.Looks["2"], i.Kept = restore.Look{Err: away}, nil
		}), "1", restore.Unknown, nil},
		"what is kept is unknown": {encrypted(func(i *restore.Item) {
			i.Kept, i.KeptUnknown["2"] = nil, away
		}), "1", restore.Unknown, nil},
		"nothing is kept": {encrypted(func(i *restore.Item) { i.Kept = nil }), "1", restore.NoBytes, nil},
		"other bytes are kept": {encrypted(func(i *restore.Item) {
			i.Kept["2"] = []storage.Kept{kept("k", "v2ns", two)}
		}), "1", restore.NoBytes, nil},
		"bytes of another size are kept": {encrypted(func(i *restore.Item) { i.Kept["2"][0].Object.Size = 4 }), "1",
			restore.NoBytes, nil},
		"damaged bytes are kept": {encrypted(func(i *restore.Item) {
			i.Damaged = func(store string, k storage.Kept) bool { return store == "2" && k.ID == "k" }
		}), "1", restore.NoBytes, nil},
		"kept by version": {encrypted(func(i *restore.Item) { i.Kept["2"] = []storage.Kept{kept("k", "v2ns", nil)} }), "1",
			restore.Ordered, []string{"2, kept k"}},
		"kept, and only the size agrees": {encrypted(func(i *restore.Item) {
			i.Kept["2"] = []storage.Kept{kept("k", "", nil), kept("l", "v2ns", one)}
		}), "1", restore.Ordered, []string{"2, kept l", "2, kept k"}},
		"the version is of other bytes": {encrypted(func(i *restore.Item) {
			i.Kept["2"] = []storage.Kept{kept("k", "v4ns", nil)}
		}), "1", restore.NoBytes, nil},
		"its own bytes before those of others": {encrypted(func(i *restore.Item) {
			i.Kept["1"] = []storage.Kept{kept("m", "v1ns", one)}
		}), "1", restore.Ordered, []string{"1, kept m", "2, kept k"}},
		"only claimed": {encrypted(func(i *restore.Item) {
			i.Changes[0], i.Changes[1] = add("1", 1, one, claimed), add("2", 2, one, claimed)
		}), "1", restore.Unproven, nil},
		"claimed, and a check has passed": {encrypted(func(i *restore.Item) {
			i.Changes[0], i.Changes[1] = add("1", 1, one, claimed), add("2", 2, one, claimed)
			i.Passed = []map[string]string{two, one}
		}), "1", restore.Ordered, []string{"2, kept k"}},
		"claimed, and checks were of other bytes": {encrypted(func(i *restore.Item) {
			i.Changes[0], i.Changes[1] = add("1", 1, one, claimed), add("2", 2, one, claimed)
			i.Passed = []map[string]string{two}
		}), "1", restore.Unproven, nil},
		"claimed, and verified by the copy": {encrypted(func(i *restore.Item) {
			i.Changes[0] = add("1", 1, one, claimed)
		}), "1", restore.Ordered, []string{"2, kept k"}},
		"without digests, and its copy has some": {encrypted(func(i *restore.Item) {
			i.Changes[0] = add("1", 1, nil, without)
			i.Changes[1] = add("2", 2, one, func(c *pb.Change) { c.SourceVersion = "v1ns" })
		}), "1", restore.Ordered, []string{"2, kept k"}},
		"without digests": {encrypted(func(i *restore.Item) { i.Changes[0] = add("1", 1, nil, without) }), "1",
			restore.Unproven, nil},
		"an unknown size": {encrypted(func(i *restore.Item) {
			i.Changes[0] = add("1", 1, one, func(c *pb.Change) { c.Size, c.SizeUnknown = 0, true })
		}), "1", restore.Ordered, []string{"2, kept k"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := restore.Choose(tt.item, tt.store, tt.item.At("1", hour(2)))
			if got.Verdict != tt.verdict || !slices.Equal(got.Sources, tt.sources) ||
				(got.Order != nil) != (tt.verdict == restore.Ordered) {
				t.Errorf("got %+v, want %s from %q", got, tt.verdict, tt.sources)
			}
			if got.Order == nil {
				return
			}
			now := tt.item.Looks[tt.store]
			last := tt.item.Changes[len(tt.item.Changes)-1]
			deleted := last.GetOp() == pb.Op_OP_DELETE && last.GetStore() == tt.store
			if got.Order.GetReplaces().GetVersion() != now.Object.Version || (got.Order.GetDeleted() != nil) != deleted {
				t.Errorf("the order is conditional on %v, deleted %v; there is %+v",
					got.Order.GetReplaces(), got.Order.GetDeleted(), now)
			}
			cmd := restore.Action{ID: schemas.ID("a"), Who: "alice", Why: "x", Time: hour(6),
				Priority: pb.Priority_PRIORITY_LOW}.Command(tt.item, got)
			if err := schemas.Validate(cmd); err != nil || cmd.GetRestore().GetWhy() != "x" {
				t.Errorf("the command is %v: %v", cmd, err)
			}
		})
	}
	if got := restore.Choose(encrypted(), "1", nil); !reflect.DeepEqual(got, restore.Choice{Item: "i", Store: "1",
		Verdict: restore.NotThen}) {
		t.Errorf("without a content: got %+v", got)
	}
}

func TestContents(t *testing.T) {
	i := encrypted(func(i *restore.Item) {
		i.Changes = append(i.Changes, removed("1", 5), add("1", 6, two), add("1", 7, two))
	})
	for name, tt := range map[string]struct{ got, want *pb.Change }{
		"at, before all":             {i.At("1", hour(0)), nil},
		"at, the very moment":        {i.At("1", hour(1)), i.Changes[0]},
		"at, between":                {i.At("1", hour(2)), i.Changes[0]},
		"at, of another store":       {i.At("2", hour(3)), i.Changes[1]},
		"at, deleted":                {i.At("1", hour(5)), nil},
		"at, now":                    {i.At("1", hour(9)), i.Changes[6]},
		"before, of the same bytes":  {i.Before("1"), i.Changes[0]},
		"before, in an unknown one":  {i.Before("9"), nil},
		"before, in the other store": {i.Before("2"), i.Changes[1]},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %v, want %v", name, tt.got, tt.want)
		}
	}
	i.Changes = i.Changes[:5]
	if got := i.Before("1"); got != i.Changes[2] {
		t.Errorf("before the delete: got %v", got)
	}
	for name, tt := range map[string]struct {
		version   string
		want      *pb.Change
		ambiguous bool
	}{
		"an id":                       {i.Changes[1].GetId(), i.Changes[1], false},
		"a short id":                  {i.Changes[1].GetId()[:8], i.Changes[1], false},
		"too short":                   {i.Changes[1].GetId()[:7], nil, false},
		"a version":                   {"v1ns", i.Changes[0], false},
		"a version of another store":  {"v2ns", nil, false},
		"the id of a delete":          {i.Changes[4].GetId(), nil, false},
		"longer than an id":           {i.Changes[1].GetId() + "0", nil, false},
		"nothing":                     {"", nil, false},
		"a version of several deeds":  {"etag", i.Changes[2], true},
		"a version of the same bytes": {"same", i.Changes[3], false},
	} {
		j := &restore.Item{Changes: slices.Clone(i.Changes)}
		switch tt.version {
		case "etag":
			j.Changes[0], j.Changes[2] = versioned(i.Changes[0], "etag"), versioned(i.Changes[2], "etag")
			tt.want = j.Changes[2]
		case "same":
			j.Changes[2], j.Changes[3] = versioned(i.Changes[2], "same"), versioned(i.Changes[2], "same")
			tt.want = j.Changes[3]
		}
		if got, ambiguous := j.Find("1", tt.version); got != tt.want || ambiguous != tt.ambiguous {
			t.Errorf("%s: got %v, ambiguous: %t", name, got, ambiguous)
		}
	}
}

func versioned(c *pb.Change, version string) *pb.Change {
	return add(c.GetStore(), c.GetTime().AsTime().Hour(), c.GetDigests(), func(c *pb.Change) { c.Version = version })
}

// The id of a command is a function of action and copy: what a repeated command orders again is the same order.
func TestCommandID(t *testing.T) {
	i, a := encrypted(), restore.Action{ID: "a", Who: "alice", Time: hour(6)}
	id := func(i *restore.Item, store string, a restore.Action) string {
		return a.Command(i, restore.Choose(i, store, i.At("1", hour(1)))).GetId()
	}
	later := a
	later.Time, later.Who = hour(7), "bob"
	moved := encrypted(func(i *restore.Item) { i.Looks["1"] = restore.Look{} })
	if id(i, "1", a) != id(moved, "1", later) {
		t.Error("the id depends on the time, the operator or what is there")
	}
	other := a
	other.ID = "b"
	if id(i, "1", a) == id(i, "2", a) || id(i, "1", a) == id(i, "1", other) {
		t.Error("two copies, or two actions, have one id")
	}
}

// A content that was dated ahead was in the store when Kafka had its Change.
func TestChangesDatedAhead(t *testing.T) {
	put, gone := add("1", 1, one), add("1", 100, two)
	gone.Op, gone.Id = pb.Op_OP_DELETE, schemas.ID("gone")
	i := &restore.Item{Changes: []*pb.Change{put, gone}, Ahead: map[string]time.Time{gone.GetId(): hour(3)},
		Looks: map[string]restore.Look{"1": {}, "2": there("v", one)}}
	if got := i.At("1", hour(2)); got != put {
		t.Errorf("before the delete: got %v", got)
	}
	if got := i.At("1", hour(4)); got != nil {
		t.Errorf("after the delete: got %v", got)
	}
	if c := restore.Choose(i, "1", put); c.Verdict != restore.Ordered || !c.Order.GetDeleted().AsTime().Equal(hour(3)) {
		t.Errorf("got %v, deleted %v", c.Verdict, c.Order.GetDeleted().AsTime())
	}
}

// An item that was replaced and deleted by a script comes back as it was before.
func TestLost(t *testing.T) {
	repaired := func(c *pb.Change) { c.Origin = pb.Origin_ORIGIN_REPAIR }
	for name, tt := range map[string]struct {
		changes []*pb.Change
		want    int // the hour of the content; 0: none
	}{
		"deleted":               {[]*pb.Change{add("1", 1, one), removed("1", 5)}, 1},
		"replaced":              {[]*pb.Change{add("1", 1, one), add("1", 5, two)}, 1},
		"replaced and deleted":  {[]*pb.Change{add("1", 1, one), add("1", 5, two), removed("1", 6)}, 1},
		"at the end":            {[]*pb.Change{add("1", 1, one), removed("1", 8)}, 1},
		"new, and deleted":      {[]*pb.Change{add("1", 5, one), removed("1", 6)}, 5},
		"added again, deleted":  {[]*pb.Change{add("1", 1, one), removed("1", 2), add("1", 5, two), removed("1", 6)}, 5},
		"new":                   {[]*pb.Change{add("1", 5, one)}, 0},
		"reported again":        {[]*pb.Change{add("1", 1, one), add("1", 5, one)}, 0},
		"repaired":              {[]*pb.Change{add("1", 1, one), add("1", 5, two, repaired)}, 0},
		"repaired, and deleted": {[]*pb.Change{add("1", 1, one), add("1", 5, two, repaired), removed("1", 6)}, 5},
		"before":                {[]*pb.Change{add("1", 1, one), removed("1", 4)}, 0},
		"after":                 {[]*pb.Change{add("1", 1, one), removed("1", 9)}, 0},
		"in another store":      {[]*pb.Change{add("1", 1, one), add("2", 2, one), removed("2", 5)}, 0},
	} {
		var got int
		if c := (&restore.Item{Changes: tt.changes}).Lost("1", hour(4), hour(8)); c != nil {
			got = c.GetTime().AsTime().Hour()
		}
		if got != tt.want {
			t.Errorf("%s: got the content of hour %d, want %d", name, got, tt.want)
		}
	}
}
