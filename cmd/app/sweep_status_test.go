package app

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/schedule"
)

func TestSplitOfCheckpoint(t *testing.T) {
	began := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }
	point := func(sweep, split string, counts map[string]int64) *pb.Checkpoint {
		return &pb.Checkpoint{Sweep: sweep, Split: split, Round: "r", Started: timestamppb.New(began),
			Time: timestamppb.New(at(1)), Counts: counts, Emitted: 7}
	}
	running := SplitStatus{State: SplitRunning, Round: "r", Started: began, Updated: at(1), Emitted: 7, Share: -1}
	with := func(change func(*SplitStatus)) *SplitStatus {
		s := running
		change(&s)
		return &s
	}
	for name, tc := range map[string]struct {
		point *pb.Checkpoint
		want  *SplitStatus // nil: it is not that of a sweep
	}{
		"fixity": {point("fixity", "acme/1/maps", map[string]int64{"requested": 7, "requested_bytes": 70, "live": 9}),
			with(func(s *SplitStatus) {
				s.Sweep, s.Account, s.Store, s.Space, s.Compared, s.Bytes = "fixity", "acme", "1", "maps", 7, 70
			})},
		"stats": {point("stats", "acme", map[string]int64{"items": 3, "bytes": 90}),
			with(func(s *SplitStatus) { s.Sweep, s.Account, s.Compared, s.Bytes = "stats", "acme", 3, 90 })},
		"fixity of a space, by hand": {point("fixity.demand", "acme/1/a%2Fb", nil), with(func(s *SplitStatus) {
			s.Sweep, s.ByHand, s.Account, s.Store, s.Space = "fixity", true, "acme", "1", "a/b"
		})},
		"reconcile": {point("reconcile", "acme/1/maps", map[string]int64{"equal": 3, "adopted": 2, "resurrected": 1}),
			with(func(s *SplitStatus) {
				s.Sweep, s.Account, s.Store, s.Space, s.Compared, s.added = "reconcile", "acme", "1", "maps", 6, 3
			})},
		"duplication": {point("duplication", "acme/maps/1/2", map[string]int64{"equal": 3, "equal_bytes": 90, "extra": 1}),
			with(func(s *SplitStatus) {
				s.Sweep, s.Account, s.Space, s.Store, s.Destination = "duplication", "acme", "maps", "1", "2"
				s.Compared, s.added, s.Bytes = 4, 1, 90
			})},
		"groups": {point("groups", "acme/1/maps", map[string]int64{"whole": 3, "orphans": 1}), with(func(s *SplitStatus) {
			s.Sweep, s.Account, s.Store, s.Space, s.Compared, s.Bytes = "groups", "acme", "1", "maps", 4, -1
		})},
		"a brake":         {point("brake.deletes", "acme/2/maps", nil), nil},
		"without a space": {point("reconcile", "acme/1", nil), nil},
	} {
		got, ok := splitOf(tc.point)
		if ok != (tc.want != nil) || ok && !reflect.DeepEqual(got, *tc.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, ok, tc.want)
		}
	}
	done := point("fixity", "acme/1/maps", nil)
	done.Finished = timestamppb.New(at(2))
	if s, _ := splitOf(done); s.State != SplitDone || !s.Finished.Equal(at(2)) || s.Unfinished() {
		t.Errorf("a round that has ended: %+v", s)
	}

	for name, tc := range map[string]struct {
		last   read.Iteration
		state  string
		failed time.Time
	}{
		"no failure":                {read.Iteration{}, SplitRunning, time.Time{}},
		"after the checkpoint":      {read.Iteration{Started: began, Finished: at(2), Error: "x"}, SplitFailed, at(2)},
		"before the checkpoint":     {read.Iteration{Started: began, Finished: at(0), Error: "x"}, SplitRunning, at(0)},
		"of another round":          {read.Iteration{Started: at(1), Finished: at(2), Error: "x"}, SplitRunning, time.Time{}},
		"a run that ended, instead": {read.Iteration{Started: began, Finished: at(2)}, SplitRunning, time.Time{}},
	} {
		s := running
		if s.fail(tc.last); s.State != tc.state || !s.Failed.Equal(tc.failed) {
			t.Errorf("%s: got %s, failed %v", name, s.State, s.Failed)
		}
	}
}

