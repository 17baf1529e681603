package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/kafka/schedule"
	"github.com/millrace/millrace/streams/retry"
)

// copies returns n commands of an account to copy items to a store.
func copies(account, store string, from, n int) (msgs []schemas.Message) {
	for i := range n {
		msgs = append(msgs, schemas.Message{Topic: schemas.DuplicationHigh, Body: &pb.DuplicationCommand{
			Id: schemas.ID("command", account, store, fmt.Sprint(from+i)), Account: account, Space: "maps",
			Item: fmt.Sprint((from + i) % 100_000), SourceStore: "source", DestinationStore: store,
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Priority: pb.Priority_PRIORITY_HIGH,
			ChangeVersion: fmt.Sprintf("%07d", from+i),
		}})
	}
	return msgs
}

// describeCopy describes a command like the copier.
func describeCopy(b schemas.Body) kafka.Work {
	c := b.(*pb.DuplicationCommand)
	return kafka.Work{Key: schemas.Key(c.GetAccount(), c.GetDestinationStore(), c.GetSpace(), c.GetItem()),
		Account: c.GetAccount(), Stores: [2]string{c.GetSourceStore(), c.GetDestinationStore()}}
}

// copier returns a Pool like the copier's.
func copier(t testing.TB, cfg client.Config, pc kafka.PoolConfig, h kafka.Handler) *kafka.Pool {
	t.Helper()
	pc.Role, pc.Topics, pc.Describe = schemas.RoleCopier, []schemas.Topic{schemas.DuplicationHigh}, describeCopy
	p, err := kafka.NewPool(cfg, pc, h)
	must(t, err)
	return p
}

// maxDelay is how long a message may wait behind those of another account, or for another store.
const maxDelay = 10 * time.Second

// A message waits less than 10 s behind the backlog of another account with tasks of hours. The same holds
// for a message for one store behind those for another store of the account that is at its limit.
func TestPoolBacklogDelaysNoOther(t *testing.T) {
	t.Parallel()
	small, second := copies("small", "1", 0, 1), copies("giant", "2", 0, 1)
	for name, tt := range map[string]struct {
		first, later []schemas.Message // sent before the Pool starts, and later
		limit        int               // of concurrent tasks of the backlog
		takes        time.Duration     // duration of a task of the backlog
		bytes        int64
	}{
		"of another account":                     {later: small},
		"of another account, from the beginning": {first: small},
		"of another account, with little memory": {first: small, bytes: 1 << 20},
		"for another store":                      {later: second, limit: 4},
		"for another store, from the beginning":  {first: second, limit: 4},
		"for another store, behind long tasks":   {first: second, limit: 4, takes: 9 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(tt.first) > 0 && tt.limit > 0 && tt.takes == 0 {
				need.Full(t)
			}
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true})
				for n := need.Amount(4_000, 100_000, 1_000_000); n > 0; n -= 4_000 {
					b.Send(copies("giant", "1", n, 4_000)...)
				}
				b.Send(tt.first...)
				handled := make(chan time.Time, 1)
				limit := func(account, store string) schedule.Limit {
					if account == "giant" && store == "1" {
						return schedule.Limit{Tasks: tt.limit}
					}
					return schedule.Limit{}
				}
				p := copier(t, b.Config(), kafka.PoolConfig{Slots: schedule.NewSlots(limit), Bytes: tt.bytes,
					Window: need.Amount(1024, 0, 0)},
					func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
						if c := d.Body.(*pb.DuplicationCommand); c.GetAccount() == "small" || c.GetDestinationStore() == "2" {
							handled <- time.Now()
							return nil, nil
						}
						select {
						case <-ctx.Done():
							return nil, context.Cause(ctx)
						case <-time.After(max(tt.takes, time.Second)):
							return nil, nil
						}
					})
				began := time.Now()
				parttest.Background(t, p)
				if len(tt.later) > 0 {
					time.Sleep(time.Minute)
					began = time.Now()
					b.Send(tt.later...)
				}
				if took := (<-handled).Sub(began); took >= maxDelay {
					t.Errorf("handled after %v, want less than %v", took, maxDelay)
				}
			})
		})
	}
}

