package policy

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func at(hour int) time.Time { return time.Date(2026, 9, 1, hour, 0, 0, 0, time.UTC) }

func threeStores(string) []string { return stores }

func record(t testing.TB, base int64, document string) *pb.Policy {
	t.Helper()
	d, err := Parse([]byte(document))
	if err != nil {
		return &pb.Policy{Account: "acme", Base: base, Document: document}
	}
	p, err := Record("acme", base, d, "me", at(0))
	must(t, err)
	return p
}

const (
	to2     = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}]}`
	to2keep = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}],
		"spaces": {"photos": {"deletes": "keep"}}}`
	to23 = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"},
		{"srcStoreId":"1","destStoreId":"3"}]}`
	named23 = `{"spaceDuplicationStorePolicies": {"photos":
		[{"srcStoreId":"1","destStoreId":"2"}, {"srcStoreId":"1","destStoreId":"3"}]}}`
	to2approve = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}],
		"spaces": {"photos": {"deletes": "approve"}}}`
	to9   = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"9"}]}`
	later = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}],
		"spaces": {"photos": {"deletes": "archive"}}}`
	ignored = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}], "spacesToIgnore": ["photos"]}`
)

func TestBook(t *testing.T) {
	p12, p13, p19 := Pair{"1", "2"}, Pair{"1", "3"}, Pair{"1", "9"}
	nothing := Rules{Deletes: KeepCopy}
	removed := &pb.Policy{Account: "acme", Base: 1, Removed: true}
	type want struct {
		revision int64
		fault    bool
		ok       bool
		rules    Rules // of space photos
	}
	rules := func(revision int64, d Deletes, since int, added map[Pair]time.Time, pairs ...Pair) Rules {
		return Rules{Revision: revision, Pairs: pairs, Deletes: d, Since: at(since), Added: added}
	}
	propagated := func(r Rules, since int) Rules {
		r.Propagated = at(since)
		return r
	}
	tests := map[string]struct {
		records []*pb.Policy // one an hour, from 1 on
		want    want
	}{
		"empty": {nil, want{rules: nothing}},
		"first": {[]*pb.Policy{record(t, 0, to2)},
			want{1, false, true, rules(1, Propagate, 1, map[Pair]time.Time{p12: at(1)}, p12)}},
		"wrong base": {[]*pb.Policy{record(t, 1, to2)}, want{rules: nothing}},
		"lost the race": {[]*pb.Policy{record(t, 0, to2), record(t, 0, to23)},
			want{1, false, true, rules(1, Propagate, 1, map[Pair]time.Time{p12: at(1)}, p12)}},
		"a pair is added": {[]*pb.Policy{record(t, 0, to2), record(t, 1, to23)},
			want{2, false, true, rules(2, Propagate, 1, map[Pair]time.Time{p12: at(1), p13: at(2)}, p12, p13)}},
		"an unknown store is in force": {[]*pb.Policy{record(t, 0, to2), record(t, 1, to9), record(t, 1, to23)},
			want{2, true, true, rules(2, Propagate, 1, map[Pair]time.Time{p19: at(2)}, p19)}},
		"an unknown store from the start": {[]*pb.Policy{record(t, 0, to9)},
			want{1, true, true, rules(1, Propagate, 1, map[Pair]time.Time{p19: at(1)}, p19)}},
		"an unknown rule keeps copies": {[]*pb.Policy{record(t, 0, later)},
			want{1, true, true, rules(1, KeepCopy, 1, map[Pair]time.Time{p12: at(1)}, p12)}},
		"an unreadable revision keeps copies": {[]*pb.Policy{record(t, 0, to2), record(t, 1, "{")},
			want{2, true, true, rules(1, KeepCopy, 2, map[Pair]time.Time{p12: at(1)}, p12)}},
		"unreadable revisions keep copies": {[]*pb.Policy{record(t, 0, to2), record(t, 1, "{"), record(t, 2, "{")},
			want{3, true, true, rules(1, KeepCopy, 2, map[Pair]time.Time{p12: at(1)}, p12)}},
		"copies deleted during an unreadable revision are kept": {[]*pb.Policy{record(t, 0, to2), record(t, 1, "{"),
			record(t, 2, to23)},
			want{3, false, true, rules(3, Propagate, 3, map[Pair]time.Time{p12: at(1), p13: at(3)}, p12, p13)}},
		"unreadable from the start": {[]*pb.Policy{record(t, 0, "{")}, want{revision: 1, fault: true, rules: nothing}},
		"approval, then not": {[]*pb.Policy{record(t, 0, to2approve), record(t, 1, to2)},
			want{2, false, true, propagated(rules(2, Propagate, 1, map[Pair]time.Time{p12: at(1)}, p12), 2)}},
		"approval, then not, and a pair": {[]*pb.Policy{record(t, 0, to2approve), record(t, 1, to2), record(t, 2, to23)},
			want{3, false, true, propagated(rules(3, Propagate, 1, map[Pair]time.Time{p12: at(1), p13: at(3)}, p12, p13), 2)}},
		"approval for a while": {[]*pb.Policy{record(t, 0, to2), record(t, 1, to2approve), record(t, 2, to2)},
			want{3, false, true, propagated(rules(3, Propagate, 1, map[Pair]time.Time{p12: at(1)}, p12), 3)}},
		"approval from now on": {[]*pb.Policy{record(t, 0, to2), record(t, 1, to2approve)},
			want{2, false, true, rules(2, Approve, 1, map[Pair]time.Time{p12: at(1)}, p12)}},
		"approval, then kept, then neither": {[]*pb.Policy{record(t, 0, to2approve), record(t, 1, to2), record(t, 2, to2keep),
			record(t, 3, to2)},
			want{4, false, true, rules(4, Propagate, 4, map[Pair]time.Time{p12: at(1)}, p12)}},
		"approval, then unreadable": {[]*pb.Policy{record(t, 0, to2approve), record(t, 1, "{"), record(t, 2, to2)},
			want{3, false, true, rules(3, Propagate, 3, map[Pair]time.Time{p12: at(1)}, p12)}},
		"named by a later revision": {[]*pb.Policy{record(t, 0, to2), record(t, 1, to23), record(t, 2, named23)},
			want{3, false, true, rules(3, Propagate, 1, map[Pair]time.Time{p12: at(1), p13: at(2)}, p12, p13)}},
		"named by an earlier revision": {[]*pb.Policy{record(t, 0, named23), record(t, 1, to2), record(t, 2, to23)},
			want{3, false, true, rules(3, Propagate, 1, map[Pair]time.Time{p12: at(1), p13: at(3)}, p12, p13)}},
		"deletes kept, then not": {[]*pb.Policy{record(t, 0, to2), record(t, 1, to2keep), record(t, 2, to2)},
			want{3, false, true, rules(3, Propagate, 3, map[Pair]time.Time{p12: at(1)}, p12)}},
		"ignored for a while": {[]*pb.Policy{record(t, 0, to2), record(t, 1, ignored), record(t, 2, to2)},
			want{3, false, true, rules(3, Propagate, 3, map[Pair]time.Time{p12: at(3)}, p12)}},
		"space is ignored": {[]*pb.Policy{record(t, 0, ignored)},
			want{1, false, true, Rules{Revision: 1, Deletes: Propagate}}},
		"removed": {[]*pb.Policy{record(t, 0, to2), removed}, want{revision: 2, rules: nothing}},
		"removed, and unreadable": {[]*pb.Policy{record(t, 0, to2), removed, record(t, 2, "{")},
			want{revision: 3, fault: true, rules: nothing}},
		"removed and back": {[]*pb.Policy{record(t, 0, to2), removed, record(t, 2, to2)},
			want{3, false, true, rules(3, Propagate, 3, map[Pair]time.Time{p12: at(3)}, p12)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := NewRegistry(threeStores)
			b.Apply([]byte("acme"), at(0), nil)
			b.Apply([]byte("other"), at(0), record(t, 0, to2)) // not its key
			for i, r := range tt.records {
				b.Apply([]byte("acme"), at(i+1), r)
			}
			got := want{revision: b.Revision("acme"), fault: b.Faults("acme").Err() != nil}
			got.rules, got.ok = b.Rules("acme", "photos")
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
			if _, ok := b.Document("acme"); ok != tt.want.ok {
				t.Errorf("document in force: got %v, want %v", ok, tt.want.ok)
			}
		})
	}
}

// Removing a store from the configuration of a reader and adding it again does not change the rules or their times.
func TestRulesDoNotDependOnStores(t *testing.T) {
	const keep = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}, {"srcStoreId":"1","destStoreId":"3"}],
		"spaces": {"photos": {"deletes": "keep"}}}`
	rules := func(known ...string) (Rules, error) {
		b := NewRegistry(func(string) []string { return known })
		b.Apply([]byte("acme"), at(1), record(t, 0, to2))
		b.Apply([]byte("acme"), at(10), record(t, 1, keep))
		got, _ := b.Rules("acme", "photos")
		return got, b.Faults("acme").Err()
	}
	before, fault := rules("1", "2", "3")
	if before.Deletes != KeepCopy || !before.Since.Equal(at(10)) || fault != nil {
		t.Fatalf("with all stores: %+v, %v", before, fault)
	}
	without, fault := rules("1", "2")
	if !reflect.DeepEqual(without, before) {
		t.Errorf("without store 3: got %+v, want %+v", without, before)
	}
	if fault == nil || !strings.Contains(fault.Error(),
		`revision 2 is in force with faults: defaultPolicies[1].destStoreId: unknown store "3"`) {
		t.Errorf("without store 3: fault %v", fault)
	}
	if after, fault := rules("1", "2", "3"); !reflect.DeepEqual(after, before) || fault != nil {
		t.Errorf("put back: got %+v, %v, want %+v", after, fault, before)
	}
}

