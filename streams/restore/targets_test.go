package restore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/restore"
)

// A copy is ordered only if its store may be written, and if its source gets the content too, has it, or lacks the
// item. The policy is 1 to 2, and 2 to 3; all hold two, and get back one.
func TestTargets(t *testing.T) {
	holds := func(edit func(*restore.Item)) *restore.Item {
		return encrypted(func(i *restore.Item) {
			i.Changes = append(i.Changes, add("3", 5, two))
			i.Looks["3"] = there("v5ns", two)
			edit(i)
		})
	}
	as := func(*restore.Item) {}
	source := func(l restore.Look) func(*restore.Item) { return func(i *restore.Item) { i.Looks["1"] = l } }
	const off = "repair: off"
	for name, tt := range map[string]struct {
		edit    func(*restore.Item)
		stores  string
		refuses string // the store that takes nothing
		want    string // for each of the stores: the verdict, or why it is refused
		may     bool
	}{
		"all stores":               {as, "123", "", "ordered, ordered, ordered", false},
		"the source":               {as, "1", "", "ordered", false},
		"the source takes nothing": {as, "1", "1", off, true},
		"all, and the source takes nothing": {as, "123", "1", off + ", its source, store 1, keeps other content, ordered",
			true},
		"the source takes nothing, and has it": {source(there("v9", one)), "123", "1", "already, ordered, ordered", true},
		"the source takes nothing, and its version has it": {source(there("v1ns", nil)), "123", "1",
			"already, ordered, ordered", true},
		"the source takes nothing, and holds what is on no record": {source(there("v9", nil)), "12", "1",
			off + ", its source, store 1, keeps other content", true},
		"the source takes nothing, and is away": {source(restore.Look{Err: errors.New("away")}), "12", "1",
			"unknown, it is unknown what its source, store 1, holds", true},
		"the source takes nothing, and lacks it":    {source(restore.Look{}), "12", "1", off + ", ordered", true},
		"only a copy":                               {as, "2", "", "ordered", false},
		"only a copy, and the source takes nothing": {as, "2", "1", "its source, store 1, keeps other content", true},
		"only a copy of a copy":                     {as, "3", "", "ordered", false},
		"only a copy of a copy that takes nothing":  {as, "3", "2", "its source, store 2, keeps other content", true},
		"a copy takes nothing":                      {as, "12", "2", "ordered, ordered", false},
		"the copy of a copy takes nothing":          {as, "123", "3", "ordered, ordered, ordered", false},
		"only a copy, that takes nothing":           {source(there("v9", one)), "2", "2", off, true},
		"a store that is in no pair":                {as, "4", "", "ordered", false},
		"a store in no pair that takes nothing":     {as, "4", "4", off, true},
	} {
		t.Run(name, func(t *testing.T) {
			item := holds(tt.edit)
			targets := restore.Targets{Stores: strings.Split(tt.stores, ""),
				Pairs: []policy.Pair{{Source: "1", Destination: "2"}, {Source: "2", Destination: "3"}},
				Refuses: func(store string) string {
					if store == tt.refuses {
						return off
					}
					return ""
				}}
			var got []string
			for _, store := range targets.Stores {
				c := targets.Choose(item, store, item.At("1", hour(2)))
				if (c.Verdict == restore.Ordered) != (c.Order != nil) {
					t.Errorf("store %s: got %+v", store, c)
				}
				if text := string(c.Verdict); c.Verdict != restore.Refused {
					got = append(got, text)
					continue
				}
				got = append(got, c.Detail)
			}
			if text := strings.Join(got, ", "); text != tt.want || targets.MayRefuse() != tt.may {
				t.Errorf("got %s; may refuse: %t\nwant %s; %t", text, targets.MayRefuse(), tt.want, tt.may)
			}
		})
	}
}
