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
	"testing"
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
		"a list waits":                 {usage{hourLive: 1e6, monthLive: 1e6, listed: true}, usual, 0, listOpen},
		"no share, no list":            {usage{listed: true}, Limits{1, math.MaxInt64}, 0, listOpen},
		"all may go": {usage{hour: 1e9, month: 1e12}, Limits{1, math.MaxInt64},
			math.MaxInt64 - 1e12, withinLimits},
		"no share": {
			usage{hour: 10, month: 10, hourLive: 5000, monthLive: 5000}, Limits{0, 1000}, 0, hourShare},
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
	mu          sync.Mutex
	checkpoints []*pb.Checkpoint
	closed      map[string]bool             // lists
	opened      []string                    // lists and causes
	fail        func(schemas.Message) error // before (nil error: after) a message is stored
	history     History
	unknown     error // of the records
	asked       int   // reads of the records
	limits      Limits
}

func newTopic() *topic {
	return &topic{closed: map[string]bool{}, limits: Limits{0.1, 1000}, history: History{Live: 1e6}}
}

// change changes p while processes run.
func (p *topic) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

func (p *topic) Publish(_ context.Context, messages ...schemas.Message) error {
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
	p.checkpoints = append(p.checkpoints, m.Body.(*pb.Checkpoint))
}

