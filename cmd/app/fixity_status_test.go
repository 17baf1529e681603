package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/sinks/fixityreport"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// Copies count as verified by the period of their space, and as overdue otherwise.
func TestFixityStatus(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	status := func(of schemas.Copy) []SpaceFixity {
		t.Helper()
		all, err := s.a.FixityStatus(t.Context(), of, time.Now())
		must(t, err)
		return all
	}
	acme := schemas.Copy{Account: "acme"}
	if all := status(acme); len(all) != 1 || all[0].Live != 3 || all[0].Overdue != 3 || all[0].Share() != 0 ||
		all[0].Sample != 100 || !all[0].End(time.Now()).IsZero() {
		t.Errorf("before any check: %+v", all)
	}
	_, tasks := s.sweep(0, false)
	s.pass(tasks[:2], s.begun.Add(-time.Second))
	all := status(acme)
	if len(all) != 1 || all[0].Overdue != 1 || all[0].Verified != 2 || math.Abs(all[0].Burn-1000./3) > 1e-6 {
		t.Errorf("after two checks: %+v", all)
	}
	overdueOf := func(of schemas.Copy, limit int) (found []OverdueCopy) {
		t.Helper()
		err := s.a.EachOverdue(t.Context(), of, time.Now(), limit, func(page []OverdueCopy) error {
			found = append(found, page...)
			return nil
		})
		must(t, err)
		return found
	}
	if found := overdueOf(acme, 0); len(found) != 1 || found[0].Item != tasks[2].GetItem() || !found[0].LastPass.IsZero() {
		t.Errorf("overdue: %+v", found)
	}
	s.a.cfg.Fixity.Periods = []config.SpacePeriod{{Spaces: "acme/1/photos", Period: time.Nanosecond}}
	if all := status(acme); len(all) != 1 || all[0].Overdue != 3 || all[0].Period != time.Nanosecond {
		t.Errorf("with another period: %+v", all)
	}
	one := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: tasks[0].GetItem()}
	if found := overdueOf(one, 5); len(found) != 1 || found[0].LastPass.IsZero() {
		t.Errorf("overdue with a prefix: %+v", found)
	}
	if found := overdueOf(acme, 2); len(found) != 2 {
		t.Errorf("the first two: %+v", found)
	}
	if all := status(schemas.Copy{Account: "bell"}); len(all) != 0 {
		t.Errorf("of another account: %+v", all)
	}
	r, err := s.a.readCopies(t.Context(), time.Now())
	if err != nil || len(r.stores) != 1 || r.stores[0].Copies != 3 || r.stores[0].Burn < 999 ||
		r.oldest[StoreName{"acme", "1"}].IsZero() {
		t.Errorf("metrics: %+v, %v", r, err)
	}
}

// A store that reads a sample says so in the status and in the reports of its rounds, which say what that finds.
func TestFixityOfASample(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 12)
	byKey, one := s.a.stores.current.Load().byKey, schemas.Key("acme", "1")
	st := byKey[one]
	st.cfg.Read, st.cfg.SamplePercent = "sampled", 20
	byKey[one] = st
	all, err := s.a.FixityStatus(t.Context(), schemas.Copy{}, time.Now())
	if err != nil || len(all) != 1 || all[0].Sample != 20 || !all[0].Asserts || all[0].Objective != 0.999 {
		t.Errorf("status: %+v, %v", all, err)
	}
	round, tasks := s.sweep(0, false)
	s.pass(tasks, s.begun.Add(time.Second))
	must(t, s.a.EndFixity(t.Context(), []FixityRound{round}, false))
	s.sink(schemas.RoleSink)
	rounds, err := FixityReports(t.Context(), s.a.db, read.ReportQuery{Newest: true})
	if err != nil || len(rounds) != 1 {
		t.Fatalf("rounds %+v, %v", rounds, err)
	}
	want := []fixityreport.Detection{{Damaged: 1, Probability: 0.2}, {Damaged: 10, Probability: 0.8926258176}}
	if got := rounds[0].Detections(); !slices.Equal(got, want) {
		t.Errorf("the report says %v, want %v", got, want)
	}
}

