// Package plan turns changes into duplication commands, by the policy of the account.
//
// Planning is pure, and a command's id is a function of the change and the
// destination: planning a change twice is planning it once. A command says "look at
// this item now", so one too many does no harm.
package plan

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
)

// Plan returns the commands that follow from a change under the rules of its space, one
// per destination, in the order of the rules' pairs. Their class is high, or low where
// the rules say so.
func Plan(rules policy.Rules, c *pb.Change) []*pb.DuplicationCommand {
	if c.GetOp() == pb.Op_OP_READ || c.GetOp() == pb.Op_OP_UNSPECIFIED {
		return nil
	}
	if byExecutor(c.GetOrigin()) && !isDestination(rules, c.GetStore()) {
		return nil // of a primary: nothing new to carry
	}
	if isPlanned(rules, c) || c.GetEvidence()[schemas.Completes] != "" {
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

// byUs reports whether an executor made the change: it is then carried on only along a
// declared chain, from a store that is both destination and source.
func byExecutor(o pb.Origin) bool {
	return o == pb.Origin_ORIGIN_DUPLICATION || o == pb.Origin_ORIGIN_REPAIR
}

func isDestination(rules policy.Rules, store string) bool {
	for _, pair := range rules.Pairs {
		if pair.Destination == store {
			return true
		}
	}
	return false
}

// isPlanned reports whether a command of this very Change caused c: the copier read what nothing was known of, and
// publishes the Change once more, with digests. The first one was planned for every destination. What a check completes
// was planned as well; a command of the check, which overwrites nothing, could run before the one of the report, and
// would find that the copy differs.
func isPlanned(rules policy.Rules, c *pb.Change) bool {
	return slices.ContainsFunc(rules.Pairs, func(p policy.Pair) bool {
		return p.Source == c.GetStore() && c.GetCause() == commandID(c, p.Destination)
	})
}

func commandID(c *pb.Change, destination string) string {
	return schemas.ID("command", c.GetId(), destination)
}

func command(rules policy.Rules, c *pb.Change, destination string) *pb.DuplicationCommand {
	found := c.GetOrigin() == pb.Origin_ORIGIN_SWEEP || c.GetOrigin() == pb.Origin_ORIGIN_FIXITY
	priority, _ := rules.Class(0, 0)
	return &pb.DuplicationCommand{
		Id:      commandID(c, destination),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetStore(), DestinationStore: destination,
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Priority: priority,
		Cause: c.GetId(), CauseOp: c.GetOp(),
		ChangeTime: c.GetTime(), ChangeVersion: c.GetVersion(), Size: c.GetSize(), SizeUnknown: c.GetSizeUnknown(),
		Digests: maps.Clone(c.GetDigests()), Provenance: c.GetProvenance(),
		IfAbsent:       found && c.GetApproved() == "",
		PolicyRevision: rules.Revision, Approved: c.GetApproved(),
	}
}
