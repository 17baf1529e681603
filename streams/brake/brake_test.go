package brake

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

func TestBrake(t *testing.T) {
	usual := Limits{MaxShare: 0.1, MaxCount: 1000}
	for name, tt := range map[string]struct {
		u     usage
		l     Limits
		left  int64
		limit limit
	}{
		"nothing deleted yet":          {usage{hourLive: 1e6, monthLive: 1e6}, usual, 1000, withinLimits},
		"the last of the count":        {usage{hour: 999, month: 999, hourLive: 1e6, monthLive: 1e6}, usual, 1, withinLimits},
		"the count is reached":         {usage{hour: 1000, month: 1000, hourLive: 1e6, monthLive: 1e6}, usual, 0, hourCount},
		"the count was lowered":        {usage{hour: 2000, month: 2000, hourLive: 1e6, monthLive: 1e6}, usual, 0, hourCount},
		"the last of the share":        {usage{hour: 19, month: 19, hourLive: 200, monthLive: 200}, usual, 1, withinLimits},
		"the share is reached":         {usage{hour: 20, month: 20, hourLive: 200, monthLive: 200}, usual, 0, hourShare},
		"the tenth of a hundred":       {usage{hour: 9, month: 9, hourLive: 100, monthLive: 100}, usual, 1, withinLimits},
		"the ninth of a small space":   {usage{hour: 8, month: 8, hourLive: 20, monthLive: 20}, usual, 1, withinLimits},
		"the tenth of a small space":   {usage{hour: 9, month: 9, hourLive: 20, monthLive: 20}, usual, 0, hourShare},
		"an empty space":               {usage{}, usual, 9, withinLimits},
		"three times the count":        {usage{month: 3000, hourLive: 1e6, monthLive: 1e6}, usual, 0, monthCount},
		"the last of 30 days":          {usage{month: 2999, hourLive: 1e6, monthLive: 1e6}, usual, 1, withinLimits},
		"three times the share":        {usage{month: 60, hourLive: 140, monthLive: 200}, usual, 0, monthShare},
		"the share when 30 days began": {usage{month: 59, hourLive: 140, monthLive: 200}, usual, 1, withinLimits},
		"all may go": {usage{hour: 1e9, month: 1e12}, Limits{1, math.MaxInt64},
			math.MaxInt64 - 1e12, withinLimits},
		"no share": {
			usage{hour: 10, month: 10, hourLive: 5000, monthLive: 5000}, Limits{0, 1000}, 0, hourShare},
		"the last of a small store": {usage{hour: 998, month: 998, hourLive: 4500, monthLive: 4500, store: true}, usual,
			1, withinLimits},
		"the thousandth of a small store": {usage{hour: 999, month: 999, hourLive: 4500, monthLive: 4500, store: true},
			usual, 0, storeHour},
		"the last of a tenth of a store": {usage{hour: 1999, month: 1999, hourLive: 2e4, monthLive: 2e4, store: true},
			Limits{}, 1, withinLimits},
		"a tenth of a store": {usage{hour: 2000, month: 2000, hourLive: 2e4, monthLive: 2e4, store: true}, usual,
			0, storeHour},
		"the last of three tenths of a store": {usage{month: 5999, hourLive: 14_001, monthLive: 2e4, store: true}, usual,
			1, withinLimits},
		"three tenths of a store": {usage{month: 6000, hourLive: 14_000, monthLive: 2e4, store: true}, usual,
			0, storeMonth},
		"a share that is no binary fraction": {usage{hour: 28, month: 28, hourLive: 100, monthLive: 100}, Limits{0.29, 1000},
			1, withinLimits},
	} {
		t.Run(name, func(t *testing.T) {
			if left, limit := brake(tt.u, tt.l); left != tt.left || limit != tt.limit {
				t.Errorf("got %d, %s", left, limit)
			}
		})
	}
}

var photos = schemas.Copy{Account: "acme", Store: "2", Space: "photos"}

// A topic holds what the processes of a test publish.
type topic struct {
	kind        Kind
	now         func() time.Time // the clock of the broker; nil: that of the first process
	mu          sync.Mutex
	checkpoints []*pb.Checkpoint
	times       []time.Time                 // of the checkpoints
	meanwhile   func()                      // called once before a message is stored
	fail        func(schemas.Message) error // before (nil error: after) a message is stored
	history     History
	unknown     error // of the records
	asked       int   // reads of the records
	limits      Limits
}

