package main

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/sweep"
)

// The checks of the other stores are requested if those of one cannot be, and none after an interruption.
func TestSweepAsksTheOtherStores(t *testing.T) {
	e := &engines{cfg: &config.Config{Accounts: []config.Account{
		{ID: "acme", Stores: []config.Store{{ID: "1"}, {ID: "2"}}}, {ID: "zoo", Stores: []config.Store{{ID: "1"}}},
	}}}
	for name, tt := range map[string]struct {
		fails     map[string]error // by store
		interrupt bool
		rounds    int
	}{
		"none fails":  {nil, false, 3},
		"one is away": {map[string]error{"acme/1": sweep.ErrNotNow}, false, 2},
		"two fail":    {map[string]error{"acme/1": sweep.ErrNotNow, "zoo/1": sweep.ErrPaused}, false, 1},
		"interrupted": {nil, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			request := func(_ context.Context, r app.FixityRequest) ([]app.FixityRound, error) {
				if tt.interrupt {
					cancel()
				}
				if err := tt.fails[r.Account+"/"+r.Store]; err != nil {
					return nil, err
				}
				round := app.FixityRound{SweptSpace: app.SweptSpace{
					Copy: schemas.Copy{Account: r.Account, Store: r.Store, Space: "photos"}}}
				round.ID, round.Emitted = "r", 5
				return []app.FixityRound{round}, nil
			}
			var r sweepReport
			err := new(sweepFlags).ask(ctx, request, e, &r, nil)
			for store, want := range tt.fails {
				if !errors.Is(err, want) {
					t.Errorf("store %s: got %v, want %v", store, err, want)
				}
			}
			if len(tt.fails) == 0 && err != nil || len(r.Rounds) != tt.rounds || r.Requested != int64(5*tt.rounds) {
				t.Errorf("got %+v, %v, want %d rounds", r, err, tt.rounds)
			}
		})
	}
}
