package converge

import "cmp"

// A deed is what acts and entries are compared by.
type mutationKey struct {
	ItemRef
	kind   Kind
	sha    string // of a put whose record has digests
	detail string // of properties that were set
}

func (a Mutation) key() mutationKey {
	d := mutationKey{ItemRef: a.ItemRef, kind: a.Kind}
	switch {
	case a.Kind == Put && !a.NoDigests:
		d.sha = a.Content.SHA256
	case a.Kind == SetProperties:
		d.detail = formatProperties(a.Content)
	}
	return d
}

// audit compares what clients did with what is on record of the store that they use: as many entries as acts, under who
// made them. An act that was tried again may be there more than once. In other stores nothing is a client's.
func (c *comparison) audit() {
	bare := map[ItemRef]bool{}
	for _, a := range c.mutations {
		bare[a.ItemRef] = bare[a.ItemRef] || a.NoDigests
	}
	recorded, whose := map[mutationKey]int{}, map[mutationKey]map[string]int{}
	for _, e := range c.sight.Audit {
		at := Copy{c.Model.source, e.ItemRef}
		d := Mutation{ItemRef: e.ItemRef, Kind: e.Kind, Content: e.Content, NoDigests: bare[e.ItemRef]}.key()
		switch {
		case !e.Client:
			continue
		case e.Store != at.Store:
			c.report(MutationUnknown, e.Copy, "%s by %q", e.Kind, e.User)
			continue
		}
		recorded[d]++
		if whose[d] == nil {
			whose[d] = map[string]int{}
		}
		whose[d][e.User]++
	}
	acts := map[mutationKey]map[string]int{}
	for _, a := range c.mutations {
		if acts[a.key()] == nil {
			acts[a.key()] = map[string]int{}
		}
		acts[a.key()][a.User]++
	}
	for d, users := range acts {
		for user, n := range users {
			at, have := Copy{c.Model.source, d.ItemRef}, whose[d][user]
			switch {
			case have >= n:
			case recorded[d] >= sum(users):
				c.report(MutationWrongUser, at, "%s by %s %d times, on record %d times under that name", d.kind, user, n, have)
			default:
				c.report(MutationUnrecorded, at, "%s by %s %d times, on record %d times", d, user, n, have)
			}
		}
	}
	for d, n := range recorded {
		if acts[d] == nil {
			c.report(MutationUnknown, Copy{c.Model.source, d.ItemRef}, "%s, %d times", d, n)
		}
	}
}

func (d mutationKey) String() string {
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