func newTopic() *topic {
	return &topic{limits: Limits{0.1, 1000}, history: History{Live: 1e6}}
}

// change changes p while processes run.
func (p *topic) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

func (p *topic) Publish(_ context.Context, messages ...schemas.Message) error {
	if do := p.meanwhile; do != nil {
		p.meanwhile = nil
		do()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range messages {
		if p.fail != nil {
			if err := p.fail(m); err != nil {
				return err
			}
		}
		p.add(m)
	}
	return nil
}

func (p *topic) add(m schemas.Message) {
	p.checkpoints, p.times = append(p.checkpoints, m.Body.(*pb.Checkpoint)), append(p.times, p.now())
}

// compact keeps the last record of each checkpoint.
func (p *topic) compact() {
	last := map[string]int{}
	for i, c := range p.checkpoints {
		last[c.GetSplit()] = i
	}
	var kept []*pb.Checkpoint
	var times []time.Time
	for i, c := range p.checkpoints {
		if last[c.GetSplit()] == i {
			kept, times = append(kept, c), append(times, p.times[i])
		}
	}
	p.checkpoints, p.times = kept, times
}

// process returns the brake of a new process, by a clock.
func (p *topic) process(now func() time.Time) *Brake {
	if p.now == nil {
		p.now = now
	}
	l, read := NewLedger(p.kind), 0
	var reading sync.Mutex
	b, err := New(Deps{
		Ledger: l, Publisher: p, Now: now,
		CatchUp: func(context.Context) error {
			reading.Lock()
			defer reading.Unlock()
			p.mu.Lock()
			from := min(read, len(p.checkpoints))
			fresh, times := slices.Clone(p.checkpoints[from:]), slices.Clone(p.times[from:])
			read = len(p.checkpoints)
			p.mu.Unlock()
			for i, c := range fresh {
				_ = l.Apply([]byte(schemas.Key(c.GetSweep(), c.GetSplit())), c, times[i])
			}
			return nil
		},
		Live: func(context.Context, schemas.Copy) (int64, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.asked++
			return p.history.Live, p.unknown
		},
		History: func(context.Context, schemas.Copy, time.Time) (History, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.asked++
			return p.history, p.unknown
		},
		Limits: func(string, string) Limits {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.limits
		},
		Park: func(ctx context.Context, wait func(context.Context) error) error { return wait(ctx) },
	})
	if err != nil {
		panic(err)
	}
	if err := b.deps.CatchUp(context.Background()); err != nil { // as when partitions are assigned
		panic(err)
	}
	return b
}

func hour(n int) time.Time { return time.Date(2026, 3, 1, n, 0, 0, 0, time.UTC) }

func takeAll(t *testing.T, b *Brake, n int) (done int, reached limit) {
	t.Helper()
	for range n {
		var err error
		if reached, err = b.take(t.Context(), b.space(photos)); err != nil {
			t.Fatal(err)
		}
		if reached != withinLimits {
			return done, reached
		}
		done++
	}
	return done, reached
}

func clock(at *time.Time) func() time.Time { return func() time.Time { return *at } }

// Exactly the limit is deleted by one process, however many tasks there are, and whether or not they are counted ahead.
func TestBrakeStopsAtTheLimit(t *testing.T) {
	for name, ahead := range map[string]bool{"counted before": false, "counted within a second": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newTopic()
				b := p.process(time.Now)
				if ahead {
					b = p.counting(t).Brake
				}
				var wg sync.WaitGroup
				var done, stopped atomic.Int64
				for range 16 {
					wg.Go(func() {
						for range 625 {
							switch _, reached, err := b.Take(t.Context(), photos); {
							case err != nil:
								t.Error(err)
							case reached == "":
								done.Add(1)
							default:
								stopped.Add(1)
							}
						}
					})
				}
				wg.Wait()
				if done.Load() != 1000 || stopped.Load() != 9000 {
					t.Errorf("%d done, %d stopped", done.Load(), stopped.Load())
				}
				if n := len(p.checkpoints); ahead && n > 4 {
					t.Errorf("%d checkpoints for 1000 deletes", n)
				}
				if p.asked != 2 { // of the space and of the store
					t.Errorf("the records were read %d times", p.asked)
				}
			})
		})
	}
}

