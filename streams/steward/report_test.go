package steward

import (
	"bytes"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/incident"
)

// An incident that stays alone is reported once, half a minute after it was opened, also if it was closed meanwhile,
// and at the latest when the process stops.
func TestReportOfOneIncident(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newHarness(t)
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		w.restart()
		want := func(n int, due bool) {
			t.Helper()
			if got := warnings(&log, "report incident"); got != n || w.steward.ParentsDue() != due {
				t.Errorf("%d are reported, due %v, want %d and %v", got, !due, n, due)
			}
		}
		w.corrupt("a", 1)
		w.corrupt("b", 1)
		w.handle(w.result(1, of("b0")))
		w.update()
		want(0, false)
		time.Sleep(reportAfter)
		want(0, true)
		w.update()
		want(2, false)
		w.corrupt("a", 1) // seen again
		time.Sleep(reportAfter)
		w.update()
		want(2, false)
		w.corrupt("c", 1)
		w.steward.ReportAll()
		w.steward.ReportAll()
		want(3, false)
	})
}

// A child that could not be published joins its parent later. Another process has the incidents of other partitions,
// which are not reported beside an open parent.
func TestJoinFails(t *testing.T) {
	var log bytes.Buffer
	w := newHarness(t)
	w.log = slog.New(slog.NewTextHandler(&log, nil))
	w.restart()
	w.corrupt("a", groupAfter+1)
	w.refused = errors.New("no broker")
	if err := w.steward.UpdateParents(t.Context(), func(string) bool { return true }); err == nil ||
		!w.steward.ParentsDue() {
		t.Fatalf("got %v", err)
	}
	group := incident.Subject{Account: "acme", Store: "2", Space: "photos", Kind: incident.Grouped, Name: kindCorrupt}
	w.checkParent(group, open) // the failure of one child does not stop it
	err := w.steward.UpdateParents(t.Context(), func(key string) bool { return key == parentKey(group) })
	if err != nil {
		t.Fatal(err)
	}
	w.checkParent(group, open)
	if got := w.topic["acme/2/photos/a0/content-corrupt"]; got.GetParent() != "" {
		t.Errorf("the incident of another process is %v", got)
	}
	w.steward.Assigned()
	w.update()
	for k := range groupAfter + 1 {
		got := w.topic["acme/2/photos/a"+strconv.Itoa(k)+"/content-corrupt"]
		if want := group.Incident().GetId(); k == groupAfter && got.GetParent() != want || hasStep(got, stepGrouped) &&
			got.GetParent() != want {
			t.Errorf("a%d is %v", k, got)
		}
	}
	w.steward.ReportAll()
	if n := warnings(&log, "report incident"); n > 0 {
		t.Errorf("%d are reported beside their parent", n)
	}
}

// An incident that still waits when report has ended is older than one that was opened meanwhile, and decides when the
// next report is due.
func TestOldestReportIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r reports
		r.add(report{key: "old", at: time.Now()})
		later := r.take()
		time.Sleep(reportAfter - time.Second)
		r.add(report{key: "new", at: time.Now()})
		r.putBack(later)
		if r.due() {
			t.Error("a report is due before its time")
		}
		if time.Sleep(time.Second); !r.due() {
			t.Error("the oldest one has waited for its time, and no report is due")
		}
	})
}

// A missing copy that is repaired without approval, since few are missing, does not come to the parent that a person
// has closed: it is reported, and the parent stays closed.
func TestReportBesideClosedParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newHarness(t)
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		w.restart()
		w.live = 2
		w.lose("a", 3)
		w.update()
		w.closeParent(photos)
		time.Sleep(reportAfter)
		w.update()
		before := warnings(&log, "report incident")
		w.live = 1000
		w.lose("b", 1)
		w.checkState("b0", repairing, stepOrdered)
		w.update()
		w.checkParent(photos, shut)
		time.Sleep(reportAfter)
		w.update()
		w.checkParent(photos, shut)
		if n := warnings(&log, "report incident") - before; n != 1 {
			t.Errorf("%d reports, want one", n)
		}
		w.lose("c", 1)
		w.checkState("c0", repairing, stepOrdered)
	})
}
