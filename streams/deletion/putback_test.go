package deletion

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// records implements Records by a function.
type records func(context.Context) ([]*pb.CopyRecord, error)

func (f records) Fresh(ctx context.Context, _ []schemas.Copy) ([]*pb.CopyRecord, error) {
	return f(ctx)
}

// orders returns the messages of an execution by kind: Changes, commands to copy, and the result.
func orders(t *testing.T, out []schemas.Message) (
	changes []*pb.Change, copies []*pb.DuplicationCommand, r *pb.DuplicationResult,
) {
	t.Helper()
	for i, m := range out {
		if _, err := schemas.Encode(m); err != nil {
			t.Errorf("message %d cannot be published: %v", i, err)
		}
		switch b := m.Body.(type) {
		case *pb.Change:
			changes = append(changes, b)
		case *pb.DuplicationCommand:
			if m.Topic != schemas.DuplicationHigh {
				t.Errorf("an order in %s", m.Topic)
			}
			copies = append(copies, b)
		case *pb.DuplicationResult:
			if r = b; i != len(out)-1 {
				t.Error("the result is not the last message")
			}
		}
	}
	return changes, copies, r
}

// handle executes the command, and again after an error that is not permanent, as the runtime does.
func (w *world) handle() []schemas.Message {
	w.t.Helper()
	for range 3 {
		out, err := w.deleter.Handle(w.t.Context(), &schemas.Delivery{Topic: schemas.Deletions, Body: order(), Attempt: 1})
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

func (w *world) absent(store string) bool {
	w.t.Helper()
	_, err := w.mem[store].Stat(w.t.Context(), "photos", "a.jpg")
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		w.t.Fatal(err)
	}
	return err != nil
}

// The source comes back at each step of the execution. The copy is present afterwards, or there is a command to copy.
// The same holds if the delete fails, if it is done and reported as failed, if the process is killed before it
// publishes, and if the source does not answer after the delete.
func TestPutBackWhileADeleteIsExecuted(t *testing.T) {
	steps := map[string]func(w *world, back func()){
		"before the first observation": func(_ *world, back func()) { back() },
		"while the records are read": func(w *world, back func()) {
			var err error
			w.deleter, err = New(w.config(Config{}), w, w, records(func(ctx context.Context) ([]*pb.CopyRecord, error) {
				rows, err := w.Fresh(ctx, []schemas.Copy{{Store: "1"}, {Store: "2"}}) // as before the hooks
				back()
				return rows, err
			}))
			w.must(err)
		},
		"after the last observation before the delete": func(w *world, back func()) { w.on("2", "Delete", back) },
		"right after the delete": func(w *world, back func()) {
			w.on("1", "Stat", func() {
				if w.absent("2") {
					back()
				}
			})
		},
	}
	faults := map[string]func(w *world){
		"nothing fails":    func(*world) {},
		"the delete fails": func(w *world) { w.faulty["2"].Script(storagetest.Fault{Method: "Delete"}) },
		"the delete is done, and reported as failed": func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Delete", Applied: true})
		},
		"the source does not answer after it": func(w *world) {
			w.on("2", "Delete", func() { w.faulty["1"].Script(storagetest.Fault{Method: "Stat"}) })
		},
	}
	for step, at := range steps {
		for fault, fail := range faults {
			for _, killed := range []bool{false, true} {
				name := step + ", " + fault
				if killed {
					name += ", killed before it is published"
				}
				t.Run(name, func(t *testing.T) {
					w := newWorld(t)
					came := false
					fail(w)
					at(w, func() {
						if !came {
							came = true
							w.put("1", "hello")
						}
					})
					out := w.handle()
					if killed {
						out = w.handle()
					}
					changes, copies, r := orders(t, out)
					switch {
					case !came:
						t.Fatal("the source did not come back")
					case !w.absent("2"):
						if len(copies) == 1 && len(changes) == 0 && r.GetResult() == "not-deleted" && r.GetOutcome() == handedOn {
							break
						}
						t.Errorf("the copy is there: got %v, %v and %v", r, copies, changes)
					case len(copies) != 1:
						t.Errorf("the copy is deleted and the source is there: got %v and orders %v", r, copies)
					case r.GetResult() == "deleted" && (r.GetOutcome() != done || len(changes) != 1),
						r.GetResult() == "not-deleted" && (r.GetOutcome() != handedOn || len(changes) != 0):
						t.Errorf("got %v and %v", r, changes)
					}
				})
			}
		}
	}
}