func TestShareOfRound(t *testing.T) {
	began := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	now := began.Add(15 * time.Minute)
	for name, tc := range map[string]struct {
		change func(*SplitStatus)
		live   int64
		share  float64
		end    time.Time
	}{
		"a quarter": {func(*SplitStatus) {}, 400, 0.25, began.Add(40 * time.Minute)},
		"overdue":   {func(*SplitStatus) {}, 105, 100. / 105, now},
		"adopted items": {func(s *SplitStatus) { s.Compared, s.added = 150, 50 }, 450, 0.25,
			began.Add(40 * time.Minute)},
		"a store is taken in":   {func(s *SplitStatus) { s.added = 100 }, 100, -1, time.Time{}},
		"more than on record":   {func(*SplitStatus) {}, 99, -1, time.Time{}},
		"nothing on record":     {func(*SplitStatus) {}, 0, -1, time.Time{}},
		"nothing yet":           {func(s *SplitStatus) { s.Compared = 0 }, 400, 0, time.Time{}},
		"paused":                {func(s *SplitStatus) { s.State = SplitPaused }, 400, 0.25, time.Time{}},
		"due copies":            {func(s *SplitStatus) { s.Sweep = "fixity" }, 400, -1, time.Time{}},
		"groups":                {func(s *SplitStatus) { s.Sweep = "groups" }, 400, -1, time.Time{}},
		"before any checkpoint": {func(s *SplitStatus) { s.Updated = began }, 400, 0.25, time.Time{}},
		"results of checks": {func(s *SplitStatus) { s.Sweep, s.Share, s.measured = "fixity", 0.5, now }, 400, 0.5,
			began.Add(30 * time.Minute)},
		"a round that has ended": {func(s *SplitStatus) { s.State, s.Finished = SplitDone, now }, 400, -1,
			time.Time{}},
	} {
		s := SplitStatus{Sweep: "reconcile", State: SplitRunning, Round: "r", Started: began,
			Updated: began.Add(10 * time.Minute), Compared: 100, Share: -1}
		tc.change(&s)
		s.share(tc.live)
		if end := s.End(now).Round(time.Second); s.Share != tc.share || !end.Equal(tc.end) {
			t.Errorf("%s: got %v, until %v, want %v, %v", name, s.Share, end, tc.share, tc.end)
		}
	}
}

func TestNextStart(t *testing.T) {
	began := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	now := began.Add(time.Hour)
	cfg := config.Default()
	cfg.Sweep.Fixity, cfg.Sweep.Stats = schedule.MustParse("every 2h"), schedule.MustParse("every 1d start 20:00")
	cfg.Sweep.Groups = schedule.Schedule{}
	cfg.Sweep.Schedules = []config.SpaceSchedule{
		{Sweep: "fixity", Spaces: "acme/2", Schedule: schedule.MustParse("every 5h")},
		{Sweep: "duplication", Spaces: "acme/2", Schedule: schedule.MustParse("every 6h")},
	}
	a := &App{cfg: &cfg}
	a.schedules.configure(cfg.Sweep.Schedules)
	for name, tc := range map[string]struct {
		split SplitStatus
		want  time.Time
	}{
		"after a round":        {SplitStatus{Sweep: "fixity", Started: began}, began.Add(2 * time.Hour)},
		"overdue":              {SplitStatus{Sweep: "fixity", Started: began.Add(-5 * time.Hour)}, began.Add(-3 * time.Hour)},
		"the first, now":       {SplitStatus{Sweep: "fixity"}, now},
		"the first, at a time": {SplitStatus{Sweep: "stats"}, time.Date(2026, 9, 1, 20, 0, 0, 0, time.UTC)},
		"off":                  {SplitStatus{Sweep: "groups", Started: began}, time.Time{}},
		"of its store": {SplitStatus{Sweep: "fixity", Account: "acme", Store: "2", Space: "maps", Started: began},
			began.Add(5 * time.Hour)},
		"of the destination": {SplitStatus{Sweep: "duplication", Account: "acme", Store: "1", Destination: "2",
			Space: "maps", Started: began}, began.Add(6 * time.Hour)},
		"by hand": {SplitStatus{Sweep: "fixity", ByHand: true, Started: began}, time.Time{}},
	} {
		if got := a.nextStart(&tc.split, now); !got.Equal(tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}
