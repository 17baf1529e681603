package converge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Finding is a way in which something is not as it must be.
type Finding string

// The findings.
const (
	SourceChanged      Finding = "source changed"   // the source is not what clients made of it
	LastCopyGone       Finding = "last copy gone"   // no store holds an item that was never deleted
	DeletedOnAGuess    Finding = "deleted on guess" // a copy went, and only a guess says that its source did
	KeptGone           Finding = "kept copy gone"   // a copy went that the policy keeps
	CopyGone           Finding = "copy gone"        // a copy is on record, was not lost, and is not there
	CopyMissing        Finding = "copy missing"
	CopyDiffers        Finding = "copy differs" // in bytes or properties
	CopyLeft           Finding = "copy left"    // its source was deleted
	NeverPut           Finding = "never put"    // an item or content that no client ever put
	ManifestWrong      Finding = "manifest wrong"
	AuditWrong         Finding = "audit log wrong" // of the newest content
	MutationUnrecorded Finding = "act unrecorded"
	MutationWrongUser  Finding = "act by another" // it is on record under another user
	MutationUnknown    Finding = "act invented"   // a client's act is on record that no client made

	IncidentUnexplained   Finding = "incident invented" // no fault of the run leads to it
	IncidentDuplicate     Finding = "incident twice"    // more often than its fault
	IncidentStale         Finding = "incident idle"     // it is open, and nothing is wrong
	DecisionLost          Finding = "decision lost"     // of a person, about an incident
	DeadLetterUnexplained Finding = "letter invented"   // a dead letter that no fault of the run leads to
)

// A Row is what one place has on record of a copy.
type Row struct {
	Live   bool
	SHA256 string // empty: without digests
}

// A Record is what is on record of a copy.
type Record struct{ Manifest, Audit Row }

// An Entry is a row of the audit log.
type Entry struct {
	Copy
	Kind    Kind
	User    string
	Client  bool // its origin is client
	Content Content
}

// A Sight is what was found at rest.
type Observation struct {
	Copies      map[Copy]Content
	Records     map[Copy]Record
	Incidents   []Incident // all that were ever opened, those of one copy and kind in their order
	Audit       []Entry
	DeadLetters []DeadLetter // all that there ever were
	// Healed: dead letters were handled once more, and then every copy was checked. Before that a copy that was lost need
	// not be known to be, and a command that is a dead letter is yet to be carried out.
	Rechecked bool
}

// A Deviation is something that is not as it must be.
type Deviation struct {
	Finding Finding
	Copy    Copy
	Detail  string
	// Excuse is the kind of the open incident of the copy, or what Healed says of sights before; empty: it has none.
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

// comparison is one run of Compare.
type comparison struct {
	*Model
	sight Observation
	dead  map[Copy]bool // of which a command is a dead letter
	named map[int]bool  // the incidents, by index, that are open and excuse something
	found []Deviation
}

// Compare returns all that is not as it must be, by copy. Incidents and dead letters are compared with the faults of the
// run if the sight is healed.
func (m *Model) Compare(s Observation) []Deviation {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &comparison{Model: m, sight: s, dead: map[Copy]bool{}, named: map[int]bool{}}
	for _, l := range s.DeadLetters {
		c.dead[l.Copy] = true
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

// excuse returns why something found about a copy is no deviation; empty if nothing says so.
func (c *comparison) excuse(f Finding, at Copy) (why string) {
	for n, i := range c.sight.Incidents {
		if i.Open && i.Copy == at && slices.Contains(f.explanations(), i.Kind) {
			c.named[n], why = true, "incident "+i.Kind
		}
	}
	if why == "" && (f == ManifestWrong || f == AuditWrong) && c.clockWentBack(at.Store) {
		why = "clock went back" // nothing lists stores yet, so a copy under a younger tombstone is not checked
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
	}
	return ""
}

// source compares what clients made with what is there. Whoever took a copy away without millrace is no deviation of
// bytes, but an incident must say that it is gone, unless a guess says that its owner did it.
func (c *comparison) source(p ItemRef, i *item) {
	at := Copy{c.Model.source, p}
	is, present := c.sight.Copies[at]
	_, lost := i.lost[at.Store]
	switch {
	case i.live && !present && lost && i.goneByGuess:
	case i.live && !present && lost:
		c.report(CopyMissing, at, "it was lost")
	case i.live && !present:
		c.report(SourceChanged, at, "it is gone")
	case !i.live && present:
		c.report(SourceChanged, at, "it was deleted and is back, with %s", short(is.SHA256))
	case i.live && is.SHA256 != i.content.SHA256:
		c.report(SourceChanged, at, "its bytes are %s, want %s", short(is.SHA256), short(i.content.SHA256))
	case i.live && !is.sameProperties(i.content):
		c.report(SourceChanged, at, "its properties are %s, want %s", formatProperties(is), formatProperties(i.content))
	}
}

// destination compares a copy with what the policy says.
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

// last finds items that clients did not delete and that no store holds any more, though not all copies were taken away
// without millrace.
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

// records compares what is on record of every copy with what is there.
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
				c.report(row.finding, at, "the copy is there and not on record")
			case !present && row.Live:
				c.report(row.finding, at, "the copy is on record and not there")
			case present && row.SHA256 != "" && row.SHA256 != is.SHA256:
				c.report(row.finding, at, "bytes %s are on record, and %s are there", short(row.SHA256), short(is.SHA256))
			}
		}
	}
}

// short is the beginning of a digest.
func short(sha string) string { return sha[:min(len(sha), 8)] }

// told is what a content says of properties.
func formatProperties(c Content) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(c.User)) {
		all = append(all, k+"="+c.User[k])
	}
	return fmt.Sprintf("%q [%s]", c.MediaType, strings.Join(all, " "))
}
