package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// A space with more deletes than the brake allows: exactly the limit is done, the rest is on one list, which an
// operator approves. Deletes after the approval are on another list.
func TestBrakeAndLists(t *testing.T) {
	t.Parallel()
	const limit, first, later = 20, 60, 5
	s := newSite(t)
	s.cfg.Deletes.MaxShare, s.cfg.Deletes.MaxCount = 1, limit
	x := s.archive(schemas.RoleDeleter, schemas.RoleSteward, schemas.RoleSink, schemas.RoleDelayer)
	path := func(item string) string { return x.path(1, item) }
	remove := func(from, to int) { // the source is deleted, the copy is there
		var put, all []schemas.Message
		for n := from; n < to; n++ {
			item := fmt.Sprintf("item-%03d", n)
			written := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
			size := int64(len(item))
			o, err := x.store("2").Put(x.t.Context(), "photos", item, strings.NewReader(item),
				storage.PutOptions{Size: size, Original: storage.Original{Modified: written, Version: "v"}})
			x.must(err)
			c := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: item, Version: "v",
				Size: size, Time: timestamppb.New(written), Origin: pb.Origin_ORIGIN_CLIENT}
			c.Id = schemas.ChangeID(c)
			copied := record.Content(schemas.Copy{Account: "acme", Store: "2", Space: "photos", Item: item}, o)
			copied.Origin, copied.SourceTime = pb.Origin_ORIGIN_DUPLICATION, c.GetTime()
			put = append(put, schemas.Message{Topic: schemas.Changes, Body: c},
				schemas.Message{Topic: schemas.Changes, Body: record.Seal(copied)})
			gone := &pb.Change{Op: pb.Op_OP_DELETE, Account: "acme", Store: "1", Space: "photos", Item: item, Version: "v",
				Time: timestamppb.Now(), Origin: pb.Origin_ORIGIN_CLIENT}
			gone.Id = schemas.ChangeID(gone)
			put = append(put, schemas.Message{Topic: schemas.Changes, Body: gone})
			all = append(all, schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
				Id: schemas.ID("delete", item), Account: "acme", Space: "photos", Item: item, SourceStore: "1",
				DestinationStore: "2", Deleted: gone.GetTime(), Command: schemas.ID("c", item), Time: gone.GetTime()}})
		}
		x.publish(put...)
		x.publish(all...)
	}
	left := func() int {
		files, err := filepath.Glob(path("item-*"))
		x.must(err)
		return len(files)
	}
	open := func() []*pb.Incident { return x.open(incident.DeletesHeld) }
	waiting := func() uint64 { return x.waiting(incident.DeletesHeld) }
	s.inForce(x.app, "acme", "2")
	remove(0, first)
	s.untilTrue("the list", func() bool { return waiting() == first-limit })
	if n := left(); n != first-limit {
		t.Fatalf("%d copies left, want %d", n, first-limit)
	}
	held := open()[0]
	s.untilTrue("the count", func() bool {
		steps := open()[0].GetSteps()
		return strings.HasPrefix(steps[len(steps)-1].GetDetail(), fmt.Sprintf("%d deletes wait", first-limit))
	})
	if _, n, err := x.app.ApproveList(t.Context(), held, Actor{Who: "ann"}); err != nil || n != first-limit {
		t.Fatalf("approved %d: %v", n, err)
	}
	s.untilTrue("the deletes of the list", func() bool { return left() == 0 && len(open()) == 0 })
	remove(first, first+later) // the limit of the hour is still reached
	s.untilTrue("the next list", func() bool { return waiting() == later })
	if next := open()[0]; left() != later || next.GetSubject() == held.GetSubject() {
		t.Errorf("%d copies left, list %s after %s", left(), next.GetSubject(), held.GetSubject())
	}
}

// The incident of a list is opened at once, and one for each list.
func TestHeldDeletesOpenAnIncident(t *testing.T) {
	var p published
	a := &App{incidentBoard: incident.NewBoard(&p, slog.New(slog.DiscardHandler))}
	l := &deleteLists{app: a, lists: map[incident.Subject]*listTimes{}}
	space := schemas.Copy{Account: "acme", Store: "2", Space: "photos"}
	for _, list := range []string{"brake-1", "approval-1", "brake-1"} {
		must(t, l.held(t.Context(), space, list, "a cause"))
	}
	want := "acme/2/photos//deletes-held/brake-1 acme/2/photos//deletes-held/approval-1"
	if got := strings.Join(p.keys, " "); got != want {
		t.Errorf("published %q, want %q", got, want)
	}
}

// A deleter that gets partitions knows the lists that the owner before it has opened.
func TestListsOfTheOwnerBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		before, after := trimming(t, b, 0), trimming(t, b, 0)
		must(t, before.newIncidents())
		must(t, after.newIncidents())
		l, err := after.newDeleteLists()
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- l.checkpoints.Run(ctx) }()
		about := listSubject(schemas.Copy{Account: "acme", Store: "2", Space: "photos"}, "brake-1")
		must(t, before.incidentBoard.Open(ctx, about, "9 deletes wait"))
		short, end := context.WithTimeout(ctx, time.Minute)
		defer end()
		if err := l.catchUp(short); err == nil {
			t.Error("it is ready before the incidents were read")
		}
		go func() { ended <- after.incidents.Run(ctx) }()
		must(t, l.catchUp(ctx))
		if !after.incidentBoard.IsOpen(about) {
			t.Error("it does not know the list")
		}
		cancel()
		must(t, <-ended)
		must(t, <-ended)
	})
}

// published collects the keys of incidents.
type published struct{ keys []string }

func (p *published) Publish(_ context.Context, msgs ...schemas.Message) error {
	for _, m := range msgs {
		p.keys = append(p.keys, schemas.IncidentKey(m.Body.(*pb.Incident)))
	}
	return nil
}
