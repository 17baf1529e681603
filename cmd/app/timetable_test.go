package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/logtest"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep"
)

// roundAt returns the checkpoint of a round that began then.
func roundAt(at time.Time) *pb.Checkpoint {
	return &pb.Checkpoint{Round: at.String(), Started: timestamppb.New(at)}
}

func TestTimetableDue(t *testing.T) {
	at := func(day, hour, minute int) time.Time { return time.Date(2026, 3, day, hour, minute, 0, 0, time.UTC) }
	type ask struct {
		last, now time.Time
		want      bool
	}
	never := time.Time{}
	for text, asks := range map[string][]ask{
		"every 1h": {
			{never, at(1, 12, 7), true}, {at(1, 12, 7), at(1, 13, 6), false}, {at(1, 12, 7), at(1, 13, 7), true},
			{at(1, 13, 7), at(1, 13, 8), false}, {at(1, 13, 7), at(9, 9, 0), true},
		},
		// The first start was planned when it was asked for first, so that a look which is late does not miss it.
		"every 1d start 20:00": {
			{never, at(1, 19, 58), false}, {never, at(1, 20, 3), true}, {at(1, 20, 3), at(2, 19, 59), false},
			{at(1, 20, 3), at(2, 20, 0), true},
		},
		"cron 30 3 * * *": {
			{never, at(1, 3, 29), false}, {never, at(1, 3, 32), true}, {at(1, 3, 32), at(2, 3, 29), false},
			{at(1, 3, 32), at(2, 3, 30), true},
		},
		// What is due outside of the windows is due when one opens.
		"every 1d window 22:00-06:00": {
			{never, at(1, 12, 0), false}, {never, at(1, 22, 0), true}, {at(1, 22, 0), at(2, 21, 59), false},
			{at(1, 22, 0), at(2, 22, 0), true},
		},
		"every 10h window 22:00-06:00": {{at(1, 22, 0), at(2, 8, 30), false}, {at(1, 22, 0), at(2, 22, 0), true}},
	} {
		t.Run(text, func(t *testing.T) {
			var lines logtest.Lines
			tt := newTimetable("s", schedule.MustParse(text), lines.Log())
			for _, a := range asks {
				var last *pb.Checkpoint
				if !a.last.IsZero() {
					last = roundAt(a.last)
				}
				if got := tt.due("a/1", last, a.now); got != a.want {
					t.Errorf("at %s after %s: got %t", a.now, a.last, got)
				}
			}
			if lines.String() != "" {
				t.Error(&lines)
			}
		})
	}
}

// A clock that is set back, by an hour or a day, in one process or while none runs, holds a round up for at most its
// period. It is logged once for all splits.
func TestTimetableClockSetBack(t *testing.T) {
	for text, period := range map[string]time.Duration{
		"every 20m": 20 * time.Minute, "every 1d": 24 * time.Hour, "every 1d start 20:00": 24 * time.Hour,
		"cron 0 * * * *": time.Hour,
	} {
		for _, back := range []time.Duration{time.Hour, 24 * time.Hour} {
			for _, known := range []bool{true, false} {
				for _, first := range []bool{true, false} {
					t.Run(fmt.Sprint(text, " back ", back, " known ", known, " first ", first), func(t *testing.T) {
						var lines logtest.Lines
						tt := newTimetable("s", schedule.MustParse(text), lines.Log())
						started := time.Date(2026, 3, 5, 20, 10, 0, 0, time.UTC)
						var last *pb.Checkpoint
						if !first {
							last = roundAt(started)
						}
						due := func(now time.Time) bool {
							tt.due("a/2", last, now)
							return tt.due("a/1", last, now)
						}
						if known {
							due(started.Add(time.Minute))
						}
						now := started.Add(-back)
						waited := time.Duration(0)
						for ; waited <= 2*period && !due(now.Add(waited)); waited += time.Minute {
						}
						plain := !first && strings.HasPrefix(text, "every") && !strings.Contains(text, "start")
						if waited > period || plain && waited != period {
							t.Errorf("due after %s", waited)
						}
						want := 1
						if first && !known { // nothing shows it
							want = 0
						}
						if n := lines.Count("plan rounds anew after the clock was set back"); n != want {
							t.Errorf("logged %d times, want %d", n, want)
						}
					})
				}
			}
		}
	}
}

func TestTimetableOf(t *testing.T) {
	paused := errors.New("paused")
	for text, want := range map[string][4]error{ // of Blocked after 0, 1, 2 and 24 hours; errNone: there is no split
		"off":                         {errNone, errNone, errNone, errNone},
		"every 1h":                    {paused, paused, paused, paused},
		"every 1d window 22:00-01:30": {paused, paused, sweep.ErrNotNow, paused},
		"every 1d window 01:00-02:00": {errNone, paused, sweep.ErrNotNow, sweep.ErrNotNow},
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // from midnight on
				var lines logtest.Lines
				kind := newTimetable("s", schedule.MustParse(text), lines.Log()).of(func(context.Context) ([]sweep.Split, error) {
					return []sweep.Split{{Sweep: "s", Name: "a/1", Blocked: func(context.Context) error { return paused }}}, nil
				})
				var split *sweep.Split // as of a round that begins when there is one
				begun := time.Now()
				for i, after := range []time.Duration{0, time.Hour, 2 * time.Hour, 24 * time.Hour} {
					time.Sleep(time.Until(begun.Add(after)))
					if all, err := kind(t.Context()); err != nil {
						t.Fatal(err)
					} else if split == nil && len(all) > 0 {
						split = &all[0]
					}
					got := errNone
					if split != nil {
						got = split.Blocked(t.Context())
					}
					if !errors.Is(got, want[i]) {
						t.Errorf("after %s: got %v, want %v", after, got, want[i])
					}
				}
				if split == nil {
					return
				}
				if next := split.Next(begun); !next.After(begun) {
					t.Errorf("the round after one at %s is due at %s", begun, next)
				}
			})
		})
	}
}

var errNone = errors.New("there is no split")