// secondOrReport returns a handler that takes a second, and sends the time at which it gets a message of account small.
func secondOrReport(handled chan<- time.Time) kafka.Handler {
	return func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		if d.Body.(*pb.DuplicationCommand).GetAccount() == "small" {
			handled <- time.Now()
			return nil, nil
		}
		return nil, retry.Sleep(ctx, time.Second)
	}
}

// sendLargeLow sends n messages of class low of 15 KiB each.
func sendLargeLow(b *kafkatest.Broker, account string, n int) {
	low := copies(account, "1", 0, n)
	for i := range low {
		low[i].Topic = schemas.DuplicationLow
		low[i].Body.(*pb.DuplicationCommand).ChangeVersion += strings.Repeat("x", 15<<10)
	}
	for part := range slices.Chunk(low, 200) {
		b.Send(part...)
	}
}

// Class high waits for the processors and the brokers while messages are moved: those of class low are moved slowly.
func TestPoolBacklogOfClassLow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true})
		const messages = 40_000 // 40 MiB in memory
		low := append(copies("giant", "1", 0, messages), copies("small", "1", 0, 1)...)
		for i := range low {
			low[i].Topic = schemas.DuplicationLow
		}
		b.Send(low...)
		handled := make(chan time.Time, 1)
		p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleCopier, Window: 1024,
			Topics: []schemas.Topic{schemas.DuplicationLow}, Describe: describeCopy}, secondOrReport(handled))
		must(t, err)
		began := time.Now()
		parttest.Background(t, p)
		if took := (<-handled).Sub(began); took < 5*time.Second || took >= 15*time.Second {
			t.Errorf("handled after %v, want 5 s to 15 s", took)
		}
	})
}

// A flow whose messages took longer than divertWindow to move is still moved then: none could arrive meanwhile.
func TestPoolBacklogIsMovedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 8})
		const messages = 6400 // 100 MiB in memory: 64 MiB are read, and then moved within 13 s
		sendLargeLow(b, "giant", messages)
		var log bytes.Buffer
		cfg := b.Config()
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RoleCopier, Window: 1024,
			Topics: []schemas.Topic{schemas.DuplicationLow}, Describe: describeCopy},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				return nil, retry.Sleep(ctx, time.Minute)
			})
		must(t, err)
		if err := parttest.Run(t, 40*time.Second, p); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "move backlog"); n != 1 {
			t.Errorf("began to move the flow %d times, want once:\n%s", n, log.String())
		}
		if n := len(b.Read(schemas.Backlog(schemas.RoleCopier, schemas.Low))); n < 6200 {
			t.Errorf("moved %d of %d messages", n, messages)
		}
	})
}

// A move that takes long lets messages be polled, and partitions be given up, in between.
func TestPoolBacklogHoldsPollsForSeconds(t *testing.T) {
	need.Full(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 8})
		sendLargeLow(b, "giant", 17_000) // 260 MiB in memory: moved within 52 s
		small := copies("small", "1", 0, 1)
		small[0].Topic = schemas.DuplicationLow
		handled := make(chan time.Time, 1)
		p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleCopier, Window: 2048, Bytes: 1 << 30,
			Topics: []schemas.Topic{schemas.DuplicationLow}, Describe: describeCopy}, secondOrReport(handled))
		must(t, err)
		parttest.Background(t, p)
		time.Sleep(5 * time.Second)
		sent := time.Now()
		b.Send(small...)
		if took := (<-handled).Sub(sent); took >= 44*time.Second {
			t.Errorf("handled after %v, want less than 44 s", took)
		}
	})
}

// A handledLog counts handled messages.
type handledLog struct {
	mu          sync.Mutex
	times       map[string]int    // by id
	last        map[string]string // version, by key
	bad         []string
	small       int                                        // messages of account small
	slowAccount string                                     // account with messages that take nine minutes
	duration    func(*pb.DuplicationCommand) time.Duration // of the other accounts
}

func newTally(takes time.Duration) *handledLog {
	return &handledLog{times: map[string]int{}, last: map[string]string{},
		duration: func(*pb.DuplicationCommand) time.Duration { return takes }}
}