// The end is estimated by the rate of the last day, and unknown without one.
func TestFixityEnd(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		s    SpaceFixity
		want time.Duration // 0: unknown
	}{
		"nothing is overdue": {SpaceFixity{SpaceStatus: read.SpaceStatus{Live: 5}, Rate: 1}, 0},
		"no checks":          {SpaceFixity{SpaceStatus: read.SpaceStatus{Live: 5, Overdue: 2}}, 0},
		"two a second":       {SpaceFixity{SpaceStatus: read.SpaceStatus{Live: 5, Overdue: 4}, Rate: 2}, 2 * time.Second},
		"a thousand years": {SpaceFixity{SpaceStatus: read.SpaceStatus{Live: 1 << 40, Overdue: 1 << 40}, Rate: 1e-3},
			0},
	} {
		got := tt.s.End(now)
		if tt.want == 0 != got.IsZero() || tt.want > 0 && got.Sub(now) != tt.want {
			t.Errorf("%s: got %v", name, got.Sub(now))
		}
	}
	if burn := burnRate(0, 0, 0.999); burn != 0 {
		t.Errorf("of no copies: the burn rate is %v", burn)
	}
	if share := (&SpaceFixity{}).Share(); share != 1 {
		t.Errorf("of no copies: %v", share)
	}
}

// Stores add up, and roles are ordered by what they have not handled.
func TestSumByStore(t *testing.T) {
	of := func(store string, live, overdue uint64) SpaceFixity {
		counts := read.SpaceStatus{Store: store, Live: live, Overdue: overdue, Bytes: 7}
		return SpaceFixity{Account: "acme", SpaceStatus: counts}
	}
	got := sumByStore([]SpaceFixity{of("1", 5, 2), of("1", 3, 0), of("2", 1, 1)}, 0.75)
	if len(got) != 2 || got[0].Copies != 8 || got[0].Verified != 6 || got[0].Overdue != 2 || got[0].Bytes != 14 ||
		got[1].Verified != 0 || got[0].Burn != 1 || got[1].Burn != 4 {
		t.Errorf("got %+v", got)
	}
}

// A round by hand checks the items with a prefix, also while another one of the space is under way.
func TestCheckOfAPrefix(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 12)
	whole, tasks := s.sweep(0, true)
	if len(tasks) != 12 {
		t.Fatalf("%d checks, want 12", len(tasks))
	}
	part, err := s.a.SweepFixity(t.Context(), FixityRequest{Account: "acme", Store: "1", Space: "photos",
		Prefix: "item-01", Begun: s.begun.Add(time.Minute), All: true, Detach: true})
	if err != nil || len(part) != 1 || part[0].Emitted != 2 || part[0].Prefix != "item-01" {
		t.Fatalf("got %+v, %v", part, err)
	}
	more := s.b.Bodies(schemas.FixityHigh)[12:]
	if len(more) != 2 || more[0].(*pb.FixityTask).GetItem() != "item-010" {
		t.Errorf("requested %v", more)
	}
	unanswered := func(want int64) {
		t.Helper()
		n, err := s.a.Unanswered(t.Context(), []FixityRound{whole, part[0]}, true)
		if err != nil || n != want {
			t.Errorf("%d checks have no result, %v, want %d", n, err, want)
		}
	}
	unanswered(14)
	s.pass(tasks[1:], s.begun.Add(time.Second))
	unanswered(3)
	s.pass(tasks[:1], s.begun.Add(time.Second))
	s.pass([]*pb.FixityTask{more[0].(*pb.FixityTask), more[1].(*pb.FixityTask)}, s.begun.Add(2*time.Minute))
	unanswered(0)
	for _, r := range []FixityRound{whole, part[0]} {
		must(t, s.a.EndFixity(t.Context(), []FixityRound{r}, true))
	}
	s.sink(schemas.RoleSink)
	reported := func(q read.ReportQuery) (got []string) {
		t.Helper()
		rounds, err := FixityReports(t.Context(), s.a.db, q)
		must(t, err)
		for _, r := range rounds {
			n := 0
			must(t, r.Checks(false, func(read.RoundCheck) error { n++; return nil }))
			got = append(got, fmt.Sprintf("%s %s: %d of %d", r.Round, r.Result(), n, r.Counts["live"]))
		}
		return got
	}
	ofPart, ofWhole := part[0].ID+" incomplete: 2 of 2", whole.ID+" success: 12 of 12"
	if got := reported(read.ReportQuery{Newest: true}); !slices.Equal(got, []string{ofWhole}) {
		t.Errorf("the newest round of the space: %q", got)
	}
	if got := reported(read.ReportQuery{}); !slices.Equal(got, []string{ofPart, ofWhole}) {
		t.Errorf("all rounds: %q, want %q and %q", got, ofPart, ofWhole)
	}
	all, err := FixityReports(t.Context(), s.a.db, read.ReportQuery{Round: part[0].ID})
	if err != nil || len(all) != 1 || !all[0].Complete || !strings.Contains(all[0].Detail, `begin with "item-01"`) {
		t.Errorf("the round over the prefix: %+v, %v", all, err)
	}
	for _, body := range s.b.Bodies(schemas.Checkpoints) {
		if c := body.(*pb.Checkpoint); c.GetSplit() != "acme/1/photos" && c.GetSweep() != kafkaClockSweep {
			t.Errorf("a checkpoint of %s", c.GetSplit())
		}
	}
}

