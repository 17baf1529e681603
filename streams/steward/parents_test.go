package steward

import (
	"bytes"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// corrupt handles a check of n items that finds corrupt bytes, in a second each.
func (w *harness) corrupt(prefix string, n int, changes ...with) {
	w.t.Helper()
	for k := range n {
		r := w.result(2, append([]with{of(prefix + strconv.Itoa(k))}, changes...)...)
		at := base.Add(time.Duration(w.clock) * time.Second)
		r.Started, r.Finished = timestamppb.New(at), timestamppb.New(at.Add(time.Second))
		w.handle(r)
	}
}

func in2(store, space, worker string) with {
	return func(r *pb.FixityResult) { r.Store, r.Space, r.Worker = store, space, worker }
}

// warnings counts the lines of level Warn with a message.
func warnings(log *bytes.Buffer, message string) int {
	return strings.Count(log.String(), `level=WARN msg="`+message+`"`)
}

// A storm is reported once: the first incidents in a space are not, since they have a parent when they would be.
func TestStorm(t *testing.T) {
	var log bytes.Buffer
	w := newHarness(t)
	w.log = slog.New(slog.NewTextHandler(&log, nil))
	w.restart()
	group := incident.Subject{Account: "acme", Store: "2", Space: "photos", Kind: incident.Grouped, Name: kindCorrupt}
	w.corrupt("a", groupAfter)
	w.handle(w.result(1, of("a0"))) // it passes before it is reported
	w.update()
	w.checkParent(group, pb.IncidentState_INCIDENT_STATE_UNSPECIFIED)
	w.corrupt("b", 300)
	w.update()
	w.restart() // the counts and the children are read again
	w.steward.Assigned()
	w.corrupt("c", 50)
	w.update()
	i := w.checkParent(group, open)
	if d := i.GetSteps(); len(d) != 2 ||
		d[0].GetDetail() != "319 open incidents in one space: more than 20 were opened within an hour" ||
		d[1].GetDetail() != "369 open incidents in one space: more than 20 were opened within an hour" {
		t.Errorf("the parent is %v", i)
	}
	w.steward.ReportAll()
	if n, parents := warnings(&log, "report incident"), warnings(&log, "publish incident"); n != 0 || parents != 1 {
		t.Errorf("%d incidents and %d parents are reported, want none and 1", n, parents)
	}
	for key, want := range map[string]string{"a0": "", "a1": i.GetId(), "b0": i.GetId()} {
		if got := w.topic["acme/2/photos/"+key+"/content-corrupt"]; got.GetParent() != want {
			t.Errorf("%s is %v", key, got)
		}
	}
	if got := w.topic["acme/2/photos/c0/content-corrupt"]; got.GetParent() != i.GetId() ||
		got.GetState() == awaiting {
		t.Errorf("a child is %v: its repair does not wait", got)
	}
	for _, n := range []struct {
		prefix string
		items  int
	}{{"a", groupAfter}, {"b", 300}, {"c", 50}} {
		for k := range n.items {
			w.handle(w.result(1, of(n.prefix+strconv.Itoa(k))))
		}
	}
	w.update()
	w.checkParent(group, shut)
	if !w.board.ClosedAt(group).After(base) {
		t.Error("it has no time of its end")
	}
}

// Incidents of many spaces of a store, and those that one worker finds in many stores, have a parent, too.
func TestStormOfStoreAndWorker(t *testing.T) {
	w := newHarness(t)
	for k := range 3 {
		w.corrupt("a", 10, in2("2", "space-"+strconv.Itoa(k), "host/checker/"+strconv.Itoa(k)))
	}
	for k := range 3 {
		w.corrupt("a", 10, in2("store-"+strconv.Itoa(k), "s", "bad/checker/7"))
	}
	w.update()
	store := incident.Subject{Account: "acme", Store: "2", Kind: incident.Grouped, Name: kindCorrupt}
	worker := incident.Subject{Kind: incident.Grouped, Name: "bad/checker/7"}
	for about, want := range map[incident.Subject]string{
		store: "30 open incidents in one store: more than 20 were opened within an hour;" +
			" all were found on the host host",
		worker: "30 open incidents that one worker found: more than 20 were opened within an hour",
	} {
		if d := w.checkParent(about, open).GetSteps(); len(d) != 1 || d[0].GetDetail() != want {
			t.Errorf("%s has the steps %v, want one with %q", about.Key(), d, want)
		}
	}
}

// Incidents that are opened over more than an hour are no storm.
func TestNoStorm(t *testing.T) {
	w := newHarness(t)
	for k := range 100 {
		w.handle(w.result(2, of("a"+strconv.Itoa(k)), func(r *pb.FixityResult) {
			at := base.Add(time.Duration(k) * 7 * time.Minute)
			r.Started, r.Finished = timestamppb.New(at), timestamppb.New(at)
		}))
	}
	w.update()
	for key, i := range w.topic {
		if i.GetParent() != "" || i.GetItem() == "" {
			t.Errorf("%s is %v", key, i)
		}
	}
}

// A repair that is held has the parent of the held repairs, and leaves its group.
func TestHeldChildLeavesItsGroup(t *testing.T) {
	w := newHarness(t)
	w.live = 200
	for k := range 21 {
		r := w.result(8, of("a"+strconv.Itoa(k)))
		r.Started, r.Finished = timestamppb.New(base.Add(time.Duration(k)*time.Second)),
			timestamppb.New(base.Add(time.Duration(k)*time.Second))
		w.handle(r)
	}
	group := incident.Subject{Account: "acme", Store: "2", Space: "photos", Kind: incident.Grouped, Name: kindMissing}
	w.update()
	w.checkParent(photos, open)
	w.checkParent(group, pb.IncidentState_INCIDENT_STATE_UNSPECIFIED)
	if got := w.topic[w.missingKey("a20")]; got.GetParent() != photos.Incident().GetId() {
		t.Errorf("the last one is %v", got)
	}
}

// An approval that is older than its parent, by their clocks, and a second one have no effect. The parent says so once.
func TestApprovalsOfAParentWithoutEffect(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	w.update()
	early := w.decide(ActionApprove, photos.Key())
	early.Time = timestamppb.New(w.board.OpenedAt(photos).Add(-time.Minute))
	counts, second := w.decide(ActionApprove, photos.Key()), w.decide(ActionApprove, photos.Key())
	for _, a := range []*pb.AdminAction{early, early, counts, second, second} {
		w.handle(a)
	}
	i := w.checkParent(photos, repairing)
	if got := actions(i); !slices.Equal(got, []string{stepOpened, stepOutdated, stepApproved, stepOutdated}) {
		t.Fatalf("the steps are %q", got)
	}
	for n, ref := range []string{"", early.GetId(), counts.GetId(), second.GetId()} {
		if s := i.GetSteps()[n]; n > 0 && (s.GetRef() != ref || s.GetBy() != "eve" || s.GetDetail() == "") {
			t.Errorf("step %d is %v", n, s)
		}
	}
	w.update()
	if len(w.actions) != 1 || w.board.Approval(photos).GetRef() != counts.GetId() {
		t.Errorf("approvals of children: %v", w.actions)
	}
}
