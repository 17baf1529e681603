package app

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/revision"
	"github.com/millrace/millrace/streams/steward"
)

// withAccounts calls do with Accounts of their own, as a command does.
func (s *site) withAccounts(do func(context.Context, *Accounts) error) {
	s.t.Helper()
	must(s.t, WithAccounts(s.t.Context(), s.cfg, s.said.Log(), do))
}

// publish publishes a document of account acme, which it changes.
func (s *site) publish(change func(*config.Account)) {
	s.t.Helper()
	s.withAccounts(func(ctx context.Context, a *Accounts) error {
		next := s.cfg.Accounts[0]
		if d, ok := a.registry.Document("acme"); ok {
			next = d.Account
		}
		next.Stores = append([]config.Store{}, next.Stores...)
		change(&next)
		_, _, err := a.Publish(ctx, AccountChange{Account: "acme", Base: AnyBase, Document: &next, By: Actor{Who: "ann"}})
		return err
	})
}

// Of two writers on one base one wins, and the other learns who. A store that may have copies does not move.
func TestAccountChangesThatAreRefused(t *testing.T) {
	s := newSite(t)
	s.run(schemas.RoleDelayer)
	s.await("/startupz", 200) // the topics exist
	s.withAccounts(func(ctx context.Context, mine *Accounts) error {
		next := s.cfg.Accounts[0]
		next.Limits.Tasks = 3
		s.publish(func(acc *config.Account) { acc.Limits.Tasks = 2 })
		_, _, err := mine.Publish(ctx, AccountChange{Account: "acme", Base: 0, Document: &next, By: Actor{Who: "bob"}})
		var lost *revision.LostError
		if !errors.As(err, &lost) || lost.By != "ann" || lost.Revision != 1 {
			t.Errorf("the second writer: %v", err)
		}
		moved := next
		moved.Stores = append([]config.Store{}, next.Stores...)
		moved.Stores[1].Root = t.TempDir()
		_, _, err = mine.Publish(ctx, AccountChange{Account: "acme", Base: 1, Document: &moved})
		if !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), "unless ClickHouse shows") {
			t.Errorf("ClickHouse does not answer: %v", err)
		}
		mine.hasCopies = func(context.Context, string, string) (bool, error) { return true, nil }
		_, _, err = mine.Publish(ctx, AccountChange{Account: "acme", Base: 1, Document: &moved})
		if !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), "add a store with another id") {
			t.Errorf("with copies: %v", err)
		}
		mine.hasCopies = func(context.Context, string, string) (bool, error) { return false, nil }
		n, changed, err := mine.Publish(ctx, AccountChange{Account: "acme", Base: 1, Document: &moved})
		if n != 2 || !changed {
			t.Errorf("without copies: revision %d, %t, %v", n, changed, err)
		}
		n, changed, err = mine.Publish(ctx, AccountChange{Account: "acme", Base: AnyBase})
		if n != 3 || !changed || err != nil {
			t.Errorf("removal: revision %d, %t, %v", n, changed, err)
		}
		if got := effectiveAccounts(s.cfg, mine.registry); len(got) != 0 {
			t.Errorf("after the removal: %+v", got)
		}
		return nil
	})
}

// A document whose publication fails, or is only not acknowledged, can be published again.
func TestPublishAccountFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		fault kafkatest.Fault
		fails bool
	}{
		"nothing is written, once":            {kafkatest.NotDone, false},
		"it is written, but not acknowledged": {kafkatest.DoneNotAcknowledged, false},
		"it is refused":                       {kafkatest.Refused, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				a := &Accounts{cfg: &config.Config{}, registry: newAccountRegistry(&config.Config{})}
				var err error
				if a.producer, err = kafka.NewProducer(b.Config(), "test"); err != nil {
					t.Fatal(err)
				}
				defer a.producer.Close()
				table, err := accountTable(b.Config(), a.registry)
				must(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- table.Run(ctx) }()
				must(t, ready(ctx, table))
				doc := config.Account{ID: "acme", Stores: []config.Store{{ID: "1", Driver: "file", Root: "/a"}}}
				set := func() (int64, bool, error) {
					return a.Publish(ctx, AccountChange{Account: "acme", Base: AnyBase, Document: &doc, By: Actor{Who: "ann"}})
				}
				mend := b.FailProduce(schemas.Accounts, tt.fault, 1)
				_, _, err = set()
				mend()
				if (err != nil) != tt.fails {
					t.Errorf("got %v", err)
				}
				if n, changed, err := set(); n != 1 || changed != tt.fails || err != nil {
					t.Errorf("again: revision %d, %t, %v", n, changed, err)
				}
				if h := a.History("acme"); len(h) != 1 || h[0].Revision != 1 || h[0].By != "ann" {
					t.Errorf("history: %+v", h)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// movesOf finds what makes another store of one: its driver, place, layout and role.
func TestMovesOf(t *testing.T) {
	store := func(change func(*config.Store)) config.Account {
		s := config.Store{ID: "1", Driver: "file", Root: "/a"}
		change(&s)
		return config.Account{ID: "acme", Stores: []config.Store{s}}
	}
	same := store(func(*config.Store) {})
	tests := map[string]struct {
		known []config.Account
		next  config.Account
		want  []move
	}{
		"new":      {nil, same, nil},
		"settings": {[]config.Account{same}, store(func(s *config.Store) { s.Read, s.Limits.Tasks = "never", 3 }), nil},
		"place":    {[]config.Account{same}, store(func(s *config.Store) { s.Root = "/b" }), []move{{"1", "the place /a"}}},
		"driver":   {[]config.Account{same}, store(func(s *config.Store) { s.Driver = "s3" }), []move{{"1", "driver"}}},
		"layout":   {[]config.Account{same}, store(func(s *config.Store) { s.Layout = "plain" }), []move{{"1", "layout"}}},
		"primary":  {[]config.Account{same}, store(func(s *config.Store) { s.Primary = true }), []move{{"1", "primary"}}},
		"removed, and added elsewhere": {[]config.Account{same, {ID: "acme"}}, store(func(s *config.Store) { s.Root = "/b" }),
			[]move{{"1", "the place /a"}}},
		"removed, and added again": {[]config.Account{same, {ID: "acme"}}, same, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := movesOf(tt.known, tt.next); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// A command that has the accounts in force dates their settings as processes do that have those of the configuration.
func TestRepairModeInCommands(t *testing.T) {
	s := newSite(t)
	s.run(schemas.RoleDelayer)
	s.await("/startupz", 200) // the topics exist
	found := time.Now()
	s.publish(func(acc *config.Account) { acc.Stores[1].Repair = "auto" })
	cfg, err := EffectiveConfig(t.Context(), s.cfg, s.said.Log())
	must(t, err)
	a, err := Open(t.Context(), cfg, Options{Log: s.said.Log(), Configured: s.cfg})
	must(t, err)
	defer a.Close()
	err = runDuring(t.Context(), a.accounts.Run, func(ctx context.Context) error {
		if err := ready(ctx, a.accounts); err != nil {
			return err
		}
		if got := a.stores.RepairMode("acme", "2", found); got != steward.Approve {
			t.Errorf("a fault from before the setting: got %s, want %s", got, steward.Approve)
		}
		if got := a.stores.RepairMode("acme", "2", time.Now()); got != steward.Auto {
			t.Errorf("a later fault: got %s, want %s", got, steward.Auto)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
