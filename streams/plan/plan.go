// Package plan turns changes into duplication commands, by the policy of the account.
//
// Planning is a pure function, and the id of a command is a function of the change and the destination, so planning a
// change twice yields the same commands. A command asks for an observation of the item, so a needless one does no harm.
package plan

import (
	"maps"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
)

// Plan returns the commands that follow from a change under the rules of its space, one for each destination, in the
// order of the rules' pairs. The caller sets their class and time.
func Plan(rules policy.Rules, c *pb.Change) []*pb.DuplicationCommand {
	if c.GetOp() == pb.Op_OP_READ || c.GetOp() == pb.Op_OP_UNSPECIFIED {
		return nil
	}
	if byExecutor(c.GetOrigin()) && !IsDestination(rules, c.GetStore()) {
		return nil // an executor wrote it, and no pair copies it further
	}
	if c.GetOrigin() == pb.Origin_ORIGIN_SWEEP && c.GetApproved() == "" && IsDestination(rules, c.GetStore()) {
		return nil // no event reported it: it is on record, and copied no further
	}
	// The report that it completes is planned. A second command would be needless, and that of a check overwrites nothing:
	// it could run first, and find that the copy differs.
	if schemas.IsCompletion(c) {
		return nil
	}
	var commands []*pb.DuplicationCommand
	for _, pair := range rules.Pairs {
		if pair.Source == c.GetStore() {
			commands = append(commands, command(rules, c, pair.Destination))
		}
	}
	return commands
}

// byExecutor reports whether an executor made the change. Such a change is planned only along a chain: from a store
// that is the destination of one pair and the source of another.
func byExecutor(o pb.Origin) bool {
	return o == pb.Origin_ORIGIN_DUPLICATION || o == pb.Origin_ORIGIN_REPAIR
}

// IsDestination reports whether a store is the destination of a pair.
func IsDestination(rules policy.Rules, store string) bool {
	for _, pair := range rules.Pairs {
		if pair.Destination == store {
			return true
		}
	}
	return false
}

func command(rules policy.Rules, c *pb.Change, destination string) *pb.DuplicationCommand {
	found := c.GetOrigin() == pb.Origin_ORIGIN_SWEEP || c.GetOrigin() == pb.Origin_ORIGIN_FIXITY
	return &pb.DuplicationCommand{
		Id:      schemas.ID("command", c.GetId(), destination),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetStore(), DestinationStore: destination,
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
		Cause:  c.GetId(), CauseOp: c.GetOp(),
		ChangeTime: c.GetTime(), ChangeVersion: c.GetVersion(), Size: c.GetSize(), SizeUnknown: c.GetSizeUnknown(),
		Digests: maps.Clone(c.GetDigests()), Provenance: c.GetProvenance(),
		IfAbsent:       found && (c.GetApproved() == "" || c.GetEvidence()["forced"] != ""),
		PolicyRevision: rules.Revision, Approved: c.GetApproved(),
	}
}
