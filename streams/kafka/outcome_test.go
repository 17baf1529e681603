package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

func TestPoolOutcomes(t *testing.T) {
	t.Parallel()
	errNet := errors.New("connection reset")
	good := kafkatest.Record{Partition: -1}
	var err error
	if good.Record, err = schemas.Encode(parttest.Change("a")); err != nil {
		t.Fatal(err)
	}
	garbage, later := good, good
	garbage.Value = []byte("{")
	later.Headers = append(slices.Clone(good.Headers), schemas.Header{Key: schemas.HeaderSpecVersion, Value: []byte("9")})

	for name, tt := range map[string]struct {
		rec      kafkatest.Record
		fail     []error // errors of the handler, call by call, before it succeeds
		panics   bool
		outputs  int
		calls    int
		class    string // of the dead letter
		errText  string
		attempts string
	}{
		"success":        {rec: good, outputs: 1, calls: 1},
		"cured in place": {rec: good, fail: []error{errNet, errNet}, outputs: 1, calls: 3},
		"permanent": {rec: good, fail: []error{retry.Permanent(errNet)}, calls: 1, class: "permanent",
			errText: "connection reset", attempts: "1"},
		"panic": {rec: good, panics: true, calls: 1, class: "permanent", errText: "handler panicked: boom",
			attempts: "1"},
		"garbage":             {rec: garbage, class: "permanent", errText: "malformed message", attempts: "1"},
		"of a future version": {rec: later, class: "permanent", errText: "malformed message", attempts: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				b.Write(tt.rec)
				calls := 0
				g := parttest.Planner(t, b, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					calls++
					if tt.panics {
						panic("boom")
					}
					if calls <= len(tt.fail) {
						return nil, tt.fail[calls-1]
					}
					return parttest.Plan(ctx, d)
				})
				must(t, parttest.Run(t, 20*time.Second, g))
				if got := len(b.Read(schemas.DuplicationHigh)); got != tt.outputs || calls != tt.calls {
					t.Errorf("got %d outputs of %d calls, want %d of %d", got, calls, tt.outputs, tt.calls)
				}
				if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 1 {
					t.Errorf("committed %d, want 1", got)
				}
				dead := b.Read(schemas.Dead)
				if tt.class == "" {
					if len(dead) != 0 {
						t.Errorf("dead letters: %v", dead)
					}
					return
				}
				if len(dead) != 1 {
					t.Fatalf("got %d dead letters, want 1", len(dead))
				}
				checkDead(t, dead[0], tt.rec, []string{tt.class, "changes", "0", "planner", tt.attempts})
				if got := dead[0].Header(schemas.HeaderError); !strings.Contains(got, tt.errText) {
					t.Errorf("error %q, want %q", got, tt.errText)
				}
			})
		})
	}
}

// checkDead checks that d is the dead letter of rec, with the retry headers in want.
func checkDead(t *testing.T, d, rec kafkatest.Record, want []string) {
	t.Helper()
	if string(d.Value) != string(rec.Value) || string(d.Key) != string(rec.Key) ||
		d.Header(schemas.HeaderID) != rec.Header(schemas.HeaderID) {
		t.Errorf("got %q, %q, %v: not the original", d.Key, d.Value, d.Headers)
	}
	var got []string
	for _, h := range []string{
		schemas.HeaderClass, schemas.HeaderOriginTopic, schemas.HeaderOriginOffset, schemas.HeaderRole,
		schemas.HeaderAttempts,
	} {
		got = append(got, d.Header(h))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A message that always fails passes the lanes, one longer than the other. It returns only to its role,
// unchanged, and becomes a dead letter after the fifth delivery.
func TestPoolLanes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Lanes: parttest.QuickLanes()})
		b.Send(parttest.Change("a"))
		type sight struct {
			topic, from schemas.Topic
			attempt     int
			last        bool
			after       time.Duration // since the first call of the delivery before
		}
		var got []sight
		var first, before time.Time
		g := parttest.Planner(t, b, func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if n := len(got); n == 0 || got[n-1].attempt != d.Attempt {
				if n == 0 {
					first, before = time.Now(), time.Now()
				}
				got = append(got, sight{d.Topic, d.From, d.Attempt, d.Last, time.Since(before).Round(30 * time.Second)})
				before = time.Now()
			}
			return nil, errors.New("unavailable")
		})
		parttest.Background(t, parttest.Delayer(t, b))
		must(t, parttest.Run(t, 20*time.Minute, g))
		want := []sight{
			{"changes", "changes", 1, false, 0},
			{"changes", "again.planner", 2, false, 30 * time.Second}, // and up to 10 s in place
			{"changes", "again.planner", 3, false, 2 * time.Minute},
			{"changes", "again.planner", 4, false, 5 * time.Minute},
			{"changes", "again.planner", 5, true, 10 * time.Minute},
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		dead := b.Read(schemas.Dead)
		if len(dead) != 1 {
			t.Fatalf("got %d dead letters, want 1", len(dead))
		}
		if h := dead[0].Header(schemas.HeaderHistory); strings.Count(h, `"attempt":`) != 1 ||
			!strings.Contains(h, `"times":5`) ||
			!strings.Contains(h, first.UTC().Format("2006-01-02T15:04")) {
			t.Errorf("history %s", h)
		}
		if n := len(b.Read(schemas.Changes)); n != 1 {
			t.Errorf("%d records in the journal, want 1", n)
		}
	})
}

