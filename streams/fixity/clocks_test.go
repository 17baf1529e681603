package fixity

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestParted(t *testing.T) {
	for name, tt := range map[string]struct {
		mono, wall time.Duration
		want       bool
	}{
		"together":                 {time.Hour, time.Hour, false},
		"slewed by a minute":       {time.Hour, time.Hour + time.Minute, false},
		"suspended for a night":    {time.Minute, 8 * time.Hour, true},
		"set ahead":                {time.Second, 62 * time.Second, true},
		"set back by three years":  {time.Second, -3 * 365 * 24 * time.Hour, true},
		"set back by half an hour": {time.Hour, time.Hour / 2, true},
	} {
		if got := parted(tt.mono, tt.wall); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// A pass or an absence during which the clocks parted is no result: the copy is looked at again, at once and then at
// the intervals of unknown checks. A fault stands.
func TestCheckWhileClocksPart(t *testing.T) {
	for name, tt := range map[string]struct {
		harm     func(*world)
		times    int // attempts in which the clocks part
		row      int32
		verdict  pb.Verdict
		attempts int
	}{
		"a pass, once":      {func(*world) {}, 1, 1, pb.Verdict_VERDICT_PASS, 2},
		"a pass, each time": {func(*world) {}, 9, 12, pb.Verdict_VERDICT_UNKNOWN, 4},
		"an absence, once": {func(w *world) { w.mem.Lose(at.Space, at.Item) }, 1, 8,
			pb.Verdict_VERDICT_UNDECIDED, 2},
		"an absence, each time": {func(w *world) { w.mem.Lose(at.Space, at.Item) }, 9, 12,
			pb.Verdict_VERDICT_UNKNOWN, 4},
		"deleted, each time": {func(w *world) { w.delete(); w.bury() }, 9, 12, pb.Verdict_VERDICT_UNKNOWN, 4},
		"corrupt": {func(w *world) { w.mem.Corrupt(at.Space, at.Item, []byte(rot)) }, 9, 2,
			pb.Verdict_VERDICT_FAIL, 1},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				tt.harm(w)
				c, times, began := w.checker(), 0, time.Now()
				c.parted = func(mono, wall time.Duration) bool {
					if mono != wall {
						t.Errorf("the monotonic clock says %v, the wall clock %v", mono, wall)
					}
					times++
					return times <= tt.times
				}
				out, err := c.Handle(t.Context(), &schemas.Delivery{Body: task(w.record), Attempt: 1})
				must(t, err)
				r := out[0].Body.(*pb.FixityResult)
				if r.GetRow() != tt.row || r.GetVerdict() != tt.verdict || max(times, 1) != tt.attempts ||
					(tt.row == 12) != (r.GetOvertaken() && r.GetDetail() == detailParted) {
					t.Errorf("row %d, %v, %q, overtaken %v after %d attempts", r.GetRow(), r.GetVerdict(), r.GetDetail(),
						r.GetOvertaken(), times)
				}
				if r.GetFinal() != (len(out) == 1) || !r.GetStarted().AsTime().Equal(began) {
					t.Errorf("final %v, %d messages, started %v", r.GetFinal(), len(out), r.GetStarted().AsTime())
				}
			})
		})
	}
}

// A pass on the records that a task carried says which these were. A check with fresh records finds the fault.
func TestPassOnOldRecords(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		old := w.now()
		carried := task(old)
		w.put(rot)
		w.record = w.now()
		newest := w.record.GetManifest().GetTime().AsTime()
		w.put(good) // the store went back
		r := w.handle(carried).result
		if last := r.GetLastEvent().AsTime(); r.GetVerdict() != pb.Verdict_VERDICT_PASS ||
			!last.Equal(old.GetManifest().GetTime().AsTime()) || !last.Before(newest) {
			t.Errorf("%v with the last event %v, the newest is %v", r.GetVerdict(), last, newest)
		}
		fresh := w.handle(task(nil)).result
		if last := fresh.GetLastEvent().AsTime(); fresh.GetRow() != 13 || !last.Equal(newest) {
			t.Errorf("with fresh records row %d and the last event %v", fresh.GetRow(), last)
		}
	})
}

// A checker whose clock is behind does not take old passes for recent ones.
func TestPassedRecentlyByKafkasClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		kafka := time.Now().AddDate(3, 0, 0)
		for name, tt := range map[string]struct {
			pass time.Time
			want string
		}{
			"a day ago":    {kafka.AddDate(0, 0, -1), "pass"},
			"a minute ago": {kafka.Add(-time.Minute), "skipped"},
		} {
			of := task(w.record)
			of.Known.LastPass = timestamppb.New(tt.pass)
			out, err := w.checker().Handle(t.Context(), &schemas.Delivery{Body: of, Timestamp: kafka})
			must(t, err)
			if got := out[0].Body.(*pb.FixityResult).GetFinding(); got != tt.want {
				t.Errorf("%s: %s, want %s", name, got, tt.want)
			}
		}
	})
}

// An object of 2099 is recorded as of now, in a store that does not tell its time, too: what a client writes next is
// newer. So is what replaces a record of 2099.
func TestCorrectionOfAnObjectOf2099(t *testing.T) {
	for name, record := range map[string]func(*pb.CopyRecord) *pb.CopyRecord{
		"not on record": func(*pb.CopyRecord) *pb.CopyRecord { return nothing() },
		"another content on record without digests, of 2099": func(r *pb.CopyRecord) *pb.CopyRecord {
			r.Manifest.Digests, r.Audit.Digests, r.Manifest.Version = nil, nil, "another"
			r.Manifest.Reported = timestamppb.New(time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC))
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.withoutClock()
				w.mem.Date(at.Space, at.Item, time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC))
				w.record = record(w.record)
				o := w.last(task(nil))
				if o.change == nil || o.result.GetRow() != 9 {
					t.Fatalf("row %d, %v", o.result.GetRow(), o.change)
				}
				if ahead := time.Until(o.change.GetTime().AsTime()); ahead > time.Millisecond {
					t.Errorf("the correction is dated %v, %v ahead", o.change.GetTime().AsTime(), ahead)
				}
			})
		})
	}
}