// Readers of the same records have the same revisions and rules and agree on which record was superseded, even if they
// know different stores. An unreadable document leaves the last one in force, but copies are kept.
func TestReadersAgree(t *testing.T) {
	documents := []string{to2, to2keep, to23, to9, later, ignored, "{"}
	need.Check(t, func(rt *rapid.T) {
		all := NewRegistry(threeStores)
		few := NewRegistry(func(string) []string { return []string{"1", "2"} })
		late := NewRegistry(threeStores)
		var log []*pb.Policy
		var won int64
		for i := range rapid.IntRange(1, 20).Draw(rt, "records") {
			base := all.Revision("acme") + rapid.Int64Range(-1, 1).Draw(rt, "base")
			p := record(t, base, rapid.SampledFrom(documents).Draw(rt, "document"))
			p.Removed = rapid.IntRange(0, 9).Draw(rt, "removed") == 0
			wins := base == all.Revision("acme")
			if wins {
				won++
			}
			before, _ := all.Document("acme")
			all.Apply([]byte("acme"), at(i), p)
			few.Apply([]byte("acme"), at(i), proto.Clone(p).(*pb.Policy))
			log = append(log, p)
			rules, _ := all.Rules("acme", "photos")
			if wins && !p.GetRemoved() && p.GetDocument() == "{" {
				if after, _ := all.Document("acme"); !reflect.DeepEqual(before, after) || rules.Deletes != KeepCopy {
					rt.Fatalf("after a document that cannot be read: %+v, deletes %s", after, rules.Deletes)
				}
			}
			if all.Revision("acme") != won || few.Revision("acme") != won {
				rt.Fatalf("revisions: got %d and %d, want %d", all.Revision("acme"), few.Revision("acme"), won)
			}
			if got, _ := few.Rules("acme", "photos"); !reflect.DeepEqual(got, rules) {
				rt.Fatalf("a reader that knows fewer stores: got %+v, want %+v", got, rules)
			}
		}
		for i, p := range log {
			late.Apply([]byte("acme"), at(i), p)
		}
		got, _ := late.Rules("acme", "photos")
		want, _ := all.Rules("acme", "photos")
		if !reflect.DeepEqual(got, want) {
			rt.Fatalf("a late reader: got %+v, want %+v", got, want)
		}
	})
}

