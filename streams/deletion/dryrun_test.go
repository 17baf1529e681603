package deletion

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// dryRun executes a dry run of c, and checks that it ends in a row as the real command would, and has no effect.
func (w *world) dryRun(c *pb.DeletionCommand, row, would string) *pb.DuplicationResult {
	w.t.Helper()
	dry := proto.CloneOf(c)
	dry.DryRun = true
	_, copyErr := w.mem["2"].Stat(w.t.Context(), "photos", "a.jpg")
	mutations := w.mutations()
	checkpoints, published, lists := len(w.topic.Checkpoints), len(w.topic.Published), len(w.lists.Held)
	changes, r, err := w.run(dry)
	w.must(err)
	if r.GetDecision() != row || r.GetResult() != "dry-run" || r.GetWouldBe() != would || r.GetOutcome() != nothing ||
		len(changes) > 0 || w.orders > 0 || r.GetList() != "" {
		w.t.Errorf("dry run: got %v, %d changes, %d commands; want row %s, %s", r, len(changes), w.orders, row, would)
	}
	if len(w.topic.Checkpoints) > checkpoints || len(w.topic.Published) > published || len(w.lists.Held) > lists {
		w.t.Error("the dry run is counted, published or listed by the brake")
	}
	w.present(!errors.Is(copyErr, storage.ErrNotFound))
	if n := w.mutations(); n > mutations {
		w.t.Errorf("the dry run made %d calls that change stores", n-mutations)
	}
	return r
}

// mutations counts the calls so far that change stores.
func (w *world) mutations() (n int) {
	for _, s := range w.faulty {
		for _, method := range []string{"Put", "SetProperties", "Delete", "CreateSpace", "SetSpace", "DeleteSpace",
			"WriteMarker"} {
			n += s.Count(method)
		}
	}
	return n
}

// A dry run of a delete decides as the delete, deletes nothing, and counts nothing. TestNotDeleted has the rows that
// delete nothing anyway.
func TestDryRun(t *testing.T) {
	w := newWorld(t)
	for range 2 {
		if r := w.dryRun(order(), "C7", "deleted"); r.GetDetail() != "" {
			t.Errorf("detail %q", r.GetDetail())
		}
	}
	_, r, err := w.run(order())
	if err != nil || r.GetResult() != "deleted" || r.GetWouldBe() != "" {
		t.Fatalf("the delete itself: got %v, %v", r, err)
	}
	w.dryRun(order(), "C8", "gone")
}

func TestDryRunAtTheBrake(t *testing.T) {
	w := newWorld(t)
	w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 100}
	take := func(n int) (done int) {
		for range n {
			_, reached, err := w.deleter.cfg.Brake.Take(t.Context(), destination)
			w.must(err)
			if reached == "" {
				done++
			}
		}
		return done
	}
	if done := take(97); done != 97 {
		t.Fatalf("%d done", done)
	}
	w.dryRun(order(), "C7", "deleted")
	if done := take(100); done != 3 {
		t.Fatalf("%d done after the dry run, want all of the last 3", done)
	}
	r := w.dryRun(order(), "C7", "awaiting-approval")
	if !strings.Contains(r.GetDetail(), "deletes.max_count within an hour") {
		t.Errorf("detail %q", r.GetDetail())
	}
	w.held(order())
	w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 200}
	if r := w.dryRun(order(), "C7", "awaiting-approval"); !strings.Contains(r.GetDetail(), held.EarlierWaits) {
		t.Errorf("detail %q", r.GetDetail())
	}
}

func TestDryRunOfAKeptDelete(t *testing.T) {
	w := newWorld(t)
	w.decide(w.hold("a.jpg"), held.ActionClose)
	w.dryRun(order(), "C7", "kept")
}

func TestDryRunIsRefusedOrWaits(t *testing.T) {
	w := newWorld(t)
	approve := order()
	approve.Item, approve.ApproveList, approve.DryRun = "", "brake-1", true
	if _, _, err := w.run(approve); !retry.IsPermanent(err) {
		t.Errorf("a dry run of an approval: got %v", err)
	}
	approve.Item = "a.jpg"
	if _, _, err := w.run(approve); !retry.IsPermanent(err) {
		t.Errorf("a dry run of an approval with an item: got %v", err)
	}
	w.err = errors.New("no answer")
	dry := order()
	dry.DryRun = true
	if _, _, err := w.run(dry); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("without records: got %v", err)
	}
	w.present(true)
	if len(w.ordered()) > 0 || len(w.topic.Checkpoints) > 0 {
		t.Errorf("ordered %v, checkpoints %v", w.ordered(), w.topic.Checkpoints)
	}
}

// deletes.delay delays no dry run, which reports it.
func TestDryRunBeforeTheDelay(t *testing.T) {
	w := newWorld(t)
	var err error
	w.deleter, err = New(w.config(Config{Delay: 1e6 * time.Hour}), w, w, w)
	w.must(err)
	if r := w.dryRun(order(), "C7", "deleted"); !strings.Contains(r.GetDetail(), "not before 21") {
		t.Errorf("detail %q", r.GetDetail())
	}
}