func TestBrakeWindows(t *testing.T) {
	p := newTopic()
	p.limits = Limits{1, 100}
	at := hour(0)
	b := p.process(clock(&at))
	for i, step := range []struct {
		after time.Duration
		done  int
		limit limit
	}{
		{0, 100, hourCount},
		{59 * time.Minute, 0, hourCount},
		{6 * time.Minute, 100, hourCount}, // the bucket of the first is over, and none of it in the hour
		{2 * time.Hour, 100, hourCount},
		{29 * 24 * time.Hour, 0, monthCount},
		{2 * 24 * time.Hour, 100, hourCount}, // the first day is out of the window
	} {
		at = at.Add(step.after)
		if done, limit := takeAll(t, b, 1000); done != step.done || limit != step.limit {
			t.Errorf("step %d: %d done, then %s", i, done, limit)
		}
	}
	if held, _ := b.deps.Ledger.get(b.space(photos).split); len(held.Hour) > 13 || len(held.Days) > 31 {
		t.Errorf("the checkpoint grows: %+v", held)
	}
}

// A process that is killed after the count of a permit has counted it.
func TestBrakeKilledBeforeThePermit(t *testing.T) {
	p := newTopic()
	p.limits = Limits{1, 100}
	at := hour(0)
	p.fail = func(m schemas.Message) error {
		p.add(m)
		return errors.New("killed")
	}
	if permit, _, err := p.process(clock(&at)).Take(t.Context(), photos); err == nil || permit != nil {
		t.Errorf("got a permit, %v", err)
	}
	p.fail = nil
	if done, limit := takeAll(t, p.process(clock(&at)), 1000); done != 99 || limit != hourCount {
		t.Errorf("%d more, then %s", done, limit)
	}
}

// Processes that die in a small space cost one delete each of the few that the share allows.
func TestBrakeSmallSpace(t *testing.T) {
	p := newTopic()
	p.history.Live = 80
	at := hour(0)
	for n := range free {
		if done, _ := takeAll(t, p.process(clock(&at)), 1); done != 1 {
			t.Fatalf("process %d may delete nothing", n+1)
		}
	}
	if done, _ := takeAll(t, p.process(clock(&at)), 1); done != 0 {
		t.Error("it passed the limit")
	}
}

// A delete that was not done does not count, for the space and for the store.
func TestBrakeGivenBack(t *testing.T) {
	at := hour(0)
	for name, tt := range map[string]struct {
		later    time.Duration // between the permit and its return
		stopped  int           // of 5000
		together int           // permits at a time
	}{
		"one after the other": {0, 0, 1},
		"many at a time":      {0, 0, 50},
		"in the next bucket":  {10 * time.Second, 4000, 1}, // it counts: the limit of the store is the first
	} {
		t.Run(name, func(t *testing.T) {
			p := newTopic()
			p.history.Live = 10_000
			p.limits = Limits{0.9, 1e6}
			at = hour(1).Add(-5 * time.Second)
			b := p.process(clock(&at))
			stopped := 0
			for range 5000 / tt.together {
				var permits []*Permit
				for range tt.together {
					switch permit, reached, err := b.Take(t.Context(), photos); {
					case err != nil:
						t.Fatal(err)
					case reached != "":
						stopped++
					default:
						permits = append(permits, permit)
					}
				}
				at = at.Add(tt.later)
				for _, permit := range permits {
					permit.GiveBack()
				}
				at = at.Add(-tt.later)
			}
			if stopped != tt.stopped {
				t.Errorf("%d stopped, want %d", stopped, tt.stopped)
			}
			for _, s := range b.limited(photos) {
				held, _ := b.deps.Ledger.get(s.split)
				if n := held.usage(at).hour; tt.later == 0 && n > int64(tt.together) || n+s.owed < 0 {
					t.Errorf("%s: %d counted, %d owed", s.of, n, s.owed)
				}
			}
		})
	}
}

