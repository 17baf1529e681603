package pairs

import (
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep/merge"
)

// A finding is what the listings say about one item.
type finding int

// The findings.
const (
	// equal: both sides list the item, and nothing in the listings says that the copies differ.
	equal finding = iota
	missing
	extra
	different
	// excluded: the rules exclude the source's item from being copied.
	excluded
	// unknown: both sides list the item, but not enough of it to compare the copies, or its id cannot be in a message.
	unknown
	findings // their number
)

// String returns the key of a finding in Page.Counts.
func (f finding) String() string {
	return [findings]string{"equal", "missing", "extra", "different", "excluded", "unknown"}[f]
}

// differs reports whether the destination has to be looked at.
func (f finding) differs() bool { return f == missing || f == extra || f == different }

// An entry is an item in the listings of source and destination.
type entry = merge.Pair[storage.Object, storage.Object]

// size returns the bytes of an entry: those at the source, or else those at the destination; 0 if they are unknown.
func size(e *entry) int64 {
	if e.InFirst && e.First.Size >= 0 || !e.InSecond {
		return max(e.First.Size, 0)
	}
	return max(e.Second.Size, 0)
}

// criteria are what decides about an entry, besides the entry.
type criteria struct {
	rules policy.Rules
	lists []*policy.List
	// foldCase: one of the stores ignores the case of property names.
	foldCase bool
}

// decide returns the finding of an entry. It is pure. The first row that applies counts:
//
//	source   destination  condition                                        finding
//	present  any          the rules exclude it                             excluded
//	present  absent                                                        missing
//	absent   present                                                       extra
//	present  present      the sizes differ                                 different
//	present  present      digests of one algorithm differ                  different
//	present  present      a size is unknown, and no digest in common       unknown
//	present  present      both have properties, and they differ            different
//	present  present                                                       equal
func (c criteria) decide(e *entry) finding {
	from, to := &e.First, &e.Second
	switch {
	case e.InFirst && c.excludes(from):
		return excluded
	case !e.InSecond:
		return missing
	case !e.InFirst:
		return extra
	}
	sized := from.Size >= 0 && to.Size >= 0
	if sized && from.Size != to.Size {
		return different
	}
	switch digests := from.Digests.Compare(to.Digests); {
	case digests == digest.Disagree:
		return different
	case !sized && digests != digest.Agree:
		return unknown
	case c.propertiesDiffer(from, to):
		return different
	}
	return equal
}

// excludes reports whether the rules certainly exclude an item of the source.
func (c criteria) excludes(o *storage.Object) bool {
	reason, _ := c.rules.Excluded(o.Item,
		policy.Content{Size: o.Size, Modified: o.Modified, Digests: o.Digests}, c.lists)
	return reason != ""
}

// propertiesDiffer reports whether both listings have properties and they differ. A listing without properties does not
// say that there are none.
func (c criteria) propertiesDiffer(a, b *storage.Object) bool {
	if a.PropertiesUnknown || b.PropertiesUnknown {
		return false
	}
	p, q := a.Properties, b.Properties
	if p.MediaType != "" && q.MediaType != "" && p.MediaType != q.MediaType {
		return true
	}
	if len(p.User) == 0 || len(q.User) == 0 {
		return false
	}
	return !storage.EqualUser(p.User, q.User, c.foldCase)
}
