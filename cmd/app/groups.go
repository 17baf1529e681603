package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
)

// joinSoon is how long a process may take to join its groups while their members answer: they do at their next
// heartbeat.
const joinGrace = 5 * time.Second

// watchGroups logs once which groups the process waits to join, and when it has joined them: after a process was
// killed, its work stands still until its session ends. It returns when ctx is done.
func watchGroups(ctx context.Context, states func() []kafka.RoleState,
	awaited func(context.Context, []kafka.RoleState) (kafka.Awaited, error), log *slog.Logger) error {
	begun, asked, said := time.Now(), time.Now(), false
	for retry.Sleep(ctx, time.Second) == nil {
		now := states()
		switch {
		case !slices.ContainsFunc(now, func(s kafka.RoleState) bool { return !s.Member }):
			if said {
				log.Info("joined the groups", "after", time.Since(begun).Round(time.Second))
			}
			<-ctx.Done()
		case !said && time.Since(asked) >= joinGrace:
			asked = time.Now()
			w, err := awaited(ctx, now)
			if err != nil || len(w.Groups) == 0 { // health logs what is wrong with Kafka
				continue
			}
			session := "group.consumer.session.timeout.ms of the brokers"
			if w.Session > 0 {
				session = fmt.Sprint(w.Session)
			}
			log.Info("wait to join groups: a member that was killed is waited for until its session ends",
				"groups", w.Groups, "hosts", w.Hosts, "session", session)
			said = true
		}
	}
	return nil
}
