package deletion

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A bare store reports no digests.
type bare struct{ storage.Store }

func (b bare) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	o, err := b.Store.Stat(ctx, space, item)
	o.Digests = nil
	return o, err
}

// withoutDigests are stores of a world in which the source reports no digests.
type withoutDigests struct{ *world }

func (w withoutDigests) Store(account, id string) (storage.Store, bool) {
	s, ok := w.world.Store(account, id)
	if id == "1" {
		s = bare{s}
	}
	return s, ok
}

// land merges Changes into the rows, as the state tables do.
func (w *world) land(out []schemas.Message) {
	for _, m := range out {
		c, ok := m.Body.(*pb.Change)
		if !ok || w.rows[c.GetStore()].GetTime().AsTime().After(c.GetTime().AsTime()) {
			continue
		}
		row := &pb.Record{State: live, Time: c.GetTime(), Origin: c.GetOrigin(), Version: c.GetVersion(), Size: c.GetSize(),
			Digests: c.GetDigests(), SourceTime: c.GetSourceTime(), SourceVersion: c.GetSourceVersion()}
		if c.GetOp() == pb.Op_OP_DELETE {
			row = &pb.Record{State: tomb, Time: c.GetTime(), Origin: c.GetOrigin()}
		}
		w.rows[c.GetStore()] = row
	}
}

// back puts the source back, modified at a time.
func (w *world) back(text string, modified time.Time) {
	w.put("1", text)
	w.mem["1"].Date("photos", "a.jpg", modified)
}

// reports puts a client's Change of what the source shows on record, at the time of its event.
func (w *world) reports() {
	o, err := w.mem["1"].Stat(w.t.Context(), "photos", "a.jpg")
	w.must(err)
	w.rows["1"] = &pb.Record{State: live, Time: stamp(5), Origin: pb.Origin_ORIGIN_CLIENT, Version: o.Version,
		Size: o.Size, Digests: o.Digests}
}

// copies executes a command of the deleter, and again after an error that is not permanent.
func (w *world) copies(stores duplicate.Stores, order schemas.Message) []schemas.Message {
	w.t.Helper()
	copier, err := duplicate.New(duplicate.Config{}, stores, w, w)
	w.must(err)
	for range 3 {
		out, err := copier.Handle(w.t.Context(), &schemas.Delivery{Topic: order.Topic, Body: order.Body, Attempt: 1})
		if err == nil {
			return out
		}
		if retry.ClassOf(err) != retry.Transient {
			w.t.Fatal(err)
		}
	}
	w.t.Fatal("it fails again and again")
	return nil
}

// ordered returns the command to copy among the messages of the deleter.
func ordered(t *testing.T, out []schemas.Message) schemas.Message {
	t.Helper()
	for _, m := range out {
		if _, ok := m.Body.(*pb.DuplicationCommand); ok {
			return m
		}
	}
	t.Fatalf("no order to copy in %v", out)
	return schemas.Message{}
}

// checks reports whether there is a task to check a store's copy.
func checks(out []schemas.Message, store string) bool {
	for _, m := range out {
		if task, ok := m.Body.(*pb.FixityTask); ok && task.GetStore() == store {
			return true
		}
	}
	return false
}

