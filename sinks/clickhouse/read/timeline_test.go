package read_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// The events of one millisecond are ordered by kind, id and step.
func TestTimeline(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var changes []schemas.Body
	var want []string
	for _, store := range []string{"1", "2", "3"} {
		c := clickhousetest.Change("a", 0)
		c.Store = store
		c.Id = schemas.ChangeID(c)
		changes = append(changes, c)
		want = append(want, "change "+c.Id)
	}
	first := changes[0].(*pb.Change)
	copied := func(d time.Duration) *pb.DuplicationResult {
		return &pb.DuplicationResult{Id: schemas.ID("r", d.String()), Command: schemas.ID("c"), Account: "acme",
			Space: "photos", Item: "a",
			SourceStore: "1", DestinationStore: "2", Decision: "C5", Result: "copied",
			Outcome: pb.Outcome_OUTCOME_DONE, Finished: clickhousetest.At(d)}
	}
	checks := []*pb.FixityResult{clickhousetest.Result(first, 0), clickhousetest.Result(first, time.Nanosecond)}
	steps := []*pb.IncidentStep{{Time: clickhousetest.At(0), Action: "opened"},
		{Time: clickhousetest.At(0), Action: "seen-again"},
		{Time: clickhousetest.At(time.Second), Action: "closed"}}
	incident := &pb.Incident{Id: schemas.ID("i"), Account: "acme", Store: "1", Space: "photos", Item: "a",
		Kind:   "replaced",
		Opened: clickhousetest.At(0), Updated: clickhousetest.At(time.Second), StepCount: 3, Steps: steps}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, changes...)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, checks[0], checks[1])
	s := clickhouse.NewSink(db)
	for topic, bodies := range map[schemas.Topic][]schemas.Body{
		schemas.DuplicationResults: {copied(0), copied(time.Second)}, schemas.Incidents: {incident},
	} {
		must(t, s.Store(t.Context(), clickhousetest.Deliver(topic, 0, bodies...)))
	}
	slices.Sort(want)
	want = append(want, "duplication "+copied(0).Id)
	ids := []string{"check " + checks[0].Id, "check " + checks[1].Id}
	slices.Sort(ids)
	want = append(append(want, ids...), "incident replaced opened", "incident replaced seen-again",
		"duplication "+copied(time.Second).Id, "incident replaced closed")
	all, err := read.Timeline(t.Context(), db, "acme", "photos", "a")
	var got []string
	for _, e := range all {
		if e.Kind == "incident" {
			got = append(got, e.Kind+" "+e.What)
		} else {
			got = append(got, e.Kind+" "+e.ID)
		}
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the timeline is\n%q, %v, want\n%q", got, err, want)
	}
	if got, err := read.Timeline(t.Context(), db, "acme", "photos", "b"); err != nil || fmt.Sprint(got) != "[]" {
		t.Errorf("Timeline of nothing = %v, %v", got, err)
	}
}