// The rounds that have ended since the file before are in the next one, whatever is interrupted.
func TestFixityReports(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	r := config.FixityReport{Name: "all", Dir: t.TempDir(), Format: "csv"}
	end := func(after time.Duration) {
		t.Helper()
		due, tasks := s.sweep(after, true)
		s.pass(tasks, s.begun.Add(after+time.Second))
		must(t, s.a.EndFixity(t.Context(), []FixityRound{due}, true))
	}
	end(0)
	now := time.Now().Add(time.Minute)
	if _, err := s.a.writeReports(t.Context(), r, time.Time{}, now); err == nil {
		t.Error("reports are written while the tables lack some")
	}
	stored := s.a.Stored(schemas.Reports)
	if p, err := stored(t.Context()); err != nil || p != (Progress{Total: 1}) {
		t.Errorf("stored: %+v, %v, want none of one report", p, err)
	}
	s.sink(schemas.RoleSink)
	if p, err := stored(t.Context()); err != nil || p != (Progress{Done: 1, Total: 1}) {
		t.Errorf("stored: %+v, %v, want the report", p, err)
	}
	for range 2 { // the second time the same file
		counts, err := s.a.writeReports(t.Context(), r, time.Time{}, now)
		if err != nil || counts["rounds"] != 1 || counts["files"] != 1 {
			t.Errorf("got %v, %v", counts, err)
		}
	}
	counts, err := s.a.writeReports(t.Context(), r, now, now.Add(time.Minute))
	if err != nil || counts["files"] != 0 {
		t.Errorf("with nothing new: %v, %v", counts, err)
	}
	files, err := filepath.Glob(filepath.Join(r.Dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %q, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil || strings.Count(string(text), "\n") != 4 || !strings.Contains(string(text), "item-002,pass") {
		t.Errorf("got %v:\n%s", err, text)
	}
	rounds, err := FixityReports(t.Context(), s.a.db, read.ReportQuery{Newest: true})
	if err != nil || len(rounds) != 1 || rounds[0].Result() != fixityreport.Success || rounds[0].Checked() != 3 ||
		rounds[0].Compared != nil {
		t.Errorf("got %+v, %v", rounds, err)
	}
	for n, space := range []string{"photos", "photos", "maps"} { // the newest one of the space counts
		s.b.Send(schemas.Message{Topic: schemas.Reports, Body: &pb.Report{Id: schemas.ID(space, strconv.Itoa(n)),
			Kind: reconcile.Name, Account: "acme", Store: "1", Space: space, Round: strconv.Itoa(n), Complete: true,
			Counts: map[string]int64{"equal": 2, "lost": 1}, Started: timestamppb.New(s.begun),
			Finished: timestamppb.New(s.begun.Add(time.Duration(n) * time.Minute))}})
	}
	s.sink(schemas.RoleSink)
	rounds, err = FixityReports(t.Context(), s.a.db, read.ReportQuery{Round: rounds[0].Round})
	if err != nil || len(rounds) != 1 || rounds[0].Compared == nil || rounds[0].Compared.Round != "1" ||
		rounds[0].Compared.Words() != "1 missing in two rounds" {
		t.Errorf("compared: %+v, %v", rounds, err)
	}
	r.Dir = filepath.Join(r.Dir, "none")
	if _, err := s.a.writeReports(t.Context(), r, time.Time{}, now); err == nil {
		t.Error("a directory that is not there is no error")
	}
}

// A report of the settings is written as an item of a space, and reported as a change. Each iteration begins where the
// one before has ended.
func TestScheduledReports(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	st := s.a.stores.of(StoreName{"acme", "1"})
	err := errors.Join(st.WriteMarker(t.Context()), st.CreateSpace(t.Context(), storage.Space{Name: "reports"}))
	must(t, err)
	setting := config.FixityReport{Name: "all", Space: "acme/1/reports"}
	iterate := func(after time.Duration) error {
		t.Helper()
		m := s.a.reportSplit(setting)
		m.Start = s.begun.Add(reportDelay + after)
		return s.a.inCommand(t.Context(), false, func(ctx context.Context, w sweeping) error {
			_, err := w.rounds(ctx, []sweep.Split{m})
			return err
		})
	}
	items := func() (items []string) {
		t.Helper()
		for o, err := range st.List(t.Context(), "reports", "") {
			must(t, err)
			items = append(items, o.Item)
		}
		return items
	}
	due, tasks := s.sweep(0, true)
	s.pass(tasks, s.begun.Add(time.Second))
	must(t, s.a.EndFixity(t.Context(), []FixityRound{due}, true))
	if err := iterate(time.Hour); err == nil {
		t.Error("reports are written while the tables lack some")
	}
	s.sink(schemas.RoleSink)
	for n, after := range []time.Duration{time.Hour, 2 * time.Hour} { // the second one has no new rounds
		if err := iterate(after); err != nil {
			t.Fatalf("iteration %d: %v", n, err)
		}
	}
	found := items()
	if len(found) != 1 || !strings.HasPrefix(found[0], "all-") || !strings.HasSuffix(found[0], ".html") {
		t.Fatalf("items %q, want one page", found)
	}
	changes := s.b.Bodies(schemas.Changes)
	last, _ := changes[len(changes)-1].(*pb.Change)
	if last.GetSpace() != "reports" || last.GetItem() != found[0] {
		t.Errorf("the last change is %v, want that of %s", last, found[0])
	}
	setting.Space = "acme/1/none"
	if err := iterate(3 * time.Hour); err != nil {
		t.Errorf("no new rounds, for a space that is not there: %v", err)
	}
}

// The metrics of copies are absent while they are unknown.
func TestCopyMetrics(t *testing.T) {
	m, registry := newCopyMetrics(), prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	values := func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		must(t, err)
		found := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				name := family.GetName()
				for _, l := range metric.GetLabel() {
					name += " " + l.GetValue()
				}
				found[name] = metric.GetGauge().GetValue()
			}
		}
		return found
	}
	if found := values(); len(found) != 0 {
		t.Errorf("before the first reading: %v", found)
	}
	now := time.Now()
	one, two := StoreName{"acme", "1"}, StoreName{"acme", "2"}
	m.known = &copyReading{at: now, oldest: map[StoreName]time.Time{one: now.Add(-time.Minute)},
		stores: []StoreOverview{{one, 5, 7, 3, 0.6, 2, 1, 1, 400},
			{StoreName: two, Copies: 4, Overdue: 4}},
		incidents: []read.IncidentCount{{Kind: "replaced", Open: 2, Waiting: 1}}}
	found := values()
	for name, want := range map[string]float64{
		"millrace_copies acme 1": 5, "millrace_copies_bytes acme 1": 7, "millrace_copies_verified acme 1": 3,
		"millrace_copies_overdue acme 1": 2, "millrace_copies_failing acme 1": 1, "millrace_copies_unknown acme 1": 1,
		"millrace_copies_burn_rate acme 1": 400, "millrace_copies_burn_rate acme 2": 0,
		"millrace_copies_oldest_pass_seconds acme 1": 60, "millrace_copies_overdue acme 2": 4,
		"millrace_incidents_open replaced": 2, "millrace_incidents_awaiting_approval replaced": 1,
	} {
		if got, ok := found[name]; !ok || got != want {
			t.Errorf("%s = %v, %v; want %v", name, got, ok, want)
		}
	}
	if _, ok := found["millrace_copies_oldest_pass_seconds acme 2"]; ok {
		t.Error("an age of passes where no copy has passed")
	}
}
