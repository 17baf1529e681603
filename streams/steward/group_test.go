package steward

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

func TestScopeOf(t *testing.T) {
	for name, tt := range map[string]struct {
		n    recent
		want scope
	}{
		"the first one": {recent{1, 1, 1}, ofNone},
		"the last one that is reported by itself": {recent{20, 20, 20}, ofNone},
		"one space: a prefix or all of it":        {recent{21, 21, 21}, ofSpace},
		"one space, whatever found it":            {recent{21, 500, 500}, ofSpace},
		"one store: several spaces":               {recent{20, 21, 21}, ofStore},
		"one worker: several stores":              {recent{20, 20, 21}, ofWorker},
	} {
		t.Run(name, func(t *testing.T) {
			if got := scopeOf(tt.n); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestLostTooMuch(t *testing.T) {
	for name, tt := range map[string]struct {
		missing, live int64
		share         float64
		want          bool
	}{
		"one of many":                               {1, 1000, 0.1, false},
		"the share exactly":                         {100, 1000, 0.1, false},
		"more than the share":                       {101, 1000, 0.1, true},
		"more than the share of a small space":      {10, 99, 0.1, true},
		"the share of a small space":                {9, 99, 0.1, false},
		"a few copies of a small space":             {5, 20, 0.1, false},
		"more than a few":                           {6, 20, 0.1, true},
		"all of a small space":                      {5, 5, 0.1, true},
		"the only copy":                             {1, 1, 0.1, false},
		"more than are on record":                   {3, 2, 0.1, true},
		"the records have no live copy":             {2, 0, 0.1, true},
		"one, and none is on record":                {1, 0, 0.1, false},
		"no share is allowed":                       {1, 100, 0, true},
		"no share is allowed, of a small space":     {1, 99, 0, false},
		"any share is allowed, but not the whole":   {999, 1000, 1, false},
		"any share is allowed, and all are missing": {1000, 1000, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := lostTooMuch(tt.missing, tt.live, tt.share)
			if got != tt.want || got && !mayBeTooMuch(tt.missing, tt.share) {
				t.Errorf("got %v, counted only if %v, want %v", got, mayBeTooMuch(tt.missing, tt.share), tt.want)
			}
		})
	}
}

func TestGroupOf(t *testing.T) {
	i := &pb.Incident{Account: "acme", Store: "2", Space: "photos", Item: "a", Kind: "replaced", Worker: "host/checker/1"}
	for name, tt := range map[string]struct {
		scope scope
		want  incident.Subject
		key   string
	}{
		"space": {ofSpace, incident.Subject{Account: "acme", Store: "2", Space: "photos", Kind: incident.Grouped,
			Name: "replaced"}, "acme/2/photos//incidents-grouped/replaced"},
		"store": {ofStore, incident.Subject{Account: "acme", Store: "2", Kind: incident.Grouped, Name: "replaced"},
			"acme/2///incidents-grouped/replaced"},
		"worker": {ofWorker, incident.Subject{Kind: incident.Grouped, Name: "host/checker/1"},
			"-////incidents-grouped/host%2Fchecker%2F1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := groupOf(i, tt.scope); got != tt.want || got.Key() != tt.key {
				t.Errorf("got %v with the key %s, want %v with %s", got, got.Key(), tt.want, tt.key)
			}
		})
	}
	i.Worker = ""
	for _, s := range []scope{ofNone, ofWorker} {
		if got := groupOf(i, s); got != (incident.Subject{}) {
			t.Errorf("scope %d: got %v, want none", s, got)
		}
	}
}

// A tally that has counted a record in place of another is that of the newest record alone.
func TestTally(t *testing.T) {
	after := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(base.Add(d)) }
	var table table
	put := func(item string, opened time.Duration, state pb.IncidentState, repairs int32) *pb.Incident {
		i := &pb.Incident{Account: "acme", Store: "2", Space: "photos", Item: item, Kind: kindMissing, Worker: "w",
			Opened: after(opened), State: state, Repairs: repairs}
		table.set(i)
		return i
	}
	check := func(what string, lost int64, n recent) {
		t.Helper()
		other := &pb.Incident{Account: "acme", Store: "2", Space: "photos", Item: "other", Kind: kindMissing, Worker: "w",
			Opened: after(0)}
		if got := table.lost(at.WithoutItem(), base.Add(-24*time.Hour)); got != lost {
			t.Errorf("%s: %d are lost, want %d", what, got, lost)
		}
		if got := table.recent(other); got != n {
			t.Errorf("%s: counts %v, want %v", what, got, n)
		}
	}
	check("nothing", 0, recent{1, 1, 1})
	put("a", -10*time.Minute, open, 0)
	put("b", -100*time.Hour, open, 0)
	check("two are missing, one for long", 2, recent{2, 2, 2})
	put("a", -10*time.Minute, shut, 1)
	check("one was repaired", 2, recent{2, 2, 2})
	put("b", -100*time.Hour, shut, 1)
	check("the other one too, but it was missing before the round", 1, recent{2, 2, 2})
	put("c", -2*time.Hour, shut, 0)
	check("one was there all the time", 1, recent{2, 2, 2})
	put("c", 5*time.Minute, open, 0)
	check("it is missing now", 2, recent{3, 3, 3})
	var ends []func()
	for _, item := range []string{"c", "d", "e"} {
		c := at
		c.Item = item
		ends = append(ends, table.decide(c))
	}
	check("two more are being decided about", 4, recent{3, 3, 3})
	for _, end := range ends {
		end()
	}
	for _, item := range []string{"a", "b", "c"} {
		table.apply("acme/2/photos/"+item+"/content-missing", nil)
	}
	check("all were removed", 0, recent{1, 1, 1})
	if len(table.tally.opened) > 0 || len(table.tally.missing) > 0 {
		t.Errorf("an empty tally is %v", table.tally)
	}
}
