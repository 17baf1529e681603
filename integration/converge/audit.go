package converge

import "cmp"

// A deed is what acts and entries are compared by.
type deed struct {
	Place
	kind   Kind
	sha    string // of a put whose record has digests
	detail string // of properties that were set
}

func (a Act) deed() deed {
	d := deed{Place: a.Place, kind: a.Kind}
	switch {
	case a.Kind == Put && !a.Bare:
		d.sha = a.Content.SHA256
	case a.Kind == SetProperties:
		d.detail = told(a.Content)
	}
	return d
}

// audit compares what clients did with what is on record of the store that they use: as many entries as acts, under who
// made them. An act that was tried again may be there more than once. In other stores nothing is a client's.
func (c *comparison) audit() {
	bare := map[Place]bool{}
	for _, a := range c.acts {
		bare[a.Place] = bare[a.Place] || a.Bare
	}
	recorded, whose := map[deed]int{}, map[deed]map[string]int{}
	for _, e := range c.sight.Audit {
		at := Copy{c.Model.source, e.Place}
		d := Act{Place: e.Place, Kind: e.Kind, Content: e.Content, Bare: bare[e.Place]}.deed()
		switch {
		case !e.Client:
			continue
		case e.Store != at.Store:
			c.report(ActInvented, e.Copy, "%s by %q", e.Kind, e.User)
			continue
		}
		recorded[d]++
		if whose[d] == nil {
			whose[d] = map[string]int{}
		}
		whose[d][e.User]++
	}
	acts := map[deed]map[string]int{}
	for _, a := range c.acts {
		if acts[a.deed()] == nil {
			acts[a.deed()] = map[string]int{}
		}
		acts[a.deed()][a.User]++
	}
	for d, users := range acts {
		for user, n := range users {
			at, have := Copy{c.Model.source, d.Place}, whose[d][user]
			switch {
			case have >= n:
			case recorded[d] >= sum(users):
				c.report(ActByAnother, at, "%s by %s %d times, on record %d times under that name", d.kind, user, n, have)
			default:
				c.report(ActUnrecorded, at, "%s by %s %d times, on record %d times", d, user, n, have)
			}
		}
	}
	for d, n := range recorded {
		if acts[d] == nil {
			c.report(ActInvented, Copy{c.Model.source, d.Place}, "%s, %d times", d, n)
		}
	}
}

func (d deed) String() string {
	if about := cmp.Or(short(d.sha), d.detail); about != "" {
		return string(d.kind) + " of " + about
	}
	return string(d.kind)
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