// A revision never has an earlier time than the previous one, even if the clocks of the brokers differ.
func TestRevisionTimesAreOrdered(t *testing.T) {
	tests := map[string]struct {
		times        []int // of three revisions that propagate, keep and propagate deletes; hours
		since, added time.Time
	}{
		"in order":              {[]int{1, 2, 3}, at(3), at(1)},
		"the rule steps back":   {[]int{5, 6, 2}, at(6), at(5)},
		"the one before it too": {[]int{5, 1, 2}, at(5), at(5)},
		"a leap":                {[]int{1, 20, 3}, at(20), at(1)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := NewRegistry(threeStores)
			for i, document := range []string{to2, to2keep, to2} {
				b.Apply([]byte("acme"), at(tt.times[i]), record(t, int64(i), document))
			}
			got, _ := b.Rules("acme", "photos")
			if got.Deletes != Propagate || !got.Since.Equal(tt.since) || !got.Added[Pair{"1", "2"}].Equal(tt.added) {
				t.Errorf("got %s since %v, pair since %v; want %v and %v", got.Deletes, got.Since, got.Added, tt.since, tt.added)
			}
		})
	}
}

// A record that cannot be decoded is not a revision: the document in force stays. Copies deleted at the source before
// the next revision are kept for good.
func TestUndecodableRecord(t *testing.T) {
	broken := errors.New("broken")
	p12 := Pair{"1", "2"}
	for name, tt := range map[string]struct {
		first         string
		between, then Rules // of space photos: after the record, and after another revision
	}{
		"deletes are propagated": {to2,
			Rules{Revision: 1, Pairs: []Pair{p12}, Deletes: KeepCopy, Since: at(2), Added: map[Pair]time.Time{p12: at(1)}},
			Rules{Revision: 3, Pairs: []Pair{p12}, Deletes: Propagate, Since: at(4), Added: map[Pair]time.Time{p12: at(1)}}},
		"deletes are kept": {to2keep,
			Rules{Revision: 1, Pairs: []Pair{p12}, Deletes: KeepCopy, Since: at(1), Added: map[Pair]time.Time{p12: at(1)}},
			Rules{Revision: 3, Pairs: []Pair{p12}, Deletes: Propagate, Since: at(4), Added: map[Pair]time.Time{p12: at(1)}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewRegistry(threeStores)
			b.Apply([]byte("acme"), at(1), record(t, 0, tt.first))
			b.Unreadable([]byte("acme"), at(2), broken)
			b.Unreadable([]byte("acme"), at(3), broken)
			if got, ok := b.Rules("acme", "photos"); !ok || !reflect.DeepEqual(got, tt.between) {
				t.Errorf("after it: got  %+v, %v\nwant %+v", got, ok, tt.between)
			}
			if fault := b.Faults("acme").Err(); !errors.Is(fault, broken) || b.Revision("acme") != 1 {
				t.Errorf("after it: fault %v, revision %d", fault, b.Revision("acme"))
			}
			b.Apply([]byte("acme"), at(4), record(t, 1, to2))
			b.Apply([]byte("acme"), at(5), record(t, 2, to2))
			if got, ok := b.Rules("acme", "photos"); !ok || !reflect.DeepEqual(got, tt.then) {
				t.Errorf("after the next ones: got  %+v, %v\nwant %+v", got, ok, tt.then)
			}
			if fault := b.Faults("acme").Err(); fault != nil {
				t.Errorf("after the next ones: fault %v", fault)
			}
		})
	}
	b := NewRegistry(threeStores)
	b.Unreadable([]byte("acme"), at(1), broken)
	if got, ok := b.Rules("acme", "photos"); ok || got.Deletes != KeepCopy {
		t.Errorf("alone: got %+v, %v", got, ok)
	}
}

