package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Weakens returns why copies are less protected under another document of an account, next, than under d; empty if they
// are not. It names the first cause.
func (d Document) Weakens(next Document) string {
	spaces := append(d.NamedSpaces(), next.NamedSpaces()...)
	spaces = append(append(spaces, d.Ignore...), next.Ignore...)
	slices.Sort(spaces)
	for _, space := range append(slices.Compact(spaces), unnamed) {
		if why := d.Rules(space).weakens(next.Rules(space)); why != "" && space == unnamed {
			return "all other spaces: " + why
		} else if why != "" {
			return fmt.Sprintf("space %s: %s", space, why)
		}
	}
	return ""
}

// weakens is Weakens for the rules of one space.
//
// A further exclusion leaves items without copies. Fewer exclusions do not weaken: they only make further copies, and
// the brake stops a flood of updates. A lower priority delays copies, and takes none away.
func (r Rules) weakens(next Rules) string {
	for _, p := range r.Pairs {
		if !slices.Contains(next.Pairs, p) {
			return fmt.Sprintf("no copies from %s to %s", p.Source, p.Destination)
		}
	}
	if len(r.Pairs) == 0 {
		return "" // the other rules had no effect
	}
	strength := []Deletes{Propagate, Approve, KeepCopy}
	switch {
	case slices.Index(strength, next.Deletes) < slices.Index(strength, r.Deletes):
		return fmt.Sprintf("deletes: %s instead of %s", next.Deletes, r.Deletes)
	case r.Brake.Deletes.raised(next.Brake.Deletes):
		return "another limit of deletes"
	case r.Brake.Rewrites.raised(next.Brake.Rewrites):
		return "another limit of rewrites"
	case lower(r.MaxSize, next.MaxSize):
		return "a smaller maxSize"
	case next.MinSize > r.MinSize:
		return "a larger minSize"
	case next.Start.After(r.Start):
		return "a later start"
	}
	for _, h := range r.Holds {
		if !slices.ContainsFunc(next.Holds, h.within) {
			return fmt.Sprintf("no hold of %q until %s", h.Prefix, h.Until.Format("2006-01-02"))
		}
	}
	for _, glob := range next.Exclude {
		if !slices.Contains(r.Exclude, glob) {
			return fmt.Sprintf("exclude %q", glob)
		}
	}
	for _, l := range next.ExcludeLists {
		same := func(o ExcludeList) bool { return o.SHA256 == l.SHA256 && o.Of == l.Of }
		if !slices.ContainsFunc(r.ExcludeLists, same) {
			return "excludeLists " + l.Name()
		}
	}
	return ""
}

// raised reports whether a limit of next can be higher than that of l: the defaults are not known here.
func (l Limits) raised(next Limits) bool {
	higher := func(a, b float64) bool { return a != b && (a == 0 || b == 0 || b > a) }
	return higher(l.MaxShare, next.MaxShare) || higher(float64(l.MaxCount), float64(next.MaxCount))
}

// lower reports whether a bound of next is lower than that of old; 0 is none.
func lower(old, next int64) bool { return next > 0 && (old == 0 || next < old) }

// within reports whether another hold covers all that h does.
func (h Hold) within(other Hold) bool {
	return strings.HasPrefix(h.Prefix, other.Prefix) &&
		(other.Until.IsZero() || !h.Until.IsZero() && !other.Until.Before(h.Until))
}
