package converge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Finding is a kind of deviation from the expected state.
type Finding string

// The findings.
const (
	SourceChanged      Finding = "source changed"   // the source differs from what clients wrote
	LastCopyGone       Finding = "last copy gone"   // no store holds an item that was never deleted
	DeletedOnAGuess    Finding = "deleted on guess" // a copy was deleted because of a guessed delete of its source
	KeptGone           Finding = "kept copy gone"   // a copy was deleted although the policy keeps it
	CopyGone           Finding = "copy gone"        // a recorded copy is missing and was not lost by a fault
	CopyMissing        Finding = "copy missing"
	CopyDiffers        Finding = "copy differs" // in bytes or properties
	CopyLeft           Finding = "copy left"    // a copy remains although its source was deleted
	NeverPut           Finding = "never put"    // an item or content that no client ever put
	ManifestWrong      Finding = "manifest wrong"
	AuditWrong         Finding = "audit log wrong" // the latest content in the audit log is wrong
	MutationUnrecorded Finding = "mutation unrecorded"
	MutationWrongUser  Finding = "mutation of wrong user" // recorded with another user
	MutationUnknown    Finding = "mutation unknown"       // a client mutation is recorded that no client made

	IncidentUnexplained   Finding = "incident unexplained"    // no fault of the run explains it
	IncidentDuplicate     Finding = "incident duplicated"     // opened more often than its fault occurred
	IncidentStale         Finding = "incident stale"          // open although nothing deviates
	DecisionLost          Finding = "decision lost"           // an operator's decision about an incident had no effect
	DeadLetterUnexplained Finding = "dead letter unexplained" // no fault of the run explains a dead letter
)

// Row is the recorded state of a copy in one source of records.
type Row struct {
	Live   bool
	SHA256 string // empty: no digests recorded
}

// Record is the recorded state of a copy.
type Record struct{ Manifest, Audit Row }

// Entry is a row of the audit log.
type Entry struct {
	Copy
	Kind    Kind
	User    string
	Client  bool // its origin is client
	Content Content
}

// Observation is the state of stores, records, incidents and the audit log at rest.
type Observation struct {
	Copies      map[Copy]Content
	Records     map[Copy]Record
	Incidents   []Incident // all ever opened; those of the same copy and kind in order
	Audit       []Entry
	DeadLetters []DeadLetter // all dead letters ever written
	// Rechecked is set after dead letters were redriven and every copy was checked. Before that, a lost copy may be
	// undetected, and the command of a dead letter is not executed.
	Rechecked bool
}

// Deviation is a difference from the expected state.
type Deviation struct {
	Finding Finding
	Copy    Copy
	Detail  string
	// Explanation is the open incident or the state before Rechecked that explains the deviation; empty: unexplained.
	Explanation string
}

func (d Deviation) String() string {
	s := fmt.Sprintf("%s: %s/%s in store %s", d.Finding, d.Copy.Space, d.Copy.Item, d.Copy.Store)
	if d.Detail != "" {
		s += ": " + d.Detail
	}
	if d.Explanation != "" {
		s += " (" + d.Explanation + ")"
	}
	return s
}

func compareItems(a, b ItemRef) int {
	return cmp.Or(strings.Compare(a.Space, b.Space), strings.Compare(a.Item, b.Item))
}

func compareCopies(a, b Copy) int {
	return cmp.Or(compareItems(a.ItemRef, b.ItemRef), strings.Compare(a.Store, b.Store))
}

// comparison is the state of one call of Compare.
type comparison struct {
	*Model
	sight Observation
	dead  map[Copy]bool // copies with a command that is a dead letter
	named map[int]bool  // indexes of open incidents that explain a deviation
	found []Deviation
}

// Compare returns all deviations, sorted by copy. It compares incidents and dead letters with the faults of the run
// only if s is Rechecked.
func (m *Model) Compare(s Observation) []Deviation {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &comparison{Model: m, sight: s, dead: map[Copy]bool{}, named: map[int]bool{}}
	for _, l := range s.DeadLetters {
		c.dead[l.Copy] = c.dead[l.Copy] || l.Command
	}
	for at := range s.Copies {
		if m.items[at.ItemRef] == nil {
			c.report(NeverPut, at, "")
		}
	}
	for place, i := range m.items {
		c.source(place, i)
		for _, store := range m.rules[place.Space].destinations() {
			c.destination(Copy{store, place}, i)
		}
		c.last(place, i)
	}
	c.records()
	c.audit()
	if s.Rechecked {
		c.incidents()
		c.lostDecisions()
		c.deadLetters()
	}
	slices.SortFunc(c.found, func(a, b Deviation) int {
		return cmp.Or(compareCopies(a.Copy, b.Copy), strings.Compare(string(a.Finding), string(b.Finding)))
	})
	return c.found
}

// report adds a deviation.
func (c *comparison) report(f Finding, at Copy, detail string, args ...any) {
	c.found = append(c.found,
		Deviation{Finding: f, Copy: at, Detail: fmt.Sprintf(detail, args...), Explanation: c.excuse(f, at)})
}