// A script that deletes many small spaces is stopped by the limit of the store, in every space.
func TestBrakeOfAStore(t *testing.T) {
	for _, kind := range []Kind{Deletes, Rewrites} {
		t.Run(kind.String(), func(t *testing.T) {
			p := newTopic()
			p.kind, p.history.Live = kind, 4500
			at := hour(0)
			b := p.process(clock(&at))
			done, reached, causes := 0, "", map[string]int{}
			take := func(space int) {
				of := photos
				of.Space = fmt.Sprint("bag-", space)
				permit, why, err := b.Take(t.Context(), of)
				if err != nil {
					t.Fatal(err)
				}
				if reached = why; permit != nil {
					done++
				} else {
					causes[why]++
				}
			}
			for space := range 500 {
				for range 9 {
					take(space)
				}
				at = at.Add(time.Millisecond)
			}
			if want := "a tenth of the copies of the store within an hour"; done != 999 || causes[want] != 3501 {
				t.Errorf("%d done, held: %v", done, causes)
			}
			if got := b.Reached(photos); got != reached {
				t.Errorf("got %q, want %q", got, reached)
			}
			// What the store held was returned to the space.
			held := b.space(schemas.Copy{Account: "acme", Store: "2", Space: "bag-400"})
			if of, _ := b.deps.Ledger.get(held.split); of.usage(at).hour+held.owed != 0 {
				t.Errorf("a space that was held is counted: %+v, %d owed", of, held.owed)
			}
			// A space whose limits say that all of it may go does not count for the store.
			p.limits = Limits{1, 1e6}
			if take(1); reached != "" {
				t.Errorf("got %q", reached)
			}
			p.limits = Limits{0.1, 1000}
			// The next process knows, and the windows move.
			b = p.process(clock(&at))
			if take(501); reached != string(storeHour) {
				t.Errorf("the next process: got %q", reached)
			}
			for range 3 { // hours
				at = at.Add(66 * time.Minute)
				for space := range 500 {
					for range 3 {
						take(space)
					}
				}
			}
			if done != 3*999+1 || reached != string(storeMonth) {
				t.Errorf("after three hours: %d done, then %q", done, reached)
			}
		})
	}
}

// While the counts of a store are unknown nothing of its spaces is permitted, nor counted in them.
func TestBrakeOfAnUnknownStore(t *testing.T) {
	p := newTopic()
	b := p.process(time.Now)
	if done, limit := takeAll(t, b, 5); done != 5 {
		t.Fatal(limit)
	}
	p.unknown = errors.New("no answer")
	for range 20 {
		if permit, _, err := b.Take(t.Context(), photos); permit != nil || retry.ClassOf(err) != retry.ClassUnavailable {
			t.Fatalf("got a permit, %v", err)
		}
	}
	s := b.space(photos)
	if held, _ := b.deps.Ledger.get(s.split); held.usage(time.Now()).hour+s.owed != 5 {
		t.Errorf("%+v, %d owed", held, s.owed)
	}
	p.unknown = nil
	if _, reached, err := b.Take(t.Context(), photos); reached != "" || err != nil {
		t.Errorf("got %q, %v", reached, err)
	}
}

// Compaction keeps the last record of a checkpoint. It must not be one that was ignored: two processes write at the
// same time, and the one whose record is ignored may have nothing to write any more, because a list is open.
func TestBrakeCompaction(t *testing.T) {
	for _, kind := range []Kind{Deletes, Rewrites} {
		t.Run(kind.String(), func(t *testing.T) {
			p := newTopic()
			p.kind, p.limits = kind, Limits{1, 3}
			at := hour(0)
			a, b := p.process(clock(&at)), p.process(clock(&at))
			takeAll(t, a, 2)
			if err := b.deps.CatchUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.meanwhile = func() {
				takeAll(t, a, 1)
			}
			if done, limit := takeAll(t, b, 1); done != 0 || limit != hourCount {
				t.Errorf("%d done, then %s", done, limit)
			}
			p.compact()
			next := p.process(clock(&at))
			if done, limit := takeAll(t, next, 1); done != 0 || limit != hourCount {
				t.Errorf("after compaction: %d done, then %s", done, limit)
			}
			if held, _ := next.deps.Ledger.get(next.space(photos).split); held.usage(at).hour != 3 {
				t.Errorf("after compaction: %+v", held)
			}
		})
	}
}

