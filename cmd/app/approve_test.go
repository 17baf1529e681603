package app

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/millrace/millrace/cmd/config"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// An approval of what the steward does not repair is refused, and not published: there is no producer here.
func TestApproveRepairRefuses(t *testing.T) {
	cfg := config.Default()
	cfg.Accounts = []config.Account{{ID: "acme", Stores: []config.Store{
		{ID: "1", Driver: "file", Root: t.TempDir(), Primary: true}, {ID: "2", Driver: "file", Root: t.TempDir(), Repair: "off"},
	}}}
	stores, err := newStores(&cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer stores.close()
	a := &App{stores: stores}
	for name, i := range map[string]*pb.Incident{
		"a kind without a repair": {Account: "acme", Store: "1", Kind: "no-quorum"},
		"repair is off":           {Account: "acme", Store: "2", Kind: "content-corrupt"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := a.ApproveRepair(t.Context(), i, Approval{Who: "ann"}); !errors.Is(err, ErrPrecondition) {
				t.Errorf("got %v, want a precondition", err)
			}
		})
	}
}