// process returns the brake of a new process, by a clock.
func (p *topic) process(now func() time.Time) *Brake {
	l, read := NewLedger(p.kind), 0
	var reading sync.Mutex
	b, err := New(Deps{
		Ledger: l, Publisher: p,
		CatchUp: func(context.Context) error {
			reading.Lock()
			defer reading.Unlock()
			p.mu.Lock()
			fresh := slices.Clone(p.checkpoints[min(read, len(p.checkpoints)):])
			read = len(p.checkpoints)
			p.mu.Unlock()
			for _, c := range fresh {
				_ = l.Apply([]byte(schemas.Key(c.GetSweep(), c.GetSplit())), c)
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
		Closed: func(_ schemas.Copy, list string) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.closed[list]
		},
		Refused: func(schemas.Copy) []string { return nil },
		OnHeld: func(_ context.Context, _ schemas.Copy, list, cause string) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.opened = append(p.opened, list+": "+cause)
			return nil
		},
		Park: func(ctx context.Context, wait func(context.Context) error) error { return wait(ctx) },
	})
	if err != nil {
		panic(err)
	}
	b.now = now
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

// Exactly the limit is deleted, however many tasks there are.
func TestBrakeStopsAtTheLimit(t *testing.T) {
	p := newTopic()
	b := p.process(time.Now)
	var wg sync.WaitGroup
	var mu sync.Mutex
	done, stopped := 0, 0
	for range 16 {
		wg.Go(func() {
			for range 625 {
				reached, err := b.take(t.Context(), b.space(photos))
				mu.Lock()
				switch {
				case err != nil:
					t.Error(err)
				case reached == withinLimits:
					done++
				default:
					stopped++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if done != 1000 || stopped != 9000 {
		t.Errorf("%d done, %d stopped", done, stopped)
	}
	if n := len(p.checkpoints); n > 25 {
		t.Errorf("%d checkpoints for 1000 deletes", n)
	}
	if p.asked != 1 {
		t.Errorf("the records were read %d times", p.asked)
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

// A reservation that is not used within its bucket is given back; one of a process that died is not.
func TestBrakeUnusedReservations(t *testing.T) {
	for name, tt := range map[string]struct {
		killed bool
		want   int
	}{"in the process": {false, 99}, "of a killed process": {true, 95}} {
		t.Run(name, func(t *testing.T) {
			p := newTopic()
			p.limits = Limits{1, 100}
			at := hour(0)
			b := p.process(clock(&at))
			if done, _ := takeAll(t, b, 1); done != 1 {
				t.Fatal("not even one")
			}
			if tt.killed {
				b = p.process(clock(&at))
			}
			at = at.Add(10 * time.Minute)
			if done, _ := takeAll(t, b, 1000); done != tt.want {
				t.Errorf("%d more, want %d", done, tt.want)
			}
		})
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

// A delete that was not done does not count.
func TestBrakeGivenBack(t *testing.T) {
	p := newTopic()
	b := p.process(time.Now)
	for range 5000 {
		if done, _ := takeAll(t, b, 1); done != 1 {
			t.Fatal("stopped")
		}
		b.GiveBack(photos)
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
			processes := []*Brake{p.process(clock(&at)), p.process(clock(&at))}
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
					processes[n] = p.process(clock(&at))
				case 1:
					at = at.Add(time.Duration(r.IntN(3600)) * time.Second)
				case 2:
					at = at.Add(time.Duration(r.IntN(48)) * time.Hour)
				default:
					at = at.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
					reached, err := processes[n].take(t.Context(), processes[n].space(photos))
					if err != nil || reached != withinLimits {
						continue
					}
					if r.IntN(10) == 0 {
						processes[n].GiveBack(photos)
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

// Two processes that reserve at the same time do not overwrite each other's counts.
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
			_ = b.deps.Ledger.Apply([]byte(schemas.Key(Deletes.sweep(), b.space(photos).split)), nil)
		}},
		"a record that cannot be decoded": {func(_ *topic, b *Brake) {
			b.deps.Ledger.Unreadable([]byte(schemas.Key(Deletes.sweep(), b.space(photos).split)))
		}},
		"a checkpoint that is no JSON": {func(_ *topic, b *Brake) {
			split := b.space(photos).split
			if err := b.deps.Ledger.Apply([]byte(schemas.Key(Deletes.sweep(), split)), &pb.Checkpoint{Split: split,
				Cursor: []byte("{")}); !retry.IsPermanent(err) {
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

// Deletes beyond the limit are on one list, which stays open when the hour is over, until it is closed.
func TestBrakeLists(t *testing.T) {
	p := newTopic()
	p.limits = Limits{1, 10}
	at := hour(0)
	b := p.process(clock(&at))
	takeAll(t, b, 11)
	var lists []string
	put := func(why Held) {
		if err := b.Hold(t.Context(), photos, why, func(_ context.Context, list string) error {
			lists = append(lists, list)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	put(Held{ReasonBrake, "limit"})
	put(Held{ReasonBrake, "limit"})
	put(Held{ReasonApproval, "rule"})
	if lists[0] != lists[1] || lists[1] == lists[2] || ReasonOf(lists[0]) != ReasonBrake ||
		ReasonOf(lists[2]) != ReasonApproval {
		t.Fatalf("lists %q", lists)
	}
	at = at.Add(2 * time.Hour)
	if done, limit := takeAll(t, b, 1); done != 0 || limit != listOpen {
		t.Errorf("%d deletes while a list waits: %s", done, limit)
	}
	successor := p.process(clock(&at))
	if done, limit := takeAll(t, successor, 1); done != 0 || limit != listOpen {
		t.Errorf("%d deletes by the next owner while a list waits: %s", done, limit)
	}
	if err := successor.Close(t.Context(), photos, lists[0]); err != nil {
		t.Fatal(err)
	}
	b = successor
	if done, _ := takeAll(t, b, 1); done != 1 {
		t.Error("no delete after the list was closed")
	}
	put(Held{ReasonBrake, "limit"})
	put(Held{ReasonApproval, "rule"})
	if lists[3] == lists[0] || lists[4] != lists[2] {
		t.Errorf("lists %q", lists)
	}
	p.closed[lists[3]] = true // by a person
	if done, _ := takeAll(t, b, 1); done != 1 {
		t.Error("no delete after a person closed the incident")
	}
	if put(Held{ReasonBrake, "limit"}); lists[5] == lists[3] {
		t.Errorf("lists %q", lists)
	}
}

// A list is not closed while the result of a delete on it is being published.
func TestBrakeClosesAfterResults(t *testing.T) {
	p := newTopic()
	b := p.process(time.Now)
	publishing, goOn := make(chan string), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = b.Hold(t.Context(), photos, Held{ReasonApproval, "rule"}, func(_ context.Context, list string) error {
			publishing <- list
			<-goOn
			return nil
		})
	})
	list := <-publishing
	closed := make(chan struct{})
	wg.Go(func() {
		if err := b.Close(t.Context(), photos, list); err != nil {
			t.Error(err)
		}
		close(closed)
	})
	select {
	case <-closed:
		t.Error("closed while a result was being published")
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	wg.Wait()
	if held, _ := b.deps.Ledger.get(b.space(photos).split); len(held.Lists) > 0 {
		t.Errorf("open lists: %v", held.Lists)
	}
}

func TestNewNeedsAll(t *testing.T) {
	if _, err := New(Deps{}); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("got %v", err)
	}
}
