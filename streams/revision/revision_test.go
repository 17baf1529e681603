package revision

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func at(hour int) time.Time { return time.Date(2026, 9, 1, hour, 0, 0, 0, time.UTC) }

// upper is a registry of documents in upper case; other ones cannot be parsed.
func upper() *Registry[string] {
	return NewRegistry("text of account", "nothing happens", func(_, document string) (string, error) {
		if document != strings.ToUpper(document) {
			return "", errors.New("lower case")
		}
		return document, nil
	})
}

func record(id string, base int64, document string) *pb.Account {
	return &pb.Account{Id: id, Account: "acme", Base: base, Document: document, Removed: document == "", By: id}
}

// Only a record with the current revision as its base is the next one, also if it cannot be parsed.
func TestRegistry(t *testing.T) {
	type step struct {
		record *pb.Account // nil: one that cannot be decoded
		is     bool        // a revision
	}
	tests := map[string]struct {
		steps    []step
		revision int64
		document string // in force
		fault    bool
	}{
		"none":  {nil, 0, "", false},
		"first": {[]step{{record("a", 0, "A"), true}}, 1, "A", false},
		"two writers": {[]step{{record("a", 0, "A"), true}, {record("b", 0, "B"), false}, {record("c", 1, "C"), true}},
			2, "C", false},
		"of a later base":    {[]step{{record("a", 1, "A"), false}}, 0, "", false},
		"cannot be parsed":   {[]step{{record("a", 0, "A"), true}, {record("b", 1, "b"), true}}, 2, "A", true},
		"parsed again":       {[]step{{record("a", 0, "a"), true}, {record("b", 1, "B"), true}}, 2, "B", false},
		"cannot be decoded":  {[]step{{record("a", 0, "A"), true}, {nil, false}}, 1, "A", true},
		"after such a one":   {[]step{{record("a", 0, "A"), true}, {nil, false}, {record("b", 1, "B"), true}}, 2, "B", false},
		"removed":            {[]step{{record("a", 0, "A"), true}, {record("b", 1, ""), true}}, 2, "", false},
		"removed, and again": {[]step{{record("a", 0, ""), true}, {record("b", 1, "B"), true}}, 2, "B", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := upper()
			for i, s := range tt.steps {
				if s.record == nil {
					r.Unreadable([]byte("acme"), at(i), errors.New("garbage"))
				} else if got := r.Apply([]byte("acme"), at(i), s.record); got != s.is {
					t.Errorf("record %d: revision %t, want %t", i, got, s.is)
				}
			}
			if r.Apply([]byte("bell"), at(9), record("x", 0, "X")) {
				t.Error("a record of another key is a revision")
			}
			d, ok := r.Document("acme")
			if r.Revision("acme") != tt.revision || d != tt.document || ok != (d != "") ||
				(r.Faults("acme").Err() != nil) != tt.fault || len(r.History("acme")) != len(tt.steps) {
				t.Errorf("got revision %d, %q, %v, want %d, %q", r.Revision("acme"), d, r.Faults("acme"), tt.revision, tt.document)
			}
		})
	}
}

// A writer learns whether his record is in force, and who was first.
func TestSettled(t *testing.T) {
	r := upper()
	mine, other := record("mine", 0, "M"), record("other", 0, "O")
	if settled, err := r.Settled(mine); settled || err != nil {
		t.Errorf("not read: %t, %v", settled, err)
	}
	r.Apply([]byte("acme"), at(1), other)
	r.Apply([]byte("acme"), at(2), mine)
	if settled, err := r.Settled(other); !settled || err != nil {
		t.Errorf("the first: %t, %v", settled, err)
	}
	want := LostError{Noun: "text of account", Account: "acme", Revision: 1, By: "other", Time: at(1)}
	var lost *LostError
	if settled, err := r.Settled(mine); !settled || !errors.As(err, &lost) || *lost != want {
		t.Errorf("the second: %t, %v, want %v", settled, err, &want)
	}
	for base, wanted := range map[int64]string{
		-1: "no revision -1", 0: "published revision 1 first", 1: "", 2: "no revision 2",
	} {
		err := r.CheckBase("acme", base)
		if (err == nil) != (wanted == "") || err != nil && !strings.Contains(err.Error(), wanted) {
			t.Errorf("base %d: got %v, want %q", base, err, wanted)
		}
	}
}

// Times do not decrease, although the clocks of brokers differ, and a gap is known to the revision after it.
func TestLog(t *testing.T) {
	r := upper()
	r.Apply([]byte("acme"), at(5), record("a", 0, "A"))
	r.Unreadable([]byte("acme"), at(6), errors.New("garbage"))
	r.Apply([]byte("acme"), at(3), record("b", 1, "B"))
	r.View("acme", func(l *Log[string]) {
		n := l.Newest()
		if !n.Time.Equal(at(5)) || !n.AfterGap || !l.Gap.IsZero() || n.Of != 2 {
			t.Errorf("got %+v, gap %v", n, l.Gap)
		}
	})
	if e, ok := r.Active("acme"); !ok || e.Revision != 2 || *e.Document != "B" || e.By != "b" {
		t.Errorf("active: %+v", e)
	}
	if got := r.Accounts(); !slices.Equal(got, []string{"acme"}) {
		t.Errorf("accounts: %v", got)
	}
}
