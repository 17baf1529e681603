package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/storage"
)

// without removes a store from an account.
func without(id string) func(*config.Account) {
	return func(a *config.Account) {
		var rest []config.Store
		for _, s := range a.Stores {
			if s.ID != id {
				rest = append(rest, s)
			}
		}
		a.Stores = rest
	}
}

// put stores an item in acme/1 and publishes its Change.
func (s *site) put(a *App, item string) {
	s.t.Helper()
	store := s.client(a, "acme")
	err := store.CreateSpace(s.t.Context(), storage.Space{Name: "photos"})
	if err != nil && !errors.Is(err, storage.ErrExists) {
		s.t.Fatal(err)
	}
	if _, err := store.Put(s.t.Context(), "photos", item, strings.NewReader("bytes"),
		storage.PutOptions{Size: 5}); err != nil {
		s.t.Fatal(err)
	}
}

// arrives waits until an item is in a store.
func (s *site) arrives(root, item string) {
	s.t.Helper()
	s.until(func() error {
		_, err := os.Stat(filepath.Join(root, "photos", item))
		return err
	})
}

// A store is added while processes run. It is known in all of them within a second, is used when it has its marker, and
// nothing changes for the other stores. A removed store's commands are dead letters, and it can be added again.
func TestStoreAtRunTime(t *testing.T) {
	need.Integration(t)
	s := newSite(t)
	a := s.run(schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDelayer)
	s.await("/startupz", 200)
	b := s.another(schemas.RoleCopier)
	before := a.stores.of(StoreName{"acme", "2"})
	root := filepath.Join(t.TempDir(), "4")
	four := config.Store{ID: "4", Driver: "file", Root: root}
	must(t, os.MkdirAll(filepath.Join(root, "photos"), 0o755))
	s.publish(func(acc *config.Account) { acc.Stores = append(acc.Stores, four) })
	for i, p := range []*App{a, b} {
		s.untilTrue(fmt.Sprintf("store 4 in process %d", i), func() bool {
			_, ok := p.stores.Store("acme", "4")
			return ok
		})
	}
	if now := a.stores.of(StoreName{"acme", "2"}); now.Store != before.Store || now.breaker != before.breaker {
		t.Error("store 2 is another one")
	}
	s.set("acme", to("4"))
	s.inForce(a, "acme", "4")
	s.put(a, "a")
	s.until(func() error { // no marker
		if err := a.stores.Admit("acme", "4"); err == nil {
			return errors.New("store 4 is used without a marker")
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(root, "photos", "a")); err == nil {
		t.Error("copied to a store without a marker")
	}
	cfg, err := EffectiveConfig(t.Context(), s.cfg, s.said.Log())
	must(t, err)
	must(t, InitStore(t.Context(), cfg, s.said.Log(), StoreName{"acme", "4"}))
	if all := ListStores(cfg); len(all) != 4 || all[3].Source != "revision 1" {
		t.Errorf("listed: %+v", all)
	}
	s.arrives(root, "a")

	s.publish(without("4"))
	s.until(func() error {
		if _, known := a.stores.Store("acme", "4"); known {
			return errors.New("store 4 is still known")
		}
		return nil
	})
	s.put(a, "b")
	dead, err := deadletter.New(a.kafka)
	must(t, err)
	defer dead.Close()
	s.until(func() error {
		n := 0
		err := dead.Each(t.Context(), deadletter.Query{Role: schemas.RoleCopier, Cause: `"4" of account "acme"`},
			func(*deadletter.Letter) error { n++; return nil })
		if err == nil && n == 0 {
			err = errors.New("no dead letter")
		}
		return err
	})
	s.publish(func(acc *config.Account) { acc.Stores = append(acc.Stores, four) })
	s.put(a, "c")
	s.arrives(root, "c")
	late := s.another(schemas.RoleCopier) // a restart
	if _, ok := late.stores.Store("acme", "4"); !ok || s.said.Count("ignore account of the configuration") == 0 {
		t.Errorf("after a restart: store 4 known: %t\n%s", ok, s.said.String())
	}
}

// The work of an inactive account waits, and is done when the account is active again.
func TestInactiveAccount(t *testing.T) {
	s := newSite(t)
	s.hasSpace(1)
	a := s.run(schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDelayer)
	s.await("/startupz", 200)
	s.set("acme", to("2"))
	s.publish(func(acc *config.Account) { acc.Active = config.Inactive })
	s.until(func() error {
		if !a.controls.Paused(schemas.RoleCopier, "acme", "2") || a.controls.Paused(schemas.RoleCopier, "bell", "2") {
			return errors.New("not only acme waits")
		}
		return nil
	})
	s.put(a, "a")
	why, err := a.Standstill(t.Context(), schemas.RoleCopier)
	if err != nil || !slices.Equal(why.Inactive, []string{"acme"}) {
		t.Errorf("a standstill: %+v, %v", why, err)
	}
	root := s.cfg.Accounts[0].Stores[1].Root
	must(t, a.accounts.CatchUp(t.Context()))
	if _, err := os.Stat(filepath.Join(root, "photos", "a")); err == nil {
		t.Error("copied while the account is inactive")
	}
	s.publish(func(acc *config.Account) { acc.Active = 0 })
	s.arrives(root, "a")
	if in := a.controls.Active(); len(in) != 0 {
		t.Errorf("pauses are listed: %v", in)
	}
}

// A document of another version is in force as far as this process knows its settings. The rest shows in readiness.
func TestAccountOfAnotherVersion(t *testing.T) {
	s := newSite(t)
	a := s.run(schemas.RolePlanner)
	s.await("/readyz", 200)
	publish := func(base int64, document string) {
		t.Helper()
		must(t, a.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Accounts, Body: &pb.Account{
			Id: schemas.NewID(), Account: "acme", Base: base, Document: document}}))
	}
	root := s.cfg.Accounts[0].Stores[0].Root
	publish(0, fmt.Sprintf(`{"id": "acme", "stores": [{"id": "1", "root": %q}, {"id": "9", "driver": "azure"}]}`, root))
	s.await("/readyz", 503, "store acme/9", "unknown driver", "publish its key again")
	st, _ := a.stores.Store("acme", "1")
	s.until(func() error { return st.Marker(t.Context()) })
	st, ok := a.stores.Store("acme", "9")
	if err := st.Marker(t.Context()); !ok || err == nil || !strings.Contains(err.Error(), "unknown driver") {
		t.Errorf("store 9: %t, %v", ok, err)
	}
	publish(1, "{")
	s.await("/readyz", 503, "revision 2 cannot be read")
	st, _ = a.stores.Store("acme", "1")
	if err := st.Marker(t.Context()); err == nil {
		t.Error("store 1 is used although the document in force is unknown")
	}
	publish(2, fmt.Sprintf(`{"id": "acme", "stores": [{"id": "1", "root": %q}]}`, root))
	s.await("/readyz", 200)
}

