package incident

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

var behind = Subject{Kind: RecordsBehind, Name: "copy_state"}

// A topic is the topic incidents.
type topic struct {
	mu      sync.Mutex
	records []*pb.Incident // guarded by mu
	fail    error          // error of the next Publish
	persist bool           // failed messages are written all the same
}

func (l *topic) Publish(_ context.Context, msgs ...schemas.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.fail
	l.fail = nil
	if err == nil || l.persist {
		for _, m := range msgs {
			l.records = append(l.records, proto.CloneOf(m.Body.(*pb.Incident)))
		}
	}
	return err
}

// follow has boards apply the whole topic.
func (l *topic) follow(boards ...*Board) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range boards {
		for _, i := range l.records {
			b.Apply([]byte(schemas.IncidentKey(i)), i)
		}
	}
}

func (l *topic) board() *Board { return NewBoard(l, slog.New(slog.DiscardHandler)) }

// checkNewest compares the state and steps of the newest record, and the number of records.
func (l *topic) checkNewest(t *testing.T, state pb.IncidentState, records int, steps ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.records) != records {
		t.Fatalf("%d records, want %d: %v", len(l.records), records, l.records)
	}
	last := l.records[records-1]
	var got []string
	for _, s := range last.GetSteps() {
		got = append(got, s.GetAction()+" "+s.GetDetail())
	}
	if last.GetState() != state || !slices.Equal(got, steps) || int(last.GetStepCount()) != len(steps) {
		t.Errorf("is %v with %d steps %q, want %v with %q", last.GetState(), last.GetStepCount(), got, state, steps)
	}
}

const (
	isOpen   = pb.IncidentState_INCIDENT_STATE_OPEN
	isClosed = pb.IncidentState_INCIDENT_STATE_CLOSED
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Each subject has a key of its own, which no incident of an item has.
func TestSubject(t *testing.T) {
	for name, tt := range map[string]struct {
		subject Subject
		key     string
	}{
		"a table": {behind, "-////records-behind/copy_state"},
		"a space": {Subject{Account: "acme", Store: "2", Space: "photos", Kind: SpaceMissing},
			"acme/2/photos//space-missing"},
		"a record":   {Subject{Kind: RecordUnreadable, Name: "policies/0@7"}, "-////record-unreadable/policies%2F0@7"},
		"an account": {Subject{Account: "acme", Kind: PolicyRefused}, "acme////policy-refused"},
	} {
		t.Run(name, func(t *testing.T) {
			i := tt.subject.Incident()
			if got := tt.subject.Key(); got != tt.key || i.GetId() != schemas.ID("incident", got) || i.GetItem() != "" {
				t.Errorf("got %q, incident %v, want %q", got, i, tt.key)
			}
		})
	}
}

// Opening an open incident publishes nothing. A closed incident can be opened again.
func TestOpenOnceAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l topic
		b := l.board()
		must(t, b.Close(t.Context(), behind, "has caught up"))
		if len(l.records) != 0 || b.IsOpen(behind) {
			t.Fatalf("closed what was never open: %v", l.records)
		}
		for range 3 {
			must(t, b.Open(t.Context(), behind, "2 records"))
		}
		l.checkNewest(t, isOpen, 1, "opened 2 records")
		if !b.IsOpen(behind) || !slices.Equal(b.OpenOf(RecordsBehind), []Subject{behind}) || b.OpenOf(SpaceMissing) != nil {
			t.Error("is not open")
		}
		id, opened := l.records[0].GetId(), time.Now()
		time.Sleep(time.Second)
		for range 2 {
			must(t, b.Close(t.Context(), behind, "has caught up"))
		}
		l.checkNewest(t, isClosed, 2, "opened 2 records", "closed has caught up")
		if last := l.records[1]; !last.GetOpened().AsTime().Equal(opened) || !last.GetClosed().AsTime().Equal(time.Now()) {
			t.Errorf("opened %v, closed %v", last.GetOpened(), last.GetClosed())
		}
		if b.IsOpen(behind) || b.Accepted(behind) {
			t.Error("is open, or was closed by an operator")
		}
		must(t, b.Open(t.Context(), behind, "1 record"))
		l.checkNewest(t, isOpen, 3, "opened 2 records", "closed has caught up", "opened 1 record")
		if last := l.records[2]; last.GetId() != id || last.GetClosed() != nil ||
			!last.GetOpened().AsTime().Equal(time.Now()) {
			t.Errorf("opened again as %v", last)
		}
	})
}

