package app

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/policy"
)

// A policy with a fault opens an incident of its account, which the next revision without a fault
// closes.
func TestFaultOfAPolicyIsAnIncident(t *testing.T) {
	s := newSite(t)
	a := s.run(schemas.RoleDelayer)
	about := incident.Subject{Account: "acme", Kind: incident.PolicyRefused}
	publish := func(store string) {
		t.Helper()
		if err := a.publishPolicies(t.Context(), map[string]policy.Document{"acme": document(t, to(store))}, nil,
			"test"); err != nil {
			t.Fatal(err)
		}
	}
	if err := ready(t.Context(), a.policies, a.incidents); err != nil {
		t.Fatal(err)
	}
	faults := newPolicyFaults(a)
	for _, step := range []struct {
		store string // to which the new revision copies
		open  bool
	}{{"2", false}, {"9", true}, {"8", true}, {"3", false}} {
		publish(step.store)
		for range 2 { // a second look changes nothing
			if err := faults.report(t.Context(), "acme"); err != nil {
				t.Fatal(err)
			}
			if got := a.incidentBoard.IsOpen(about); got != step.open {
				t.Errorf("copied to store %s: incident open: %v, want %v", step.store, got, step.open)
			}
		}
	}
}

// A process that finds no fault closes the incident once per revision; one that finds it opens it
// again. A process that starts with the missing store closes it.
func TestFaultThatOneProcessFinds(t *testing.T) {
	s := newSite(t)
	without := s.run(schemas.RoleDelayer)
	cfg := *s.cfg
	cfg.HTTP.Listen = ""
	cfg.Accounts = append(cfg.Accounts[:0:0], cfg.Accounts...)
	cfg.Accounts[0].Stores = append(cfg.Accounts[0].Stores[:3:3], cfg.Accounts[0].Stores[2])
	cfg.Accounts[0].Stores[3].ID = "9"
	with := (&site{t: t, cfg: &cfg}).run(schemas.RoleDelayer)
	if err := ready(t.Context(), without.policies, without.incidents, with.policies, with.incidents); err != nil {
		t.Fatal(err)
	}
	if err := with.SetPolicy(t.Context(), "acme", document(t, to("9")), "test"); err != nil {
		t.Fatal(err)
	}
	s.inForce(without, "acme", "9")
	about := incident.Subject{Account: "acme", Kind: incident.PolicyRefused}
	finds, clean := newPolicyFaults(without), newPolicyFaults(with)
	for _, step := range []struct {
		by   *policyFaults
		open bool
	}{{finds, true}, {clean, false}, {finds, true}, {clean, true}, {newPolicyFaults(with), false}} {
		if err := step.by.report(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
		for _, a := range []*App{without, with} {
			s.until(func() error {
				if got := a.incidentBoard.IsOpen(about); got != step.open {
					return fmt.Errorf("incident open: %v, want %v", got, step.open)
				}
				return nil
			})
		}
	}
}

// The next process closes the incident of an account that was removed from the configuration.
func TestFaultOfAnAccountThatLeft(t *testing.T) {
	s := newSite(t)
	s.cfg.HTTP.Listen = ""
	before, _ := s.late() // it does not run
	if err := before.ensureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	about := incident.Subject{Account: "bell", Kind: incident.PolicyRefused}
	if err := before.incidentBoard.Open(t.Context(), about, "revision 1 is in force with faults"); err != nil {
		t.Fatal(err)
	}
	a := s.run(schemas.RolePlanner)
	if err := ready(t.Context(), a.incidents); err != nil {
		t.Fatal(err)
	}
	s.until(func() error {
		if a.incidentBoard.IsOpen(about) {
			return fmt.Errorf("incident %s is open", about.Key())
		}
		return nil
	})
}