// A source that comes back while its delete is carried out, and is on record by the time that the command is executed,
// is copied again, whatever its modification time is: a file that is moved back keeps its time.
func TestSourceThatComesBackIsCopiedAgain(t *testing.T) {
	times := map[string]time.Time{"as old as before": hour(2), "newer": hour(5)}
	sides := map[string]func(*world) duplicate.Stores{
		"with digests":    func(w *world) duplicate.Stores { return w },
		"without digests": func(w *world) duplicate.Stores { return withoutDigests{w} },
	}
	faults := map[string]struct {
		fail        func(*world)
		lost, twice bool // the messages of the deleter, of the copier
	}{
		"nothing fails":                       {fail: func(*world) {}},
		"the deleter is killed":               {fail: func(*world) {}, lost: true},
		"the copier is killed after the copy": {fail: func(*world) {}, twice: true},
		"the source does not answer after the delete": {fail: func(w *world) {
			w.on("2", "Delete", func() { w.faulty["1"].Script(storagetest.Fault{Method: "Stat"}) })
		}},
		"the delete is done, and reported as failed": {fail: func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Delete", Applied: true})
		}},
		"the copy is not done": {fail: func(w *world) { w.faulty["2"].Script(storagetest.Fault{Method: "Put"}) }},
		"the copy is done, and reported as failed": {fail: func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Put", Applied: true})
		}},
	}
	for modified, at := range times {
		for side, stores := range sides {
			for fault, f := range faults {
				t.Run(modified+", "+side+", "+fault, func(t *testing.T) {
					w := newWorld(t)
					f.fail(w)
					came := false
					w.on("2", "Delete", func() {
						if !came {
							came = true
							w.back("hello", at)
						}
					})
					var err error
					w.deleter, err = New(w.config(Config{}), stores(w), w, w)
					w.must(err)
					out := w.handle()
					if f.lost {
						out = w.handle()
					}
					if !w.absent("2") {
						t.Fatal("the copy is not deleted")
					}
					w.land(out)
					w.reports()
					order := ordered(t, out)
					copied := w.copies(stores(w), order)
					if f.twice {
						copied = w.copies(stores(w), order)
					}
					w.land(copied)
					if w.absent("2") {
						t.Errorf("the source is there and the copy is not: %v", copied[len(copied)-1].Body)
					}
					if w.rows["2"].GetState() != live {
						t.Errorf("the copy is on record as %v", w.rows["2"])
					}
				})
			}
		}
	}
}

// A command to copy again does not copy a source that came back under a later tombstone.
func TestCopyCommandObeysALaterDelete(t *testing.T) {
	w := newWorld(t)
	w.on("2", "Delete", func() { w.back("hello", hour(2)) })
	out := w.handle()
	w.land(out)
	w.rows["1"] = &pb.Record{State: tomb, Time: stamp(6), Origin: pb.Origin_ORIGIN_CLIENT}
	copied := w.copies(w, ordered(t, out))
	if r := copied[len(copied)-1].Body.(*pb.DuplicationResult); r.GetDecision() != "C4r" || !w.absent("2") {
		t.Errorf("got %v", r)
	}
}

// If the source is absent again when the command runs, that is no delete: the destination keeps its item.
func TestCopyCommandDeletesNothing(t *testing.T) {
	w := newWorld(t)
	w.on("2", "Delete", func() { w.back("hello", hour(2)) })
	order := ordered(t, w.handle())
	w.reports()
	w.land(w.copies(w, order))
	w.mem["1"].Lose("photos", "a.jpg")
	copier, err := duplicate.New(duplicate.Config{}, w, w, w)
	w.must(err)
	_, err = copier.Handle(t.Context(), &schemas.Delivery{Topic: order.Topic, Body: order.Body, Attempt: 1})
	if retry.ClassOf(err) != retry.ClassWait || w.absent("2") { // for the source
		t.Errorf("got %v", err)
	}
}

// What came back without a newer Change on record is not copied: as old as before, it may be from a snapshot. Newer
// content waits for its Change.
func TestSourceThatNobodyReportsIsNotCopied(t *testing.T) {
	for name, at := range map[string]time.Time{"as old as before": hour(2), "newer": hour(5)} {
		for _, unseen := range []bool{false, true} {
			w := newWorld(t)
			w.on("2", "Delete", func() {
				w.back("hello", at)
				if unseen {
					w.faulty["1"].Script(storagetest.Fault{Method: "Stat"})
				}
			})
			out := w.handle()
			w.land(out)
			m := ordered(t, out)
			copier, err := duplicate.New(duplicate.Config{}, w, w, w)
			w.must(err)
			out, err = copier.Handle(t.Context(), &schemas.Delivery{Topic: m.Topic, Body: m.Body, Attempt: 1})
			switch waits := retry.ClassOf(err) == retry.ClassWait; {
			case !w.absent("2") || waits != at.After(hour(4)):
				t.Errorf("%s: got %v, %v", name, out, err)
			case !waits && (!checks(out, "1") || out[len(out)-1].Body.(*pb.DuplicationResult).GetDecision() != "C4r"):
				t.Errorf("%s: got %v", name, out)
			}
		}
	}
}

