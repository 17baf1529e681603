package app

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep"
)

func TestBehindOf(t *testing.T) {
	now := time.Date(2026, 9, 2, 12, 0, 0, 0, time.UTC)
	daily := func(started time.Time) time.Time { return started.AddDate(0, 0, 1) }
	never := func(time.Time) time.Time { return time.Time{} }
	begun := func(ago time.Duration) *pb.Checkpoint {
		return &pb.Checkpoint{Started: timestamppb.New(now.Add(-ago))}
	}
	waits := begun(time.Hour)
	waits.Cursor = []byte(`{"Requested":1,"Waiting":"2026-09-02T11:00:00Z"}`)
	ended := begun(30 * time.Hour)
	ended.Finished = timestamppb.New(now)
	for name, tt := range map[string]struct {
		last     *pb.Checkpoint
		failures int64
		next     func(time.Time) time.Time
		want     string
	}{
		"no round":               {nil, 0, daily, ""},
		"in time":                {begun(20 * time.Hour), 0, daily, ""},
		"too late":               {begun(30 * time.Hour), 0, daily, "the next one was due at 2026-09-02T06:00:00Z"},
		"too late, and ended":    {ended, 0, daily, ""},
		"late, without schedule": {begun(30 * time.Hour), 0, never, ""},
		"two failures":           {begun(time.Hour), 2, daily, ""},
		"three":                  {begun(time.Hour), 3, daily, "3 attempts have failed, at last: x"},
		"three, of a round that waits for results": {waits, 3, daily, ""},
	} {
		got := behindOf(tt.last, read.JobFailures{Count: tt.failures, Error: "x"}, tt.next, now)
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// A sweep of which a split fails again and again, without progress, or goes on when the next round is due, has one
// incident until that is over.
func TestMonitorSweeps(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 1)
	s.a.incidentBoard = incident.NewBoard(s.a.producer, s.a.log)
	daily := newTimetable("fixity", schedule.MustParse("every 1d"), s.a.log)
	var blocked error
	list := daily.of(func(context.Context) ([]sweep.Split, error) {
		return []sweep.Split{{Sweep: "fixity", Name: "acme/1/photos",
			Blocked: func(context.Context) error { return blocked }}}, nil
	})
	var last *pb.Checkpoint
	m := &sweepMonitor{s.a, []*timetable{daily},
		func(string, string) *pb.Checkpoint { return last }}
	end := func(name string, at time.Duration, counted int64, reason string) {
		s.b.Send(schemas.Message{Topic: schemas.Jobs, Body: &pb.Job{Id: schemas.ID("job", name, at.String()), Name: name,
			Started: timestamppb.New(s.begun.Add(-time.Hour)), Finished: timestamppb.New(s.begun.Add(at - time.Hour)),
			Counts: map[string]int64{"requested": counted, "a": 1}, Error: reason}})
	}
	all := ""
	want := func(when, states string) {
		t.Helper()
		s.sink(schemas.RoleSink)
		must(t, m.check(t.Context(), s.begun))
		got := ""
		for _, b := range s.b.Bodies(schemas.Incidents) {
			i := b.(*pb.Incident)
			s.a.incidentBoard.Apply([]byte(schemas.IncidentKey(i)), i)
			got += i.GetSubject() + " " + strings.TrimPrefix(i.GetState().String(), "INCIDENT_STATE_") + " "
		}
		if all += states; got != all {
			t.Errorf("%s: %q, want %q", when, got, all)
		}
	}
	end("fixity.demand/acme/1/photos", 1, 0, "by hand")
	for i := range 3 {
		end("fixity/acme/1/photos", time.Duration(i+1)*time.Minute, 0, "the engine is away")
	}
	want("before the splits are listed", "")
	if _, err := list(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("after three failures", "fixity OPEN ")
	want("once more", "")
	end("fixity/acme/1/photos", 4*time.Minute, 1000, "the engine is away")
	want("after progress", "fixity CLOSED ")
	for i := range 2 {
		end("fixity/acme/1/photos", time.Duration(i+5)*time.Minute, 1000, "the engine is away")
	}
	blocked = sweep.ErrPaused
	want("paused", "")
	blocked = nil
	want("three more", "fixity OPEN ")
	end("fixity/acme/1/photos", 8*time.Minute, 2000, "")
	want("after a success", "fixity CLOSED ")
	last = &pb.Checkpoint{Started: timestamppb.New(s.begun.Add(-25 * time.Hour))}
	want("of a round that goes on too long", "fixity OPEN ")
	last.Finished = timestamppb.New(s.begun)
	want("when it has ended", "fixity CLOSED ")
	last.Finished = nil
	want("of another round that does", "fixity OPEN ")
	daily.set = &schedules{}
	daily.set.configure([]config.SpaceSchedule{
		{Sweep: "fixity", Spaces: "acme/1", Schedule: schedule.MustParse("every 30d")}})
	want("of one that may, by the schedule of its store", "fixity CLOSED ")
}
