package restore

import (
	"slices"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
)

// Targets are the stores that get content of a space, and what decides whether it stays there.
type Targets struct {
	Stores []string
	Pairs  []policy.Pair
	// Refuses returns why nothing is restored in a store; empty if something may be.
	Refuses func(store string) string
}

// Choose is Choose of a store, but Refused in place of Ordered if the content would not come back, or would differ from
// its source for good: nothing is restored in the store, or it is the destination of a source in which nothing is, and
// which keeps other content. A destination in which nothing is restored is not Refused if its source gets the content.
func (t Targets) Choose(i *Item, store string, content *pb.Change) Choice {
	c := Choose(i, store, content)
	if c.Verdict != Ordered {
		return c
	}
	why := t.Refuses(store)
	for _, p := range t.Pairs {
		switch {
		case p.Destination != store:
		case t.restores(p.Source):
			return c
		case why == "" && t.Refuses(p.Source) != "":
			why = i.differsFrom(p.Source, c.Digests)
		}
	}
	if why != "" {
		return Choice{Item: i.ID, Store: store, Verdict: Refused, Detail: why, Digests: c.Digests}
	}
	return c
}

// differsFrom returns why a source is not known to agree with a content; empty if it does, or lacks the item.
func (i *Item) differsFrom(source string, proven digest.Set) string {
	look, ok := i.Looks[source]
	switch {
	case !ok || look.Err != nil:
		return "it is unknown what its source, store " + source + ", holds"
	case look.Present && i.Is(source, look.Object, proven) != digest.Agree:
		return "its source, store " + source + ", keeps other content"
	}
	return ""
}

// restores reports whether a store gets the content.
func (t Targets) restores(store string) bool {
	return slices.Contains(t.Stores, store) && t.Refuses(store) == ""
}

// MayRefuse reports whether Choose may refuse something.
func (t Targets) MayRefuse() bool {
	return slices.ContainsFunc(t.Stores, func(store string) bool {
		from := slices.IndexFunc(t.Pairs, func(p policy.Pair) bool { return p.Destination == store })
		return t.Refuses(store) != "" && (from < 0 || !t.restores(t.Pairs[from].Source)) ||
			from >= 0 && t.Refuses(t.Pairs[from].Source) != ""
	})
}