// fourAtATime limits an account to four concurrent tasks.
func fourAtATime(account string) *schedule.Slots {
	return schedule.NewSlots(func(of, _ string) schedule.Limit {
		if of == account {
			return schedule.Limit{Tasks: 4}
		}
		return schedule.Limit{}
	})
}

// handle handles a message.
func (l *handledLog) handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	c := d.Body.(*pb.DuplicationCommand)
	takes := l.duration(c)
	if c.GetAccount() == l.slowAccount {
		takes = 9 * time.Minute
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(takes):
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := describeCopy(c).Key
	if c.GetChangeVersion() < l.last[key] {
		l.bad = append(l.bad, fmt.Sprintf("%s: %s after %s", key, c.GetChangeVersion(), l.last[key]))
	}
	l.last[key] = c.GetChangeVersion()
	l.times[c.GetId()]++
	if c.GetAccount() == "small" {
		l.small++
	}
	return nil, nil
}

// mismatches names the messages that were not handled, or more than most times.
func (l *handledLog) mismatches(msgs []schemas.Message, most int) (wrong []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range msgs {
		c := m.Body.(*pb.DuplicationCommand)
		if n := l.times[c.GetId()]; n == 0 || n > most {
			wrong = append(wrong, fmt.Sprintf("%s %s/%s is handled %d times", c.GetAccount(), c.GetItem(),
				c.GetChangeVersion(), n))
		}
	}
	return wrong
}

// commandVersions returns commands i to n-1 of an account, over 100 items in turns.
func commandVersions(account string, i, n int) []schemas.Message {
	msgs := copies(account, "1", i, n-i)
	for j, m := range msgs {
		m.Body.(*pb.DuplicationCommand).Item = fmt.Sprint((i + j) % 100)
	}
	return msgs
}

