package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/space"
	"github.com/millrace/millrace/streams/sweep"
)

func splitsApp(t *testing.T) (*App, sweeping, *spaceLists) {
	t.Helper()
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "photos"), 0o755))
	cfg := config.Default()
	cfg.Accounts = []config.Account{{ID: "acme",
		Stores: []config.Store{{ID: "1", Driver: "file", Root: root, Primary: true}}}}
	stores, err := newStores(&cfg, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { _ = stores.close() })
	r := policy.NewRegistry(stores.IDs)
	a := &App{cfg: &cfg, stores: stores, policyRegistry: r}
	lists := &spaceLists{byStore: map[StoreName]spaceList{{"acme", "1"}: {time.Now(), []string{"photos"}}}}
	return a, sweeping{Sweeper: new(sweep.Sweeper), controls: new(client.Controls), rules: r,
		gone: new(space.Gone), known: new(checkpoints)}, lists
}

// A pair whose store the account does not have, which a policy in force may have, is left out.
func TestPairWithAStoreThatIsNotThere(t *testing.T) {
	a, w, lists := splitsApp(t)
	p := &pb.Policy{Id: schemas.NewID(), Account: "acme",
		Document: `{"defaultPolicies":[{"srcStoreId":"1","destStoreId":"2"}]}`}
	if !w.rules.Apply([]byte("acme"), time.Now(), p) {
		t.Fatal("no policy")
	}
	all, err := a.pairSplits(t.Context(), w, lists)
	if err != nil || len(all) > 0 {
		t.Errorf("%d splits, %v", len(all), err)
	}
}

// A store may be removed after the names of the stores were listed.
func TestReconcileOfAStoreThatIsNotThere(t *testing.T) {
	a, w, _ := splitsApp(t)
	if _, err := a.reconcileSplit(w, schemas.Copy{Account: "acme", Store: "2", Space: "photos"}, nil, nil); err == nil {
		t.Error("no error")
	}
}

// A round ends when its store is removed.
func TestRemovedStoreDuringARound(t *testing.T) {
	a, w, _ := splitsApp(t)
	m, err := a.reconcileSplit(w, schemas.Copy{Account: "acme", Store: "1", Space: "photos"}, nil, nil)
	must(t, err)
	a.stores.set("acme", accountState{}, false)
	if err := m.Blocked(t.Context()); err == nil {
		t.Error("the round goes on")
	}
}

// An impossible pair of one account does not affect the pairs of others.
func TestPairOfOneStore(t *testing.T) {
	a, w, lists := splitsApp(t)
	state := accountState{Account: config.Account{ID: "b", Stores: []config.Store{
		{ID: "1", Driver: "file", Root: t.TempDir(), Primary: true}, {ID: "2", Driver: "file", Root: t.TempDir()}}}}
	a.stores.set("b", state, true)
	for _, id := range []string{"1", "2"} {
		lists.byStore[StoreName{"b", id}] = spaceList{time.Now(), []string{"photos"}}
	}
	for account, to := range map[string]string{"acme": "1", "b": "2"} {
		p := &pb.Policy{Id: schemas.NewID(), Account: account,
			Document: `{"defaultPolicies":[{"srcStoreId":"1","destStoreId":"` + to + `"}]}`}
		if !w.rules.Apply([]byte(account), time.Now(), p) {
			t.Fatal("no policy")
		}
	}
	all, err := a.pairSplits(t.Context(), w, lists)
	if len(all) != 1 || all[0].Account != "b" {
		t.Errorf("%d splits, %v", len(all), err)
	}
}

// The rounds over a store wait for its windows.
func TestFixityWindows(t *testing.T) {
	a, w, lists := splitsApp(t)
	for hours, want := range map[int]error{-1: nil, 2: sweep.ErrNotNow} {
		from := time.Now().UTC().Add(time.Duration(hours) * time.Hour)
		a.cfg.Fixity.Budgets = []config.StoreBudget{{Stores: "acme/1",
			Windows: "window " + from.Format("15:04") + "-" + from.Add(2*time.Hour).Format("15:04")}}
		of := a.fixitySweep(w, lists)
		for store, want := range map[string]error{"1": want, "2": nil} {
			blocked := of.whileOpen(StoreName{"acme", store}, func(context.Context) error { return nil })
			if err := blocked(t.Context()); !errors.Is(err, want) {
				t.Errorf("store %s, window from %s: %v, want %v", store, from, err, want)
			}
		}
	}
}