// A store of the configuration that the topic has removed does not prevent a start, whatever is in its place.
func TestStartWithoutRemovedStore(t *testing.T) {
	s := newSite(t)
	first := s.run(schemas.RoleDelayer)
	s.await("/startupz", 200) // the topics exist
	s.publish(without("3"))
	marked(t, "another", s.cfg.Accounts[0].Stores[2].Root)
	late := s.another(schemas.RoleCopier)
	if first == late || late.stores.IDs("acme") == nil || len(late.stores.IDs("acme")) != 2 {
		t.Errorf("stores: %v", late.stores.IDs("acme"))
	}
}

// The policy folder is read when the accounts of the topic are known: it has documents of their stores, and the planner
// plans without those that are refused.
func TestPolicyFolderWaitsForAccounts(t *testing.T) {
	s := newSite(t)
	s.run(schemas.RoleDelayer)
	s.await("/startupz", 200) // the topics exist
	s.publish(func(acc *config.Account) {
		acc.Stores = append(acc.Stores, config.Store{ID: "4", Driver: "file", Root: t.TempDir()})
	})
	cfg := *s.cfg
	cfg.Policies.Folder = t.TempDir()
	for name, text := range map[string]string{"duplication-accounts.json": `["acme"]`,
		"acme-duplication-policy.json": `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "4"}]}`} {
		must(t, os.WriteFile(filepath.Join(cfg.Policies.Folder, name), []byte(text), 0o600))
	}
	a, err := Open(t.Context(), &cfg, Options{Log: s.said.Log()})
	must(t, err)
	defer a.Close()
	parts, err := appRun{App: a}.parts(nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	g, gctx := errgroup.WithContext(ctx)
	start := func(names ...string) {
		for _, p := range parts {
			if slices.Contains(names, p.name) {
				g.Go(func() error { return p.run(gctx) })
			}
		}
	}
	start("policies", "incidents", "policy folder")
	must(t, ready(ctx, a.policies, a.incidents))
	select {
	case <-a.folder.Published():
		t.Error("the folder is read before the accounts")
	case <-time.After(200 * time.Millisecond):
	}
	start("accounts")
	<-a.folder.Published()
	s.inForce(a, "acme", "4")
	cancel()
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