// Each message of two backlogs, and of an account between them, is handled once and in the order of its key.
// This also holds if the process stops, the brokers do not answer, or responses are lost. After a kill,
// uncommitted messages may be handled again.
func TestPoolBacklogIsHandledOnce(t *testing.T) {
	t.Parallel()
	backlog, few := need.Amount(400, 600, 600), 20 // too few messages wait to be moved
	type world struct {
		b          *kafkatest.Broker
		start      func() (stop, kill func())
		stop, kill func()
	}
	again := func(w *world) { w.stop(); w.stop, w.kill = w.start() }
	tests := map[string]struct {
		disturb func(t *testing.T, w *world)
		times   int // number of times that a message may be handled
		after   time.Duration
	}{
		"undisturbed":                {func(*testing.T, *world) {}, 1, time.Second},
		"stopped before it is moved": {func(_ *testing.T, w *world) { again(w) }, 2, 1500 * time.Millisecond},
		"stopped after it was moved": {func(_ *testing.T, w *world) { again(w) }, 1, 20 * time.Second},
		"cannot be moved for a while": {func(_ *testing.T, w *world) {
			defer w.b.FailProduce(schemas.Backlog(schemas.RoleCopier, schemas.High), kafkatest.NotDone, -1)()
			time.Sleep(80 * time.Second)
		}, 1, time.Second},
		"is moved, and reported as not moved": {func(_ *testing.T, w *world) {
			defer w.b.FailProduce(schemas.Backlog(schemas.RoleCopier, schemas.High), kafkatest.DoneNotAcknowledged, -1)()
			time.Sleep(80 * time.Second)
		}, 3, time.Second},
		"commits fail": {func(_ *testing.T, w *world) {
			defer w.b.FailCommit(schemas.RoleCopier, kafkatest.NotDone, -1)()
			time.Sleep(20 * time.Second)
		}, 1, time.Second},
		"commits are done, and reported as failed": {func(_ *testing.T, w *world) {
			defer w.b.FailCommit(schemas.RoleCopier, kafkatest.DoneNotAcknowledged, -1)()
			time.Sleep(20 * time.Second)
		}, 1, time.Second},
		"fetches fail": {func(_ *testing.T, w *world) {
			defer w.b.FailFetch(schemas.DuplicationHigh, kafkatest.NotDone, 20)()
			time.Sleep(20 * time.Second)
		}, 1, 2 * time.Second},
		"the session is lost": {func(_ *testing.T, w *world) { w.b.Fence(schemas.RoleCopier) }, 3, 20 * time.Second},
	}
	step := time.Duration(need.Amount(6000, 500, 100)) * time.Millisecond
	for at := 500 * time.Millisecond; at < 12*time.Second; at += step {
		tests["killed after "+at.String()] = struct {
			disturb func(t *testing.T, w *world)
			times   int
			after   time.Duration
		}{func(_ *testing.T, w *world) { w.kill(); again(w) }, 3, at}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "commits fail" {
				need.Full(t) // TestPoolCommitFails is the same without a backlog
			}
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true})
				l := newTally(time.Second)
				w := &world{b: b}
				w.start = func() (stop, kill func()) {
					proc, cfg := newProcess(b.Config())
					p := copier(t, cfg, kafka.PoolConfig{Workers: 8, Window: 128, DrainTimeout: 5 * time.Second}, l.handle)
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error)
					go func() { done <- p.Run(ctx) }()
					var once sync.Once
					return func() { once.Do(func() { cancel(); <-done }) }, proc.kill
				}
				giant, titan, small := commandVersions("giant", 0, backlog), commandVersions("titan", 0, backlog),
					commandVersions("small", 0, few)
				var msgs []schemas.Message
				for i := range backlog {
					msgs = append(msgs, giant[i], titan[i])
					if i%(backlog/few) == 0 {
						msgs = append(msgs, small[i*few/backlog])
					}
				}
				b.Send(msgs...)
				w.stop, w.kill = w.start()
				time.Sleep(tt.after)
				tt.disturb(t, w)
				time.Sleep(time.Minute)
				if wrong := l.mismatches(small, tt.times); len(wrong) > 0 {
					t.Errorf("after a minute: %s", strings.Join(wrong, "; "))
				}
				time.Sleep(time.Duration(need.Amount(3, 5, 5)) * time.Minute)
				w.stop()
				if wrong := l.mismatches(msgs, tt.times); len(wrong) > 0 {
					t.Errorf("%d: %s", len(wrong), strings.Join(wrong[:min(10, len(wrong))], "; "))
				}
				// If nothing can be moved, only the first message of a key waits. If commits fail, little is read, and
				// messages that arrive after ten seconds are not moved any more.
				if len(l.bad) > 0 && tt.times == 1 && !strings.HasPrefix(name, "cannot") && !strings.HasPrefix(name, "commits") {
					t.Errorf("%d out of order: %q", len(l.bad), l.bad[:min(10, len(l.bad))])
				}
				if got := parttest.Sum(b.Committed(schemas.RoleCopier, schemas.DuplicationHigh)); got != int64(len(msgs)) {
					t.Errorf("committed %d, want %d", got, len(msgs))
				}
				moved := b.Read(schemas.Backlog(schemas.RoleCopier, schemas.High))
				if got := parttest.Sum(b.Committed(schemas.RoleCopier,
					schemas.Backlog(schemas.RoleCopier, schemas.High))); got != int64(len(moved)) || got == 0 {
					t.Errorf("committed %d of the backlog topic, want %d", got, len(moved))
				}
				if dead := b.Read(schemas.Dead); len(dead) > 0 {
					t.Errorf("%d dead letters", len(dead))
				}
			})
		})
	}
}

// A long task does not keep others of its partition from being read, and the ones that are done meanwhile are
// not repeated.
func TestPoolReadsPastLongTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
		l := newTally(time.Millisecond)
		l.slowAccount = "slow"
		run := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := copier(t, b.Config(), kafka.PoolConfig{Workers: 8, Window: 64, DrainTimeout: time.Second},
				l.handle).Run(ctx); err != nil {
				t.Error(err)
			}
		}
		n := need.Amount(300, 1000, 1000)
		slow, quick := copies("slow", "1", 0, 2), slices.Concat(copies("quick", "1", 0, n), copies("other", "1", 0, n))
		b.Send(append(slow, quick...)...)
		run(time.Minute)
		if wrong := l.mismatches(quick, 1); len(wrong) > 0 {
			t.Errorf("%d: %s", len(wrong), strings.Join(wrong[:min(10, len(wrong))], "; "))
		}
		if got := parttest.Sum(b.Committed(schemas.RoleCopier, schemas.DuplicationHigh)); got != 0 {
			t.Errorf("committed %d, want nothing: the first message is not done", got)
		}
		run(12 * time.Minute)
		if wrong := l.mismatches(append(slow, quick...), 1); len(wrong) > 0 {
			t.Errorf("started again: %d: %s", len(wrong), strings.Join(wrong[:min(10, len(wrong))], "; "))
		}
		if got := parttest.Sum(b.Committed(schemas.RoleCopier, schemas.DuplicationHigh)); got != int64(len(slow)+len(quick)) {
			t.Errorf("committed %d, want %d", got, len(slow)+len(quick))
		}
		if moved := b.Read(schemas.Backlog(schemas.RoleCopier, schemas.High)); len(moved) > 0 {
			t.Errorf("%d messages were moved, want none: nothing waits", len(moved))
		}
	})
}