// A changing detail adds at most one step per minute.
func TestDetailChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l topic
		b := l.board()
		for n := range 125 {
			must(t, b.Open(t.Context(), behind, strconv.Itoa(n)+" records"))
			time.Sleep(time.Second)
		}
		l.checkNewest(t, isOpen, 3, "opened 0 records", "seen-again 60 records", "seen-again 120 records")
	})
}

func TestRecordCarriesItsLastSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l topic
		b := l.board()
		for n := range maxSteps + 5 {
			must(t, b.Open(t.Context(), behind, strconv.Itoa(n)))
			time.Sleep(detailInterval)
		}
		last := l.records[len(l.records)-1]
		if n := len(last.GetSteps()); n != maxSteps || last.GetStepCount() != maxSteps+5 ||
			last.GetSteps()[0].GetDetail() != "5" {
			t.Errorf("carries %d of %d steps, the first is %v", n, last.GetStepCount(), last.GetSteps()[0])
		}
	})
}

// Two processes observe the same problem: one opens the incident, and the other can close it.
func TestTwoBoards(t *testing.T) {
	var l topic
	one, two := l.board(), l.board()
	must(t, one.Open(t.Context(), behind, "2 records"))
	l.follow(one, two)
	must(t, two.Open(t.Context(), behind, "2 records"))
	l.checkNewest(t, isOpen, 1, "opened 2 records")
	must(t, two.Close(t.Context(), behind, ""))
	l.follow(one, two)
	l.checkNewest(t, isClosed, 2, "opened 2 records", "closed ")
	if one.IsOpen(behind) {
		t.Error("the other board has it open")
	}
	must(t, one.Close(t.Context(), behind, ""))
	if len(l.records) != 2 {
		t.Errorf("closed twice: %v", l.records)
	}
}

// Both processes open before they have read the other's record: it is one incident, and closed once.
func TestTwoBoardsAtOnce(t *testing.T) {
	var l topic
	one, two := l.board(), l.board()
	must(t, one.Open(t.Context(), behind, "2 records"))
	must(t, two.Open(t.Context(), behind, "2 records"))
	if a, b := l.records[0], l.records[1]; a.GetId() != b.GetId() || schemas.IncidentKey(a) != schemas.IncidentKey(b) {
		t.Fatalf("two incidents: %v, %v", a, b)
	}
	l.follow(one, two)
	must(t, one.Close(t.Context(), behind, ""))
	l.follow(one, two)
	if one.IsOpen(behind) || two.IsOpen(behind) {
		t.Error("is open")
	}
}

// A publisher calls after when a record is written, before Publish returns.
type publisher struct {
	*topic
	after func()
}

func (p *publisher) Publish(ctx context.Context, msgs ...schemas.Message) error {
	err := p.topic.Publish(ctx, msgs...)
	p.after()
	return err
}

// A board that reads the record of another process before its own is acknowledged has the later one, as all boards.
func TestTwoBoardsReadBeforeAcknowledged(t *testing.T) {
	var l topic
	p := &publisher{topic: &l}
	one, two := NewBoard(p, slog.New(slog.DiscardHandler)), l.board()
	p.after = func() {
		must(t, two.Open(t.Context(), behind, "2 records"))
		l.follow(one, two)
	}
	must(t, one.Open(t.Context(), behind, "2 records"))
	later := l.records[1].GetOpened().AsTime()
	if a, b := one.OpenedAt(behind), two.OpenedAt(behind); !a.Equal(later) || !b.Equal(later) {
		t.Errorf("opened at %v and %v, want %v", a, b, later)
	}
}

