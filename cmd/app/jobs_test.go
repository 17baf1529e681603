package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep"
)

// runJobs runs the splits of a job by a schedule until ctx is done.
func runJobs(ctx context.Context, t *testing.T, a *App, name string, s schedule.Schedule, splits ...sweep.Split) error {
	t.Helper()
	known, err := a.newCheckpoints()
	if err != nil {
		return err
	}
	p, err := a.newPeriodic(known, nil, "jobs", 1)
	if err != nil {
		return err
	}
	tt := newTimetable(name, s, a.log)
	tt.set = &a.schedules
	p.addJob(tt, func(context.Context) ([]sweep.Split, error) { return splits, nil })
	a.onJobRequest = p.lookNow
	ended := make(chan error, 1)
	go func() { ended <- known.Run(ctx) }()
	err = p.Run(ctx, p.kinds, p.changed)
	return errors.Join(err, <-ended)
}

// A request begins an iteration of the jobs that it names, once, also of one that has no schedule, and another one
// after the one that is under way.
func TestJobIsRequested(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := trimming(t, b, 0)
		a.stores = openTestStores(t, dir)
		must(t, a.newActions())
		var done []string
		var during func() // is called during the next iteration
		split := func(name string, of StoreName) sweep.Split {
			do := func(context.Context, *slog.Logger) (map[string]int64, error) {
				if done = append(done, name); during != nil {
					during()
				}
				during = nil
				return nil, nil
			}
			return a.job(expireJob, schemas.Key(of.Account, of.Store), of, do)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- a.actions.Run(ctx) }()
		go func() {
			ended <- runJobs(ctx, t, a, expireJob, schedule.Schedule{}, split("a", StoreName{"acme", "a"}),
				split("b", StoreName{"acme", "b"}))
		}()
		request := func(name string, want ...string) {
			t.Helper()
			done = nil
			if _, err := a.StartJob(t.Context(), name, Actor{Who: "ann"}); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if slices.Sort(done); !slices.Equal(done, want) {
				t.Errorf("%s: %q, want %q", name, done, want)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(done) > 0 {
			t.Errorf("%q were done without a request", done)
		}
		request("expire/acme/a", "a")
		request("expire", "a", "b")
		during = func() {
			if _, err := a.StartJob(t.Context(), "expire/acme/b", Actor{Who: "ann"}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		request("expire/acme/b", "b", "b")
		if _, err := a.StartJob(t.Context(), "expire/acme/z", Actor{}); !errors.As(err, new(*UnknownNameError)) {
			t.Errorf("a job that does not exist: %v", err)
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// Each log line of an iteration has its id, from its begin to its end, also if attempts fail in between, and the time
// of its start, which the table job_log has.
func TestIterationsHaveIDsInTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := trimming(t, b, 0)
		lines := &logtest.Lines{}
		a.log = lines.Log()
		begun := time.Now()
		attempts := 0
		split := a.job(trimJob, trimTopics, StoreName{}, func(_ context.Context, log *slog.Logger) (map[string]int64, error) {
			log.Info("trimmed topics")
			if attempts++; attempts == 1 {
				return nil, errors.New("away")
			}
			return nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runJobs(ctx, t, a, trimJob, schedule.MustParse("every 10d"), split) }()
		time.Sleep(time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		id := schemas.ID("round", trimJob, trimTopics, begun.UTC().Format(time.RFC3339Nano))
		for text, want := range map[string]int{"begin round": 2, "trimmed topics": 2, "run sweep": 1, "end round": 1} {
			got := 0
			for line := range strings.Lines(lines.String()) {
				if strings.Contains(line, text) && strings.Contains(line, "sweep=trim split=topics round="+id) {
					got++
				}
			}
			if got != want {
				t.Errorf("%d lines %q have the id, want %d: %s", got, text, want, lines)
			}
		}
		job := b.Bodies(schemas.Jobs)[0].(*pb.Job)
		if text := "started=" + job.GetStarted().AsTime().Format("2006-01-02T15:04:05.000Z07:00"); lines.Count(text) != 2 {
			t.Errorf("%d lines have %q", lines.Count(text), text)
		}
	})
}

// What a job has done before it failed is on record with the failure. It is tried again after a while, and not once
// more at once.
func TestJobFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := trimming(t, b, 0)
		var at []time.Time
		split := a.job(trimJob, trimTopics, StoreName{}, func(context.Context, *slog.Logger) (map[string]int64, error) {
			if at = append(at, time.Now()); len(at) < 3 {
				return map[string]int64{"removed": 5}, errors.New("away")
			}
			return map[string]int64{"removed": 2}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runJobs(ctx, t, a, trimJob, schedule.MustParse("every 10d"), split) }()
		time.Sleep(2 * time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		var got []string
		for _, body := range b.Bodies(schemas.Jobs) {
			j := body.(*pb.Job)
			got = append(got, fmt.Sprint(j.GetCounts()["removed"], j.GetError() != ""))
		}
		if want := []string{"5 true", "5 true", "2 false"}; !slices.Equal(got, want) {
			t.Errorf("jobs %q, want %q", got, want)
		}
		for i, least := range []time.Duration{30 * time.Second, time.Minute} {
			if len(at) == 3 && at[i+1].Sub(at[i]) < least {
				t.Errorf("attempt %d came %v after the one before", i+1, at[i+1].Sub(at[i]))
			}
		}
	})
}

// A request is open until an iteration has begun after it, also outside of the schedule, and while one fails. One that
// is older than a job is not.
func TestJobRequests(t *testing.T) {
	now := time.Date(2026, 9, 2, 12, 0, 0, 0, time.UTC)
	cursor := func(request string) []byte { return []byte(`{"request":"` + request + `","parts":[{"next":5}]}`) }
	ended := timestamppb.New(now)
	for name, tt := range map[string]struct {
		requests []string // the newest last
		age      time.Duration
		last     *pb.Checkpoint
		want     bool
	}{
		"none":                            {nil, 0, &pb.Checkpoint{Finished: ended}, false},
		"the first, of a job without any": {[]string{"a"}, time.Hour, nil, true},
		"older than the job":              {[]string{"a"}, 25 * time.Hour, nil, false},
		"old, of a job that has run":      {[]string{"a"}, 25 * time.Hour, &pb.Checkpoint{Finished: ended}, true},
		"fulfilled":                       {[]string{"a"}, 0, &pb.Checkpoint{Finished: ended, Cursor: cursor("a")}, false},
		"another one": {[]string{"a", "b"}, 0, &pb.Checkpoint{Finished: ended, Cursor: cursor("a")},
			true},
		"under way": {[]string{"b"}, 0, &pb.Checkpoint{Previous: cursor("a"), Cursor: cursor("b")},
			true},
		"not a cursor": {[]string{"b"}, 0, &pb.Checkpoint{Finished: ended, Cursor: []byte("x")}, false},
	} {
		var r jobRequests
		for i, id := range tt.requests {
			r.apply(&pb.AdminAction{Id: id, Action: actionStartJob, Target: "trim/topics"},
				now.Add(time.Duration(i)*time.Second-tt.age))
		}
		// A record that is read late, since partitions were added.
		r.apply(&pb.AdminAction{Id: "old", Action: actionStartJob, Target: "trim/topics"}, now.Add(-1000*time.Hour))
		if len(tt.requests) == 0 {
			r = jobRequests{}
		}
		if got := r.open("trim/topics", tt.last, now); got != tt.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// While a job is off, or its window is closed, an unfinished iteration does not go on, unless one is requested.
func TestTimetableOfAJob(t *testing.T) {
	for _, text := range []string{"off", "every 1d window 02:00-02:01"} {
		synctest.Test(t, func(t *testing.T) { // it is midnight
			requested := false
			tt := newTimetable("expire", schedule.Schedule{}, slog.New(slog.DiscardHandler))
			if text != "off" {
				tt.configured = schedule.MustParse(text)
			}
			tt.requested = func(string, string) bool { return requested }
			all, err := tt.of(func(context.Context) ([]sweep.Split, error) {
				return []sweep.Split{{Sweep: "expire", Name: "a", Blocked: func(context.Context) error { return nil }}}, nil
			})(t.Context())
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			for range 2 {
				blocked, due := all[0].Blocked(t.Context()), all[0].Due(nil, time.Now())
				if (blocked == nil) != requested || due != requested {
					t.Errorf("%s, requested %t: blocked %v, due %t", text, requested, blocked, due)
				}
				requested = true
			}
		})
	}
}

func TestJobNames(t *testing.T) {
	a := &App{cfg: &config.Config{Audit: config.Audit{Exports: []config.AuditExport{{Name: "daily"}}}}}
	a.stores = openTestStores(t, t.TempDir())
	want := []string{"audit.export/daily", "expire/acme/a", "expire/acme/b", "expire/zoo/a", "trim/topics"}
	if got := a.jobNames(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