// The command has the class that the planner would choose for the item.
func TestClassOfTheCopyCommand(t *testing.T) {
	tests := map[string]struct {
		low, unseen bool
		large       int64
		topic       schemas.Topic
		priority    pb.Priority
	}{
		"small":               {false, false, 6, schemas.DuplicationHigh, pb.Priority_PRIORITY_HIGH},
		"large":               {false, false, 5, schemas.DuplicationLarge, pb.Priority_PRIORITY_LARGE},
		"of a low space":      {true, false, 6, schemas.DuplicationLow, pb.Priority_PRIORITY_LOW},
		"of an unknown size":  {false, true, 5, schemas.DuplicationHigh, pb.Priority_PRIORITY_HIGH},
		"nothing is large":    {false, false, 0, schemas.DuplicationHigh, pb.Priority_PRIORITY_HIGH},
		"large, of low space": {true, false, 5, schemas.DuplicationLarge, pb.Priority_PRIORITY_LARGE},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.rules.Low = tt.low
			var err error
			w.deleter, err = New(w.config(Config{Large: tt.large}), w, w, w)
			w.must(err)
			w.on("2", "Delete", func() {
				w.put("1", "hello")
				if tt.unseen {
					w.faulty["1"].Script(storagetest.Fault{Method: "Stat"})
				}
			})
			m := ordered(t, w.handle())
			if m.Topic != tt.topic || m.Body.(*pb.DuplicationCommand).GetPriority() != tt.priority {
				t.Errorf("got topic %s of %v", m.Topic, m.Body)
			}
		})
	}
}

// A delete takes effect after another execution of the same command has found both sides present: the source was put
// back after the last observation of the first one, because its process was frozen or got an error.
func TestDeleteThatTakesEffectLate(t *testing.T) {
	for name, handle := range map[string]func(w *world) []schemas.Message{
		"a process that was frozen": func(w *world) []schemas.Message {
			var other []schemas.Message
			w.on("2", "Delete", func() {
				if other == nil {
					w.back("hello", hour(2))
					other = w.handle() // the process that has the command now
				}
			})
			w.handle()
			return other
		},
		"an error, and a later effect": func(w *world) []schemas.Message {
			w.faulty["2"].Script(storagetest.Fault{Method: "Delete"})
			w.on("2", "Delete", func() { w.back("hello", hour(2)) })
			out := w.handle()
			_, err := w.mem["2"].Delete(w.t.Context(), "photos", "a.jpg", storage.DeleteOptions{})
			w.must(err)
			return out
		},
		"cancelled, and a later effect": func(w *world) []schemas.Message {
			ctx, cancel := context.WithCancel(w.t.Context())
			w.faulty["2"].Script(storagetest.Fault{Method: "Delete", Err: context.Canceled})
			w.on("2", "Delete", func() { w.back("hello", hour(2)); cancel() })
			out, err := w.deleter.Handle(ctx, &schemas.Delivery{Topic: schemas.Deletions, Body: order(), Attempt: 1})
			w.must(err)
			_, err = w.mem["2"].Delete(w.t.Context(), "photos", "a.jpg", storage.DeleteOptions{})
			w.must(err)
			return out
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			began := time.Now()
			out := handle(w)
			if !w.absent("2") || w.absent("1") {
				t.Fatal("the delete has taken no effect, or the source is not back")
			}
			m := ordered(t, out)
			if wait := m.Due.Sub(began); wait < w.deleter.cfg.Settle || wait > w.deleter.cfg.Settle+time.Minute {
				t.Errorf("the order is due in %s", wait)
			}
			w.reports()
			w.copies(w, m)
			if w.absent("2") {
				t.Error("the source is there and the copy is not")
			}
		})
	}
}