// A record that could not be published is published by the next call; one that is on record all the same, and read by
// then, is not published twice.
func TestPublishFails(t *testing.T) {
	for name, persist := range map[string]bool{"not persisted": false, "but persisted": true} {
		t.Run("failed, "+name, func(t *testing.T) {
			unavailable := errors.New("the brokers are unavailable")
			var l topic
			b := l.board()
			l.fail, l.persist = unavailable, persist
			if err := b.Open(t.Context(), behind, "2 records"); !errors.Is(err, unavailable) {
				t.Fatalf("Open = %v", err)
			}
			l.follow(b)
			must(t, b.Open(t.Context(), behind, "2 records"))
			l.checkNewest(t, isOpen, 1, "opened 2 records")
			l.fail = unavailable
			if err := b.Close(t.Context(), behind, ""); !errors.Is(err, unavailable) {
				t.Fatalf("Close = %v", err)
			}
			l.follow(b)
			must(t, b.Close(t.Context(), behind, ""))
			l.checkNewest(t, isClosed, 2, "opened 2 records", "closed ")
		})
	}
}

// A process that is restarted after each record continues from the topic.
func TestBoardAfterRestart(t *testing.T) {
	var l topic
	restart := func() *Board {
		b := l.board()
		l.follow(b)
		return b
	}
	must(t, restart().Open(t.Context(), behind, "2 records"))
	must(t, restart().Open(t.Context(), behind, "2 records"))
	must(t, restart().Close(t.Context(), behind, ""))
	must(t, restart().Close(t.Context(), behind, ""))
	must(t, restart().Open(t.Context(), behind, "1 record"))
	l.checkNewest(t, isOpen, 3, "opened 2 records", "closed ", "opened 1 record")
}

// An incident that an operator closes is opened again while its cause persists.
func TestClosedByAPerson(t *testing.T) {
	var l topic
	b := l.board()
	a := &pb.AdminAction{Id: "a1", Who: "eve", Reason: "restored from tape"}
	must(t, b.CloseBy(t.Context(), behind.Key(), a))
	if len(l.records) != 0 {
		t.Fatalf("closed what is not open: %v", l.records)
	}
	must(t, b.Open(t.Context(), behind, "2 records"))
	must(t, b.CloseBy(t.Context(), behind.Key(), a))
	l.checkNewest(t, isClosed, 2, "opened 2 records", "closed restored from tape")
	if s := l.records[1].GetSteps()[1]; s.GetBy() != "eve" || s.GetRef() != "a1" {
		t.Errorf("closed by %v", s)
	}
	if !b.Accepted(behind) {
		t.Error("is not accepted by an operator")
	}
	must(t, b.Open(t.Context(), behind, "2 records"))
	if !b.IsOpen(behind) || b.Accepted(behind) {
		t.Error("is not open, or accepted by an operator")
	}
	must(t, b.Close(t.Context(), behind, "has caught up"))
	if b.Accepted(behind) {
		t.Error("closed by a role, and accepted by an operator")
	}
}

// An incident that was opened again is not the one that an operator has read, although it has the same id.
func TestOpenedAgain(t *testing.T) {
	var l topic
	b := l.board()
	check := func(i *pb.Incident, want bool) {
		t.Helper()
		if got := b.OpenedAgain(i); got != want {
			t.Errorf("got %v of %v", got, i)
		}
	}
	check(behind.Incident(), false)
	must(t, b.Open(t.Context(), behind, "2 records"))
	first := l.records[0]
	check(first, false)
	must(t, b.Open(t.Context(), behind, "3 records"))
	check(first, false)
	must(t, b.Close(t.Context(), behind, "has caught up"))
	check(first, false)
	must(t, b.Open(t.Context(), behind, "1 record"))
	check(first, true)
	check(l.records[len(l.records)-1], false)
	check(behind.Incident(), false)
}

// The incidents of the runtime have an id per event, and an operator closes them.
func TestIncidentWithAnIDOfItsOwn(t *testing.T) {
	var l topic
	b := l.board()
	removed := &pb.Incident{Id: schemas.ID("7", "12"), Account: "-", Kind: "records-removed", Subject: "sink changes 0",
		State: isOpen, StepCount: 1}
	key := schemas.IncidentKey(removed)
	b.Apply([]byte(key), removed)
	must(t, b.CloseBy(t.Context(), key, &pb.AdminAction{Id: "a1", Who: "eve", Reason: "known"}))
	if last := l.records[0]; last.GetId() != removed.GetId() || last.GetState() != isClosed || last.GetStepCount() != 2 {
		t.Errorf("published %v", last)
	}
	next := proto.CloneOf(removed)
	next.Id = schemas.ID("20", "30")
	b.Apply([]byte(key), next)
	if got := b.OpenOf("records-removed"); len(got) != 1 {
		t.Errorf("the next one is not open: %v", got)
	}
	late := &pb.AdminAction{Id: "a2", Who: "eve", Incident: removed.GetId()}
	err := b.CloseBy(t.Context(), key, late)
	if !errors.Is(err, ErrOtherIncident) || len(b.OpenOf("records-removed")) != 1 {
		t.Errorf("closed the next one, which the operator had not seen (%v)", err)
	}
	late.Incident = next.GetId()
	must(t, b.CloseBy(t.Context(), key, late))
	if len(b.OpenOf("records-removed")) != 0 {
		t.Error("is open")
	}
}

