package fixity

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A sample is so large, the same for a re-check, and another in another round; whoever asks for a copy gets it read.
func TestSampled(t *testing.T) {
	read := func(percent int, change func(*pb.FixityTask)) (n int, which string) {
		for i := range 1000 {
			task := &pb.FixityTask{Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Round: "r1"}
			change(task)
			place := at
			place.Item = fmt.Sprintf("item %d", i)
			k := &check{task: task, place: place, settings: StoreSettings{SamplePercent: percent}}
			if k.sampled() {
				n++
				which += fmt.Sprint(" ", i)
			}
		}
		return n, which
	}
	same := func(*pb.FixityTask) {}
	n, which := read(10, same)
	if n < 70 || n > 130 {
		t.Errorf("10%% of 1000 is %d", n)
	}
	if _, again := read(10, func(k *pb.FixityTask) { k.Id, k.Recheck = "t2", 1 }); again != which {
		t.Error("a re-check reads others")
	}
	if _, next := read(10, func(k *pb.FixityTask) { k.Round = "r2" }); next == which {
		t.Error("the next round reads the same")
	}
	for name, tt := range map[string]struct {
		percent int
		change  func(*pb.FixityTask)
	}{
		"not sampled": {0, same}, "all": {100, same},
		"on demand":  {10, func(k *pb.FixityTask) { k.Reason = pb.FixityReason_FIXITY_REASON_DEMAND }},
		"after copy": {10, func(k *pb.FixityTask) { k.Reason = pb.FixityReason_FIXITY_REASON_AFTER_COPY }},
	} {
		if n, _ := read(tt.percent, tt.change); n != 1000 {
			t.Errorf("%s: %d of 1000", name, n)
		}
	}
}

// A copy that is not in the sample passes by what the store says of it, which is no pass on bytes.
func TestNotInTheSample(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.settings.SamplePercent = 1
		for i := range 1000 {
			k := task(w.record)
			k.Round = fmt.Sprint("r", i)
			if !(&check{task: k, place: at, settings: w.settings}).sampled() {
				o := w.handle(k)
				if o.result.GetRow() != 1 || o.result.GetBytesRead() != 0 || w.store.Count("Open") != 0 {
					t.Errorf("got %v", o.result)
				}
				return
			}
		}
		t.Error("each round has it")
	})
}

// The bytes of an archived copy are waited for in the lanes: the check has no result until then, nothing is absent, and
// nothing has failed.
func TestArchived(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		due := time.Now().Add(time.Hour)
		w.store.Script(storagetest.Fault{Method: "Open", Times: 3, Err: retry.Wait(errors.New("its return was asked for"), due)})
		known := proto.CloneOf(w.record)
		for range 3 {
			messages, err := w.checker().Handle(t.Context(), &schemas.Delivery{Topic: schemas.FixityLow, Body: task(known), Attempt: 1})
			if len(messages) != 0 || retry.ClassOf(err) != retry.ClassWait || !retry.Due(err).Equal(due) {
				t.Fatalf("got %v and %v, due %v", messages, err, retry.Due(err))
			}
		}
		if o := w.handle(task(known)); o.result.GetVerdict() != pb.Verdict_VERDICT_PASS || !o.result.GetFinal() {
			t.Errorf("when it is back: %v", o.result)
		}
	})
}
