package app

import (
	"os/exec"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/storage/record"
)

// A copy is restored, and its source is not: the source's content does not come back into it. Then files of the source
// come back from a snapshot, and their Changes are delivered again: nothing newer is overwritten, and nothing that was
// deleted is copied. Each ends with an incident.
func TestOldContentOverwritesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Duplication.Wait = []time.Duration{time.Millisecond}
	s.cfg.Fixity.Recheck, s.cfg.Fixity.Settle = nil, 0
	x := s.archive(everyRole...)
	s.inForce(x.app, "acme", "2")
	changes := map[string]*pb.Change{}
	put := func(item, text string) {
		x.put(item, text, func(c *pb.Change) { changes[item] = c }, "1")
		x.holds("2", map[string]string{item: text})
	}
	opened := func(kind, item string) {
		t.Helper()
		s.untilTrue("the incident "+kind+" of "+item, func() bool {
			open := x.open(kind)
			return len(open) == 1 && open[0].GetItem() == item
		})
	}
	put("restored", "good")
	x.idle()
	good := time.Now()
	put("restored", "encrypted")
	x.idle()
	request := x.request("restored", func(r *RestoreRequest) { r.Store, r.At = "2", good })
	if _, outcome := x.restored(request); outcome.Results["restored"] != 1 {
		t.Fatalf("got %v", outcome)
	}
	x.publish(schemas.Message{Topic: schemas.Changes, Body: changes["restored"]})
	differs := func(what string, n uint64) {
		t.Helper()
		s.untilTrue(what, func() bool { return x.waiting(incident.RewritesHeld) == n })
	}
	differs("the copy of restored differs", 1)
	x.compare(false)
	x.idle()
	x.holds("2", map[string]string{"restored": "good"})
	put("restored", "put again by a client")
	s.untilTrue("the end of the list", func() bool { return len(x.open(incident.RewritesHeld)) == 0 })

	for _, item := range []string{"changed", "deleted"} {
		put(item, "old")
	}
	x.idle()
	saved := map[string]string{"changed": t.TempDir(), "deleted": t.TempDir()}
	was := map[string]*pb.Change{}
	copied := func(from, to string) {
		t.Helper()
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for item, dir := range saved {
		copied(x.path(0, item), dir)
		was[item] = changes[item]
	}
	put("changed", "newer")
	x.remove("deleted", "1")
	x.holds("2", map[string]string{"deleted": "absent"})
	x.idle()
	for item, dir := range saved {
		copied(dir+"/"+item, x.path(0, item))
		c := was[item]
		c.Time = timestamppb.New(c.GetTime().AsTime().Add(-2 * time.Hour))
		x.publish(schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
	}
	differs("the copy of changed differs", 1)
	opened("resurrected", "deleted")
	opened("replaced", "changed")
	x.idle()
	x.holds("2", map[string]string{"changed": "newer", "deleted": "absent"})
	x.holds("1", map[string]string{"changed": "old", "deleted": "old"})
}
