package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/schedule"
)

// trimming is an App that hourly trims records older than keep.
func trimming(t *testing.T, b *kafkatest.Broker, keep time.Duration) *App {
	t.Helper()
	a, err := admin.New(b.Config())
	must(t, err)
	t.Cleanup(a.Close)
	p, err := kafka.NewProducer(b.Config(), "test")
	must(t, err)
	t.Cleanup(p.Close)
	return &App{cfg: &config.Config{Trim: config.Trim{Schedule: schedule.MustParse("every 1h"), Keep: keep}},
		log: slog.New(slog.DiscardHandler), admin: a, producer: p, kafka: b.Config(), controls: &client.Controls{}}
}

// Changed positions of groups are recorded. After a failure, or a lost acknowledgement, the next
// run records them.
func TestPublishPositions(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kafkatest.Fault{"refused": kafkatest.Refused,
		"done, but reported lost": kafkatest.DoneNotAcknowledged} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				a := trimming(t, b, time.Minute)
				send := func() { // it becomes a dead letter, and is committed
					b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.DuplicationHigh, Key: []byte("k"),
						Value: []byte("malformed")}})
				}
				send()
				g, err := kafka.NewPool(b.Config(),
					kafka.PoolConfig{Role: schemas.RoleCopier, Topics: []schemas.Topic{schemas.DuplicationHigh}},
					func(context.Context, *schemas.Delivery) ([]schemas.Message, error) { return nil, nil })
				must(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 2)
				go func() { ended <- g.Run(ctx) }()
				time.Sleep(time.Minute)
				positions := a.periodic("group offsets", groupOffsetInterval, a.publishGroupOffsets)
				mend := b.FailProduce(schemas.Checkpoints, fault, -1)
				go func() { ended <- positions.run(ctx) }()
				time.Sleep(time.Minute)
				mend()
				count := func() int { return len(b.Read(schemas.Checkpoints)) }
				before := count()
				if fault == kafkatest.Refused && before != 0 {
					t.Errorf("%d on record though refused", before)
				}
				time.Sleep(groupOffsetInterval)
				first := count()
				if first != max(before, 1) {
					t.Errorf("%d on record after the next time, %d before", first, before)
				}
				time.Sleep(3 * groupOffsetInterval)
				if got := count(); got != first {
					t.Errorf("%d on record though nothing has moved", got)
				}
				send()
				time.Sleep(groupOffsetInterval + time.Minute)
				if got := count(); got != first+1 {
					t.Errorf("%d on record after the group has moved, want %d", got, first+1)
				}
				cancel()
				for range 2 {
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

func wholeTables(context.Context) (map[schemas.Topic]map[int32]int64, error) { return nil, nil }

// The trimmer trims at startup and then periodically. Each run is recorded as a job with the
// deleted records by topic. A failed run is followed by the next.
func TestTrimmer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := trimming(t, b, time.Minute)
		a.cfg.Trim.Schedule = schedule.MustParse("every 10m")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		const topic = schemas.DuplicationHigh // has one reader
		// Two records, of which the newest stays.
		for range 2 {
			b.Write(kafkatest.Record{Record: schemas.Record{Topic: topic, Key: []byte("k"), Value: []byte("malformed")}})
		}
		g, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleCopier, Topics: []schemas.Topic{topic}},
			func(context.Context, *schemas.Delivery) ([]schemas.Message, error) { return nil, nil })
		must(t, err)
		reading, stop := context.WithCancel(ctx)
		defer stop()
		read := make(chan error, 1)
		go func() { read <- g.Run(reading) }()
		time.Sleep(2 * time.Minute)
		synctest.Wait()

		trimmer := a.newTrimmer(wholeTables)
		go func() { ended <- runJobs(ctx, t, a, trimJob, a.cfg.Trim.Schedule, a.trimSplit(trimmer)) }()
		time.Sleep(time.Minute)
		mend := b.Disconnect()
		time.Sleep(10 * time.Minute) // one that fails
		mend()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		cancel()
		for _, end := range []chan error{ended, read} {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
		var failed, good int
		removed := int64(0)
		for _, body := range b.Bodies(schemas.Jobs) {
			j := body.(*pb.Job)
			if j.GetName() != "trim/topics" || j.GetFinished().AsTime().Before(j.GetStarted().AsTime()) {
				t.Errorf("got %v", j)
			}
			if j.GetError() != "" {
				failed++
				continue
			}
			good++
			removed += j.GetCounts()[string(topic)]
		}
		if good != 2 || removed != 1 {
			t.Errorf("%d jobs that went well removed %d records, %d failed: want 2 and 1", good, removed, failed)
		}
	})
}

