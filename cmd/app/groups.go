package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
)

// joinGrace is the time in which a process normally joins its groups: their live members rejoin at
// their next heartbeat.
const joinGrace = 5 * time.Second

// watchGroups logs once which groups the process is still waiting to join, and when it has joined
// them. After a process was killed, the group cannot rebalance until the session of that process
// ends. It returns when ctx is done.
func watchGroups(ctx context.Context, states func() []metrics.RoleState,
	awaited func(context.Context, []metrics.RoleState) (admin.JoinWait, error), log *slog.Logger) error {
	begun, asked, logged := time.Now(), time.Now(), false
	for retry.Sleep(ctx, time.Second) == nil {
		now := states()
		switch {
		case !slices.ContainsFunc(now, func(s metrics.RoleState) bool { return !s.Member }):
			if logged {
				log.Info("joined the groups", "after", time.Since(begun).Round(time.Second))
			}
			<-ctx.Done()
		case !logged && time.Since(asked) >= joinGrace:
			asked = time.Now()
			w, err := awaited(ctx, now)
			if err != nil || len(w.Groups) == 0 { // health logs errors of Kafka
				continue
			}
			session := "group.consumer.session.timeout.ms of the brokers"
			if w.Session > 0 {
				session = fmt.Sprint(w.Session)
			}
			log.Info("wait to join groups: the session of a killed member has not ended",
				"groups", w.Groups, "hosts", w.Hosts, "session", session)
			logged = true
		}
	}
	return nil
}
