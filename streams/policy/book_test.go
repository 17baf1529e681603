package policy

import (
	"reflect"
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
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	to2     = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}]}`
	to2keep = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}], "spaces": {"photos": {"deletes": "keep"}}}`
	to23    = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}, {"srcStoreId":"1","destStoreId":"3"}]}`
	to9     = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"9"}]}`
	ignored = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}], "spacesToIgnore": ["photos"]}`
)

func TestBook(t *testing.T) {
	p12, p13 := Pair{"1", "2"}, Pair{"1", "3"}
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
	tests := map[string]struct {
		records []*pb.Policy // one an hour, from 1 on
		want    want
	}{
		"empty":      {nil, want{}},
		"first":      {[]*pb.Policy{record(t, 0, to2)}, want{1, false, true, rules(1, Propagate, 1, map[Pair]time.Time{p12: at(1)}, p12)}},
		"wrong base": {[]*pb.Policy{record(t, 1, to2)}, want{}},
		"lost the race": {[]*pb.Policy{record(t, 0, to2), record(t, 0, to23)},
			want{1, false, true, rules(1, Propagate, 1, map[Pair]time.Time{p12: at(1)}, p12)}},
		"a pair is added": {[]*pb.Policy{record(t, 0, to2), record(t, 1, to23)},
			want{2, false, true, rules(2, Propagate, 1, map[Pair]time.Time{p12: at(1), p13: at(2)}, p12, p13)}},
		"an invalid one takes a revision": {[]*pb.Policy{record(t, 0, to2), record(t, 1, to9), record(t, 1, to23)},
			want{2, true, true, rules(1, Propagate, 1, map[Pair]time.Time{p12: at(1)}, p12)}},
		"an unreadable one too": {[]*pb.Policy{record(t, 0, to2), record(t, 1, "{"), record(t, 2, to23)},
			want{3, false, true, rules(3, Propagate, 1, map[Pair]time.Time{p12: at(1), p13: at(3)}, p12, p13)}},
		"invalid from the start": {[]*pb.Policy{record(t, 0, to9)}, want{revision: 1, fault: true}},
		"deletes kept, then not": {[]*pb.Policy{record(t, 0, to2), record(t, 1, to2keep), record(t, 2, to2)},
			want{3, false, true, rules(3, Propagate, 3, map[Pair]time.Time{p12: at(1)}, p12)}},
		"ignored for a while": {[]*pb.Policy{record(t, 0, to2), record(t, 1, ignored), record(t, 2, to2)},
			want{3, false, true, rules(3, Propagate, 3, map[Pair]time.Time{p12: at(3)}, p12)}},
		"is ignored": {[]*pb.Policy{record(t, 0, ignored)},
			want{1, false, true, Rules{Revision: 1, Deletes: Propagate}}},
		"removed": {[]*pb.Policy{record(t, 0, to2), removed}, want{revision: 2}},
		"removed and back": {[]*pb.Policy{record(t, 0, to2), removed, record(t, 2, to2)},
			want{3, false, true, rules(3, Propagate, 3, map[Pair]time.Time{p12: at(3)}, p12)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := NewBook(threeStores)
			b.Apply([]byte("acme"), at(0), nil)
			b.Apply([]byte("other"), at(0), record(t, 0, to2)) // not its key
			for i, r := range tt.records {
				b.Apply([]byte("acme"), at(i+1), r)
			}
			got := want{revision: b.Revision("acme"), fault: b.Faults()["acme"] != nil}
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

// Readers that read the same records hold the same revisions and decide alike who lost,
// whatever each thinks of the documents.
func TestReadersAgree(t *testing.T) {
	documents := []string{to2, to2keep, to23, to9, ignored, "{"}
	need.Check(t, func(rt *rapid.T) {
		all := NewBook(threeStores)
		few := NewBook(func(string) []string { return []string{"1", "2"} })
		late := NewBook(threeStores)
		var log []*pb.Policy
		var won int64
		for i := range rapid.IntRange(1, 20).Draw(rt, "records") {
			base := all.Revision("acme") + rapid.Int64Range(-1, 1).Draw(rt, "base")
			p := record(t, base, rapid.SampledFrom(documents).Draw(rt, "document"))
			p.Removed = rapid.IntRange(0, 9).Draw(rt, "removed") == 0
			if base == all.Revision("acme") {
				won++
			}
			before, _ := all.Document("acme")
			all.Apply([]byte("acme"), at(i), p)
			few.Apply([]byte("acme"), at(i), proto.Clone(p).(*pb.Policy))
			log = append(log, p)
			if all.Faults()["acme"] != nil {
				if after, _ := all.Document("acme"); !reflect.DeepEqual(before, after) {
					rt.Fatalf("a document with a fault came into force: %+v", after)
				}
			}
			if all.Revision("acme") != won || few.Revision("acme") != won {
				rt.Fatalf("revisions: got %d and %d, want %d", all.Revision("acme"), few.Revision("acme"), won)
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
}