// One wrong clock, of a process or of the broker, does not empty the windows of others, and counts nothing into the
// future.
func TestBrakeClocks(t *testing.T) {
	const day = 24 * time.Hour
	for name, tt := range map[string]struct {
		right, wrong, broker time.Duration
		next                 int // deletes in the next hour
	}{
		"two hours ahead":        {0, 2 * time.Hour, 0, 100},
		"40 days ahead":          {0, 40 * day, 0, 100},
		"two hours behind":       {0, -2 * time.Hour, 0, 100},
		"40 days behind":         {0, -40 * day, 0, 100},
		"a broker that is ahead": {0, 0, 40 * day, 60}, // 40 were dated ahead, and count from the next record on
		"a broker behind":        {0, 0, -40 * day, 100},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTopic()
			p.limits = Limits{1, 100}
			var ahead time.Duration // of the broker
			at := hour(0)
			shifted := func(by *time.Duration) func() time.Time { return func() time.Time { return at.Add(*by) } }
			p.now = shifted(&ahead)
			right, wrong := p.process(shifted(&tt.right)), p.process(shifted(&tt.wrong))
			total, _ := takeAll(t, right, 60)
			ahead = tt.broker
			for range 5 { // within the hour
				for _, b := range []*Brake{wrong, right} {
					n, _ := takeAll(t, b, 10)
					total += n
				}
				at = at.Add(time.Minute)
			}
			if total != 100 {
				t.Errorf("%d deletes within an hour, the limit is 100", total)
			}
			ahead = 0
			at = at.Add(66 * time.Minute)
			if n, limit := takeAll(t, right, 1000); n != tt.next || limit != hourCount {
				t.Errorf("in the next hour: %d, then %s", n, limit)
			}
			at = at.Add(66 * time.Minute)
			if n, limit := takeAll(t, p.process(shifted(&tt.right)), 1000); n != 100 || limit != hourCount {
				t.Errorf("in the hour after that: %d, then %s", n, limit)
			}
		})
	}
}

// The clock of the only process steps by 40 days, and back.
func TestBrakeClockSteps(t *testing.T) {
	p := newTopic()
	p.limits = Limits{1, 100}
	at := hour(0)
	now := at
	p.now = clock(&at)
	b := p.process(clock(&now))
	total, _ := takeAll(t, b, 1000)
	now = now.Add(40 * 24 * time.Hour)
	n, _ := takeAll(t, b, 50)
	total += n
	at = at.Add(time.Minute)
	now = at
	n, _ = takeAll(t, b, 1000)
	if total += n; total != 100 {
		t.Errorf("%d deletes within two minutes, the limit is 100", total)
	}
	at = at.Add(10 * 24 * time.Hour)
	now = at
	if n, limit := takeAll(t, b, 1000); n != 100 {
		t.Errorf("ten days later: %d deletes, then %s", n, limit)
	}
}

// Whatever processes do that own the destination, or believe that they do, and however they die: the deletes of an hour
// and of 30 days are within the limits, and the checkpoint counts them all.
func TestBrakeModel(t *testing.T) {
	for seed := range uint64(need.Amount(12, 40, 400)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			p := newTopic()
			p.limits = Limits{1, 200}
			at := hour(0)
			p.now = clock(&at)
			process := func() *Brake { // its clock may be wrong
				wrong := []time.Duration{0, 0, 0, 2 * time.Hour, -2 * time.Hour, -40 * 24 * time.Hour}[r.IntN(6)]
				return p.process(func() time.Time { return at.Add(wrong) })
			}
			processes := []*Brake{process(), process()}
			p.fail = func(schemas.Message) error {
				if r.IntN(20) == 0 {
					return errors.New("refused")
				}
				return nil
			}
			var done []time.Time
			for range 4000 {
				n := r.IntN(len(processes))
				switch r.IntN(200) {
				case 0: // killed; its successor has read the topic
					processes[n] = process()
				case 1:
					at = at.Add(time.Duration(r.IntN(3600)) * time.Second)
				case 2:
					at = at.Add(time.Duration(r.IntN(48)) * time.Hour)
				default:
					at = at.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
					permit, _, err := processes[n].Take(t.Context(), photos)
					if err != nil || permit == nil {
						continue
					}
					if r.IntN(10) == 0 {
						permit.GiveBack()
						continue
					}
					done = append(done, at)
				}
			}
			for i, first := range done {
				hourly, monthly := 0, 0
				for _, d := range done[i:] {
					if d.Sub(first) < time.Hour {
						hourly++
					}
					if d.Sub(first) < 30*24*time.Hour {
						monthly++
					}
				}
				if hourly > 200 || monthly > 600 {
					t.Fatalf("%d deletes in an hour, %d in 30 days", hourly, monthly)
				}
			}
			if len(done) < 300 {
				t.Errorf("only %d deletes: the test tests nothing", len(done))
			}
		})
	}
}

