package fixity

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

const days = 24 * time.Hour

// A share of the copies is read in each period, whatever the number of rounds. Every copy is read once in 100/percent
// periods.
func TestSampleIsOfThePeriod(t *testing.T) {
	const copies, percent, periods = 300, 10, 10
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var inPeriod [1 + periods]int // the first is not counted: the copies' periods begin in it
	c := &Checker{config: Config{Period: always(90 * days)}}
	for i := range copies {
		place, read, times := at, -90, 0
		place.Item = fmt.Sprintf("item %d", i)
		for day := range len(inPeriod) * 90 {
			k := &check{Checker: c, copy: place, settings: StoreSettings{SamplePercent: percent},
				started: start.Add(time.Duration(day) * days),
				task:    &pb.FixityTask{Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Round: fmt.Sprint("round ", day)}}
			if day-read < 90 || !k.isRead() {
				continue
			}
			read = day
			if inPeriod[day/90]++; day >= 90 {
				times++
			}
		}
		if times != 1 {
			t.Errorf("item %d is read %d times in %d periods, want once", i, times, periods)
		}
	}
	for n, read := range inPeriod[1:] {
		if read < 10 || read > 50 {
			t.Errorf("period %d: %d of %d copies are read, want about %d", n, read, copies, copies*percent/100)
		}
	}
}

// A copy is in the sample for one period, and again 100/percent periods later. Periods of copies begin at different
// times.
func TestSamplePeriods(t *testing.T) {
	begin := map[int]int{}
	for i := range 200 {
		place := at
		place.Item = fmt.Sprintf("item %d", i)
		var turns []int
		for day, was := 0, true; day < 24*90; day++ {
			is := isInSample(place, time.Unix(0, 0).Add(time.Duration(day)*days), 90*days, 25)
			if is && !was {
				turns = append(turns, day)
				begin[day%90]++
			}
			if !is && was && len(turns) > 0 && day-turns[len(turns)-1] != 90 {
				t.Fatalf("item %d: its turn of day %d ends on day %d", i, turns[len(turns)-1], day)
			}
			was = is
		}
		for n := 1; n < len(turns); n++ {
			if turns[n]-turns[n-1] != 4*90 {
				t.Fatalf("item %d: its turns begin on the days %v", i, turns)
			}
		}
	}
	if len(begin) < 60 {
		t.Errorf("all turns begin on %d of 90 days", len(begin))
	}
}

// A period reads at least one of n damaged copies with the probability 1 - (1 - p)^n, as the reports of rounds say.
func TestSampleFindsDamage(t *testing.T) {
	const percent, groups = 5, 4000
	for _, n := range []int{1, 10, 100} {
		found := 0
		for group := range groups {
			for i := range n {
				place := at
				place.Item = fmt.Sprintf("item %d of group %d of %d", i, group, n)
				if isInSample(place, time.Unix(0, 0), 90*days, percent) {
					found++
					break
				}
			}
		}
		got, want := float64(found)/groups, 1-math.Pow(1-percent/100.0, float64(n))
		if math.Abs(got-want) > 0.02 {
			t.Errorf("damage to %d copies: found in %.3f of %d spaces, want %.3f", n, got, groups, want)
		}
	}
}

// Checks on demand always read. A re-check of a sweep's check reads if that did, whenever it runs.
func TestSampled(t *testing.T) {
	read := func(percent int, change func(*pb.FixityTask)) (n int) {
		for i := range 1000 {
			task := &pb.FixityTask{Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Round: "r"}
			change(task)
			place := at
			place.Item = fmt.Sprintf("item %d", i)
			k := &check{task: task, copy: place, settings: StoreSettings{SamplePercent: percent}, started: time.Unix(1e9, 0)}
			k.Checker = &Checker{config: Config{Period: always(days)}}
			again := *k
			again.started = k.started.Add(100 * time.Hour)
			again.task = proto.CloneOf(task)
			again.task.Recheck, again.task.First = 1, timestamppb.New(k.started)
			is := k.isRead()
			if is {
				n++
			}
			if is != again.isRead() {
				t.Fatalf("item %d: a re-check does not read as its check did", i)
			}
		}
		return n
	}
	same := func(*pb.FixityTask) { /* as it is */ }
	if n := read(10, same); n < 70 || n > 130 {
		t.Errorf("10%% of 1000 is %d", n)
	}
	for name, tt := range map[string]struct {
		percent int
		change  func(*pb.FixityTask)
	}{
		"not sampled": {0, same}, "all": {100, same},
		"of another sweep": {10, func(k *pb.FixityTask) { k.Round = "" }},
		"on demand":        {10, func(k *pb.FixityTask) { k.Reason = pb.FixityReason_FIXITY_REASON_DEMAND }},
		"after copy":       {10, func(k *pb.FixityTask) { k.Reason = pb.FixityReason_FIXITY_REASON_AFTER_COPY }},
	} {
		if n := read(tt.percent, tt.change); n != 1000 {
			t.Errorf("%s: %d of 1000", name, n)
		}
	}
}

// A copy outside the sample passes by the store's digest, which is no pass on bytes.
func TestNotInTheSample(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.settings.SamplePercent, w.config.Period = 1, always(days)
		for isInSample(at, time.Now(), days, 1) {
			time.Sleep(days)
		}
		o := w.handle(task(w.record))
		if o.result.GetRow() != 1 || o.result.GetBytesRead() != 0 || w.store.Count("Open") != 0 {
			t.Errorf("got %v", o.result)
		}
	})
}

// A check of an archived copy waits for its bytes in the delay lanes: it has no result until then, nothing is absent,
// and nothing has failed.
func TestArchived(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		due := time.Now().Add(time.Hour)
		w.store.Script(storagetest.Fault{Method: "Open", Times: 3,
			Err: retry.Wait(errors.New("its return was asked for"), due)})
		known := proto.CloneOf(w.record)
		for range 3 {
			messages, err := w.checker().Handle(t.Context(),
				&schemas.Delivery{Topic: schemas.FixityLow, Body: task(known), Attempt: 1})
			if len(messages) != 0 || retry.ClassOf(err) != retry.ClassWait || !retry.Due(err).Equal(due) {
				t.Fatalf("got %v and %v, due %v", messages, err, retry.Due(err))
			}
		}
		if o := w.handle(task(known)); o.result.GetVerdict() != pb.Verdict_VERDICT_PASS || !o.result.GetFinal() {
			t.Errorf("when it is back: %v", o.result)
		}
	})
}

// always returns Config.Period with one period for all copies.
func always(d time.Duration) func(schemas.Copy) time.Duration {
	return func(schemas.Copy) time.Duration { return d }
}
