package emit

import (
	"maps"
	"strings"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

// A verdict is what is known of an intent whose outcome nobody noted.
type verdict uint8

// The verdicts.
const (
	notDone verdict = iota
	done
	undecided
	verdicts
)

// String is the value of label outcome.
func (v verdict) String() string { return [verdicts]string{"not_done", "done", "undecided"}[v] }

// judge says what came of an intent, from what was there before, what was streamed, and what is
// seen now; nil is absent. It takes for granted that nobody else writes there, and where what is
// seen shows that somebody did, it is undecided. Properties may be in a store that has no
// case in their names.
func judge(in Intent, came *Content, seen *pb.Change, folds bool) verdict {
	op, was := in.Draft.GetOp(), in.Before
	v := undecided
	switch op {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		v = judgePut(was, came, seen)
	case pb.Op_OP_DELETE:
		v = judgeDelete(was, seen)
	case pb.Op_OP_SET_PROPERTIES:
		v = judgeProperties(in.Draft, was, seen, folds)
	case pb.Op_OP_CREATE_SPACE:
		v = judgeCreate(in.Draft, was, seen)
	case pb.Op_OP_DELETE_SPACE:
		v = judgeGone(was, seen)
	case pb.Op_OP_SET_SPACE_PROPERTIES, pb.Op_OP_SET_ACL:
		v = judgeSet(was, seen, func(c *pb.Change) bool {
			return maps.Equal(c.GetProperties(), in.Draft.GetProperties()) && maps.Equal(c.GetAcl(), in.Draft.GetAcl())
		})
	}
	if in.Crowded && !certain(op, v, was, seen) {
		return undecided // it may have been another's doing, or undone by another
	}
	return v
}

// certain reports whether a verdict holds although others were at work on the same item: a version
// that was there before has not been replaced, and bytes that are there were put.
func certain(op pb.Op, v verdict, was, seen *pb.Change) bool {
	switch op {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		return v == done || unchanged(was, seen)
	case pb.Op_OP_DELETE:
		return unchanged(was, seen)
	}
	return false
}

// unchanged reports whether the very bytes are there that were before.
func unchanged(was, seen *pb.Change) bool {
	return was != nil && seen != nil && was.GetVersion() == seen.GetVersion()
}

func judgePut(was *pb.Change, came *Content, seen *pb.Change) verdict {
	switch {
	case seen == nil && was == nil, unchanged(was, seen):
		return notDone
	case seen == nil: // gone by another's hand
		return undecided
	case came != nil && came.Size == seen.GetSize() && came.Digests.Compare(seen.GetDigests()) == digest.Agree:
		return done
	}
	return undecided
}

func judgeDelete(was, seen *pb.Change) verdict {
	switch {
	case was == nil, unchanged(was, seen):
		return notDone
	case seen == nil:
		return done
	}
	return undecided // it may have been put anew since
}

func judgeGone(was, seen *pb.Change) verdict {
	if was == nil || seen != nil {
		return notDone
	}
	return done
}

func judgeCreate(draft, was, seen *pb.Change) verdict {
	switch {
	case was != nil, seen == nil:
		return notDone
	case maps.Equal(seen.GetProperties(), draft.GetProperties()) && maps.Equal(seen.GetAcl(), draft.GetAcl()):
		return done
	}
	return undecided
}

func judgeProperties(draft, was, seen *pb.Change, folds bool) verdict {
	same := func(c *pb.Change) bool {
		return c.GetMediaType() == draft.GetMediaType() && sameProperties(c.GetProperties(), draft.GetProperties(), folds)
	}
	if was != nil && seen != nil && digest.Set(was.GetDigests()).Compare(seen.GetDigests()) == digest.Disagree {
		return undecided // other bytes are there
	}
	if was != nil && seen != nil && !unchanged(was, seen) && same(seen) {
		return done // in a store where properties are part of the version
	}
	return judgeSet(was, seen, same)
}

// judgeSet is for what replaces properties; same says whether they are as intended.
func judgeSet(was, seen *pb.Change, same func(*pb.Change) bool) verdict {
	switch {
	case was == nil:
		return notDone // what is absent has none
	case seen == nil:
		return undecided
	case same(seen) && !same(was):
		return done
	case !same(seen) && maps.Equal(was.GetProperties(), seen.GetProperties()) && maps.Equal(was.GetAcl(), seen.GetAcl()) &&
		was.GetMediaType() == seen.GetMediaType():
		return notDone
	}
	return undecided
}

func sameProperties(a, b map[string]string, folds bool) bool {
	if folds {
		a, b = folded(a), folded(b)
	}
	return maps.Equal(a, b)
}

func folded(m map[string]string) map[string]string {
	f := make(map[string]string, len(m))
	for k, v := range m {
		f[strings.ToLower(k)] = v
	}
	return f
}
