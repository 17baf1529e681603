package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
)

// Of three stores one is available, one has no root, and one is not mounted. The last two are
// unavailable from the first task on, and are found without a message when they become available.
func TestStoresAreLookedFor(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		acc := config.Account{ID: "acme"}
		root := func(id string) string { return filepath.Join(dir, id) }
		for _, id := range []string{"1", "2", "3"} {
			acc.Stores = append(acc.Stores, config.Store{ID: id, Driver: "file", Root: root(id)})
		}
		marked(t, schemas.Key("acme", "1"), root("1"))
		must(t, os.Mkdir(root("3"), 0o755))
		var said logtest.Lines
		s, err := newStores(&config.Config{Accounts: []config.Account{acc}}, said.Log())
		must(t, err)
		must(t, s.checkAtStart(ctx, nil))
		if want := []string{"acme/1 closed", "acme/2 open", "acme/3 open"}; !slices.Equal(states(s), want) {
			t.Fatalf("got %q, want %q", states(s), want)
		}
		for _, want := range []string{"create or mount its root", "millrace store init acme/3"} {
			if said.Count(want) != 1 {
				t.Errorf("%d lines say %q", said.Count(want), want)
			}
		}
		if s.Admit("acme", "1") != nil || s.Admit("acme", "2") == nil || s.Admit("acme", "3") == nil {
			t.Error("not the stores that are there are admitted to")
		}
		ended := make(chan error, 1)
		go func() { ended <- s.run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := []string{"acme/1 closed", "acme/2 open", "acme/3 open"}; !slices.Equal(states(s), want) {
			t.Fatalf("after an hour: got %q, want %q", states(s), want)
		}
		if entries, err := os.ReadDir(root("3")); err != nil || len(entries) > 0 {
			t.Errorf("what is not mounted holds %v, %v", entries, err)
		}
		for _, id := range []string{"2", "3"} {
			marked(t, schemas.Key("acme", id), root(id))
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if want := []string{"acme/1 closed", "acme/2 closed", "acme/3 closed"}; !slices.Equal(states(s), want) {
			t.Errorf("when they are there: got %q, want %q", states(s), want)
		}
		got := gatherBreakers(t, s)
		for _, want := range []string{
			`millrace_limit_breaker_state{account="acme",state="closed",store="2"} 1`,
			`millrace_limit_breaker_state{account="acme",state="open",store="2"} 0`,
			`millrace_limit_breaker_changes_total{account="acme",state="closed",store="2"} 1`,
			`millrace_limit_breaker_changes_total{account="acme",state="open",store="1"} 0`,
			`millrace_limit_requests_per_second{account="acme",store="1"} 0`,
			`millrace_limit_slow_downs_total{account="acme",store="2"} 0`,
			`millrace_limit_waiting_messages{account="acme",store="2"} 0`,
		} {
			if !slices.Contains(got, want) {
				t.Errorf("%q is not in\n%s", want, strings.Join(got, "\n"))
			}
		}
		if err := os.Rename(root("1"), root("aside")); err != nil { // one that was there becomes unavailable later
			t.Fatal(err)
		}
		if _, err := s.of(StoreName{"acme", "1"}).Stat(ctx, "photos", "a"); err == nil {
			t.Error("a store that is unavailable has answered")
		}
		time.Sleep(10 * time.Minute)
		if want := []string{"acme/1 open", "acme/2 closed", "acme/3 closed"}; !slices.Equal(states(s), want) {
			t.Errorf("while one is unavailable: got %q, want %q", states(s), want)
		}
		must(t, os.Rename(root("aside"), root("1")))
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if want := []string{"acme/1 closed", "acme/2 closed", "acme/3 closed"}; !slices.Equal(states(s), want) {
			t.Errorf("11 seconds after it is back: got %q, want %q", states(s), want)
		}
		cancel()
		if err := errors.Join(<-ended, s.close()); err != nil {
			t.Error(err)
		}
	})
}

// A root with the marker of another store is refused, whatever the state of the others.
func TestWrongMarkerIsRefused(t *testing.T) {
	dir := t.TempDir()
	marked(t, schemas.Key("acme", "2"), filepath.Join(dir, "1"))
	s, err := newStores(&config.Config{Accounts: []config.Account{{ID: "acme", Stores: []config.Store{
		{ID: "1", Driver: "file", Root: filepath.Join(dir, "1")}, {ID: "2", Driver: "file", Root: filepath.Join(dir, "none")},
	}}}}, new(logtest.Lines).Log())
	must(t, err)
	inForce := s.accounts["acme"].Account
	accounts := func(context.Context) []config.Account { return []config.Account{inForce} }
	err = s.checkAtStart(t.Context(), accounts)
	if !errors.Is(err, precondition.Err) || !errors.Is(err, storage.ErrWrongMarker) ||
		!strings.Contains(err.Error(), "store acme/1") || strings.Contains(err.Error(), "acme/2:") {
		t.Errorf("got %v, want what is wrong with acme/1", err)
	}
	inForce.Stores = inForce.Stores[1:]
	if err := s.checkAtStart(t.Context(), accounts); err != nil {
		t.Errorf("acme/1 is removed in the topic: %v", err)
	}
	if err := s.checkMarkers(t.Context()); !errors.Is(err, precondition.Err) ||
		!strings.Contains(err.Error(), "store acme/2") {
		t.Errorf("the check of all: got %v, want what is wrong with acme/2 too", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// gatherBreakers returns the metrics of the breakers and the clocks of stores, as name{labels} value.
func gatherBreakers(t *testing.T, s *Stores) (all []string) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.metrics(), s.clocks)
	_, body := get(t, promhttp.HandlerFor(reg, promhttp.HandlerOpts{}), "GET", "/metrics")
	return strings.Split(body, "\n")
}
