package preview_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/policy/preview"
)

// rulesOf returns the rules of a document that has been in force since the first day, or is published on day 20.
func rulesOf(t *testing.T, now, next string) (rules, before func(string) policy.Rules) {
	t.Helper()
	r := policy.NewRegistry(func(string) []string { return []string{"1", "2", "3"} })
	parse := func(text string) policy.Document {
		d, err := policy.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if now != "" {
		rec, err := policy.Record("acme", 0, parse(now), "ann", day(1))
		if err != nil || !r.Apply([]byte("acme"), day(1), rec) {
			t.Fatal(err)
		}
	}
	before = func(space string) policy.Rules {
		rules, _ := r.Rules("acme", space)
		return rules
	}
	d := parse(next)
	return r.Next("acme", &d, day(20)), before
}

// describe returns a Preview as text.
func describe(p *preview.Preview) string {
	var b strings.Builder
	names := []string{"nothing", "unchanged", "copy", "update", "compare", "excluded", "held", "delete", "approve", "kept",
		"orphan"}
	for _, s := range p.Spaces() {
		fmt.Fprintf(&b, "%s %s-%s %s", s.Space, s.Pair.Source, s.Pair.Destination, s.Change)
		for o, c := range s.Counts {
			if c.Items > 0 {
				fmt.Fprintf(&b, " %s %d of %d", names[o], c.Items, c.Bytes)
			}
		}
		if s.Waiting.Items > 0 {
			fmt.Fprintf(&b, " waiting %d since %d", s.Waiting.Items, s.Oldest.Day())
		}
		fmt.Fprintf(&b, ", %d commands; ", s.Commands())
	}
	for _, u := range p.Unmanaged(true) {
		fmt.Fprintf(&b, "unmanaged %s/%s %d of %d; ", u.Store, u.Space, u.Items, u.Bytes)
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func TestPreview(t *testing.T) {
	t.Parallel()
	const both = "defaults: {copy: [{from: 1, to: [2, 3]}]}"
	// The items are in store 1 and, with the same content, in those that their names list.
	items := []string{"photos/12", "photos/123", "mail/1", "mail/123", "x-own/12"}
	for name, tt := range map[string]struct{ before, next, want string }{
		"the same": {both, both, "mail 1-2 unchanged unchanged 1 of 10 copy 1 of 10 waiting 1 since 10, 1 commands; " +
			"mail 1-3 unchanged unchanged 1 of 10 copy 1 of 10 waiting 1 since 10, 1 commands; " +
			"photos 1-2 unchanged unchanged 2 of 20, 0 commands; " +
			"photos 1-3 unchanged unchanged 1 of 10 copy 1 of 10 waiting 1 since 10, 1 commands"},
		"first policy": {"", "defaults: {copy: [{from: 1, to: 2}]}",
			"mail 1-2 added unchanged 1 of 10 copy 1 of 10, 1 commands; photos 1-2 added unchanged 2 of 20, 0 commands"},
		"destination removed": {both, "defaults: {copy: [{from: 1, to: 2}]}",
			"mail 1-2 unchanged unchanged 1 of 10 copy 1 of 10 waiting 1 since 10, 1 commands; mail 1-3 removed, 0 commands; " +
				"photos 1-2 unchanged unchanged 2 of 20, 0 commands; photos 1-3 removed, 0 commands; " +
				"unmanaged 3/mail 1 of 10; unmanaged 3/photos 1 of 10"},
		"space ignored": {both, both + "\nignore: [mail]", "mail 1-2 removed, 0 commands; mail 1-3 removed, 0 commands; " +
			"photos 1-2 unchanged unchanged 2 of 20, 0 commands; " +
			"photos 1-3 unchanged unchanged 1 of 10 copy 1 of 10 waiting 1 since 10, 1 commands; " +
			"unmanaged 2/mail 1 of 10; unmanaged 3/mail 1 of 10"},
		"excluded": {both, both + "\nspaces: {mail: {exclude: ['**']}}", "mail 1-2 changed excluded 2 of 20, 0 commands; " +
			"mail 1-3 changed excluded 2 of 20, 0 commands; photos 1-2 unchanged unchanged 2 of 20, 0 commands; " +
			"photos 1-3 unchanged unchanged 1 of 10 copy 1 of 10 waiting 1 since 10, 1 commands"},
		"a chain": {"", "defaults: {copy: [{from: 2, to: 3}, {from: 1, to: 2}]}", "mail 1-2 added unchanged 1 of 10 " +
			"copy 1 of 10, 1 commands; mail 2-3 added unchanged 1 of 10 copy 1 of 10, 1 commands; " +
			"photos 1-2 added unchanged 2 of 20, 0 commands; " +
			"photos 2-3 added unchanged 1 of 10 copy 1 of 10, 1 commands"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules, before := rulesOf(t, tt.before, tt.next)
			p := preview.New(preview.Config{Rules: rules, Before: before, Primary: "1", Now: day(20)})
			for _, item := range items {
				space, stores, _ := strings.Cut(item, "/")
				var copies []preview.Stored
				for _, store := range stores {
					copies = append(copies, preview.Stored{Store: string(store), Record: live(10, "md5:aa")})
				}
				if err := p.Add(space, item, copies); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.ReplaceAll(describe(p), "x-own", ""); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// The deletes that a chain leads to are those of both stores; a rule that begins with the policy deletes nothing.
func TestPreviewOfDeletes(t *testing.T) {
	t.Parallel()
	const chain = "defaults: {copy: [{from: 1, to: 2}, {from: 2, to: 3}]}"
	item := []preview.Stored{{Store: "1", Record: deleted(day(12))}, {Store: "2", Record: live(10, "md5:aa")},
		{Store: "3", Record: live(10, "md5:aa")}}
	for name, tt := range map[string]struct{ before, next, want string }{
		"the rule stays": {chain, chain, "s 1-2 unchanged delete 1 of 10, 1 commands; " +
			"s 2-3 unchanged delete 1 of 10, 1 commands"},
		"the pair is new": {"", chain, "s 1-2 added kept 1 of 10, 0 commands; s 2-3 added unchanged 1 of 10, 0 commands"},
		"the rule is new": {"defaults: {deletes: keep, copy: [{from: 1, to: 2}]}", "defaults: {copy: [{from: 1, to: 2}]}",
			"s 1-2 changed kept 1 of 10, 0 commands"},
	} {
		rules, before := rulesOf(t, tt.before, tt.next)
		p := preview.New(preview.Config{Rules: rules, Before: before, Primary: "1", Now: day(20)})
		if err := p.Add("s", "a", item); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := strings.Cut(describe(p), "; unmanaged"); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func TestPreviewNeedsLists(t *testing.T) {
	t.Parallel()
	rules, before := rulesOf(t, "", "defaults: {copy: [{from: 1, to: 2}], excludeLists: [{url: 'file:///none', of: ids, "+
		"sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}]}")
	away := errors.New("away")
	p := preview.New(preview.Config{Rules: rules, Before: before, Now: day(20),
		Lists: func([]policy.ExcludeList) ([]*policy.List, error) { return nil, away }})
	if err := p.Add("s", "a", nil); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
}

// A policy in force manages its sources and destinations, and the primary store.
func TestUnmanaged(t *testing.T) {
	t.Parallel()
	rules, _ := rulesOf(t, "", "ignore: [scratch]\ndefaults: {copy: [{from: 1, to: [2, gone]}]}")
	p := preview.New(preview.Config{Rules: rules, Before: rules, Primary: "1", Now: day(20),
		Has: func(store string) bool { return store != "gone" }})
	for _, space := range []string{"photos", "scratch", "x-own"} {
		if err := p.Add(space, "a", []preview.Stored{{Store: "1", Record: live(1, "")}, {Store: "2", Record: live(2, "")},
			{Store: "gone", Record: live(-1, "")}, {Store: "3", Record: deleted(day(2))}}); err != nil {
			t.Fatal(err)
		}
	}
	want := []preview.Copies{
		{Store: "gone", Space: "photos", Count: preview.Count{Items: 1, Unsized: 1}},
		{Store: "2", Space: "scratch", Count: preview.Count{Items: 1, Bytes: 2}},
		{Store: "gone", Space: "scratch", Count: preview.Count{Items: 1, Unsized: 1}},
		{Store: "2", Space: "x-own", Count: preview.Count{Items: 1, Bytes: 2}},
		{Store: "gone", Space: "x-own", Count: preview.Count{Items: 1, Unsized: 1}},
	}
	if got := p.Unmanaged(false); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := p.Unmanaged(true); got != nil {
		t.Errorf("became unmanaged: %+v", got)
	}
}
