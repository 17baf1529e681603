package admin_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
)

// A group that has committed nothing, or an impossible offset, blocks its topics. The start and the end of that
// are logged.
func TestTrimBlocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		_, cfg := parttest.Bare(t, 1, 1)
		cfg.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo,
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}}))
		parttest.Fill(t, cfg, schemas.DuplicationResults, 10, 1)
		parttest.Commit(t, cfg, "millrace.sink", schemas.DuplicationResults, 10)
		time.Sleep(time.Minute)
		tr := parttest.Trimmer(t, cfg, 0)
		says := func(want ...string) {
			t.Helper()
			for range 2 {
				if _, err := tr.Trim(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			out.Reset()
			if len(got) != len(want) {
				t.Fatalf("log %q, want %q", got, want)
			}
			for i := range want {
				if !strings.HasPrefix(got[i], want[i]) {
					t.Errorf("log %q, want %q", got[i], want[i])
				}
			}
		}
		what := " part=trimmer group=millrace.steward topic=millrace.duplication.results"
		says(`level=WARN msg="skip trimming topic: a group that reads it has committed nothing"` + what)
		parttest.Commit(t, cfg, "millrace.steward", schemas.DuplicationResults, 99)
		says(`level=INFO msg="trim topic again"`+what,
			`level=WARN msg="skip trimming topic: a group has committed an offset beyond its end"`+what)
		if got := fmt.Sprint(parttest.LogStarts(t, cfg, schemas.DuplicationResults)); got != "map[0:0]" {
			t.Errorf("starts at %s", got)
		}
		parttest.Commit(t, cfg, "millrace.steward", schemas.DuplicationResults, 8)
		says(`level=INFO msg="trim topic again"` + what)
		if got := fmt.Sprint(parttest.LogStarts(t, cfg, schemas.DuplicationResults)); got != "map[0:8]" {
			t.Errorf("starts at %s", got)
		}
	})
}

// A failure in one partition does not affect others, and the next Trim makes up for it.
func TestTrimFaults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fault       kfake.Fault
		first, then string // log starts of the two partitions
		fails       bool
	}{
		"not deleted": {kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteRecords}, Partitions: []int32{1},
			Err: kerr.TopicAuthorizationFailed},
			"map[0:5 1:0]", "map[0:5 1:5]", true},
		"deleted but reported failed": {kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteRecords},
			Partitions: []int32{1}, Err: kerr.RequestTimedOut},
			"map[0:5 1:5]", "map[0:5 1:5]", true},
		"no start": {kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Partitions: []int32{1},
			Err: kerr.UnknownServerError, When: listing(-2)},
			"map[0:5 1:0]", "map[0:5 1:5]", true},
		"no end": {kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Partitions: []int32{1},
			Err: kerr.UnknownServerError, When: listing(-1)},
			"map[0:5 1:0]", "map[0:5 1:5]", true},
		"no commits": {kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: "millrace.copier",
			Err: kerr.GroupAuthorizationFailed},
			"map[0:0 1:0]", "map[0:5 1:5]", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, cfg := parttest.Bare(t, 1, 2)
				parttest.Fill(t, cfg, schemas.DuplicationHigh, 6, 2)
				parttest.Fill(t, cfg, schemas.Jobs, 5, 1)
				group := "millrace.copier"
				for id := range int32(2) {
					parttest.CommitOf(t, cfg, group,
						kadm.Offset{Topic: string(schemas.DuplicationHigh), Partition: id, At: 6, LeaderEpoch: -1})
				}
				parttest.Commit(t, cfg, "millrace.sink", schemas.Jobs, 5)
				time.Sleep(time.Minute)
				tr := parttest.Trimmer(t, cfg, 0)
				mend := cluster.Fault(tt.fault)
				_, err := tr.Trim(t.Context())
				if (err != nil) != tt.fails {
					t.Errorf("error %v", err)
				}
				if mend.Hits() == 0 {
					t.Error("the fault did not happen")
				}
				if got := fmt.Sprint(parttest.LogStarts(t, cfg, schemas.DuplicationHigh)); got != tt.first {
					t.Errorf("at first %s, want %s", got, tt.first)
				}
				if got := fmt.Sprint(parttest.LogStarts(t, cfg, schemas.Jobs)); got != "map[0:4 1:0]" {
					t.Errorf("another topic %s", got)
				}
				mend.Remove()
				if _, err := tr.Trim(t.Context()); err != nil {
					t.Error(err)
				}
				if got := fmt.Sprint(parttest.LogStarts(t, cfg, schemas.DuplicationHigh)); got != tt.then {
					t.Errorf("then %s, want %s", got, tt.then)
				}
			})
		})
	}
}

