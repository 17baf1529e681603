package policy_test

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/policy"
)

// The rules that a document would have are those that it has once it is published.
func TestNext(t *testing.T) {
	t.Parallel()
	at := func(day int) time.Time { return time.Date(2026, 9, day, 12, 0, 0, 0, time.UTC) }
	texts := []string{
		"defaults: {copy: [{from: 1, to: 2}]}",
		"defaults: {copy: [{from: 1, to: [2, 3]}]}\nspaces: {mail: {deletes: keep}}",
		"defaults: {copy: [{from: 1, to: 3}], exclude: ['*.tmp']}",
	}
	r := policy.NewRegistry(func(string) []string { return []string{"1", "2", "3"} })
	for i, text := range texts {
		d, err := policy.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		next := r.Next("acme", &d, at(1+i))
		rec, err := policy.Record("acme", int64(i), d, "ann", at(1+i))
		if err != nil || !r.Apply([]byte("acme"), at(1+i), rec) {
			t.Fatalf("revision %d: %v", i+1, err)
		}
		for _, space := range []string{"mail", "photos", "x-own"} {
			want, _ := r.Rules("acme", space)
			got := next(space)
			if !slices.Equal(got.Pairs, want.Pairs) || got.Revision != want.Revision || got.Deletes != want.Deletes ||
				!got.Since.Equal(want.Since) || len(got.Added) != len(want.Added) {
				t.Errorf("revision %d, space %s: got %+v, want %+v", i+1, space, got, want)
			}
			for p, added := range want.Added {
				if !got.Added[p].Equal(added) {
					t.Errorf("revision %d, space %s, pair %v: got %v, want %v", i+1, space, p, got.Added[p], added)
				}
			}
		}
	}
	if rules := r.Next("acme", nil, at(9))("photos"); len(rules.Pairs) != 0 || rules.Deletes != policy.KeepCopy {
		t.Errorf("removed: got %+v", rules)
	}
}

func TestDeletesOf(t *testing.T) {
	t.Parallel()
	at := func(day int) time.Time { return time.Date(2026, 9, day, 12, 0, 0, 0, time.UTC) }
	pair := policy.Pair{Source: "1", Destination: "2"}
	for name, tt := range map[string]struct {
		rule                     policy.Deletes
		since, added, propagated time.Time
		want                     policy.Deletes
	}{
		"later than all":                   {policy.Propagate, at(1), at(2), at(3), policy.Propagate},
		"rule approve":                     {policy.Approve, at(1), at(2), time.Time{}, policy.Approve},
		"rule approve, after propagate":    {policy.Approve, at(1), at(2), at(3), policy.Approve},
		"rule keep":                        {policy.KeepCopy, at(1), at(2), time.Time{}, policy.KeepCopy},
		"as old as the rule":               {policy.Propagate, at(5), at(2), time.Time{}, policy.KeepCopy},
		"as old as the pair":               {policy.Propagate, at(1), at(5), time.Time{}, policy.KeepCopy},
		"as old as the end of approval":    {policy.Propagate, at(1), at(2), at(5), policy.Approve},
		"older than the end of approval":   {policy.Propagate, at(1), at(2), at(6), policy.Approve},
		"older than the pair and approval": {policy.Propagate, at(1), at(6), at(6), policy.KeepCopy},
	} {
		r := policy.Rules{Deletes: tt.rule, Since: tt.since, Propagated: tt.propagated,
			Added: map[policy.Pair]time.Time{pair: tt.added}}
		if got := r.DeletesOf(pair, at(5)); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func TestManages(t *testing.T) {
	t.Parallel()
	d, err := policy.Parse([]byte("ignore: [scratch]\ndefaults: {copy: [{from: 1, to: 2}]}\n" +
		"spaces: {mail: {copy: [{from: 2, to: 3}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[[2]string]bool{
		{"photos", "1"}: true, {"photos", "2"}: true, {"photos", "3"}: false, {"mail", "1"}: false, {"mail", "3"}: true,
		{"scratch", "2"}: false, {"x-own", "2"}: false,
	} {
		if got := d.Rules(at[0]).Manages(at[1]); got != want {
			t.Errorf("space %s, store %s: got %t", at[0], at[1], got)
		}
	}
	if got := d.NamedSpaces(); !slices.Equal(got, []string{"mail"}) {
		t.Errorf("named spaces: got %q", got)
	}
}
