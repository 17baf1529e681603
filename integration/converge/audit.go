package converge

import "cmp"

// mutationKey is the key by which mutations and audit entries are compared.
type mutationKey struct {
	ItemRef
	kind   Kind
	sha    string // for a put with digests
	detail string // the properties, for SetProperties
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

// audit compares the mutations of clients with the audit entries of their store: every mutation needs an entry with its
// user. A retried mutation may have several entries. Entries of other stores must not have origin client.
func (c *comparison) audit() {
	noDigests := map[ItemRef]bool{}
	for _, a := range c.mutations {
		noDigests[a.ItemRef] = noDigests[a.ItemRef] || a.NoDigests
	}
	recorded, users := map[mutationKey]int{}, map[mutationKey]map[string]int{}
	for _, e := range c.sight.Audit {
		at := Copy{c.Model.source, e.ItemRef}
		d := Mutation{ItemRef: e.ItemRef, Kind: e.Kind, Content: e.Content, NoDigests: noDigests[e.ItemRef]}.key()
		switch {
		case !e.Client:
			continue
		case e.Store != at.Store:
			c.report(MutationUnknown, e.Copy, "%s by %q", e.Kind, e.User)
			continue
		}
		recorded[d]++
		if users[d] == nil {
			users[d] = map[string]int{}
		}
		users[d][e.User]++
	}
	mutations := map[mutationKey]map[string]int{}
	for _, a := range c.mutations {
		if mutations[a.key()] == nil {
			mutations[a.key()] = map[string]int{}
		}
		mutations[a.key()][a.User]++
	}
	for d, byUser := range mutations {
		for user, n := range byUser {
			at, have := Copy{c.Model.source, d.ItemRef}, users[d][user]
			switch {
			case have >= n:
			case recorded[d] >= sum(byUser):
				c.report(MutationWrongUser, at, "%s by %s %d times, recorded %d times for that user", d.kind, user, n, have)
			default:
				c.report(MutationUnrecorded, at, "%s by %s %d times, recorded %d times", d, user, n, have)
			}
		}
	}
	for d, n := range recorded {
		if mutations[d] == nil {
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