// listing reports whether a request asks for offsets at a timestamp.
func listing(timestamp int64) func(kmsg.Request) bool {
	return func(r kmsg.Request) bool {
		req, ok := r.(*kmsg.ListOffsetsRequest)
		return ok && len(req.Topics) > 0 && req.Topics[0].Partitions[0].Timestamp == timestamp
	}
}

// Records that are handled during a Trim are trimmed by the next one at the earliest, and unhandled ones never: a
// reader finds every record that it has not read.
func TestTrimWhileReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, cfg := parttest.Bare(t, 1, 2)
		p, err := kafka.NewProducer(cfg, "test")
		must(t, err)
		defer p.Close()
		var seen atomic.Int64
		g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RoleCopier,
			Topics: []schemas.Topic{schemas.DuplicationHigh}},
			func(context.Context, *schemas.Delivery) ([]schemas.Message, error) { seen.Add(1); return nil, nil })
		must(t, err)
		parttest.Background(t, g)
		tr := parttest.Trimmer(t, cfg, 0)
		n := need.Amount(60, 200, 200)
		for i := range n {
			must(t, p.Publish(t.Context(), numberedCommand(i)))
			if _, err := tr.Trim(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		if removed, err := tr.Trim(t.Context()); err != nil || seen.Load() != int64(n) {
			t.Errorf("seen %d, want %d; %v, %v", seen.Load(), n, removed, err)
		}
	})
}

func numberedCommand(i int) schemas.Message {
	return parttest.Command(parttest.Change(fmt.Sprint(i)).Body.(*pb.Change))
}

// Each topic is trimmed up to the slowest of its readers, whichever group reads it, and no further than keep allows.
func TestTrim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, cfg := parttest.Bare(t, 1, 1)
		topics := []schemas.Topic{schemas.DuplicationHigh, schemas.DuplicationLow, schemas.FixityResults,
			schemas.Again(schemas.RoleChecker),
			schemas.Delay("30s"), schemas.Delay("90d"), schemas.Changes, schemas.Incidents, schemas.Dead,
			schemas.Jobs, "foreign"}
		for _, name := range []string{"millrace.delay.90d", "millrace.foreign"} {
			if _, err := parttest.Kadm(t, cfg).CreateTopic(t.Context(), 1, 1, nil, name); err != nil {
				t.Fatal(err)
			}
		}
		for _, topic := range topics {
			parttest.Fill(t, cfg, topic, 10, 1)
		}
		time.Sleep(2 * time.Hour)
		for _, topic := range topics {
			parttest.Fill(t, cfg, topic, 10, 1)
		}
		for _, c := range []struct {
			group string
			topic schemas.Topic
			at    int64
		}{
			// commits from before there were classes
			{"copier", schemas.DuplicationHigh, 7}, {"copier.low", schemas.DuplicationLow, 20},
			{"copier", schemas.DuplicationLow, 3},
			{"steward", schemas.FixityResults, 9}, {"sink", schemas.FixityResults, 8}, {"state", schemas.FixityResults, 6},
			{"checker.low", schemas.Again(schemas.RoleChecker), 4}, {"delayer", schemas.Delay("30s"), 5},
			{"delayer", schemas.Delay("90d"), 6},
			{"planner", schemas.Changes, 20}, {"sink", schemas.Changes, 20}, {"state", schemas.Changes, 20},
			{"sink", schemas.Incidents, 20}, {"sink", schemas.Dead, 20},
			{"sink", "foreign", 20},
		} {
			parttest.Commit(t, cfg, "millrace."+c.group, c.topic, c.at)
		}
		tr := parttest.Trimmer(t, cfg, time.Hour)
		removed, err := tr.Trim(t.Context())
		must(t, err)
		want := map[schemas.Topic]int64{schemas.DuplicationHigh: 7, schemas.DuplicationLow: 10, schemas.FixityResults: 6,
			schemas.Again(schemas.RoleChecker): 4, schemas.Delay("30s"): 5, schemas.Delay("90d"): 6}
		if !maps.Equal(removed, want) {
			t.Errorf("removed %v, want %v", removed, want)
		}
		for _, topic := range topics {
			if got := parttest.LogStarts(t, cfg, topic)[0]; got != want[topic] {
				t.Errorf("%s starts at %d, want %d", topic, got, want[topic])
			}
		}
		if removed, err := tr.Trim(t.Context()); err != nil || len(removed) != 0 {
			t.Errorf("once more: %v, %v", removed, err)
		}
		time.Sleep(2 * time.Hour)
		if removed, err := tr.Trim(t.Context()); err != nil ||
			!maps.Equal(removed, map[schemas.Topic]int64{schemas.DuplicationLow: 9}) {
			t.Errorf("when all is old, and all but the newest goes: %v, %v", removed, err)
		}
	})
}
