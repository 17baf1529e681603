package folder

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/policy"
)

// A policy with a fault opens an incident of its account, which the next revision without a fault closes.
func TestFaultOfAPolicyIsAnIncident(t *testing.T) {
	s := &site{t: t}
	p := s.process("")
	faults := newReporter(p.Folder)
	for _, step := range []struct {
		store string // to which the new revision copies
		open  bool
	}{{"2", false}, {"9", true}, {"8", true}, {"3", false}} {
		must(t, p.publish(t.Context(), map[string]policy.Document{"acme": document(t, to(step.store))}, nil, "test"))
		for range 2 { // a second look changes nothing
			must(t, faults.report(t.Context(), "acme"))
			p.incident(incident.PolicyRefused, step.open)
		}
	}
}

// A process that finds no fault closes the incident once per revision; one that finds it opens it again. A process that
// starts with the missing store closes it.
func TestFaultThatOneProcessFinds(t *testing.T) {
	s := &site{t: t}
	without := s.process("")
	accounts := defaultAccounts()
	accounts["acme"] = append(accounts["acme"], policy.Store{ID: "9"})
	with := s.late("", accounts)
	with.follow()
	must(t, with.Set(t.Context(), "acme", document(t, to("9")), "test"))
	without.inForce("acme", "9")
	finds, clean := newReporter(without.Folder), newReporter(with.Folder)
	for _, step := range []struct {
		by   *reporter
		open bool
	}{{finds, true}, {clean, false}, {finds, true}, {clean, true}, {newReporter(with.Folder), false}} {
		must(t, step.by.report(t.Context(), "acme"))
		for _, p := range []*process{without, with} {
			p.incident(incident.PolicyRefused, step.open)
		}
	}
}

// The next process closes the incident of an account that was removed from the configuration.
func TestFaultOfAnAccountThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		about := incident.Subject{Account: "left", Kind: incident.PolicyRefused}
		must(t, s.process("").board.Open(t.Context(), about, "revision 1 is in force with faults"))
		p := s.process("")
		if !p.board.IsOpen(about) {
			t.Fatalf("incident %s is not open", about.Key())
		}
		go func() { _ = p.ReportFaults(t.Context()) }()
		later()
		if p.board.IsOpen(about) {
			t.Errorf("incident %s is open", about.Key())
		}
	})
}

// An exclusion list that this process cannot read opens the incident of its policy. Reading it closes the incident.
func TestUnreadableListIsAnIncident(t *testing.T) {
	p := (&site{t: t}).process("")
	faults := newReporter(p.Folder)
	for _, err := range []error{nil, errors.New("404 Not Found"), nil} {
		p.unread = err
		must(t, faults.report(t.Context(), "acme"))
		p.incident(incident.PolicyRefused, err != nil)
	}
	if refused := p.Refused(); len(refused) > 0 {
		t.Errorf("refused: got %q, since a process with such a list is ready", refused)
	}
}
