package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/storage/limit"
)

const stallAfter = 5 * time.Minute

// Each row is a case of evaluate.
func TestEvaluate(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	unavailable := errors.New("connection refused")
	// A copier that has had work for an hour, and did some of it a minute ago.
	busy := roleHealth{Role: schemas.RoleCopier, Member: true, Due: 7, Able: true, DueSince: ago(time.Hour),
		Active: ago(time.Minute)}
	with := func(f func(*roleHealth)) []roleHealth { d := busy; f(&d); return []roleHealth{d} }
	stalled := func(d *roleHealth) { d.Active = ago(stallAfter) }
	all := status{Live: true, Ready: true, Started: true, Reasons: []string{}}
	stall := status{Started: true, Reasons: []string{"role copier: 7 messages are due, and nothing was done for 5m0s"}}

	for name, tt := range map[string]struct {
		duties []roleHealth
		looked time.Time
		faults map[string]error
		stores []Store
		ending bool
		// policies are those that are refused.
		policies []string
		unread   []string
		want     status
	}{
		"work is done": {duties: []roleHealth{busy}, want: all},
		"nothing is due": {duties: with(func(d *roleHealth) {
			*d = roleHealth{Role: d.Role,
				Member: true, Active: ago(24 * time.Hour)}
		}), want: all},
		"nothing was ever due": {duties: []roleHealth{{Role: schemas.RoleCopier, Member: true}}, want: all},
		"a role without partitions waits": {duties: []roleHealth{{Role: schemas.RoleCopier, Member: true,
			Partitions: 0}}, want: all},
		"no role reads anything": {want: all},
		"due, and nothing done":  {duties: with(stalled), want: stall},
		"a moment before that": {duties: with(func(d *roleHealth) { d.Active = ago(stallAfter - 1) }),
			want: all},
		"due, and never anything done": {duties: with(func(d *roleHealth) {
			d.DueSince, d.Active = ago(stallAfter),
				time.Time{}
		}), want: stall},
		"idle long, but due only of late": {duties: with(func(d *roleHealth) {
			d.DueSince, d.Active = ago(stallAfter-1),
				ago(24*time.Hour)
		}), want: all},
		"due, but all is paused": {duties: with(func(d *roleHealth) { stalled(d); d.Able = false }), want: all},
		"due, but not able to do it": {duties: with(func(d *roleHealth) { stalled(d); d.DueSince = time.Time{} }),
			want: all},
		"a task that ignores its end": {duties: with(func(d *roleHealth) { d.Stuck = 2 }),
			want: status{Started: true, Reasons: []string{"role copier: 2 tasks have not ended after they were cancelled"}}},
		"not a member": {duties: with(func(d *roleHealth) { d.Member = false }),
			want: status{Live: true, Reasons: []string{"role copier is not in its group"}}},
		"the sweeper has not begun": {duties: []roleHealth{{Role: schemas.RoleSweeper}},
			want: status{Live: true, Reasons: []string{"role sweeper has not read the checkpoints"}}},
		"the sweeper waits": {duties: []roleHealth{{Role: schemas.RoleSweeper, Member: true, Active: ago(time.Hour)}},
			want: all},
		"the sweeper is stalled": {duties: []roleHealth{{Role: schemas.RoleSweeper, Member: true, Due: 1, Able: true,
			DueSince: ago(time.Hour), Active: ago(stallAfter)}},
			want: status{Started: true, Reasons: []string{"role sweeper: its sweep has made no progress for 5m0s"}}},
		"one of two is stalled": {duties: append(with(stalled),
			roleHealth{Role: schemas.RoleChecker, Member: true}), want: stall},
		"Kafka is unavailable": {duties: []roleHealth{busy}, faults: map[string]error{engineKafka: unavailable},
			want: status{Live: true, Started: true, Reasons: []string{"kafka is unavailable: connection refused"}}},
		"Kafka is starting": {duties: []roleHealth{busy},
			faults: map[string]error{engineKafka: client.ErrOffsetsNotReady}, want: status{Live: true, Started: true,
				Reasons: []string{"kafka is starting: " + client.ErrOffsetsNotReady.Error()}}},
		"Kafka refuses the login": {duties: []roleHealth{busy},
			faults: map[string]error{engineKafka: client.ErrLoginRejected}, want: status{Live: true, Started: true,
				Reasons: []string{"kafka refuses access: " + client.ErrLoginRejected.Error()}}},
		"ClickHouse refuses the password": {duties: []roleHealth{busy},
			faults: map[string]error{engineClickHouse: clickhouse.ErrAccess}, want: status{Live: true, Started: true,
				Reasons: []string{"clickhouse refuses access: " + clickhouse.ErrAccess.Error()}}},
		"ClickHouse is unavailable": {duties: []roleHealth{busy}, faults: map[string]error{engineClickHouse: unavailable},
			want: status{Live: true, Started: true, Reasons: []string{"clickhouse is unavailable: connection refused"}}},
		"ClickHouse is unavailable, and a stall": {duties: with(stalled),
			faults: map[string]error{engineClickHouse: unavailable},
			want:   status{Started: true, Reasons: []string{"clickhouse is unavailable: connection refused", stall.Reasons[0]}}},
		"nothing collected yet": {duties: with(stalled), looked: time.Time{}.Add(1),
			want: status{Live: true, Reasons: []string{"the state of the engines is not known"}}},
		"collected too long ago": {duties: with(stalled), looked: ago(time.Minute),
			want: status{Live: true, Reasons: []string{"the state of the engines is not known"}}},
		"stuck, and collected too long ago": {duties: with(func(d *roleHealth) { d.Stuck = 1 }), looked: ago(time.Minute),
			want: status{Reasons: []string{"the state of the engines is not known",
				"role copier: 1 tasks have not ended after they were cancelled"}}},
		"one store is unavailable": {duties: []roleHealth{busy},
			stores: []Store{{Account: "a", Store: "1", State: limit.Open}, {Account: "a", Store: "2"}}, want: all},
		"every store is unavailable": {duties: []roleHealth{busy},
			stores: []Store{{Account: "a", Store: "1", State: limit.Open},
				{Account: "b", Store: "1", State: limit.HalfOpen}},
			want: status{Live: true, Started: true, Reasons: []string{"every store is unavailable: a/1, b/1"}}},
		"a policy is refused": {duties: []roleHealth{busy}, policies: []string{"p/a.json:3: x"},
			want: status{Live: true, Started: true, Reasons: []string{"policy refused: p/a.json:3: x"}}},
		"a record cannot be read": {duties: []roleHealth{busy}, unread: []string{"policies/0@7"},
			want: status{Live: true, Started: true, Reasons: []string{"record cannot be read: policies/0@7"}}},
		"outputs are not acknowledged": {duties: with(func(d *roleHealth) { d.UnacknowledgedSince = ago(time.Minute) }),
			want: status{Live: true, Started: true,
				Reasons: []string{"role copier: the brokers have not acknowledged its outputs for 1m0s; publishing is retried"}}},
		"asked to end": {duties: []roleHealth{busy}, ending: true,
			want: status{Live: true, Started: true, Reasons: []string{"the process is stopping"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot{now: now, collected: ago(10 * time.Second), maxAge: time.Minute, stall: stallAfter, faults: tt.faults,
				roles:  tt.duties,
				stores: tt.stores, policies: tt.policies, unreadable: tt.unread, ending: tt.ending}
			if tt.looked.Equal(time.Time{}.Add(1)) {
				s.collected = time.Time{}
			} else if !tt.looked.IsZero() {
				s.collected = tt.looked
			}
			if got := evaluate(s); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// A scene is the input of a Monitor.
type scene struct {
	states []metrics.RoleState
	lags   []admin.Lag
	lagErr error
	ping   error
	// stopped are partitions that the process has stopped reading.
	stopped []client.UnreadableBatch
	set     int // times that lags were set
	flaky   int // each so many looks one fails
	looks   int
}

func (s *scene) monitor(stall time.Duration) *Monitor {
	return New(Config{
		Log: slog.New(slog.DiscardHandler), StallAfter: stall, TopicPrefix: "p.",
		Roles: func() []metrics.RoleState { return s.states },
		Lags: func(context.Context, ...schemas.Role) ([]admin.Lag, error) {
			if s.looks++; s.flaky > 0 && s.looks%s.flaky == 0 {
				return nil, errors.New("unavailable")
			}
			return s.lags, s.lagErr
		},
		Ping:       func(context.Context) error { return s.ping },
		Unreadable: func() []string { return nil },
		Stopped:    func() []client.UnreadableBatch { return s.stopped },
		SetLags:    func([]admin.Lag) { s.set++ },
	})
}

func member(role schemas.Role, class schemas.Class, topic string) metrics.RoleState {
	return metrics.RoleState{Role: role, Class: class, Member: true, Owned: map[string]map[int32]bool{topic: {0: true}}}
}

func lag(role schemas.Role, class schemas.Class, topic schemas.Topic, partitions map[int32]int64) admin.Lag {
	l := admin.Lag{Role: role, Class: class, Group: fmt.Sprintf("p.%s.%s", role, class), Topic: topic,
		Partitions: partitions}
	for _, n := range partitions {
		l.Records += n
	}
	return l
}

// From the state of the runtime and the brokers to a status, minute by minute.
func TestHealth(t *testing.T) {
	high := member(schemas.RoleCopier, schemas.High, "p.duplication.high")
	behind := lag(schemas.RoleCopier, schemas.High, schemas.DuplicationHigh, map[int32]int64{0: 3})
	for name, tt := range map[string]struct {
		scene  scene
		during func(*scene, time.Duration) // called each minute
		live   bool                        // after ten of them
	}{
		"behind, and nothing is done": {scene: scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}}},
		"another owns the partition": {
			scene: scene{states: []metrics.RoleState{high},
				lags: []admin.Lag{lag(schemas.RoleCopier, schemas.High, schemas.DuplicationHigh,
					map[int32]int64{1: 3})}}, live: true},
		"the partition is stopped": {
			scene: scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind},
				stopped: []client.UnreadableBatch{{Reader: behind.Group, Topic: schemas.DuplicationHigh}}}, live: true},
		"another partition is stopped": {
			scene: scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind},
				stopped: []client.UnreadableBatch{{Reader: behind.Group, Topic: schemas.DuplicationHigh, Partition: 1}}}},
		"the partition is stopped for another group": {
			scene: scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind},
				stopped: []client.UnreadableBatch{{Reader: "p.sink", Topic: schemas.DuplicationHigh}}}},
		"another class is behind": {
			scene: scene{states: []metrics.RoleState{high},
				lags: []admin.Lag{lag(schemas.RoleCopier, schemas.Low, schemas.DuplicationHigh,
					map[int32]int64{0: 3})}}, live: true},
		"the role is paused": {
			scene:  scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}},
			during: func(s *scene, _ time.Duration) { s.lags[0].Paused = true }, live: true},
		"paused until a minute ago": {
			scene:  scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}},
			during: func(s *scene, d time.Duration) { s.lags[0].Paused = d < 9*time.Minute }, live: true},
		"all that is in flight is paused": {
			scene:  scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}},
			during: func(s *scene, _ time.Duration) { s.states[0].InFlight, s.states[0].Held = 3, 3 }, live: true},
		"one in flight is not paused": {
			scene:  scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}},
			during: func(s *scene, _ time.Duration) { s.states[0].InFlight, s.states[0].Held = 3, 2 }},
		"a class is kept back, another is done with its work": {
			scene: scene{states: []metrics.RoleState{high, member(schemas.RoleCopier, schemas.Low, "p.duplication.low")},
				lags: []admin.Lag{behind}},
			during: func(s *scene, _ time.Duration) { s.states[0].InFlight, s.states[0].Held = 3, 3 }, live: true},
		"a long task gets on": {
			scene:  scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}},
			during: func(s *scene, _ time.Duration) { s.states[0].Active = time.Now() }, live: true},
		"another class gets on": {
			scene: scene{states: []metrics.RoleState{high, member(schemas.RoleCopier, schemas.Low, "p.duplication.low")},
				lags: []admin.Lag{behind}},
			during: func(s *scene, _ time.Duration) { s.states[1].Active = time.Now() }, live: true},
		"another role gets on": {
			scene: scene{states: []metrics.RoleState{high, member(schemas.RoleChecker, schemas.High, "p.fixity.high")},
				lags: []admin.Lag{behind}},
			during: func(s *scene, _ time.Duration) { s.states[1].Active = time.Now() }},
		"now behind, now not": {
			scene:  scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}},
			during: func(s *scene, d time.Duration) { s.lags[0].Partitions = map[int32]int64{0: int64(d/time.Minute) % 2} },
			live:   true},
		"Kafka is back since a minute": {
			scene: scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}},
			during: func(s *scene, d time.Duration) {
				s.lagErr = nil
				if d < 9*time.Minute {
					s.lagErr = errors.New("unavailable")
				}
			}, live: true},
		"now and then Kafka does not say": {
			scene: scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}, flaky: 4}},
		"Kafka was unavailable for most of the time": {
			scene: scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}},
			during: func(s *scene, d time.Duration) {
				s.lagErr = nil
				if d >= 2*time.Minute && d < 8*time.Minute {
					s.lagErr = errors.New("unavailable")
				}
			}, live: true},
		"something was done before Kafka became unavailable": {
			scene: scene{states: []metrics.RoleState{high}, lags: []admin.Lag{behind}},
			during: func(s *scene, d time.Duration) {
				if d < 4*time.Minute {
					s.states[0].Active = time.Now()
				}
				s.lagErr = nil
				if d >= 4*time.Minute && d < 7*time.Minute {
					s.lagErr = errors.New("unavailable")
				}
			}, live: true},
		"the sink waits for ClickHouse": {
			scene: scene{states: []metrics.RoleState{member(schemas.RoleSink, schemas.High, "p.changes")},
				ping: errors.New("unavailable"),
				lags: []admin.Lag{lag(schemas.RoleSink, schemas.High, schemas.Changes, map[int32]int64{0: 3})}}, live: true},
		"the sink hangs": {
			scene: scene{states: []metrics.RoleState{member(schemas.RoleSink, schemas.High, "p.changes")},
				lags: []admin.Lag{lag(schemas.RoleSink, schemas.High, schemas.Changes, map[int32]int64{0: 3})}}},
		"the sweeper hangs": {scene: scene{states: []metrics.RoleState{{Role: schemas.RoleSweeper, Member: true, Busy: 1}}}},
		"the sweeper hangs later": {
			scene:  scene{states: []metrics.RoleState{{Role: schemas.RoleSweeper, Member: true}}},
			during: func(s *scene, d time.Duration) { s.states[0].Busy = int64(d / (4 * time.Minute)) }},
		"the sweeper has nothing to do": {
			scene: scene{states: []metrics.RoleState{{Role: schemas.RoleSweeper, Member: true}}}, live: true},
		"the sweeper gets on": {
			scene:  scene{states: []metrics.RoleState{{Role: schemas.RoleSweeper, Member: true, Busy: 1}}},
			during: func(s *scene, _ time.Duration) { s.states[0].Active = time.Now() }, live: true},
		"the sweeper waits for ClickHouse": {
			scene: scene{states: []metrics.RoleState{{Role: schemas.RoleSweeper, Member: true, Busy: 1}},
				ping: errors.New("unavailable")}, live: true},
		"the sweeper waits for Kafka": {
			scene: scene{states: []metrics.RoleState{{Role: schemas.RoleSweeper, Member: true, Busy: 1}}},
			during: func(s *scene, d time.Duration) {
				if d >= 2*time.Minute {
					s.lagErr = errors.New("unavailable")
				}
			}, live: true},
		"the copier hangs while ClickHouse is unavailable": {scene: scene{states: []metrics.RoleState{high},
			lags: []admin.Lag{behind}, ping: errors.New("unavailable")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := tt.scene
				s.lags, s.states = slices.Clone(s.lags), slices.Clone(s.states)
				h := s.monitor(stallAfter)
				for d := range 10 {
					if tt.during != nil {
						tt.during(&s, time.Duration(d)*time.Minute)
					}
					for range 4 {
						h.Collect(t.Context())
						if r := h.report(); d < 5 && !r.Live {
							t.Fatalf("unhealthy after %d minutes: %v", d, r.Reasons)
						}
						time.Sleep(h.interval())
					}
				}
				if r := h.report(); r.Live != tt.live {
					t.Errorf("live is %v, want %v: %v", r.Live, tt.live, r.Reasons)
				}
				if tt.scene.lagErr == nil && s.set == 0 {
					t.Error("the gauges of lag were never set")
				}
			})
		})
	}
}

