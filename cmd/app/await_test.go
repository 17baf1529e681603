package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

var errUnavailable = errors.New("unavailable")

// A wait ends when a poll finds all done. Failed polls are repeated. Stalled is called after
// StallTimeout without progress, also if polls fail, and can end the wait.
func TestWait(t *testing.T) {
	const stallTimeout = 10 * time.Second
	at := func(done int64) Progress { return Progress{Done: done, Total: 3} }
	for name, tt := range map[string]struct {
		look    func(since time.Duration) (Progress, error)
		end     int // the call of Stalled that returns an error; 0: none
		want    error
		after   time.Duration // at least, and at most a second more
		stalled []string
	}{
		"all is done": {look: func(time.Duration) (Progress, error) { return at(3), nil }},
		"it moves, slowly": {
			look:  func(s time.Duration) (Progress, error) { return at(int64(s / (9 * time.Second))), nil },
			after: 27 * time.Second,
		},
		"it stands, and goes on": {
			look: func(s time.Duration) (Progress, error) {
				if s < 25*time.Second {
					return at(1), nil
				}
				return at(3), nil
			},
			after: 25 * time.Second, stalled: []string{"1 of 3, <nil>", "1 of 3, <nil>"},
		},
		"looks fail for a while": {
			look: func(s time.Duration) (Progress, error) {
				if s < 12*time.Second {
					return at(3), errUnavailable // that is no fact
				}
				return at(3), nil
			},
			after: 12 * time.Second, stalled: []string{"-1 of 0, unavailable"},
		},
		"a right is missing": {
			look: func(time.Duration) (Progress, error) { return at(0), fmt.Errorf("lags: %w", client.ErrAccess) },
			want: client.ErrAccess,
		},
		"Stalled ends it": {
			look: func(time.Duration) (Progress, error) { return at(2), nil }, end: 2, want: errUnavailable,
			after: 20 * time.Second, stalled: []string{"2 of 3, <nil>", "2 of 3, <nil>"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				var stalled []string
				err := Wait{
					Progress:     func(context.Context) (Progress, error) { return tt.look(time.Since(begun)) },
					StallTimeout: stallTimeout,
					Stalled: func(_ context.Context, p Progress, err error) error {
						if stalled = append(stalled, fmt.Sprintf("%d of %d, %v", p.Done, p.Total, err)); len(stalled) == tt.end {
							return errUnavailable
						}
						return nil
					},
				}.Until(t.Context())
				if took := time.Since(begun); !errors.Is(err, tt.want) || took < tt.after || took > tt.after+time.Second {
					t.Errorf("returned %v after %v, want %v after %v", err, took, tt.want, tt.after)
				}
				if !slices.Equal(stalled, tt.stalled) {
					t.Errorf("stalled %q, want %q", stalled, tt.stalled)
				}
			})
		})
	}
}

// A wait ends with its context, also during a poll, which then does not count.
func TestWaitIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), requestTimeout/2)
		defer cancel()
		err := Wait{
			Progress:     func(ctx context.Context) (Progress, error) { <-ctx.Done(); return Progress{1, 1}, nil },
			StallTimeout: time.Hour,
		}.Until(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of its context", err)
		}
	})
}

// A poll that hangs is cancelled and repeated after a short pause.
func TestWaitEndsLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, looks, stalled := time.Now(), 0, 0
		err := Wait{
			Progress: func(ctx context.Context) (Progress, error) {
				if looks++; looks < 3 {
					<-ctx.Done()
					return Progress{}, context.Cause(ctx)
				}
				return Progress{1, 1}, nil
			},
			StallTimeout: 10 * time.Second,
			Stalled:      func(context.Context, Progress, error) error { stalled++; return nil },
		}.Until(t.Context())
		if took := time.Since(begun); err != nil || took != 2*(requestTimeout+maxPollInterval) || stalled != 2 {
			t.Errorf("returned %v after %v and %d reports, want the third look after %v", err, took, stalled,
				2*(requestTimeout+maxPollInterval))
		}
	})
}

// Handled counts the unhandled records of the roles. An unavailable Kafka does not end a wait.
func TestHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := &App{}
		var err error
		if a.admin, err = admin.New(b.Config()); err != nil {
			t.Fatal(err)
		}
		defer a.admin.Close()
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Changes, Key: []byte("k"),
			Value: []byte("malformed")}})
		look := a.Handled(schemas.RolePlanner)
		mend := b.Disconnect()
		ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
		defer cancel()
		if p, err := look(ctx); err == nil {
			t.Errorf("got %+v without a broker", p)
		}
		mend()
		if p, err := look(t.Context()); err != nil || p != (Progress{0, 1}) {
			t.Errorf("got %+v, %v, want none of 1", p, err)
		}
	})
}

// A standstill contains the roles that no process runs, and the pauses that affect them.
func TestStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		a := &App{kafka: b.Config(), stores: new(Stores)}
		var err error
		if a.admin, err = admin.New(a.kafka); err != nil {
			t.Fatal(err)
		}
		defer a.admin.Close()
		if a.controls, err = kafka.NewControls(a.kafka); err != nil {
			t.Fatal(err)
		}
		c := testControls(t, b)
		for _, p := range []Scope{{Role: "checker"}, {Role: "copier"}, {Account: "acme", Store: "tape"}, {Sweep: "fixity"}} {
			must(t, c.Pause(t.Context(), p, time.Time{}, by("ann")))
		}
		got, err := a.Standstill(t.Context(), schemas.RoleState, schemas.RoleChecker, schemas.RoleSink)
		want := Standstill{
			Unserved: []schemas.Role{schemas.RoleChecker, schemas.RoleSink},
			Paused:   []Scope{{Account: "acme", Store: "tape"}, {Role: "checker"}},
		}
		if err != nil || !slices.Equal(got.Unserved, want.Unserved) || !slices.Equal(got.Paused, want.Paused) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	})
}
