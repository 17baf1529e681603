package preview

import (
	"strings"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
)

// A Record is what is on record of an item in one store. The zero value is that of an item without a record there.
type Record struct {
	Live bool
	Size int64 // bytes of a live copy; negative: unknown
	// Time is the time of the content of a live copy, or of the delete; zero: neither is on record.
	Time time.Time
	// SourceTime is the time of the source's content that a copy was made from; zero: unknown.
	SourceTime time.Time
	// Doubtful: only a sweep or a check noticed the delete, or a wrong clock may have made it newer than the content.
	Doubtful bool
	Digests  Digests
	// expected: the record is not there yet, and will be when the command of another pair has ended.
	expected bool
}

func (r Record) isTombstone() bool { return !r.Live && !r.Time.IsZero() }

// Digests are those of one content, each as ALGORITHM:HEX, separated by blanks; empty if none are on record. A text
// takes less memory and time than a digest.Set.
type Digests string

// Compare compares two sets as digest.Set.Compare does.
func (d Digests) Compare(o Digests) digest.Agreement {
	if d == o && d != "" {
		return digest.Agree
	}
	result := digest.Incomparable
	for one := range strings.SplitSeq(string(d), " ") {
		alg, sum, _ := strings.Cut(one, ":")
		switch other := o.of(alg); {
		case other == "":
		case other != sum:
			return digest.Disagree
		default:
			result = digest.Agree
		}
	}
	return result
}

// of returns the digest of an algorithm; empty if there is none.
func (d Digests) of(alg string) string {
	for rest := string(d); rest != ""; {
		var one string
		one, rest, _ = strings.Cut(rest, " ")
		if name, sum, _ := strings.Cut(one, ":"); name == alg {
			return sum
		}
	}
	return ""
}

// Set returns the digests as a set.
func (d Digests) Set() digest.Set {
	s := digest.Set{}
	for one := range strings.FieldsSeq(string(d)) {
		alg, sum, _ := strings.Cut(one, ":")
		s[alg] = sum
	}
	return s
}

// An Outcome is what a command for an item of a pair would lead to, by what is on record.
type Outcome uint8

// The outcomes. Copy, Update, Compare, Delete and Approve need a command.
const (
	Nothing   Outcome = iota // neither side has the item
	Unchanged                // the digests agree
	Copy                     // the destination has no copy
	Update                   // digests or sizes differ
	Compare                  // digests or sizes that decide are not on record
	Excluded                 // by the policy
	Held                     // a hold keeps the copy as it is
	Delete                   // the source was deleted
	Approve                  // the source was deleted, and an operator must approve the delete of the copy
	Kept                     // the source was deleted, and the copy is kept
	Orphan                   // nothing is on record of the source
	outcomes
)

// commands reports whether the outcome needs a command.
func (o Outcome) commands() bool {
	switch o {
	case Copy, Update, Compare, Delete, Approve:
		return true
	}
	return false
}

// A Case is the input of Decide.
type Case struct {
	Item     string
	Pair     policy.Pair
	Rules    *policy.Rules  // not changed
	Lists    []*policy.List // those of Rules.ExcludeLists
	From, To Record         // of the pair's source and destination
	Now      time.Time
}

// Decide returns the outcome for an item of a pair. It is pure and total. It is the decision table of duplication for
// stores that have what is on record of them, without properties.
func Decide(c Case) Outcome {
	switch {
	case c.From.Live:
		return c.sourceLive()
	case !c.To.Live:
		return Nothing
	case c.From.isTombstone():
		return c.sourceDeleted()
	}
	return Orphan
}

func (c Case) sourceLive() Outcome {
	if excludes(*c.Rules) {
		content := policy.Content{Size: c.From.Size, Modified: c.From.Time}
		if len(c.Lists) > 0 {
			content.Digests = c.From.Digests.Set()
		}
		reason, certain := c.Rules.Excluded(c.Item, content, c.Lists)
		switch {
		case reason != "":
			return Excluded
		case !certain, c.From.Size < 0 && (c.Rules.MaxSize > 0 || c.Rules.MinSize > 0):
			return Compare
		}
	}
	if !c.To.Live {
		return Copy
	}
	switch c.From.Digests.Compare(c.To.Digests) {
	case digest.Agree:
		return Unchanged
	case digest.Disagree:
		return c.unlessHeld(Update)
	}
	if c.From.Size >= 0 && c.To.Size >= 0 && c.From.Size != c.To.Size {
		return c.unlessHeld(Update)
	}
	return Compare
}

func (c Case) sourceDeleted() Outcome {
	held := c.To.SourceTime
	if held.IsZero() {
		held = c.To.Time
	}
	if c.From.Time.Before(held) {
		return Kept
	}
	rule := c.Rules.DeletesOf(c.Pair, c.From.Time)
	switch {
	case rule == policy.KeepCopy:
		return Kept
	case rule != policy.Propagate || c.From.Doubtful:
		return c.unlessHeld(Approve)
	}
	return c.unlessHeld(Delete)
}

// unlessHeld returns o, or Held if a hold is in force.
func (c Case) unlessHeld(o Outcome) Outcome {
	if _, held := c.Rules.Hold(c.Item, c.Now); held {
		return Held
	}
	return o
}

// excludes reports whether the rules exclude anything.
func excludes(r policy.Rules) bool {
	return len(r.Exclude) > 0 || len(r.ExcludeLists) > 0 || r.MaxSize > 0 || r.MinSize > 0 || !r.Start.IsZero()
}
