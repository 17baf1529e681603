package emit

import (
	"maps"
	"strings"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// A verdict is the conclusion about an intent without a recorded outcome.
type verdict uint8

// The verdicts.
const (
	notDone verdict = iota
	done
	undecided
	verdicts
)

// String returns the value of the label outcome.
func (v verdict) String() string { return [verdicts]string{"not_done", "done", "undecided"}[v] }

// judge decides whether an intent was carried out, from the state before it, the streamed content and the
// state observed now; nil means absent. It assumes that no other program writes to the store; if the
// observed state shows that one did, the verdict is undecided. It uses UniqueVersions and FoldsPropertyCase of
// can.
func judge(in outbox.Mutation, observed *pb.Change, can storage.Capabilities) verdict {
	op, before := in.Draft.GetOp(), in.Before
	content := compareContent(before, observed, can.UniqueVersions)
	v := undecided
	switch op {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		v = judgePut(before, in.Streamed, observed, content)
	case pb.Op_OP_DELETE:
		v = judgeDelete(before, observed, content)
	case pb.Op_OP_SET_PROPERTIES:
		v = judgeProperties(in.Draft, before, observed, content, can.FoldsPropertyCase)
	case pb.Op_OP_CREATE_SPACE:
		v = judgeCreate(in.Draft, before, observed)
	case pb.Op_OP_DELETE_SPACE:
		v = judgeDeleteSpace(before, observed)
	case pb.Op_OP_SET_SPACE_PROPERTIES, pb.Op_OP_SET_ACL:
		v = judgeReplaced(before, observed, func(c *pb.Change) bool {
			return maps.Equal(c.GetProperties(), in.Draft.GetProperties()) && maps.Equal(c.GetAcl(), in.Draft.GetAcl())
		})
	}
	if in.Concurrent && !conclusive(op, v, content, can.UniqueVersions) {
		return undecided // a concurrent mutation may have done it, or undone it
	}
	return v
}

// conclusive reports whether a verdict holds despite concurrent mutations of the same item: a version from
// before that is still current was not replaced, and bytes that are present were put.
func conclusive(op pb.Op, v verdict, content contentState, unique bool) bool {
	switch op {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		return v == done || content == unchangedContent && unique
	case pb.Op_OP_DELETE:
		return content == unchangedContent && unique
	}
	return false
}

// A contentState is what happened to the content that was present before.
type contentState uint8

const (
	unclearContent   contentState = iota // absent before or now, or not provable
	unchangedContent                     // still present
	replacedContent                      // written since
)

// compareContent compares the state before with the observed state. If versions are not unique (an ETag of
// the bytes is not), the same bytes may have been written again: then time and properties are compared too.
// The result is unclearContent if a time is unknown, as for a version known only from a condition, or if
// the properties are.
func compareContent(before, observed *pb.Change, unique bool) contentState {
	switch {
	case before == nil, observed == nil:
		return unclearContent
	case before.GetVersion() != observed.GetVersion():
		return replacedContent
	case unique:
		return unchangedContent
	case !hasTime(before), !hasTime(observed):
		return unclearContent
	case !before.GetTime().AsTime().Equal(observed.GetTime().AsTime()):
		return replacedContent
	case before.GetPropertiesUnknown(), observed.GetPropertiesUnknown():
		return unclearContent
	case before.GetMediaType() == observed.GetMediaType() && maps.Equal(before.GetProperties(), observed.GetProperties()):
		return unchangedContent
	}
	return replacedContent
}

func hasTime(c *pb.Change) bool { return c.GetTime() != nil && !c.GetTime().AsTime().IsZero() }

func judgePut(before *pb.Change, streamed *outbox.Content, observed *pb.Change, content contentState) verdict {
	switch {
	case observed == nil && before == nil, content == unchangedContent:
		return notDone
	case observed == nil, streamed == nil: // deleted by another program, or the stream was not recorded
		return undecided
	}
	same := digest.Disagree
	if streamed.Size == observed.GetSize() {
		same = streamed.Digests.Compare(observed.GetDigests())
	}
	switch {
	case same == digest.Agree && (before == nil || content == replacedContent):
		return done
	case same == digest.Disagree && before != nil && content == unclearContent: // the old bytes are still present
		return notDone
	}
	return undecided
}

func judgeDelete(before, observed *pb.Change, content contentState) verdict {
	switch {
	case before == nil, content == unchangedContent:
		return notDone
	case observed == nil:
		return done
	}
	return undecided // it may have been put again since
}

func judgeDeleteSpace(before, observed *pb.Change) verdict {
	if before == nil || observed != nil {
		return notDone
	}
	return done
}

func judgeCreate(draft, before, observed *pb.Change) verdict {
	switch {
	case before != nil, observed == nil:
		return notDone
	case maps.Equal(observed.GetProperties(), draft.GetProperties()) && maps.Equal(observed.GetAcl(), draft.GetAcl()):
		return done
	}
	return undecided
}

func judgeProperties(draft, before, observed *pb.Change, content contentState, folds bool) verdict {
	same := func(c *pb.Change) bool {
		return !c.GetPropertiesUnknown() && c.GetMediaType() == draft.GetMediaType() &&
			sameProperties(c.GetProperties(), draft.GetProperties(), folds)
	}

	if before != nil && observed != nil &&
		digest.Set(before.GetDigests()).Compare(observed.GetDigests()) == digest.Disagree {
		return undecided // the bytes were replaced
	}
	if content == replacedContent && same(observed) {
		return done // this store writes properties together with the bytes
	}
	return judgeReplaced(before, observed, same)
}

// judgeReplaced judges mutations that replace properties; same reports whether a state has the intended
// ones.
func judgeReplaced(before, observed *pb.Change, same func(*pb.Change) bool) verdict {
	switch {
	case before == nil:
		return notDone // an absent item has no properties
	case observed == nil:
		return undecided
	case same(observed) && !same(before):
		return done
	case !same(observed) && maps.Equal(before.GetProperties(), observed.GetProperties()) &&
		maps.Equal(before.GetAcl(), observed.GetAcl()) &&
		before.GetMediaType() == observed.GetMediaType() && before.GetPropertiesUnknown() == observed.GetPropertiesUnknown():
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