// Incidents of items, echoes of older steps and tombstones.
func TestApply(t *testing.T) {
	var l topic
	b := l.board()
	item := &pb.Incident{Id: "i", Account: "acme", Store: "1", Space: "s", Item: "x", Kind: RecordsBehind, State: isOpen}
	b.Apply([]byte(schemas.IncidentKey(item)), item)
	if got := b.OpenOf(RecordsBehind); got != nil {
		t.Errorf("holds %v, which is the steward's", got)
	}
	must(t, b.Open(t.Context(), behind, ""))
	must(t, b.Close(t.Context(), behind, ""))
	b.Apply([]byte(behind.Key()), l.records[0])
	if b.IsOpen(behind) {
		t.Error("the echo of an older step counts")
	}
	b.Apply([]byte(behind.Key()), nil)
	if len(b.known) != 0 {
		t.Error("a tombstone leaves the incident")
	}
}

// Concurrent calls open an incident once.
func TestOpenedByManyAtOnce(t *testing.T) {
	var l topic
	b := l.board()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := b.Open(t.Context(), behind, "2 records"); err != nil {
				t.Errorf("Open: %v", err)
			}
		})
	}
	wg.Wait()
	l.checkNewest(t, isOpen, 1, "opened 2 records")
}

// A cancelled call does not wait while another one publishes.
func TestOpenGivesUp(t *testing.T) {
	var l topic
	b := l.board()
	b.publishing <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Open(ctx, behind, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("Open = %v", err)
	}
}

// The count of a list is one step, a reminder is due once in a while, and an approval is recorded once.
func TestListOfDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pubFunc = func(context.Context, ...schemas.Message) error { return nil }
		b := NewBoard(p, slog.New(slog.DiscardHandler))
		s := Subject{Account: "acme", Store: "2", Space: "photos", Kind: DeletesHeld, Name: "brake-1"}
		do := func(err error) {
			t.Helper()
			must(t, err)
		}
		want := func(state pb.IncidentState, steps ...string) {
			t.Helper()
			i := b.get(s.Key())
			var got []string
			for _, step := range i.GetSteps() {
				got = append(got, step.GetAction()+" "+step.GetDetail())
			}
			if !slices.Equal(got, steps) || i.GetState() != state || int(i.GetStepCount()) != len(steps) {
				t.Fatalf("got %v %q of %d, want %v %q", i.GetState(), got, i.GetStepCount(), state, steps)
			}
		}
		do(b.Update(t.Context(), s, "1")) // not open
		if b.WasClosed(s) {
			t.Error("an incident that never was is closed")
		}
		do(b.Open(t.Context(), s, "why"))
		for _, n := range []string{"1", "2", "2", "3"} {
			time.Sleep(time.Second)
			do(b.Update(t.Context(), s, n))
			do(b.Remind(t.Context(), s, 24*time.Hour, "n"))
		}
		want(pb.IncidentState_INCIDENT_STATE_OPEN, "opened why", "seen-again 3")
		time.Sleep(24 * time.Hour)
		do(b.Remind(t.Context(), s, 24*time.Hour, "n"))
		do(b.Remind(t.Context(), s, 24*time.Hour, "n"))
		do(b.Update(t.Context(), s, "4"))
		do(b.Close(t.Context(), s, "done"))
		if !b.WasClosed(s) {
			t.Error("not closed")
		}
	})
}

type pubFunc func(context.Context, ...schemas.Message) error

func (f pubFunc) Publish(ctx context.Context, m ...schemas.Message) error { return f(ctx, m...) }