// A delete that failed is tried again as long as the source is absent or does not answer.
func TestFailedDeleteIsTriedAgain(t *testing.T) {
	for name, fail := range map[string]func(*world){
		"the source is absent":       func(*world) {},
		"the source does not answer": func(w *world) { w.faulty["1"].Script(storagetest.Fault{Method: "Stat"}) },
	} {
		w := newWorld(t)
		w.faulty["2"].Script(storagetest.Fault{Method: "Delete"})
		w.on("2", "Delete", func() { fail(w) })
		if _, _, err := w.run(order()); retry.ClassOf(err) != retry.Transient || err == nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A store that hangs after a failed delete delays a cancelled execution for less than a Pool waits.
func TestObservationAfterADeleteIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		hangs := false
		w.on("2", "Delete", func() { hangs = true })
		w.faulty["2"].Script(storagetest.Fault{Method: "Delete"})
		w.faulty["1"].Before(func(ctx context.Context, _ storagetest.Call) error {
			if hangs {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		start := time.Now()
		if _, _, err := w.run(order()); err == nil {
			t.Error("the delete failed, and no error is returned")
		}
		if took := time.Since(start); !hangs || took >= 5*time.Second {
			t.Errorf("the execution ended after %v, want less than the 5 s that a Pool waits", took)
		}
	})
}

// byCopy implements Records by a function of the copies.
type byCopy func(context.Context, []schemas.Copy) ([]*pb.CopyRecord, error)

func (f byCopy) Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	return f(ctx, copies)
}

// The source is observed right before the delete: it may come back after the observation of the decision.
func TestSourceThatIsBackBeforeTheDelete(t *testing.T) {
	w := newWorld(t)
	w.must(w.mem["1"].DeleteSpace(t.Context(), "photos")) // so that records are read
	observations := 0
	var err error
	w.deleter, err = New(w.config(Config{}), w, w,
		byCopy(func(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
			if len(copies) == 2 {
				return w.Fresh(ctx, copies)
			}
			if observations++; observations == 2 { // during the last observation
				w.must(w.mem["1"].CreateSpace(ctx, storage.Space{Name: "photos"}))
				w.put("1", "hello")
			}
			return w.Fresh(ctx, []schemas.Copy{{Store: "space"}})
		}))
	w.must(err)
	w.rows["space"] = &pb.Record{State: none}
	out := w.handle()
	w.present(true)
	if n := w.faulty["2"].Count("Delete"); n > 0 {
		t.Errorf("%d deletes of a copy with a present source: %v", n, out)
	}
}

// A source is put back, not copied since the copy is present, and lost before the delete runs again: its row is live,
// both sides are absent, and a command waits for it and reports.
func TestSourceThatCameBackAndIsGoneAgain(t *testing.T) {
	w := newWorld(t)
	w.handle() // killed before it publishes
	w.rows["1"] = &pb.Record{State: live, Time: stamp(5), Origin: pb.Origin_ORIGIN_CLIENT}
	out := w.handle()
	r := out[len(out)-1].Body.(*pb.DuplicationResult)
	if r.GetDecision() != "C8x" || r.GetResult() != "not-deleted" || r.GetOutcome() != handedOn {
		t.Errorf("got %v", r)
	}
	copier, err := duplicate.New(duplicate.Config{}, w, w, w)
	w.must(err)
	m := ordered(t, out)
	d := &schemas.Delivery{Topic: m.Topic, Body: m.Body, Attempt: 1}
	if _, err := copier.Handle(t.Context(), d); retry.ClassOf(err) != retry.ClassWait {
		t.Errorf("the order does not wait for the source: %v", err)
	}
	d.WaitsBy = map[string]int{"source-missing": 3}
	out, err = copier.Handle(t.Context(), d)
	w.must(err)
	if r := out[len(out)-1].Body.(*pb.DuplicationResult); r.GetDecision() != "C8x" ||
		r.GetResult() != "all-copies-missing" {
		t.Errorf("got %v", r)
	}
}
