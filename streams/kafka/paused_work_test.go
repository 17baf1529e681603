package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// Partitions hold messages of many accounts. Paused messages are held or, if they keep others from being
// read, go to the lanes. That counts as no attempt, and they are handled after the pause.
func TestPausePart(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		entry *pb.Control
		lasts time.Duration // of the pause
		room  int64         // bytes that may be held
		// When the message is handled: through the lanes after 30 s, 2 m, and then 5 m each.
		after string
	}{
		"its account": {&pb.Control{Account: "acme", Paused: true}, 11 * time.Minute, 1, "13m0s"},
		"its store":   {&pb.Control{Account: "acme", Store: "1", Paused: true}, 2 * time.Minute, 1, "3m0s"},
		"its role for its account": {&pb.Control{Role: "planner", Account: "acme", Paused: true}, 2 * time.Minute, 1,
			"3m0s"},
		"its role for its store": {&pb.Control{Role: "planner", Account: "acme", Store: "1", Paused: true},
			2 * time.Minute, 1, "3m0s"},
		"its account, with room": {&pb.Control{Account: "acme", Paused: true}, 11 * time.Minute, 0, "11m0s"},
		"another store":          {&pb.Control{Account: "acme", Store: "2", Paused: true}, 2 * time.Minute, 1, "0s"},
		"another role for its account": {&pb.Control{Role: "steward", Account: "acme", Paused: true}, 2 * time.Minute, 1,
			"0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: parttest.QuickLanes()})
				other := parttest.Change("other")
				other.Body.(*pb.Change).Account = "umbrella"
				b.Send(parttest.Change("a"), other)
				cfg, c := paused(t, b, tt.entry)
				var mu sync.Mutex // guards got: messages are handled concurrently
				start, got := time.Now(), map[string]string{}
				g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
					Describe: kafka.WorkOf, Bytes: tt.room},
					func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
						history := slices.ContainsFunc(d.Headers, func(h schemas.Header) bool { return h.Key == schemas.HeaderHistory })
						mu.Lock()
						defer mu.Unlock()
						got[d.Body.(*pb.Change).GetItem()] = fmt.Sprintf("attempt %d, waits %d, history %v after %v", d.Attempt,
							d.Waits, history, time.Since(start).Round(time.Minute))
						return parttest.Plan(ctx, d)
					})
				must(t, err)
				parttest.Background(t, g)
				parttest.Background(t, parttest.Delayer(t, b))
				time.Sleep(tt.lasts)
				lift := &pb.Control{Role: tt.entry.GetRole(), Account: tt.entry.GetAccount(), Store: tt.entry.GetStore()}
				apply(t, c, lift)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				want := map[string]string{
					"a":     "attempt 1, waits 0, history false after " + tt.after,
					"other": "attempt 1, waits 0, history false after 0s",
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got  %v\nwant %v", got, want)
				}
				if n := len(b.Read(schemas.Dead)) + len(b.Read(schemas.Delay("10m"))); n > 0 {
					t.Errorf("%d dead letters and messages in a lane that is too long", n)
				}
			})
		})
	}
}

// A role without an again topic handles paused messages, because they could not come back.
func TestPausePartOfRoleWithoutLanes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(parttest.Change("a"))
		cfg, _ := paused(t, b, &pb.Control{Account: "acme", Paused: true})
		g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RoleSink, Topics: []schemas.Topic{schemas.Changes}},
			parttest.Plan)
		must(t, err)
		must(t, parttest.Run(t, time.Minute, g))
		if got, want := parttest.Items(b, schemas.DuplicationHigh), []string{"a"}; !slices.Equal(got, want) ||
			len(b.Read(schemas.Dead)) > 0 {
			t.Errorf("got %v and %d dead letters, want %v and none", got, len(b.Read(schemas.Dead)), want)
		}
	})
}

// A message that cannot be moved to a lane is not committed. One that was moved, but was reported as lost, is
// there once.
func TestPausedRecordIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fault     kafkatest.Fault
		stops     bool
		committed int64
		lane      int
	}{
		"refused":       {kafkatest.Refused, true, 0, 0},
		"not done":      {kafkatest.NotDone, false, 1, 1},
		"done but lost": {kafkatest.DoneNotAcknowledged, false, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				b.Send(parttest.Change("a"))
				b.FailProduce(schemas.Delay("30s"), tt.fault, 1)
				cfg, _ := paused(t, b, &pb.Control{Account: "acme", Paused: true})
				g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
					Describe: kafka.WorkOf, Bytes: 1}, parttest.Plan)
				must(t, err)
				if err := parttest.Run(t, time.Minute, g); (err != nil) != tt.stops {
					t.Errorf("Run = %v", err)
				}
				if at, n := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)),
					len(b.Read(schemas.Delay("30s"))); at != tt.committed || n != tt.lane {
					t.Errorf("committed %d, %d in the lane, want %d, %d", at, n, tt.committed, tt.lane)
				}
			})
		})
	}
}