// The command to copy is a function of the DeletionCommand, so a second execution sends the same one.
func TestCopyCommandIsDeterministic(t *testing.T) {
	w := newWorld(t)
	w.on("2", "Delete", func() {
		if w.absent("1") {
			w.put("1", "hello")
		}
	})
	_, first, _ := orders(t, w.handle())
	_, second, _ := orders(t, w.handle())
	if len(first) != 1 || len(second) != 1 || !proto.Equal(first[0], second[0]) {
		t.Fatalf("got %v, then %v", first, second)
	}
	want := &pb.DuplicationCommand{
		Id: schemas.ID("put-back", "deletion"), Account: "acme", Space: "photos", Item: "a.jpg",
		SourceStore: "1", DestinationStore: "2",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Priority: pb.Priority_PRIORITY_HIGH, Cause: "deletion",
		PolicyRevision: 3, Time: stamp(4),
	}
	if !proto.Equal(first[0], want) {
		t.Errorf("got  %v\nwant %v", first[0], want)
	}
}

// The copier of the Change that puts the item back observes while the copy is still present. In the end the copy is
// present, or there is a command to copy.
func TestPutBackBesideACopier(t *testing.T) {
	w := newWorld(t)
	tombstone := &pb.CopyRecord{Manifest: w.rows["1"], Audit: w.rows["1"]}
	copyRow := &pb.CopyRecord{Manifest: w.rows["2"], Audit: w.rows["2"], LastPass: stamp(3)}
	observed, deleted, copied := make(chan bool), make(chan bool), make(chan []schemas.Message, 1)
	var back storage.Object
	copier, err := duplicate.New(duplicate.Config{}, w, w, records(func(context.Context) ([]*pb.CopyRecord, error) {
		observed <- true
		<-deleted
		row := &pb.Record{State: live, Digests: back.Digests, Version: back.Version, Size: back.Size}
		return []*pb.CopyRecord{{Manifest: row, Audit: row}, copyRow}, nil // the DELETE of the copy is not on record yet
	}))
	w.must(err)
	w.deleter, err = New(w.config(Config{}), w, w, records(func(context.Context) ([]*pb.CopyRecord, error) {
		return []*pb.CopyRecord{tombstone, copyRow}, nil
	}))
	w.must(err)
	w.on("2", "Delete", func() {
		if !w.absent("1") {
			return
		}
		back = w.put("1", "hello")
		go func() {
			command := &pb.DuplicationCommand{
				Id: "again", Account: "acme", Space: "photos", Item: "a.jpg", SourceStore: "1", DestinationStore: "2",
				Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, CauseOp: pb.Op_OP_ADD,
				ChangeVersion: back.Version, Digests: back.Digests,
			}
			d := &schemas.Delivery{Topic: schemas.DuplicationHigh, Attempt: 1, Body: command}
			out, err := copier.Handle(t.Context(), d)
			if err != nil {
				t.Error(err)
			}
			copied <- out
		}()
		<-observed
	})
	_, copies, r := orders(t, w.handle())
	close(deleted)
	<-copied
	if w.absent("2") && len(copies) == 0 {
		t.Errorf("the source is there, the copy is not, and no order is: %v", r)
	}
}

// An operator approved a delete that only a sweep noticed: the DeletionCommand has the approval, and the delete is
// done.
func TestApprovedUnconfirmedDelete(t *testing.T) {
	w := newWorld(t)
	w.rows["1"].Origin = pb.Origin_ORIGIN_SWEEP
	c := order()
	c.Approved = "alice"
	_, r, err := w.run(c)
	w.must(err)
	if r.GetDecision() != "C7" || r.GetResult() != "deleted" {
		t.Errorf("got %v", r)
	}
	w.present(false)
}
