package app

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/health"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/kafka/metrics/metricstest"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep"
)

// The metrics of a job say when it began and ended last, also while the next iteration is under way, and count its
// failures and overruns.
func TestSweepMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := trimming(t, b, 0)
		a.registry = health.NewRegistry()
		a.sweepMetrics = sweep.NewMetrics(a.registry, sweepLabels())
		begun := time.Now()
		iterations := 0
		split := a.job(trimJob, trimTopics, StoreName{}, func(context.Context, *slog.Logger) (map[string]int64, error) {
			switch iterations++; iterations {
			case 1:
				return nil, errors.New("away")
			case 3:
				time.Sleep(5 * time.Minute)
			}
			return nil, nil
		})
		known, err := a.newCheckpoints()
		must(t, err)
		p, err := a.newPeriodic(known, func(string, string) bool { return true }, "jobs", 1)
		must(t, err)
		p.addJob(newTimetable(trimJob, schedule.MustParse("every 30s"), a.log),
			func(context.Context) ([]sweep.Split, error) { return []sweep.Split{split}, nil })
		a.registry.MustRegister(newSweepTimes(known))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- known.Run(ctx) }()
		go func() { ended <- p.Run(ctx, p.kinds, p.changed) }()
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		got := metricstest.Gather(t, a.registry, "millrace_sweep_")
		first, last := got["millrace_sweep_round_ended_timestamp_seconds{sweep=trim}"],
			got["millrace_sweep_round_begun_timestamp_seconds{sweep=trim}"]
		if first < float64(begun.Unix()) || last <= first || last > float64(time.Now().Unix()) {
			t.Errorf("ended at %f, begun at %f, started at %d", first, last, begun.Unix())
		}
		for name, want := range map[string]float64{"failures_total": 1, "stalls_total": 0, "overruns_total": 1} {
			if got := got["millrace_sweep_"+name+"{sweep=trim}"]; got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// The newest times count, also of rounds by hand. A round that begins leaves the end of the one before. What is no
// sweep and no job is not exported, nor is a time that is unknown.
func TestSweepTimes(t *testing.T) {
	t.Parallel()
	at := func(seconds int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: seconds} }
	known := &checkpoints{times: map[string]sweepTimes{}}
	for _, c := range []*pb.Checkpoint{
		{Sweep: sweep.FixitySweep, Started: at(1000), Finished: at(1500)},
		{Sweep: sweep.FixitySweep, Started: at(2000)},
		{Sweep: sweep.FixitySweep + demand, Started: at(1200), Finished: at(1300)},
		{Sweep: StatsSweep + demand, Started: at(1)},
		{Sweep: "brake", Started: at(9000), Finished: at(9000)},
	} {
		known.times[c.GetSweep()] = known.times[c.GetSweep()].with(c)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(newSweepTimes(known))
	metricstest.Compare(t, metricstest.Gather(t, reg), map[string]float64{
		"millrace_sweep_round_begun_timestamp_seconds{sweep=fixity}": 2000,
		"millrace_sweep_round_ended_timestamp_seconds{sweep=fixity}": 1500,
		"millrace_sweep_round_begun_timestamp_seconds{sweep=stats}":  1,
	})
}