// While the job, the sweeper or everything is paused, nothing is trimmed; after the pause it is.
func TestTrimmerIsPaused(t *testing.T) {
	for name, ctl := range map[string]*pb.Control{"all": {Paused: true},
		"the sweeper": {Paused: true, Role: string(schemas.RoleSweeper)}, "the job": {Paused: true, Sweep: trimJob}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				a := trimming(t, b, 0)
				a.controls = &client.Controls{}
				set := func(paused bool) {
					ctl.Paused = paused
					must(t, a.controls.Apply([]byte(schemas.Key(ctl.GetRole(), "", "", ctl.GetSweep())), ctl))
				}
				jobs := func(when string, want int) {
					t.Helper()
					time.Sleep(2*time.Hour + 10*time.Minute) // what is due is looked for once a minute
					synctest.Wait()
					if got := len(b.Bodies(schemas.Jobs)); got != want {
						t.Errorf("%s: %d jobs, want %d", when, got, want)
					}
				}
				set(true)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				trimmer := a.newTrimmer(wholeTables)
				go func() { ended <- runJobs(ctx, t, a, trimJob, a.cfg.Trim.Schedule, a.trimSplit(trimmer)) }()
				jobs("paused from the start", 0)
				set(false)
				jobs("let go", 3)
				set(true)
				jobs("paused on the way", 3)
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Records that a table lacks stay in Kafka until a rebuild has stored them; while ClickHouse is
// unavailable, those of the whole topic.
func TestTrimmerKeepsWhatTablesLack(t *testing.T) {
	t.Parallel()
	need.Integration(t)
	r := newRestored(t)
	r.work(0, 20)
	r.b.ReplaceMembers(schemas.RoleSteward, schemas.FixityResults, map[int32]int64{0: 20}) // the other reader
	unavailable := func(context.Context) (map[schemas.Topic]map[int32]int64, error) {
		return nil, errors.New("ClickHouse is unavailable")
	}
	for _, tt := range []struct {
		name    string
		before  func()
		lacking func(context.Context) (map[schemas.Topic]map[int32]int64, error)
		want    int64 // where the log starts then
	}{
		{"a log and the state lack all", func() { r.empty("bit_log", "copy_state") }, r.app.gapStarts, 0},
		{"ClickHouse is unavailable", func() {}, unavailable, 0},
		{"it is filled, and ClickHouse is unavailable", func() {
			if _, err := r.rebuild(t.Context(), quiet); err != nil {
				t.Fatal(err)
			}
		}, unavailable, 0},
		{"it is filled", func() {}, r.app.gapStarts, 19}, // the newest stays
	} {
		tt.before()
		_, err := trim(t.Context(), r.app.log, r.app.newTrimmer(tt.lacking))
		if away := strings.Contains(tt.name, "unavailable"); (err != nil) != away {
			t.Errorf("%s: %v", tt.name, err)
		}
		e, err := r.admin.Extent(t.Context(), schemas.FixityResults)
		if err != nil || e.Starts[0] != tt.want {
			t.Errorf("%s: the log starts at %v, %v, want %d", tt.name, e.Starts, err, tt.want)
		}
	}
	r.whole(20)
}
