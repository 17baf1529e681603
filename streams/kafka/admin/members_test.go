package admin_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// The sweeper is served while a process owns splits of sweeps.
func TestSweeperIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		a := parttest.NewAdmin(t, b.Config())
		owner, err := kafka.NewOwnership(b.Config(), schemas.RoleSweeper, schemas.Checkpoints, func() {})
		must(t, err)
		if got, err := a.Unserved(t.Context(), schemas.RoleSweeper); err != nil || len(got) != 1 {
			t.Errorf("nothing runs: unserved %v, %v, want the sweeper", got, err)
		}
		parttest.Background(t, owner)
		time.Sleep(time.Minute)
		if got, err := a.Unserved(t.Context(), schemas.RoleSweeper); err != nil || len(got) != 0 {
			t.Errorf("a sweeper runs: unserved %v, %v, want none", got, err)
		}
	})
}

// A role is unserved unless a process runs it. Outstanding counts up to the ends at the time of the call.
func TestUnservedAndOutstanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		a := parttest.NewAdmin(t, b.Config())
		unserved := func(when string, want ...schemas.Role) {
			t.Helper()
			got, err := a.Unserved(t.Context(), schemas.RolePlanner, schemas.RoleSteward)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: unserved %v, %v, want %v", when, got, err, want)
			}
		}
		b.Send(parttest.Change("a"), parttest.Change("b"), parttest.Change("c"))
		left, err := a.Outstanding(t.Context(), schemas.RolePlanner)
		must(t, err)
		outstanding := func(when string, want int64) {
			t.Helper()
			if got, err := left(t.Context()); err != nil || got != want {
				t.Errorf("%s: %d records are outstanding, %v, want %d", when, got, err, want)
			}
		}
		unserved("nothing runs", schemas.RolePlanner, schemas.RoleSteward)
		b.Send(parttest.Change("later"))
		outstanding("nothing runs", 3)
		g := parttest.Planner(t, b, parttest.Plan)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		time.Sleep(time.Minute)
		unserved("a planner runs", schemas.RoleSteward)
		outstanding("a planner runs", 0)
		stop()
		must(t, <-ended)
		unserved("the planner has stopped", schemas.RolePlanner, schemas.RoleSteward)
	})
}