// Concurrent backlogs of many accounts delay a message of another account only by its turn.
func TestPoolBacklogsOfManyAccounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
		for i := range 100 {
			b.Send(copies(fmt.Sprintf("account-%02d", i), "1", 0, 30)...)
		}
		small := copies("small", "1", 0, 10)
		b.Send(small...)
		l := newTally(time.Second)
		p := copier(t, b.Config(), kafka.PoolConfig{Workers: 8, Window: 256}, l.handle)
		parttest.Background(t, p)
		time.Sleep(2 * time.Minute) // ten turns of 101 accounts at 8 a second
		if wrong := l.mismatches(small, 1); len(wrong) > 0 {
			t.Errorf("%d: %s", len(wrong), strings.Join(wrong, "; "))
		}
	})
}

// If the brokers refuse moved messages, these are handled in place, and a stop is not delayed.
func TestPoolBacklogIsRefused(t *testing.T) {
	t.Parallel()
	backlog := schemas.Backlog(schemas.RoleCopier, schemas.High)
	for name, refuse := range map[string]func(b *kafkatest.Broker){
		"for now":              func(b *kafkatest.Broker) { b.FailProduce(backlog, kafkatest.NotDone, -1) },
		"for good":             func(b *kafkatest.Broker) { b.FailProduce(backlog, kafkatest.Refused, -1) },
		"its topic is missing": func(b *kafkatest.Broker) { b.Delete(backlog) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
				n := need.Amount(500, 1000, 1000)
				msgs := append(copies("giant", "1", 0, n), copies("small", "1", 0, 3)...)
				b.Send(msgs...)
				l := newTally(time.Second)
				refuse(b)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				p := copier(t, b.Config(), kafka.PoolConfig{Workers: 8, Window: 64, DrainTimeout: 10 * time.Second}, l.handle)
				go func() { ended <- p.Run(ctx) }()
				time.Sleep(time.Duration(len(msgs))*time.Second/8 + 20*time.Second)
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if wrong := l.mismatches(msgs, 1); len(wrong) > 1 { // the one that was tried
					t.Errorf("%d: %s", len(wrong), strings.Join(wrong[:min(10, len(wrong))], "; "))
				}
			})
		})
	}
}

// If the brokers stop accepting moved messages later, the others are handled in place, also behind long
// tasks.
func TestPoolBacklogIsRefusedLater(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int32{1, 12} {
		for _, slow := range []int{0, 1, 40} {
			if partitions > 1 && slow > 1 {
				continue
			}
			t.Run(fmt.Sprint(partitions, " partitions, ", slow, " long"), func(t *testing.T) {
				t.Parallel()
				if partitions > 1 || slow == 1 {
					need.Full(t)
				}
				synctest.Test(t, func(t *testing.T) {
					b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: partitions})
					n := need.Amount(1200, 2000+500*int(partitions), 2000+500*int(partitions))
					b.Send(copies("giant", "1", 0, n)...)
					l := newTally(time.Second)
					l.slowAccount = "slow"
					parttest.Background(t, copier(t, b.Config(), kafka.PoolConfig{Window: 256, Slots: fourAtATime("slow")}, l.handle))
					time.Sleep(10 * time.Second)
					b.FailProduce(schemas.Backlog(schemas.RoleCopier, schemas.High), kafkatest.NotDone, -1)
					small := copies("small", "1", 0, 20)
					later := copies("giant", "1", n, need.Amount(300, 600, 600))
					b.Send(append(append(copies("slow", "1", 0, slow), later...), small...)...)
					time.Sleep(time.Duration(need.Amount(5, 8, 8)) * time.Minute)
					if wrong := l.mismatches(small, 1); len(wrong) > 0 {
						t.Errorf("%d of 20 messages of another account: %s", len(wrong), wrong[0])
					}
					l.mu.Lock()
					defer l.mu.Unlock()
					got := 0
					for _, m := range later {
						got += l.times[m.Body.(*pb.DuplicationCommand).GetId()]
					}
					if most := 64 * int(partitions); got < len(later)-most {
						t.Errorf("%d of %d messages are handled that were sent later, want all but %d", got, len(later), most)
					}
				})
			})
		}
	}
}