// Two processes that count at the same time do not overwrite each other's counts.
func TestBrakeOfTwoOwners(t *testing.T) {
	p := newTopic()
	p.limits = Limits{1, 100}
	one, two := p.process(time.Now), p.process(time.Now)
	total := 0
	for range 300 {
		a, _ := takeAll(t, one, 1)
		b, _ := takeAll(t, two, 1)
		total += a + b
	}
	if total != 100 {
		t.Errorf("%d deletes", total)
	}
}

// Without a checkpoint the deletes are counted from the records; while those are unknown, nothing is deleted.
func TestBrakeLostCheckpoint(t *testing.T) {
	at := hour(12)
	for name, tt := range map[string]struct {
		lose func(*topic, *Brake)
	}{
		"the topic was emptied": {func(p *topic, _ *Brake) { p.checkpoints = nil }},
		"a tombstone": {func(_ *topic, b *Brake) {
			_ = b.deps.Ledger.Apply([]byte(schemas.Key(Deletes.sweep(), b.space(photos).split)), nil, at)
		}},
		"a record that cannot be decoded": {func(_ *topic, b *Brake) {
			b.deps.Ledger.Unreadable([]byte(schemas.Key(Deletes.sweep(), b.space(photos).split)))
		}},
		"a checkpoint that is no JSON": {func(_ *topic, b *Brake) {
			split := b.space(photos).split
			if err := b.deps.Ledger.Apply([]byte(schemas.Key(Deletes.sweep(), split)), &pb.Checkpoint{Split: split,
				Cursor: []byte("{")}, at); !retry.IsPermanent(err) {
				panic(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTopic()
			p.limits = Limits{1, 100}
			b := p.process(clock(&at))
			takeAll(t, b, 30)
			if tt.lose(p, b); name == "the topic was emptied" {
				b = p.process(clock(&at))
			}
			p.unknown = errors.New("no answer")
			if _, err := b.take(t.Context(), b.space(photos)); retry.ClassOf(err) != retry.ClassUnavailable {
				t.Errorf("records unknown: got %v", err)
			}
			p.unknown = nil
			p.history = History{Live: 970, Executed: []Executed{
				{at.Add(-20 * 24 * time.Hour), 225}, {at.Add(-5 * time.Minute), 30}}}
			done, limit := takeAll(t, b, 1000)
			if done != 45 || limit != monthCount { // 3 × 100 - 225 - 30
				t.Errorf("%d more, then %s", done, limit)
			}
		})
	}
}

// The live copies of a window are those of when it began, and are counted again every hour.
func TestBrakeLiveCopies(t *testing.T) {
	p := newTopic()
	p.limits = Limits{0.1, 1e6}
	p.history.Live = 1000
	at := hour(0)
	b := p.process(clock(&at))
	if done, limit := takeAll(t, b, 1000); done != 100 || limit != hourShare {
		t.Fatalf("%d done, then %s", done, limit)
	}
	p.history.Live = 900
	at = at.Add(30 * time.Minute)
	if done, _ := takeAll(t, b, 1000); done != 0 || p.asked != 1 {
		t.Errorf("within the hour: %d done, the copies were counted %d times", done, p.asked)
	}
	at = at.Add(40 * time.Minute)
	if done, _ := takeAll(t, b, 1000); done != 90 {
		t.Errorf("in the next hour: %d done of 900", done)
	}
}

// A copy that was replaced is still live: rewrites do not raise the number from which the share is taken, neither when
// they are counted from the records nor when the live copies are counted again.
func TestBrakeLiveCopiesOfRewrites(t *testing.T) {
	at := hour(0)
	p := rewrites()
	p.limits = Limits{0.1, 1e6}
	p.history = History{Live: 1000, Executed: []Executed{{at.Add(-20 * 24 * time.Hour), 280}}}
	if done, limit := takeAll(t, p.process(clock(&at)), 1000); done != 20 || limit != monthShare { // 3 × 100 - 280
		t.Errorf("%d done, then %s", done, limit)
	}
	p = rewrites()
	p.limits, p.history.Live = Limits{0.1, 1e6}, 1000
	b := p.process(clock(&at))
	takeAll(t, b, 1)
	at = at.Add(50 * time.Minute)
	takeAll(t, b, 99)
	at = at.Add(16 * time.Minute)
	if done, limit := takeAll(t, b, 1000); done != 1 || limit != hourShare {
		t.Errorf("in the next hour: %d done, then %s", done, limit)
	}
}

func TestNewNeedsAll(t *testing.T) {
	if _, err := New(Deps{}); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("got %v", err)
	}
}
