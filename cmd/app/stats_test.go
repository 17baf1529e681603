package app

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
)

// The items and bytes of each space are reported, and an account that has more than its allocation has an incident
// until it has less.
func TestSweepStats(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	count := func(after time.Duration) sweep.Result {
		t.Helper()
		all, err := s.a.SweepStats(t.Context(), "", s.begun.Add(after))
		if err != nil || len(all) != 1 || all[0].Account != "acme" {
			t.Fatal(all, err)
		}
		return all[0].Result
	}
	states := func() (all []string) {
		for _, b := range s.b.Bodies(schemas.Incidents) {
			if i := b.(*pb.Incident); i.GetKind() == incident.AllocationExceeded {
				all = append(all, i.GetState().String())
			}
		}
		return all
	}
	limit := func(n int64) {
		state := s.a.stores.accounts["acme"]
		state.Allocation = config.Size(n)
		s.a.stores.set("acme", state, true)
	}
	first := count(0)
	if first.Counts["items"] != 3 || first.Counts["bytes"] != 21 || first.Emitted != 1 {
		t.Errorf("counted %+v", first)
	}
	report := s.b.Bodies(schemas.Reports)[0].(*pb.Report)
	if report.GetKind() != StatsSweep || report.GetStore() != "1" || report.GetSpace() != "photos" ||
		report.GetCounts()["items"] != 3 || report.GetCounts()["bytes"] != 21 || !report.GetComplete() {
		t.Errorf("reported %v", report)
	}
	for n, step := range []struct {
		allocation int64
		want       []string
	}{
		{21, nil}, {20, []string{"INCIDENT_STATE_OPEN"}}, {20, []string{"INCIDENT_STATE_OPEN"}},
		{21, []string{"INCIDENT_STATE_OPEN", "INCIDENT_STATE_CLOSED"}},
	} {
		limit(step.allocation)
		count(time.Duration(n+1) * time.Minute)
		if got := states(); !slices.Equal(got, step.want) {
			t.Errorf("step %d: incidents %v, want %v", n, got, step.want)
		}
	}
	s.sink(schemas.RoleSink)
	type row struct {
		Space string `ch:"space"`
		Items int64  `ch:"items"`
		Bytes int64  `ch:"bytes"`
		Days  uint64 `ch:"days"`
	}
	rows, err := clickhouse.Query[row](t.Context(), s.db, "read the statistics",
		"SELECT space, max(items) AS items, max(bytes) AS bytes, uniqExact(round) AS days"+
			" FROM {db}.space_stats GROUP BY space")
	if want := "[{photos 3 21 5}]"; err != nil || fmt.Sprint(rows) != want {
		t.Errorf("space_stats has %v, %v, want %s", rows, err, want)
	}
	// An item of unknown size leaves it open whether the account has less than its allocation.
	limit(20)
	count(time.Hour)
	unsized := someChange(0)
	unsized.Size, unsized.SizeUnknown, unsized.Time = 0, true, timestamppb.Now()
	s.send(record.Seal(unsized))
	s.sink(schemas.RoleSink, schemas.RoleState)
	if n := count(2 * time.Hour); n.Counts["unsized"] != 1 || n.Counts["bytes"] != 14 || len(states()) != 3 {
		t.Errorf("with an item of unknown size: counted %+v, incidents %v", n, states())
	}
	// A space that has lost all its items has no bytes, instead of those that it had.
	for i := range 3 {
		gone := someChange(i)
		gone.Op, gone.Time = pb.Op_OP_DELETE, timestamppb.New(time.Now().Add(time.Second))
		s.send(record.Seal(gone))
	}
	s.sink(schemas.RoleSink, schemas.RoleState)
	last := count(3 * time.Hour)
	if last.Counts["items"] != 0 || last.Emitted != 1 || len(states()) != 4 {
		t.Errorf("of an emptied space: counted %+v, incidents %v", last, states())
	}
}

// Tables that lack records are not counted.
func TestSweepStatsOfEmptiedTables(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	s.exec("TRUNCATE TABLE {db}.copy_state")
	all, err := s.a.SweepStats(t.Context(), "acme", s.begun)
	if retry.ClassOf(err) != retry.ClassUnavailable || len(s.b.Bodies(schemas.Reports)) != 0 {
		t.Errorf("got %v, %v and %d reports", all, err, len(s.b.Bodies(schemas.Reports)))
	}
}