// Moved messages that the brokers do not accept leave memory for reading others.
func TestPoolBacklogIsRefusedLaterAndHeavy(t *testing.T) {
	t.Parallel()
	need.Full(t)
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 4})
		b.Send(copies("giant", "1", 0, 5_000)...)
		l := newTally(time.Second)
		parttest.Background(t, copier(t, b.Config(), kafka.PoolConfig{Window: 1024, Bytes: 24 << 10}, l.handle))
		time.Sleep(10 * time.Second)
		b.FailProduce(schemas.Backlog(schemas.RoleCopier, schemas.High), kafkatest.NotDone, -1)
		small := copies("small", "1", 0, 60)
		b.Send(append(copies("giant", "1", 5_000, 2_000), small...)...)
		time.Sleep(8 * time.Minute)
		if wrong := l.mismatches(small, 1); len(wrong) > 0 {
			t.Errorf("%d of 60 messages of another account: %s", len(wrong), wrong[0])
		}
	})
}

// The messages of a key are handled in order, also if some are moved while others are handled.
func TestPoolBacklogKeepsTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	for seed := range need.Amount(3, 20, 1000) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 4})
				msgs := commandVersions("giant", 0, need.Amount(600, 1200, 1200))
				b.Send(msgs...)
				l := newTally(0)
				l.duration = func(c *pb.DuplicationCommand) time.Duration {
					return time.Duration(100+crc32.ChecksumIEEE([]byte(fmt.Sprint(seed, c.GetId())))%1000) * time.Millisecond
				}
				parttest.Background(t, copier(t, b.Config(), kafka.PoolConfig{Workers: 16, Window: 128}, l.handle))
				time.Sleep(5 * time.Minute)
				if wrong := append(l.mismatches(msgs, 1), l.bad...); len(wrong) > 0 {
					t.Errorf("%d: %s", len(wrong), wrong[0])
				}
			})
		})
	}
}

// Slow messages that fill between a quarter and half of a window do not keep others from being read.
func TestPoolBacklogOfHalfAWindow(t *testing.T) {
	t.Parallel()
	for i, quick := range []int{511, 625, 375, 525} {
		t.Run(fmt.Sprint(quick, " in front"), func(t *testing.T) {
			t.Parallel()
			if i > 1 {
				need.Full(t)
			}
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
				b.Send(copies("quick", "1", 0, quick)...)
				b.Send(copies("giant", "1", 0, 2500)...)
				l := newTally(time.Millisecond)
				l.slowAccount = "giant"
				parttest.Background(t, copier(t, b.Config(), kafka.PoolConfig{Slots: fourAtATime("giant"), Window: 1024}, l.handle))
				time.Sleep(time.Minute)
				small := copies("small", "1", 0, 1)
				b.Send(small...)
				time.Sleep(maxDelay)
				if wrong := l.mismatches(small, 1); len(wrong) > 0 {
					t.Error(wrong)
				}
			})
		})
	}
}

// One account has a backlog for many stores, and none of them is a backlog by itself.
func TestPoolBacklogOfManyStores(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
		var giant []schemas.Message
		for i := range 4000 {
			giant = append(giant, copies("giant", fmt.Sprint(i%100), i, 1)...)
		}
		b.Send(giant...)
		small := copies("small", "1", 0, 1)
		b.Send(small...)
		l := newTally(time.Second)
		parttest.Background(t, copier(t, b.Config(), kafka.PoolConfig{Window: 512}, l.handle))
		time.Sleep(maxDelay)
		if wrong := l.mismatches(small, 1); len(wrong) > 0 {
			t.Error(wrong)
		}
	})
}

