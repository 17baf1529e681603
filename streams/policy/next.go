package policy

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/revision"
)

// DeletesOf returns the rule for the copy of a source that was deleted at the given time. It is KeepCopy for deletes
// that are older than the rule for deletes, or than the pair.
func (r Rules) DeletesOf(p Pair, deleted time.Time) Deletes {
	if !deleted.After(r.Since) || !deleted.After(r.Added[p]) {
		return KeepCopy
	}
	return r.Deletes
}

// Next returns the rules that would be in force for the spaces of an account if a document were published at the given
// time; nil removes the policy. The revision is the one that the document would get.
func (b *Registry) Next(account string, document *Document, at time.Time) func(space string) Rules {
	next := &revision.Log[Document]{}
	b.View(account, func(l *revision.Log[Document]) {
		if l != nil {
			*next = revision.Log[Document]{Revisions: slices.Clone(l.Revisions), Gap: l.Gap}
		}
	})
	if last := next.Newest(); at.Before(last.Time) {
		at = last.Time
	}
	next.Revisions = append(next.Revisions, revision.Revision[Document]{
		Time: at, Document: document, Of: int64(len(next.Revisions)) + 1, AfterGap: !next.Gap.IsZero()})
	next.Gap = time.Time{}
	return func(space string) Rules {
		r, _ := rulesIn(next, space)
		return r
	}
}

// Manages reports whether a store is a source or a destination of the space. Copies of the space in other stores, other
// than the primary one, are unmanaged.
func (r Rules) Manages(store string) bool {
	return slices.ContainsFunc(r.Pairs, func(p Pair) bool { return p.Source == store || p.Destination == store })
}

// NamedSpaces returns the spaces that have pairs or other rules of their own in the document, sorted.
func (d Document) NamedSpaces() []string {
	all := slices.Collect(maps.Keys(d.Spaces))
	all = slices.AppendSeq(all, maps.Keys(d.Options))
	slices.Sort(all)
	return slices.Compact(all)
}