// Settled reports whether a record was applied, even if other revisions followed.
func TestSettled(t *testing.T) {
	b := NewRegistry(threeStores)
	mine, other, unreadable := record(t, 0, to2), record(t, 0, to23), record(t, 1, "{")
	other.Id, other.By, unreadable.Id = "another", "someone", "unreadable"
	if settled, err := b.Settled(mine); settled || err != nil {
		t.Errorf("before anything is read: got %v, %v", settled, err)
	}
	for i, p := range []*pb.Policy{other, mine, mine, unreadable} {
		b.Apply([]byte("acme"), at(i+1), p)
	}
	for name, p := range map[string]*pb.Policy{"the first": other, "one that cannot be read": unreadable} {
		if settled, err := b.Settled(p); !settled || err != nil {
			t.Errorf("%s: got %v, %v", name, settled, err)
		}
	}
	settled, err := b.Settled(mine)
	var lost *LostError
	want := LostError{Noun: "policy of account", Account: "acme", Revision: 1, By: "someone", Time: at(1)}
	if !settled || !errors.As(err, &lost) || *lost != want {
		t.Errorf("the second: got %v, %+v, want %+v", settled, lost, want)
	}
	if settled, err := b.Settled(record(t, 2, to2)); settled || err != nil {
		t.Errorf("one that has not been read: got %v, %v", settled, err)
	}
}

