// Package held has what waits for a person's decision: deletes, rewrites and repairs of copies that nothing does
// unasked.
//
// A list is not kept anywhere. It is what the topic duplication.results has of one kind in a space of a store, from
// where the decision about the list before ends, to where the decision about it ends: an effect belongs to the list in
// which it was held first, and a later result of the same effect adds nothing. So nobody closes a list or comes too
// late for it, and a process that is killed leaves nothing behind. What an operator has not seen is on the next list.
package held

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/schemas"
)

// A Kind is why effects wait. The lists of a kind hold no effect of another one.
type Kind string

// The kinds.
const (
	Limit      Kind = "brake"      // deletes beyond the limits of the brake
	Unreported Kind = "unreported" // deletes that no client has reported, or that only one of two clocks makes newer
	Approve    Kind = "approve"    // deletes under the rule approve
	Rewrites   Kind = "rewrites"   // rewrites beyond the limits of the brake
	Differs    Kind = "differs"    // rewrites by a source that is older, or that no client has reported
	Repairs    Kind = "repairs"    // repairs of missing copies beyond sweep.max_missing
	Asked      Kind = "asked"      // deletes of copies that nothing wants, which a person asked for
)

// An Act is what the effects of a kind do to copies. The text is the plural of one of them.
type Act string

// The acts.
const (
	Delete  Act = "deletes"
	Rewrite Act = "rewrites"
	Repair  Act = "repairs"
)

// IncidentKind returns the kind of the incidents of lists of such effects.
func (a Act) IncidentKind() string { return string(a) + "-held" }

// Acts returns all acts.
func Acts() []Act { return []Act{Delete, Rewrite, Repair} }

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Limit, Unreported, Approve, Rewrites, Differs, Repairs, Asked} }

// Act returns what the effects of a kind do; "" of no kind.
func (k Kind) Act() Act {
	switch k {
	case Limit, Unreported, Approve, Asked:
		return Delete
	case Rewrites, Differs:
		return Rewrite
	case Repairs:
		return Repair
	}
	return ""
}

// CanRefuse reports whether lists of a kind can be refused: something can be restored in place of what is on them.
func (k Kind) CanRefuse() bool { return k.Act() != Repair && k != Asked }

// A List is one list of a kind: the effects that wait in a space of a store, until a decision about them. Lists are
// numbered from 1.
type List struct {
	Space  schemas.Copy // without an item
	Kind   Kind
	Number int
}

// Name returns the name of a list, which is unique in its space of a store, such as brake-1.
func (l List) Name() string { return fmt.Sprintf("%s-%d", l.Kind, l.Number) }

// Named returns the list of a space with a name; false if no list has such a name.
func Named(space schemas.Copy, name string) (List, bool) {
	kind, number, _ := strings.Cut(name, "-")
	n, err := strconv.Atoi(number)
	l := List{space.WithoutItem(), Kind(kind), n}
	return l, err == nil && n > 0 && l.Name() == name && slices.Contains(Kinds(), l.Kind)
}

// KindOf returns the kind of the list with a name; "" if no list has such a name.
func KindOf(name string) Kind {
	l, _ := Named(schemas.Copy{}, name)
	return l.Kind
}
