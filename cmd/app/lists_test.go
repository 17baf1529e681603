package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// deletedAtSource publishes the deletes of items of space photos at store 1, whose copies are in store 2, and the
// commands to delete the copies.
func (x *archive) deletedAtSource(from, to int) {
	x.t.Helper()
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

// decides publishes the decision of an operator who has seen the same of a list as others, and does not know theirs.
// It returns the id of the action.
func (x *archive) decides(i *pb.Incident, by Actor, do string) string {
	x.t.Helper()
	list, _ := listOf(incident.SubjectOf(i))
	seen, err := read.SeenResults(x.t.Context(), x.app.DB(), list.Space)
	x.must(err)
	done := by.decision(do, i)
	done.After = seen.String()
	action, err := x.app.publishDecision(x.t.Context(), done)
	x.must(err)
	return action
}

// loses waits until a decision has lost against that of another operator, who is named.
func (x *archive) loses(i *pb.Incident, action, want, detail string) {
	x.t.Helper()
	list, _ := listOf(incident.SubjectOf(i))
	x.until(func() error {
		r, err := read.ResultOfDecision(x.t.Context(), x.app.DB(), list.Space, action)
		if err == nil && (r.Result != want || r.Detail != detail) {
			err = fmt.Errorf("the second decision ends with %+v, want %s: %s", r, want, detail)
		}
		return err
	})
}

// A space with more deletes than the brake allows: exactly the limit is done, the rest is on one list, which an
// operator approves. A second operator decides too late, and learns by whom it was decided. Deletes after the approval
// are on another list.
func TestBrakeAndLists(t *testing.T) {
	t.Parallel()
	const limit, first, later = 20, 60, 5
	s := newSite(t)
	s.cfg.Deletes.MaxShare, s.cfg.Deletes.MaxCount = 1, limit
	x := s.archive(schemas.RoleDeleter, schemas.RoleSteward, schemas.RoleSink, schemas.RoleDelayer)
	left := func() int {
		files, err := filepath.Glob(x.path(1, "item-*"))
		x.must(err)
		return len(files)
	}
	open := func() []*pb.Incident { return x.open(incident.DeletesHeld) }
	waiting := func() uint64 { return x.waiting(incident.DeletesHeld) }
	s.inForce(x.app, "acme", "2")
	x.deletedAtSource(0, first)
	s.untilTrue("the list", func() bool { return waiting() == first-limit })
	if n := left(); n != first-limit {
		t.Fatalf("%d copies left, want %d", n, first-limit)
	}
	list := open()[0]
	s.untilTrue("the count", func() bool {
		steps := open()[0].GetSteps()
		return strings.HasPrefix(steps[len(steps)-1].GetDetail(), fmt.Sprintf("%d deletes wait", first-limit))
	})
	_, n, err := x.app.DecideList(t.Context(), list, Actor{Who: "ann"}, held.ActionApprove)
	if err != nil || n != first-limit {
		t.Fatalf("approved %d: %v", n, err)
	}
	isConflict := func(err error) {
		t.Helper()
		if !errors.Is(err, precondition.Err) || !strings.Contains(fmt.Sprint(err), "ann decided before (approve-list)") {
			t.Errorf("another decision: %v", err)
		}
	}
	second := x.decides(list, Actor{Who: "bob", Reason: "a script"}, held.ActionRefuse) // bob does not know ann's
	isConflict(x.app.checkDecided(t.Context(), list, second))
	x.loses(list, second, "not-refused", "ann decided before (approve-list)")
	_, _, err = x.app.DecideList(t.Context(), list, Actor{Who: "bob"}, held.ActionRefuse) // ann's is on record now
	isConflict(err)
	s.untilTrue("the deletes of the list", func() bool { return left() == 0 && len(open()) == 0 })
	x.deletedAtSource(first, first+later) // the limit of the hour is still reached
	s.untilTrue("the next list", func() bool { return waiting() == later })
	if next := open()[0]; left() != later || list.GetSubject() != "brake-1" || next.GetSubject() != "brake-2" {
		t.Errorf("%d copies left, list %s after %s", left(), next.GetSubject(), list.GetSubject())
	}
	third := ListOfKey("acme/2/photos//" + incident.DeletesHeld + "/brake-3")
	if _, _, err = x.app.DecideList(t.Context(), third, Actor{Who: "bob"}, held.ActionApprove); !errors.Is(err,
		precondition.Err) || !strings.Contains(fmt.Sprint(err), "no such list") {
		t.Errorf("a list that does not exist: %v", err)
	}
}

// A table that was emptied closes no list: its copies are needed until each item has a result.
func TestEmptiedTableClosesNoList(t *testing.T) {
	t.Parallel()
	const limit, all = 2, 6
	s := newSite(t)
	s.cfg.Deletes.MaxShare, s.cfg.Deletes.MaxCount = 1, limit
	x := s.archive(schemas.RoleDeleter, schemas.RoleSteward, schemas.RoleSink, schemas.RoleDelayer) // nobody restores
	s.inForce(x.app, "acme", "2")
	x.deletedAtSource(0, all)
	s.untilTrue("the list", func() bool { return x.waiting(incident.DeletesHeld) == all-limit })
	list := x.open(incident.DeletesHeld)[0]
	about := incident.SubjectOf(list)
	at, _ := listOf(about)
	ctx := t.Context()
	action, n, err := x.app.DecideList(ctx, list, Actor{Who: "ann", Reason: "a script"}, held.ActionRefuse)
	if err != nil || n != all-limit {
		t.Fatalf("refused %d: %v", n, err)
	}
	s.untilTrue("the restores", func() bool {
		r, err := read.ResultOfDecision(ctx, x.app.DB(), at.Space, action)
		return err == nil && r.Result == "restores-ordered"
	})
	q, _, err := QueryOfList(ctx, x.app.DB(), list)
	x.must(err)
	q.Limit = all
	items, err := read.ListedDeletes(ctx, x.app.DB(), q)
	x.must(err)
	end := func(items ...read.ListedDelete) {
		for _, d := range items {
			x.publish(schemas.Message{Topic: schemas.DuplicationResults, Body: &pb.DuplicationResult{
				Id: schemas.NewID(), Command: schemas.NewID(), Cause: at.Name(), Account: "acme", Space: "photos",
				Item: d.Item, SourceStore: "2", DestinationStore: "1", Decision: "C0r", Result: "restored", List: at.Name(),
				Reason: pb.DuplicationReason_DUPLICATION_REASON_RESTORE, Outcome: pb.Outcome_OUTCOME_DONE,
				Started: timestamppb.Now(), Finished: timestamppb.Now()}})
		}
	}
	end(items[0])
	s.untilTrue("the first result", func() bool { return x.progress(list).Ended == 1 })
	stays := func(name string, items, ended uint64) {
		t.Helper()
		p := x.progress(list)
		err := x.app.deleteLists.reportList(ctx, about)
		if p.Items != items || p.Ended != ended || !x.app.incidentBoard.IsOpen(about) ||
			x.app.deleteLists.Refused(at.Space) == nil {
			t.Fatalf("%s: %+v, is open: %t, needed: %v; report: %v", name, p, x.app.incidentBoard.IsOpen(about),
				x.app.deleteLists.Refused(at.Space), err)
		}
	}
	stays("the table is whole", all-limit, 1)
	x.must(x.app.DB().Exec(ctx,
		"ALTER TABLE {db}.duplication_log DELETE WHERE item != ? SETTINGS mutations_sync = 2", items[0].Item))
	stays("the table has the one item that ended", 1, 1)
	x.must(x.app.DB().Exec(ctx, "TRUNCATE TABLE {db}.duplication_log"))
	stays("the table is empty", 0, 0)
	if page, err := x.app.deleteLists.Waiting(ctx, at, items[0].Item); err == nil {
		t.Errorf("a page of the empty table: %v", page)
	}
	_, err = x.app.Rebuild(ctx, Actor{Who: "ann", From: "cli"}, quiet)
	x.must(err)
	s.untilTrue("the table is filled", func() bool { return x.progress(list).Items == all-limit })
	stays("the table is filled", all-limit, 1)
	end(items[1:]...)
	s.untilTrue("the end", func() bool {
		return !x.app.incidentBoard.IsOpen(about) && x.app.deleteLists.Refused(at.Space) == nil
	})
}

// The incident of a list stays, or comes back, as long as the list or its end says something.
func TestIncidentsOfLists(t *testing.T) {
	t.Parallel()
	const all = 3
	s := newSite(t)
	s.cfg.Deletes.MaxShare, s.cfg.Deletes.MaxCount = 1, 1
	x := s.archive(schemas.RoleDeleter, schemas.RoleSteward, schemas.RoleSink, schemas.RoleDelayer) // nobody restores
	s.inForce(x.app, "acme", "2")
	x.deletedAtSource(0, all)
	s.untilTrue("the list", func() bool { return x.waiting(incident.DeletesHeld) == all-1 })
	list := x.open(incident.DeletesHeld)[0]
	about := incident.SubjectOf(list)
	at, _ := listOf(about)
	lists, board, ctx := x.app.deleteLists, x.app.incidentBoard, t.Context()

	// It was empty when it was closed, and a process that was suspended has held something since.
	x.must(board.Close(ctx, about, "nothing waits"))
	if wait, err := lists.Wait(ctx, at.Space, held.Limit); err != nil || !wait || !board.IsOpen(about) {
		t.Errorf("after it was closed as empty: waits %t, %v, is open: %t", wait, err, board.IsOpen(about))
	}

	// A decision about the next list is of an operator who saw nothing of it.
	_, _, err := x.app.DecideList(ctx, list, Actor{Who: "ann", Reason: "a script"}, held.ActionRefuse)
	x.must(err)
	s.untilTrue("the decision", func() bool { return lists.Refused(at.Space) != nil })
	next := at
	next.Number++
	x.must(board.Open(ctx, listSubject(next), "deletes wait"))
	x.decides(listSubject(next).Incident(), Actor{Who: "bob"}, held.ActionApprove)
	s.untilTrue("the end of the next list", func() bool {
		_, _, decided := lists.decisions.About(next)
		return decided && !board.IsOpen(listSubject(next))
	})

	// The topic has lost the incident of the refused list.
	board.Apply([]byte(about.Key()), nil)
	x.must(lists.reopenLost(ctx, at))
	if !board.IsOpen(about) || lists.Refused(at.Space) == nil {
		t.Errorf("the lost incident: is open: %t, refused: %v", board.IsOpen(about), lists.Refused(at.Space))
	}
}

// The incident of a list is opened at once, and one for each list. A refused list keeps the copies until it is closed.
func TestHeldDeletesOpenAnIncident(t *testing.T) {
	var p published
	a := &App{incidentBoard: incident.NewBoard(&p, slog.New(slog.DiscardHandler))}
	at := schemas.Copy{Account: "acme", Store: "2", Space: "photos", Item: "a"}
	l := &deleteLists{app: a, decisions: &a.decided, lists: map[held.List]*listState{
		{Space: at.WithoutItem(), Kind: held.Limit, Number: 2}: {looked: true}}}
	waits := func(at schemas.Copy, k held.Kind) bool {
		t.Helper()
		wait, err := l.Wait(t.Context(), at, k)
		must(t, err)
		return wait
	}
	hold := func(k held.Kind, want string) {
		t.Helper()
		name, err := l.Hold(t.Context(), at, k, "a cause")
		if err != nil || name != want || !waits(at, k) || waits(at.In("3"), k) {
			t.Errorf("held on %q, %v, want %q", name, err, want)
		}
	}
	decide := func(do, incident string) {
		a.decided.Apply(&pb.AdminAction{Id: do, Action: do, Target: "acme/2/photos//" + incident, After: "00000007:0=1"},
			time.Now())
	}
	hold(held.Limit, "brake-1")
	hold(held.Approve, "approve-1")
	hold(held.Limit, "brake-1")
	hold(held.Rewrites, "rewrites-1")
	decide(held.ActionRefuse, "deletes-held/brake-1")
	if waits(at, held.Limit) || l.Refused(at) == nil || l.Refused(at.In("3")) != nil {
		t.Errorf("waits: %t, refused: %v", waits(at, held.Limit), l.Refused(at))
	}
	hold(held.Limit, "brake-2")
	first := listSubject(held.List{Space: at.WithoutItem(), Kind: held.Limit, Number: 1})
	must(t, a.incidentBoard.Close(t.Context(), first, "all are back"))
	if err := l.Refused(at); err != nil || !waits(at, held.Limit) {
		t.Errorf("after the first list was closed: %v", err)
	}
	want := "deletes-held/brake-1 deletes-held/approve-1 rewrites-held/rewrites-1 deletes-held/brake-2" +
		" deletes-held/brake-1"
	if got := strings.ReplaceAll(strings.Join(p.keys, " "), "acme/2/photos//", ""); got != want {
		t.Errorf("published %q, want %q", got, want)
	}
}

// A deleter that gets partitions knows the lists that the owner before it has opened, and the decisions about them.
func TestListsOfTheOwnerBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		before, after := trimming(t, b, 0), trimming(t, b, 0)
		must(t, before.newIncidents())
		must(t, after.newIncidents())
		must(t, after.newActions())
		l, err := after.newDeleteLists()
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 3)
		go func() { ended <- l.checkpoints.Run(ctx) }()
		at := schemas.Copy{Account: "acme", Store: "2", Space: "photos"}
		about := listSubject(held.List{Space: at, Kind: held.Limit, Number: 2})
		must(t, before.producer.Publish(ctx, schemas.Message{Topic: schemas.Admin, Body: &pb.AdminAction{
			Id: schemas.NewID(), Time: timestamppb.Now(), Who: "ann", Action: held.ActionClose, Account: "acme", Store: "2",
			Space: "photos", Target: listSubject(held.List{Space: at, Kind: held.Limit, Number: 1}).Key(),
			After: "00000007:0=3"}}))
		must(t, before.incidentBoard.Open(ctx, about, "9 deletes wait"))
		short, end := context.WithTimeout(ctx, time.Minute)
		defer end()
		if err := l.catchUp(short); err == nil {
			t.Error("it is ready before the incidents were read")
		}
		go func() { ended <- after.incidents.Run(ctx) }()
		go func() { ended <- after.actions.Run(ctx) }()
		must(t, l.catchUp(ctx))
		if wait, err := l.Wait(ctx, at, held.Limit); err != nil || !wait {
			t.Error("it does not know the list")
		}
		cancel()
		must(t, <-ended)
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
