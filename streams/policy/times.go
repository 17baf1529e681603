package policy

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/revision"
)

// times are those of the rules of an account in its newest revision, by space: of each space that a revision has named,
// and of unnamed. They are not changed.
type times map[string]ruleTimes

// unnamed stands for all spaces that no revision has named. It is not UTF-8, which documents are.
const unnamed = "\xff"

// ruleTimes are the times of the rules of one space; zero if it has no pairs.
type ruleTimes struct {
	deletes           Deletes
	since, propagated time.Time // Rules.Since and Rules.Propagated
	added             map[Pair]time.Time
}

// of returns the times of a space.
func (t times) of(space string) ruleTimes {
	if own, ok := t[space]; ok {
		return own
	}
	return t[unnamed]
}

// next returns the times after a further revision. A space that it is the first to name was an unnamed one before.
func (t times) next(e revision.Revision[Document]) times {
	spaces := append(slices.Collect(maps.Keys(t)), unnamed)
	if e.Document != nil {
		spaces = append(append(spaces, e.Document.NamedSpaces()...), e.Document.Ignore...)
	}
	next := make(times, len(spaces))
	for _, space := range spaces {
		if _, ok := next[space]; !ok {
			next[space] = t.of(space).next(rulesOf(e, space), e)
		}
	}
	return next
}

// next returns the times of a space that has the rules r from a further revision on.
func (t ruleTimes) next(r Rules, e revision.Revision[Document]) ruleTimes {
	if len(r.Pairs) == 0 {
		return ruleTimes{}
	}
	n := ruleTimes{deletes: r.Deletes, since: e.Time, added: make(map[Pair]time.Time, len(r.Pairs))}
	if t.deletes != "" && !e.AfterGap && (t.deletes == KeepCopy) == (r.Deletes == KeepCopy) {
		n.since, n.propagated = t.since, t.propagated
		if t.deletes == Approve && r.Deletes == Propagate {
			n.propagated = e.Time
		}
	}
	for _, p := range r.Pairs {
		n.added[p] = e.Time
		if at, ok := t.added[p]; ok {
			n.added[p] = at
		}
	}
	return n
}