// An account with a backlog that is over does not wait for a later backlog of another account.
func TestPoolBacklogEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
		n := need.Amount(375, 750, 750)
		giant, medium := copies("giant", "1", 0, 20*n/3), copies("medium", "1", 0, n)
		var both []schemas.Message
		for i := range medium {
			both = append(both, giant[i], medium[i])
		}
		b.Send(append(both, giant[len(medium):]...)...)
		l := newTally(time.Second)
		parttest.Background(t, copier(t, b.Config(), kafka.PoolConfig{Window: need.Amount(1024, 2048, 2048)}, l.handle))
		time.Sleep(2*time.Duration(n)*time.Second/16 + 30*time.Second) // its own are done
		one := copies("medium", "1", 99_999, 1)
		b.Send(one...)
		time.Sleep(maxDelay)
		if wrong := l.mismatches(one, 1); len(wrong) > 0 {
			t.Error(wrong)
		}
	})
}

// Behind many long tasks, also more than a commit can name, a stop repeats none of the done messages.
func TestPoolStopsBehindManyLongTasks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		slow   int
		stores int
		wait   time.Duration // after a hundred of them
	}{
		"at once":     {900, 1, 0},
		"and go on":   {need.Amount(2500, 3500, 3500), 1, time.Second}, // a commit can name about 2100
		"many stores": {3500, 50, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.stores > 1 {
				need.Full(t)
			}
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
				quick := copies("quick", "1", 0, 5*tt.slow)
				var msgs []schemas.Message
				for i := range tt.slow {
					to := fmt.Sprint(i%tt.stores + 1)
					msgs = append(append(msgs, copies("slow", to, i, 1)...), quick[5*i:5*i+5]...)
				}
				l := newTally(time.Millisecond)
				l.slowAccount = "slow"
				run := func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					p := copier(t, b.Config(), kafka.PoolConfig{Slots: fourAtATime("slow"), DrainTimeout: time.Second}, l.handle)
					if err := p.Run(ctx); err != nil {
						t.Error(err)
					}
				}
				var sending sync.WaitGroup
				sending.Go(func() {
					for part := range slices.Chunk(msgs, 600) {
						b.Send(part...)
						time.Sleep(tt.wait)
					}
				})
				for range 3 {
					run()
				}
				sending.Wait()
				if wrong := l.mismatches(quick, 1); len(wrong) > 0 {
					t.Errorf("%d: %s", len(wrong), strings.Join(wrong[:min(10, len(wrong))], "; "))
				}
			})
		})
	}
}

// A message that kills its process becomes a dead letter after three deaths, also far behind a backlog. No
// message of the backlog does.
func TestPoolPoisonBehindABacklog(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]time.Duration{"at once": 0, "after seconds": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
				const n = 400
				b.Send(copies("giant", "1", 0, n)...)
				b.Send(copies("small", "1", 7, 1)...)
				deaths := 0
				for ; deaths < 10; deaths++ {
					if killed := backlogLifetime(t, b, slow); !killed {
						break
					}
				}
				if dead := b.Read(schemas.Dead); deaths != 3 || len(dead) != 1 ||
					string(dead[0].Key) != schemas.ItemKey("small", "maps", "7") {
					t.Errorf("%d processes died, and there are %d dead letters, want 3 and that of the small account", deaths,
						len(dead))
				}
				if got := parttest.Sum(b.Committed(schemas.RoleCopier, schemas.DuplicationHigh)); got != n+1 {
					t.Errorf("committed %d, want %d", got, n+1)
				}
			})
		})
	}
}

// backlogLifetime runs a Pool in a process of its own until a message of account small kills it, or for some
// minutes.
func backlogLifetime(t *testing.T, b *kafkatest.Broker, slow time.Duration) bool {
	proc, cfg := newProcess(b.Config())
	p := copier(t, cfg, kafka.PoolConfig{Workers: 4, Window: 64, DrainTimeout: time.Second},
		func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if d.Body.(*pb.DuplicationCommand).GetAccount() == "small" {
				time.Sleep(slow)
				proc.kill()
			}
			select {
			case <-proc.dead:
				<-ctx.Done()
				return nil, ctx.Err()
			case <-time.After(time.Second):
			}
			return nil, nil
		})
	return killedIn(t, proc, p)
}