// excuse returns the explanation of a finding for a copy, empty if there is none.
func (c *comparison) excuse(f Finding, at Copy) (why string) {
	for n, i := range c.sight.Incidents {
		if i.Open && i.Copy == at && slices.Contains(f.explanations(), i.Kind) {
			c.named[n], why = true, "incident "+i.Kind
		}
	}
	if why == "" && (f == ManifestWrong || f == AuditWrong) && c.clockWentBack(at.Store) {
		why = "clock was set back" // a copy with a later tombstone is not checked
	}
	if why != "" || c.sight.Rechecked {
		return why
	}
	lost := false
	if i := c.items[at.ItemRef]; i != nil {
		_, lost = i.lost[at.Store]
	}
	switch f {
	case CopyMissing, ManifestWrong, AuditWrong:
		if lost {
			return "lost, and not checked"
		}
	}
	switch f {
	case CopyMissing, CopyDiffers, CopyLeft:
		if c.dead[at] {
			return "dead letter"
		}
	case ManifestWrong, AuditWrong: // a process was killed before it reported its copy
		if _, present := c.sight.Copies[at]; present && c.dead[at] {
			return "dead letter"
		}
	}
	return ""
}

// source compares the source with what clients wrote. A loss without millrace needs an incident, unless a guessed
// delete of the item was published.
func (c *comparison) source(p ItemRef, i *item) {
	at := Copy{c.Model.source, p}
	is, present := c.sight.Copies[at]
	_, lost := i.lost[at.Store]
	switch {
	case i.live && !present && lost && i.goneByGuess:
		c.excuse(CopyMissing, at) // an incident that was opened before the guess stays: a guess closes none
	case i.live && !present && lost:
		c.report(CopyMissing, at, "it was lost")
	case i.live && !present:
		c.report(SourceChanged, at, "it is missing")
	case !i.live && present:
		c.report(SourceChanged, at, "it was deleted and is back, with %s", short(is.SHA256))
	case i.live && is.SHA256 != i.content.SHA256:
		c.report(SourceChanged, at, "its bytes are %s, want %s", short(is.SHA256), short(i.content.SHA256))
	case i.live && !is.sameProperties(i.content):
		c.report(SourceChanged, at, "its properties are %s, want %s", formatProperties(is), formatProperties(i.content))
	}
}

// destination compares a copy with the policy.
func (c *comparison) destination(at Copy, i *item) {
	is, present := c.sight.Copies[at]
	_, lost := i.lost[at.Store]
	_, kept := i.kept[at.Store]
	keep := c.rules[at.Space].Keep
	r := c.sight.Records[at]
	switch {
	case present && !i.everPut[is.SHA256]:
		c.report(NeverPut, at, "bytes %s", short(is.SHA256))
	case i.live && !present && i.goneByGuess && !lost:
		c.report(DeletedOnAGuess, at, "")
	case i.live && !present && !lost && (r.Manifest.Live || r.Audit.Live):
		c.report(CopyGone, at, "")
	case i.live && !present:
		c.report(CopyMissing, at, "")
	case i.live && is.SHA256 != i.content.SHA256:
		c.report(CopyDiffers, at, "its bytes are %s, want %s", short(is.SHA256), short(i.content.SHA256))
	case i.live && !is.sameProperties(i.content) && !slices.Contains(c.immutable, at.Store):
		c.report(CopyDiffers, at, "its properties are %s, want %s", formatProperties(is), formatProperties(i.content))
	case !i.live && keep && kept && !present && !lost:
		c.report(KeptGone, at, "")
	case !i.live && keep && kept && !present:
		c.report(CopyMissing, at, "it was lost, and the policy keeps it")
	case !i.live && keep && kept && is.SHA256 != i.content.SHA256:
		c.report(CopyDiffers, at, "the copy that is kept has bytes %s, want %s", short(is.SHA256), short(i.content.SHA256))
	case !i.live && !keep && present && !i.mayRemain:
		c.report(CopyLeft, at, "bytes %s", short(is.SHA256))
	}
}

// last reports items that no store has any more, although clients did not delete them and at least one copy was not
// lost by a fault.
func (c *comparison) last(p ItemRef, i *item) {
	if !i.live {
		return
	}
	stores := append([]string{c.Model.source}, c.rules[p.Space].destinations()...)
	spared := false
	for _, store := range stores {
		if is, ok := c.sight.Copies[Copy{store, p}]; ok && is.SHA256 == i.content.SHA256 {
			return
		}
		_, lost := i.lost[store]
		spared = spared || !lost
	}
	if spared {
		c.report(LastCopyGone, Copy{c.Model.source, p}, "")
	}
}

// records compares the records of every copy with the stores.
func (c *comparison) records() {
	all := map[Copy]bool{}
	for at := range c.sight.Copies {
		all[at] = true
	}
	for at := range c.sight.Records {
		all[at] = true
	}
	for at := range all {
		is, present := c.sight.Copies[at]
		r := c.sight.Records[at]
		for _, row := range []struct {
			finding Finding
			Row
		}{{ManifestWrong, r.Manifest}, {AuditWrong, r.Audit}} {
			switch {
			case present && !row.Live:
				c.report(row.finding, at, "the copy exists and is not recorded")
			case !present && row.Live:
				c.report(row.finding, at, "the copy is recorded and does not exist")
			case present && row.SHA256 != "" && row.SHA256 != is.SHA256:
				c.report(row.finding, at, "bytes %s are recorded, the copy has %s", short(row.SHA256), short(is.SHA256))
				if i := c.items[at.ItemRef]; i != nil && !i.everPut[row.SHA256] {
					c.found[len(c.found)-1].Explanation = "" // clients never put these bytes, so no fault of the run explains them
				}
			}
		}
	}
}

// short returns the first digits of a digest.
func short(sha string) string { return sha[:min(len(sha), 8)] }

// formatProperties formats the properties of a content.
func formatProperties(c Content) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(c.User)) {
		all = append(all, k+"="+c.User[k])
	}
	return fmt.Sprintf("%q [%s]", c.MediaType, strings.Join(all, " "))
}
