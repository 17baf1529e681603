package app

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// actionSkipRound is the admin action that ends a round of a sweep. Its target is the id of the round.
const actionSkipRound = "skip-round"

// skippedRounds holds the rounds that operators have ended, from the topic of actions.
type skippedRounds struct {
	mu      sync.Mutex // guards byRound
	byRound map[string]string
}

func (s *skippedRounds) apply(action *pb.AdminAction) {
	if action.GetAction() != actionSkipRound {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byRound == nil {
		s.byRound = map[string]string{}
	}
	s.byRound[action.GetTarget()] = fmt.Sprintf("skipped by %s: %s", action.GetWho(), action.GetReason())
}

// reason returns who has ended a round and why; "" if it goes on.
func (s *skippedRounds) reason(round string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byRound[round]
}

// A SkipRequest selects the unfinished rounds of a sweep. Empty fields select all.
type SkipRequest struct {
	Sweep, Account, Store, Space string
}

// SkipRounds ends the selected rounds, and returns them. What they have requested is still done. A process that works
// on a round ends it after its page; otherwise the next one that would continue it ends it.
func (a *App) SkipRounds(ctx context.Context, r SkipRequest, by Actor) (skipped []SplitStatus, err error) {
	all, err := a.SweepStatus(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.Sweep != r.Sweep || !s.Unfinished() || r.Account != "" && s.Account != r.Account ||
			r.Store != "" && s.Store != r.Store && s.Destination != r.Store || r.Space != "" && s.Space != r.Space {
			continue
		}
		skip := by.action(actionSkipRound, s.Round)
		skip.Id = schemas.ID(actionSkipRound, s.Round)
		skip.Account, skip.Store, skip.Space = s.Account, s.Store, s.Space
		if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Admin, Body: skip}); err != nil {
			return skipped, err
		}
		skipped = append(skipped, s)
	}
	return skipped, nil
}
