package policy

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/revision"
)

// DeletesOf returns the rule for the copy of a source that was deleted at the given time. It is KeepCopy for deletes
// that are older than the rule for deletes, or than the pair, and Approve for those that needed approval once.
func (r Rules) DeletesOf(p Pair, deleted time.Time) Deletes {
	switch {
	case !deleted.After(r.Since) || !deleted.After(r.Added[p]):
		return KeepCopy
	case r.Deletes == Propagate && !deleted.After(r.Propagated):
		return Approve
	}
	return r.Deletes
}

// Next returns the rules that would be in force for the spaces of an account if a document were published at the given
// time; nil removes the policy. The revision is the one that the document would get.
func (b *Registry) Next(account string, document *Document, at time.Time) func(space string) Rules {
	next := revision.Revision[Document]{Time: at, Document: document}
	b.mu.RLock()
	defer b.mu.RUnlock()
	b.View(account, func(l *revision.Log[Document]) {
		if l == nil {
			l = &revision.Log[Document]{}
		}
		if last := l.Newest(); at.Before(last.Time) {
			next.Time = last.Time
		}
		next.Of, next.AfterGap = int64(len(l.Revisions))+1, !l.Gap.IsZero()
	})
	t := b.times[account].next(next)
	return func(space string) Rules {
		r, _ := rulesIn(next, t, space)
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