// A moved backlog is reassigned to other members and back, while tasks run for seconds. Nothing is lost, and
// done messages are not repeated. This runs in real time, like TestRebalance.
func TestPoolBacklogMoves(t *testing.T) {
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{Partitions: 4, RealTime: true})
	msgs := append(copies("giant", "1", 0, need.Amount(800, 1200, 1200)), copies("small", "1", 0, 60)...)
	b.Send(msgs...)
	l := newTally(0)
	l.duration = func(c *pb.DuplicationCommand) time.Duration {
		if strings.HasSuffix(c.GetItem(), "99") {
			return 2 * time.Second
		}
		return 50 * time.Millisecond
	}
	start := func(ctx context.Context) {
		if err := copier(t, b.Config(), kafka.PoolConfig{Workers: 8, Window: 128}, l.handle).Run(ctx); err != nil {
			t.Error(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { start(ctx) })
	for i := range 2 {
		all.Go(func() {
			<-time.After(time.Duration(1500+2000*i) * time.Millisecond)
			ctx, leave := context.WithTimeout(ctx, 1500*time.Millisecond)
			defer leave()
			start(ctx)
		})
	}
	<-time.After(5 * time.Second)
	backlog := schemas.Backlog(schemas.RoleCopier, schemas.High)
	parttest.Await(t, "all is committed", func() bool {
		return parttest.Sum(b.Committed(schemas.RoleCopier, schemas.DuplicationHigh)) == int64(len(msgs)) &&
			parttest.Sum(b.Committed(schemas.RoleCopier, backlog)) == int64(len(b.Read(backlog)))
	})
	stop()
	all.Wait()
	if wrong := l.mismatches(msgs, 1); len(wrong) > 0 {
		t.Errorf("%d: %s", len(wrong), strings.Join(wrong[:min(10, len(wrong))], "; "))
	}
	if dead := b.Read(schemas.Dead); len(dead) > 0 {
		t.Errorf("%d dead letters", len(dead))
	}
}

// The backlog of a destination stays with the process that has the other deletes of the destination.
func TestPoolBacklogOfDeletes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 7})
		var msgs []schemas.Message
		for i := range 400 {
			msgs = append(msgs, schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
				Id: schemas.ID("delete", fmt.Sprint(i)), Account: "acme", Space: "maps", Item: fmt.Sprint(i), SourceStore: "1",
				DestinationStore: fmt.Sprint(2 + i%3), Command: "command", Cause: "change",
			}})
		}
		b.Send(msgs...)
		p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleDeleter,
			Topics:        []schemas.Topic{schemas.Deletions},
			CoPartitioned: true, Window: 64, Workers: 4, Describe: func(b schemas.Body) kafka.Work {
				c := b.(*pb.DeletionCommand)
				return kafka.Work{Key: c.GetItem(), Account: c.GetAccount(),
					Stores: [2]string{c.GetDestinationStore(), c.GetSourceStore()}}
			}}, func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
			time.Sleep(time.Second)
			return nil, nil
		})
		must(t, err)
		parttest.Background(t, p)
		time.Sleep(5 * time.Minute)
		part := map[string]int32{}
		for _, r := range b.Read(schemas.Deletions) {
			part[string(r.Key)] = r.Partition
		}
		moved := b.Read(schemas.Backlog(schemas.RoleDeleter, schemas.High))
		for _, r := range moved {
			if r.Partition != part[string(r.Key)] {
				t.Fatalf("key %q is in partition %d, and in %d of the backlog topic", r.Key, part[string(r.Key)], r.Partition)
			}
		}
		if len(moved) == 0 || parttest.Sum(b.Committed(schemas.RoleDeleter, schemas.Deletions)) != 400 {
			t.Errorf("%d messages were moved, and %d committed", len(moved),
				parttest.Sum(b.Committed(schemas.RoleDeleter, schemas.Deletions)))
		}
	})
}
