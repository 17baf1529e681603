package kafka

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

func TestOutOfRangeCause(t *testing.T) {
	for name, tt := range map[string]struct {
		position, committed, start, end, same int64
		want                                  outOfRangeCause
		gone                                  int64
		says                                  string
	}{
		"committed below the start":           {5, 5, 12, 20, -1, causeRemoved, 7, "--to-earliest"},
		"read on below the start":             {9, 5, 12, 20, -1, causeRemoved, 3, "--to-earliest"},
		"committed below, position not known": {-1, 5, 12, 20, -1, causeRemoved, 7, "--to-earliest"},
		"nothing committed, nothing read":     {-1, -1, 12, 20, -1, causeRemoved, 12, "committed nothing"},
		"nothing committed, read on":          {4, -1, 12, 20, -1, causeRemoved, 8, "committed nothing"},
		"others have gone on":                 {5, 15, 12, 20, -1, causeSuperseded, -3, "Restart it"},
		"beyond the end":                      {50, 50, 0, 20, -1, causeTruncated, -50, "--reset-offsets --to-offset 20 "},
		"beyond the end of an empty log":      {50, 50, 0, 0, -1, causeTruncated, -50, "--reset-offsets --to-offset 0 "},
		"beyond the end, committed is not":    {50, 18, 0, 20, -1, causeTruncated, -50, "Restart the process"},
		"of a topic that was made again": {50, 50, 0, 2, -1, causeTruncated, -50,
			"If the topic was recreated, use --to-earliest"},
		"in range by now":                       {15, 15, 12, 20, -1, causeTruncated, -3, "Restart the process"},
		"at the end by now":                     {20, 20, 12, 20, -1, causeTruncated, -8, "Restart the process"},
		"nothing committed, log from the first": {-1, -1, 0, 20, -1, causeTruncated, 0, "--reset-offsets --to-earliest"},
		"nothing committed, beyond the end":     {50, -1, 12, 20, -1, causeTruncated, -38, "--reset-offsets --to-earliest"},
		"cut off, and written on beyond":        {50, 45, 0, 60, 40, causeTruncated, -50, "--reset-offsets --to-offset 40 "},
		"cut off, and written on":               {50, 50, 0, 45, 40, causeTruncated, -50, "--reset-offsets --to-offset 40 "},
		"cut off behind what is committed":      {50, 30, 0, 45, 40, causeTruncated, -50, "Restart the process"},
		"of the epoch that leads":               {50, 50, 0, 45, 45, causeTruncated, -50, "--reset-offsets --to-offset 45 "},
	} {
		s := groupPosition{at: core.Partition{Topic: "millrace.changes", ID: 3}, group: "millrace.sink",
			position:  tt.position,
			committed: tt.committed, start: tt.start, end: tt.end, divergesAt: tt.same}
		if got := s.cause(); got != tt.want || s.lost() != tt.gone {
			t.Errorf("%s: %d, %d gone, want %d, %d", name, got, s.lost(), tt.want, tt.gone)
		}
		if got := s.error([]string{"k1:9092"}).Error(); !strings.Contains(got, tt.says) {
			t.Errorf("%s: %q does not say %q", name, got, tt.says)
		}
	}
}

// The id of an incident identifies one loss. Its key is the same for all losses of a partition.
func TestRemovedIncident(t *testing.T) {
	s := groupPosition{at: core.Partition{Topic: "millrace.changes", ID: 3}, group: "millrace.sink", committed: 5,
		start: 12}
	first, again := s.incident(schemas.RoleSink, "x"), s.incident(schemas.RoleSink, "x")
	if first.GetId() != again.GetId() {
		t.Error("one loss has two ids")
	}
	ids := map[string]bool{first.GetId(): true}
	for _, change := range []func(*groupPosition){
		func(s *groupPosition) { s.committed++ }, func(s *groupPosition) { s.start++ }, func(s *groupPosition) { s.at.ID++ },
		func(s *groupPosition) { s.at.Topic += "x" }, func(s *groupPosition) { s.group += "x" },
	} {
		other := s
		change(&other)
		ids[other.incident(schemas.RoleSink, "x").GetId()] = true
	}
	if len(ids) != 6 {
		t.Errorf("%d ids, want 6", len(ids))
	}
	if got, want := schemas.IncidentKey(first), "-////records-removed/millrace.sink millrace.changes 3"; got != want {
		t.Errorf("key %q, want %q", got, want)
	}
	if err := schemas.Validate(first); err != nil {
		t.Error(err)
	}
}
