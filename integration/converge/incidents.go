package converge

import "slices"

// Kinds of incidents that faults of a run may have.
const (
	contentMissing   = "content-missing"
	sourceMissing    = "source-missing"
	allCopiesMissing = "all-copies-missing"
	resurrected      = "resurrected"
	replaced         = "replaced"
	recordsBehind    = "records-behind"
	recordUnreadable = "record-unreadable"
	spaceMissing     = "space-missing"
	policyRefused    = "policy-refused"
	deletesHeld      = "deletes-held"
)

// An Incident is one that was opened at any time. Of a table, a space, a policy or a record it has no Item.
type Incident struct {
	Copy
	Kind           string
	Subject        string
	ID             string
	Open           bool     // by the newest record of it
	Duplicate      bool     // it was opened while another one of the same copy and kind was open
	AwaitsApproval bool     // it is open, and asks a person to approve its repair
	Reasons        []string // that persons gave who approved or closed it
}

// A Decision is what a person decided about an incident: to approve its repair, or to close it.
type Decision struct {
	Copy
	Kind    string
	Subject string
	Closes  bool
	Reason  string // no other decision has the same
}

// A Letter is a dead letter: of a command or task for a copy, or of a record that cannot be decoded.
type DeadLetter struct {
	Copy
	Position string // of the message: topic/partition@offset
	Died     bool   // processes died while they handled it
}

// excuses returns the kinds of incidents of which an open one may be why something was found about the same copy. What
// has none must never happen.
func (f Finding) explanations() []string {
	switch f {
	case CopyMissing:
		return []string{contentMissing, sourceMissing, allCopiesMissing}
	case ManifestWrong, AuditWrong:
		return []string{contentMissing, sourceMissing, allCopiesMissing, resurrected, replaced}
	}
	return nil
}

// caused reports whether a fault of the run may have led to an incident.
func (m *Model) explainsIncident(i Incident) bool {
	switch i.Kind {
	case contentMissing:
		return m.losses[i.Copy] > 0 || m.clockWentBack(i.Store)
	case sourceMissing, allCopiesMissing:
		return m.losses[i.Copy] > 0
	case resurrected, replaced:
		return m.clockWentBack(i.Store)
	case recordsBehind:
		return m.any(Empty) || m.any(Restore)
	case recordUnreadable:
		return m.faults[faultTarget{CorruptRecord, i.Subject}]
	case spaceMissing:
		return m.faults[faultTarget{LoseSpace, i.Store + "/" + i.Space}]
	case deletesHeld: // only a guess says that a source is gone
		return m.faults[faultTarget{LoseAndGuess, i.Space}]
	case policyRefused: // it names a store that is unknown, or a record after it cannot be decoded
		return m.any(RemoveStore) || m.any(CorruptRecord)
	}
	return false
}

// wentBack reports whether the clock of a store went back: what is put there, or deleted, is then on record before what it
// follows, and the record that counts is an older one.
func (m *Model) clockWentBack(store string) bool { return m.faults[faultTarget{ClockStep, store}] }

// undone reports whether a fault of the run may have led to a dead letter.
func (m *Model) explainsDeadLetter(l DeadLetter) bool {
	return m.faults[faultTarget{RemoveStore, l.Store}] || m.faults[faultTarget{CorruptRecord,
		l.Position}] || l.Died && m.any(Kill)
}

func (m *Model) any(f Fault) bool {
	for b := range m.faults {
		if b.fault == f {
			return true
		}
	}
	return false
}

// An incidentKey is what at most one open incident has.
type incidentKey struct {
	Copy
	kind, subject string
}

// incidents compares the incidents that were ever opened with the faults of the run, once every copy has been checked.
func (c *comparison) incidents() {
	openings, allowed := map[incidentKey]int{}, map[incidentKey]int{}
	for _, d := range c.decisions {
		if d.Closes { // the next check finds what is still so
			allowed[incidentKey{d.Copy, d.Kind, d.Subject}]++
		}
	}
	for n, i := range c.sight.Incidents {
		key := incidentKey{i.Copy, i.Kind, i.Subject}
		if openings[key]++; openings[key] == 1 {
			allowed[key] += max(c.losses[i.Copy], 1)
		}
		switch {
		case !c.explainsIncident(i):
			c.report(IncidentUnexplained, i.Copy, "%s %s", i.Kind, i.Subject)
		case i.Duplicate:
			c.report(IncidentDuplicate, i.Copy, "%s %s, while another was open", i.Kind, i.Subject)
		case openings[key] > allowed[key]:
			c.report(IncidentDuplicate, i.Copy, "%s %s, the %d. time", i.Kind, i.Subject, openings[key])
		case i.Open && !c.named[n]:
			c.report(IncidentStale, i.Copy, "%s %s", i.Kind, i.Subject)
		}
	}
}

// decided finds decisions of persons that are on no incident or had no effect: what was closed is open, or what was approved
// is neither over nor asks again, since its repair was not possible.
func (c *comparison) lostDecisions() {
	for _, d := range c.decisions {
		if !slices.ContainsFunc(c.sight.Incidents, func(i Incident) bool {
			return i.Copy == d.Copy && i.Kind == d.Kind && i.Subject == d.Subject && slices.Contains(i.Reasons, d.Reason) &&
				(!i.Open || !d.Closes && i.AwaitsApproval)
		}) {
			c.report(DecisionLost, d.Copy, "%s %s: %s", d.Kind, d.Subject, d.Reason)
		}
	}
}

// letters finds dead letters that no fault of the run has led to.
func (c *comparison) deadLetters() {
	for _, l := range c.sight.DeadLetters {
		if !c.explainsDeadLetter(l) {
			c.report(DeadLetterUnexplained, l.Copy, "%s", l.Position)
		}
	}
}
