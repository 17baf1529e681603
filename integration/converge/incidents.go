package converge

import "slices"

// Kinds of incidents that the faults of a run may cause.
const (
	contentMissing    = "content-missing"
	sourceMissing     = "source-missing"
	allCopiesMissing  = "all-copies-missing"
	resurrected       = "resurrected"
	replaced          = "replaced"
	recordsBehind     = "records-behind"
	recordUnreadable  = "record-unreadable"
	spaceMissing      = "space-missing"
	policyRefused     = "policy-refused"
	deletesHeld       = "deletes-held"
	listingIncomplete = "listing-incomplete"
	repairsHeld       = "repairs-held"
)

// Incident is an incident that was opened at any time. An incident of a table, space, policy or record has no Item.
type Incident struct {
	Copy
	Kind           string
	Subject        string
	ID             string
	Open           bool     // its latest record is open
	Duplicate      bool     // opened while another of the same copy and kind was open
	AwaitsApproval bool     // open, and its repair needs approval
	Reasons        []string // reasons of approvals and of the close by an operator
}

// Decision is an operator's decision about an incident: to approve its repair, or to close it.
type Decision struct {
	Copy
	Kind    string
	Subject string
	Closes  bool
	Reason  string // unique among decisions
}

// DeadLetter is a dead letter of a command or task for a copy, or of a record that cannot be decoded.
type DeadLetter struct {
	Copy
	Command  bool   // a command to copy or delete the copy
	Position string // coordinates of the message: topic/partition@offset
	Died     bool   // dead because processes died while handling it
}

// explanations returns the kinds of open incidents that explain the finding for the same copy. A finding without
// explanations must never occur.
func (f Finding) explanations() []string {
	switch f {
	case CopyMissing:
		return []string{contentMissing, sourceMissing, allCopiesMissing}
	case ManifestWrong, AuditWrong:
		return []string{contentMissing, sourceMissing, allCopiesMissing, resurrected, replaced}
	}
	return nil
}

// explainsIncident reports whether a fault of the run may have caused an incident.
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
	case repairsHeld:
		return m.faults[faultTarget{LoseSpace, i.Store + "/" + i.Space}]
	case spaceMissing, listingIncomplete:
		return m.faults[faultTarget{LoseSpace, i.Store + "/" + i.Space}]
	case deletesHeld: // the source's delete is only a guess
		return m.faults[faultTarget{LoseAndGuess, i.Space}]
	case policyRefused: // it refers to a removed store, or a later record cannot be decoded
		return m.any(RemoveStore) || m.any(CorruptRecord)
	}
	return false
}

// clockWentBack reports whether the clock of a store was stepped. If it was set back, later changes have earlier times,
// so an older record takes precedence.
func (m *Model) clockWentBack(store string) bool { return m.faults[faultTarget{ClockStep, store}] }

// explainsDeadLetter reports whether a fault of the run may have caused a dead letter.
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

// incidentKey identifies incidents of which at most one may be open.
type incidentKey struct {
	Copy
	kind, subject string
}

// incidents compares all incidents with the faults of the run, after every copy was checked.
func (c *comparison) incidents() {
	openings, allowed := map[incidentKey]int{}, map[incidentKey]int{}
	for _, d := range c.decisions {
		if d.Closes { // the next check reopens it if the problem remains
			allowed[incidentKey{d.Copy, d.Kind, d.Subject}]++
		}
	}
	for n, i := range c.sight.Incidents {
		key := incidentKey{i.Copy, i.Kind, i.Subject}
		if openings[key]++; openings[key] == 1 {
			allowed[key] += max(c.losses[i.Copy], 1)
		}
		switch {
		case !c.explainsIncident(i) && !c.lostTooMuch(i):
			c.report(IncidentUnexplained, i.Copy, "%s %s", i.Kind, i.Subject)
		case i.Duplicate:
			c.report(IncidentDuplicate, i.Copy, "%s %s, while another was open", i.Kind, i.Subject)
		case openings[key] > allowed[key]:
			c.report(IncidentDuplicate, i.Copy, "%s %s, the %d. time", i.Kind, i.Subject, openings[key])
		case i.Open && !c.named[n] && !c.holdsRepairs(i):
			c.report(IncidentStale, i.Copy, "%s %s", i.Kind, i.Subject)
		}
	}
}

// holdsRepairs reports whether i holds the repairs of a space of which a copy is missing and has an incident.
func (c *comparison) holdsRepairs(i Incident) bool {
	for n := range c.named {
		other := c.sight.Incidents[n]
		if i.Kind == repairsHeld && other.Kind == contentMissing && other.Store == i.Store && other.Space == i.Space {
			return true
		}
	}
	return false
}

// fewCopies is the number of missing copies of a space whose repairs are not held.
const fewCopies = 9

// lostTooMuch reports whether i holds the repairs of a space of which more than a few copies were missing. Each of
// these copies has an incident, which a fault must explain.
func (c *comparison) lostTooMuch(i Incident) bool {
	missing := map[Copy]bool{}
	for _, other := range c.sight.Incidents {
		if other.Kind == contentMissing && other.Store == i.Store && other.Space == i.Space {
			missing[other.Copy] = true
		}
	}
	return i.Kind == repairsHeld && len(missing) > fewCopies
}

// lostDecisions reports decisions that are missing from their incident or had no effect: a closed incident is open, or
// an approved one is neither closed nor waiting for approval again because its repair failed.
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

// deadLetters reports dead letters that no fault of the run explains.
func (c *comparison) deadLetters() {
	for _, l := range c.sight.DeadLetters {
		if !c.explainsDeadLetter(l) {
			c.report(DeadLetterUnexplained, l.Copy, "%s", l.Position)
		}
	}
}