// An unavailable error counts as no attempt and waits five minutes at most. A wait ends when it is due, and
// is counted separately.
func TestPoolClasses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err   func(start time.Time) error
		times int
		takes time.Duration
		want  string // attempt/waits of the last delivery, and its time
	}{
		"unavailable": {func(time.Time) error { return retry.Unavailable(errors.New("store 2 is unavailable")) }, 4,
			15 * time.Minute, "1/0 after 13m"},
		"wait, with a due time": {func(s time.Time) error { return retry.Wait(errors.New("not due"), s.Add(7*time.Minute)) },
			1, 9 * time.Minute, "1/1 after 7m"},
		"wait, without a due time": {func(time.Time) error { return retry.Wait(errors.New("no row"), time.Time{}) }, 3,
			9 * time.Minute, "1/3 after 8m"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Lanes: parttest.QuickLanes()})
				b.Send(parttest.Change("a"))
				start, calls, got := time.Now(), 0, ""
				g := parttest.Planner(t, b, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if calls++; calls <= tt.times {
						return nil, tt.err(start)
					}
					got = fmt.Sprintf("%d/%d after %s", d.Attempt, d.Waits,
						strings.TrimSuffix(time.Since(start).Round(time.Minute).String(), "0s"))
					return parttest.Plan(ctx, d)
				})
				parttest.Background(t, parttest.Delayer(t, b))
				must(t, parttest.Run(t, tt.takes, g))
				if got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
				if n := len(b.Read(schemas.DuplicationHigh)); n != 1 {
					t.Errorf("got %d outputs, want 1", n)
				}
			})
		})
	}
}

// A message with outputs that cannot be published is not committed, and is delivered again.
func TestPoolRefusedPublishIsNotCommitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(parttest.Change("a"))
		mend := b.FailProduce(schemas.DuplicationHigh, kafkatest.Refused, -1)
		if err := parttest.Run(t, time.Minute, parttest.Planner(t, b, parttest.Plan)); err == nil {
			t.Error("Run returned no error")
		}
		if n := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); n != 0 {
			t.Errorf("committed %d after a failed publish", n)
		}
		mend()
		must(t, parttest.Run(t, time.Minute, parttest.Planner(t, b, parttest.Plan)))
		if got, want := parttest.Items(b, schemas.DuplicationHigh), []string{"a"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// A publish that succeeded but was reported as lost leaves one output.
func TestPoolPublishReportedLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(parttest.Change("a"))
		b.FailProduce(schemas.DuplicationHigh, kafkatest.DoneNotAcknowledged, 1)
		must(t, parttest.Run(t, time.Minute, parttest.Planner(t, b, parttest.Plan)))
		if got, want := parttest.Items(b, schemas.DuplicationHigh), []string{"a"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// A failed commit is repeated without another message. A rejected commit ends Run, and the message is
// delivered again, as after a crash between publish and commit.
func TestPoolCommitFailsAndIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fault kafkatest.Fault
		times int
		stops bool
		want  []string
	}{
		"not done":      {kafkatest.NotDone, 30, false, []string{"a"}},
		"done but lost": {kafkatest.DoneNotAcknowledged, 30, false, []string{"a"}},
		"refused":       {kafkatest.Refused, -1, true, []string{"a", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				b.Send(parttest.Change("a"))
				mend := b.FailCommit(schemas.RolePlanner, tt.fault, tt.times)
				err := parttest.Run(t, 5*time.Minute, parttest.Planner(t, b, parttest.Plan))
				if (err != nil) != tt.stops {
					t.Fatalf("Run = %v", err)
				}
				if tt.stops {
					mend()
					must(t, parttest.Run(t, time.Minute, parttest.Planner(t, b, parttest.Plan)))
				}
				if got := parttest.Items(b, schemas.DuplicationHigh); !slices.Equal(got, tt.want) {
					t.Errorf("got %v, want %v", got, tt.want)
				}
				if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 1 {
					t.Errorf("committed %d, want 1", got)
				}
			})
		})
	}
}

// A Pool that is stopped while its handler waits commits nothing.
func TestPoolStopsWhileAHandlerWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(parttest.Change("a"))
		g := parttest.Planner(t, b, func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		must(t, parttest.Run(t, 5*time.Second, g))
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 0 {
			t.Errorf("committed %d", got)
		}
		if got := len(b.Read(schemas.Delay("30s"))); got != 0 {
			t.Errorf("%d records in the lane", got)
		}
	})
}

// Slow messages get their time, and a message with a handler that does not end goes to a lane.
func TestPoolSlowAndHung(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		for i := range 10 {
			b.Send(parttest.Change(fmt.Sprint(i)))
		}
		g := pool(t, b, kafka.PoolConfig{StallTimeout: 10 * time.Second},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				wait := 2 * time.Second
				if d.Body.(*pb.Change).GetItem() == "4" {
					wait = time.Hour
				}
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(wait):
					return parttest.Plan(ctx, d)
				}
			})
		must(t, parttest.Run(t, 5*time.Minute, g))
		if got, want := parttest.Items(b, schemas.DuplicationHigh),
			[]string{"0", "1", "2", "3", "5", "6", "7", "8", "9"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if got := len(b.Read(schemas.Delay("30s"))); got != 1 {
			t.Errorf("%d records in the lane, want 1", got)
		}
	})
}
