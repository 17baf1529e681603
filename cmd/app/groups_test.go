package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// A process that waits to join its groups logs that once, with the groups and the session timeout,
// and then that it has joined. A process that joins soon, or joins groups without members, logs
// nothing.
func TestWaitForGroupsIsLogged(t *testing.T) {
	const waits, joined = "wait to join groups", "joined the groups"
	groups := []string{"millrace.copier", "millrace.copier.low"}
	for name, tt := range map[string]struct {
		joins   time.Duration
		awaited admin.JoinWait
		failed  time.Duration // until when the brokers do not answer
		want    []string      // in the log, in this order
	}{
		"joins soon": {3 * time.Second, admin.JoinWait{Groups: groups, Session: 10 * time.Second}, 0, nil},
		"waits for a session": {
			12 * time.Second, admin.JoinWait{Groups: groups, Hosts: []string{"/10.0.0.1"}, Session: 10 * time.Second}, 0,
			[]string{waits, "millrace.copier.low", "/10.0.0.1", "session=10s", joined, "after=12s"},
		},
		"the brokers know it": {
			12 * time.Second, admin.JoinWait{Groups: groups}, 0, []string{waits, "group.consumer.session.timeout.ms", joined},
		},
		"no group has members": {12 * time.Second, admin.JoinWait{}, 0, nil},
		"is answered later": {
			12 * time.Second, admin.JoinWait{Groups: groups, Session: 10 * time.Second}, 8 * time.Second,
			[]string{waits, joined},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said logtest.Lines
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := watchGroups(ctx, func() []metrics.RoleState {
					in := time.Since(begun) >= tt.joins
					return []metrics.RoleState{
						{Role: schemas.RoleCopier, Class: schemas.High, Member: true},
						{Role: schemas.RoleCopier, Class: schemas.Low, Member: in},
					}
				}, func(_ context.Context, states []metrics.RoleState) (admin.JoinWait, error) {
					if len(states) != 2 || time.Since(begun) < tt.failed {
						return admin.JoinWait{}, errors.New("no answer")
					}
					return tt.awaited, nil
				}, said.Log())
				if err != nil || time.Since(begun) != time.Minute {
					t.Errorf("ended with %v after %v, want nil with its context", err, time.Since(begun))
				}
				rest := said.String()
				if n := strings.Count(rest, "\n"); n != min(len(tt.want), 2) {
					t.Errorf("%d lines:\n%s", n, rest)
				}
				for _, want := range tt.want {
					_, after, ok := strings.Cut(rest, want)
					if !ok {
						t.Errorf("got\n%s\nwant %q, in this order", said.String(), tt.want)
						break
					}
					rest = after
				}
			})
		})
	}
}
