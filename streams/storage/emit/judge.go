package emit

import (
	"maps"
	"strings"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
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
// seen shows that somebody did, it is undecided. Of can it asks whether versions are
// unique, and whether the names of properties have no case.
func judge(in Intent, came *Content, seen *pb.Change, can storage.Capabilities) verdict {
	op, was := in.Draft.GetOp(), in.Before
	then := compareContent(was, seen, can.UniqueVersions)
	v := undecided
	switch op {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		v = judgePut(was, came, seen, then)
	case pb.Op_OP_DELETE:
		v = judgeDelete(was, seen, then)
	case pb.Op_OP_SET_PROPERTIES:
		v = judgeProperties(in.Draft, was, seen, then, can.FoldsPropertyCase)
	case pb.Op_OP_CREATE_SPACE:
		v = judgeCreate(in.Draft, was, seen)
	case pb.Op_OP_DELETE_SPACE:
		v = judgeDeleteSpace(was, seen)
	case pb.Op_OP_SET_SPACE_PROPERTIES, pb.Op_OP_SET_ACL:
		v = judgeReplaced(was, seen, func(c *pb.Change) bool {
			return maps.Equal(c.GetProperties(), in.Draft.GetProperties()) && maps.Equal(c.GetAcl(), in.Draft.GetAcl())
		})
	}
	if in.Concurrent && !conclusive(op, v, then, can.UniqueVersions) {
		return undecided // it may have been another's doing, or undone by another
	}
	return v
}

// certain reports whether a verdict holds although others were at work on the same item: a version
// that was there before has not been replaced, unless by one of the same name, and bytes that are there were put.
func conclusive(op pb.Op, v verdict, then contentState, unique bool) bool {
	switch op {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		return v == done || then == unchangedContent && unique
	case pb.Op_OP_DELETE:
		return then == unchangedContent && unique
	}
	return false
}

// A fate is what became of the content that was there before.
type contentState uint8

const (
	unclearContent   contentState = iota // nothing was there or is, or it cannot be told
	unchangedContent                     // it is there
	replacedContent                      // it was written since
)

// since compares what was there with what is seen. Where versions are not unique, as an ETag
// of the bytes is not, the same bytes may have been written anew: then time and properties
// are compared too, and where no time is known, as of what was named in a condition, or the properties are not, it is
// unclear.
func compareContent(was, seen *pb.Change, unique bool) contentState {
	switch {
	case was == nil, seen == nil:
		return unclearContent
	case was.GetVersion() != seen.GetVersion():
		return replacedContent
	case unique:
		return unchangedContent
	case !hasTime(was), !hasTime(seen):
		return unclearContent
	case !was.GetTime().AsTime().Equal(seen.GetTime().AsTime()):
		return replacedContent
	case was.GetPropertiesUnknown(), seen.GetPropertiesUnknown():
		return unclearContent
	case was.GetMediaType() == seen.GetMediaType() && maps.Equal(was.GetProperties(), seen.GetProperties()):
		return unchangedContent
	}
	return replacedContent
}

func hasTime(c *pb.Change) bool { return c.GetTime() != nil && !c.GetTime().AsTime().IsZero() }

func judgePut(was *pb.Change, came *Content, seen *pb.Change, then contentState) verdict {
	switch {
	case seen == nil && was == nil, then == unchangedContent:
		return notDone
	case seen == nil, came == nil: // gone by another's hand; nobody knows what came
		return undecided
	}
	same := digest.Disagree
	if came.Size == seen.GetSize() {
		same = came.Digests.Compare(seen.GetDigests())
	}
	switch {
	case same == digest.Agree && (was == nil || then == replacedContent):
		return done
	case same == digest.Disagree && was != nil && then == unclearContent: // the bytes that were there are, and they are others
		return notDone
	}
	return undecided
}

func judgeDelete(was, seen *pb.Change, then contentState) verdict {
	switch {
	case was == nil, then == unchangedContent:
		return notDone
	case seen == nil:
		return done
	}
	return undecided // it may have been put anew since
}

func judgeDeleteSpace(was, seen *pb.Change) verdict {
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

func judgeProperties(draft, was, seen *pb.Change, then contentState, folds bool) verdict {
	same := func(c *pb.Change) bool {
		return !c.GetPropertiesUnknown() && c.GetMediaType() == draft.GetMediaType() && sameProperties(c.GetProperties(), draft.GetProperties(), folds)
	}
	if was != nil && seen != nil && digest.Set(was.GetDigests()).Compare(seen.GetDigests()) == digest.Disagree {
		return undecided // other bytes are there
	}
	if then == replacedContent && same(seen) {
		return done // in a store where properties are written with the bytes
	}
	return judgeReplaced(was, seen, same)
}

// judgeSet is for what replaces properties; same says whether they are as intended.
func judgeReplaced(was, seen *pb.Change, same func(*pb.Change) bool) verdict {
	switch {
	case was == nil:
		return notDone // what is absent has none
	case seen == nil:
		return undecided
	case same(seen) && !same(was):
		return done
	case !same(seen) && maps.Equal(was.GetProperties(), seen.GetProperties()) && maps.Equal(was.GetAcl(), seen.GetAcl()) &&
		was.GetMediaType() == seen.GetMediaType() && was.GetPropertiesUnknown() == seen.GetPropertiesUnknown():
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