func TestRecordIsAFunction(t *testing.T) {
	d := mustParse(t, to2)
	a, _ := Record("acme", 3, d, "me", at(1))
	b, _ := Record("acme", 3, d, "me", at(1))
	c, _ := Record("acme", 4, d, "me", at(1))
	if !proto.Equal(a, b) || a.GetId() == c.GetId() || a.GetId() == "" {
		t.Errorf("got ids %q, %q, %q", a.GetId(), b.GetId(), c.GetId())
	}
	if _, err := Record("", 0, d, "me", at(1)); err == nil {
		t.Error("a record without an account was made")
	}
	if r, err := Removal("acme", 3, "me", at(1)); err != nil || !r.GetRemoved() || r.GetId() == "" ||
		r.GetId() == a.GetId() {
		t.Errorf("removal: got %v (%v)", r, err)
	}
	if _, err := Removal("", 0, "me", at(1)); err == nil {
		t.Error("a removal without an account was made")
	}
}

// The files of an account are those of its revisions.
func TestFiles(t *testing.T) {
	of := func(base int64, document, file string) *pb.Policy {
		p := record(t, base, document)
		p.FileSha256 = file
		return p
	}
	removal := &pb.Policy{Id: "r", Account: "acme", Base: 1, Removed: true}
	for name, tt := range map[string]struct {
		records []*pb.Policy
		want    []string
	}{
		"none": {nil, nil},
		"one":  {[]*pb.Policy{of(0, to2, "f")}, []string{"f"}},
		"set back": {[]*pb.Policy{of(0, to2, "f"), of(1, to23, "g"), of(2, to2, "f")},
			[]string{"f", "g", "f"}},
		"before an operator's":                   {[]*pb.Policy{of(0, to2, "f"), of(1, to23, "")}, []string{"f"}},
		"only an operator's":                     {[]*pb.Policy{record(t, 0, to2)}, nil},
		"ignored, as its base is not the newest": {[]*pb.Policy{of(0, to23, "g"), of(0, to2, "f")}, []string{"g"}},
		"removed since":                          {[]*pb.Policy{of(0, to2, "f"), removal}, []string{"f"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewRegistry(func(string) []string { return []string{"1", "2", "3"} })
			for _, p := range tt.records {
				b.Apply([]byte("acme"), time.Time{}, p)
			}
			if got := b.Files("acme"); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Readers ask for the rules with each message, and revisions are kept for ever.
func TestRulesCostTheSameAtAnyRevision(t *testing.T) {
	const held = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}],
		"defaults": {"hold": [{"until": "2090-01-01T00:00:00Z", "reason": "a"}]},
		"spaces": {"photos": {"hold": [{"until": "2091-01-01T00:00:00Z", "reason": "b"}]}}}`
	cost := func(revisions int) float64 {
		b := NewRegistry(threeStores)
		for i := range revisions {
			b.Apply([]byte("acme"), at(i), record(t, int64(i), held))
		}
		return testing.AllocsPerRun(10, func() { b.Rules("acme", "photos") })
	}
	if one, many := cost(1), cost(500); one != many {
		t.Errorf("%v allocations with 1 revision, %v with 500", one, many)
	}
}