// A collection that the stop interrupts records nothing. A short stall time shortens the interval.
func TestMonitorStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scene{lagErr: context.Canceled, ping: context.Canceled}
		h := s.monitor(10 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, h.Run(ctx))
		h.Collect(ctx)
		if !h.collected.IsZero() {
			t.Error("a look that was cut off counts")
		}
		if got, want := h.interval(), 2500*time.Millisecond; got != want {
			t.Errorf("looks every %v, want %v", got, want)
		}
	})
}

// While Kafka is starting the interval is short; then the process is ready.
func TestWhileKafkaStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scene{states: []metrics.RoleState{member(schemas.RoleCopier, schemas.High, "p.duplication.high")}}
		h := s.monitor(stallAfter)
		var started atomic.Bool
		h.c.Lags = func(context.Context, ...schemas.Role) ([]admin.Lag, error) {
			if !started.Load() {
				return nil, client.ErrOffsetsNotReady
			}
			return nil, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		synctest.Wait()
		if v := h.report().status; v.Ready || !v.Live {
			t.Errorf("while it starts: got %+v", v)
		}
		started.Store(true)
		time.Sleep(startingInterval)
		synctest.Wait()
		if v := h.report().status; !v.Ready {
			t.Errorf("a second later: got %+v", v)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A start that takes too long is reported as an error with its likely cause, and collected at the
// normal interval.
func TestWhenKafkaDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scene{states: []metrics.RoleState{member(schemas.RoleCopier, schemas.High, "p.duplication.high")},
			lagErr: client.ErrOffsetsNotReady}
		h, said := s.monitor(stallAfter), new(logtest.Lines)
		h.c.Log = said.Log()
		ctx, cancel := context.WithTimeout(t.Context(), startLimit+4*collectInterval+startingInterval/2)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		time.Sleep(startLimit + startingInterval/2)
		synctest.Wait()
		const cause = "offsets.topic.replication.factor may be larger than the number of brokers"
		if v := h.report().status; v.Ready || !v.Live || len(v.Reasons) != 1 ||
			!strings.Contains(v.Reasons[0], "kafka cannot keep offsets: ") ||
			!strings.Contains(v.Reasons[0], cause) {
			t.Errorf("after a minute: got %+v", v)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if starts, faults := said.Count("wait for Kafka to start"), said.Count(cause); starts != 60 || faults != 5 {
			t.Errorf("logged %d starts and %d faults, want 60, and then one each %v", starts, faults, collectInterval)
		}
	})
}
