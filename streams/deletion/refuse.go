package deletion

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// A refusal is the execution of a refused list.
type refusal struct {
	*Deleter
	command *pb.DeletionCommand
	attempt int
	started time.Time
}

// maxRefused is the number of items whose records are read at once.
const maxRefused = 250

// page returns the orders that bring back the sources of a page of the list.
func (r *refusal) page(ctx context.Context, page []Listed) (out []schemas.Message, err error) {
	rules, _ := r.rules.Rules(r.command.GetAccount(), r.command.GetSpace())
	for part := range slices.Chunk(page, maxRefused) {
		orders, err := r.orders(ctx, rules, part)
		if err != nil {
			return nil, err
		}
		out = append(out, orders...)
		retry.Alive(ctx)
	}
	return out, nil
}

// orders returns the restore orders of items of a list, or the results of those for which no content is on record.
func (r *refusal) orders(ctx context.Context, rules policy.Rules, part []Listed) ([]schemas.Message, error) {
	var copies []schemas.Copy
	from := make([]int, len(part)+1) // where the copies of each item begin
	for i, l := range part {
		copies = append(copies, r.copiesOf(rules, l)...)
		from[i+1] = len(copies)
	}
	records, err := duplicate.FreshRecords(ctx, r.records, "refused items", copies...)
	if err != nil {
		return nil, err
	}
	out := make([]schemas.Message, len(part))
	for i, l := range part {
		known := make([]schemas.KnownCopy, 0, from[i+1]-from[i])
		for n := from[i]; n < from[i+1]; n++ {
			known = append(known, schemas.KnownCopy{Copy: copies[n], Record: records[n]})
		}
		out[i] = r.message(rules, l, restoreOrder(l, known))
	}
	return out, nil
}

// copiesOf returns the source of a listed item, the copy at the destination of the list, and those in the other stores
// of the policy.
func (r *refusal) copiesOf(rules policy.Rules, l Listed) []schemas.Copy {
	c := r.command
	source := schemas.Copy{Account: c.GetAccount(), Store: l.SourceStore, Space: c.GetSpace(), Item: l.Item}
	copies := []schemas.Copy{source, source.In(c.GetDestinationStore())}
	for _, p := range rules.Pairs {
		for _, store := range []string{p.Source, p.Destination} {
			if at := source.In(store); !slices.Contains(copies, at) {
				copies = append(copies, at)
			}
		}
	}
	return copies
}

// restoreOrder returns the order that brings back the source of a listed item: the content that was deleted, if a copy
// has it, or else that of the copy that the list has protected. known has the source, that copy, and then the others.
// It returns nil if no digests of either are on record.
func restoreOrder(l Listed, known []schemas.KnownCopy) *pb.RestoreOrder {
	source, kept := known[0].Record.GetManifest(), known[1].Record.GetManifest()
	rewritten := l.Version != "" || len(l.Digests) > 0 // the source has this content
	var wanted *pb.Record
	switch {
	case !rewritten && len(source.GetDigests()) > 0 && slices.ContainsFunc(known[1:], func(k schemas.KnownCopy) bool {
		return holds(k, source.GetDigests())
	}):
		wanted = source
	case kept.GetState() == pb.RecordState_RECORD_STATE_LIVE && len(kept.GetDigests()) > 0:
		wanted = kept
	default:
		return nil
	}
	o := &pb.RestoreOrder{Digests: wanted.GetDigests(), Size: wanted.GetSize(), SizeUnknown: wanted.GetSizeUnknown()}
	for i, k := range known[1:] {
		if i == 0 || holds(k, o.GetDigests()) { // its own record may lag behind its bytes
			o.Sources = append(o.Sources, &pb.RestoreSource{Store: k.Store})
		}
	}
	switch {
	case l.Version != "":
		o.Replaces = &pb.Identity{Version: l.Version}
	case rewritten:
		o.Replaces = &pb.Identity{Version: source.GetVersion(), Etag: source.GetEtag(), Modified: schemas.Reported(source),
			Size: source.GetSize()}
	default:
		o.Deleted = timestamppb.New(l.Deleted)
	}
	return o
}

// holds reports whether a copy has the content with these digests according to its record.
func holds(k schemas.KnownCopy, digests digest.Set) bool {
	m := k.Record.GetManifest()
	return m.GetState() == pb.RecordState_RECORD_STATE_LIVE && digests.Compare(m.GetDigests()) == digest.Agree
}

// message returns the command of a restore order, or the result of an item that has none.
func (r *refusal) message(rules policy.Rules, l Listed, o *pb.RestoreOrder) schemas.Message {
	list := r.command.GetRefuseList()
	c := &pb.DuplicationCommand{
		Account: r.command.GetAccount(), Space: r.command.GetSpace(), Item: l.Item,
		SourceStore: r.command.GetDestinationStore(), DestinationStore: l.SourceStore,
		Reason: pb.DuplicationReason_DUPLICATION_REASON_RESTORE, Cause: list, Approved: r.command.GetApproved(),
		Size: o.GetSize(), SizeUnknown: o.GetSizeUnknown(), Time: timestamppb.New(r.started.Truncate(time.Millisecond)),
		PolicyRevision: rules.Revision, Restore: o,
	}
	c.Id = schemas.RestoreID(c)
	switch {
	case l.Item == "": // an empty space was deleted; a restored item creates it again
		return schemas.Message{Topic: schemas.DuplicationResults,
			Body: r.unrestorable(c, duplicate.ResultRestoreMoot, "the space is kept, and has no content to restore")}
	case o == nil:
		return schemas.Message{Topic: schemas.DuplicationResults,
			Body: r.unrestorable(c, duplicate.ResultRestoreFailed, "no copy with digests is on record")}
	}
	o.List, o.Why = list, r.command.GetWhy()
	topic := schemas.DuplicationLow
	c.Priority = pb.Priority_PRIORITY_LOW
	if p, large := rules.Class(o.GetSize(), r.cfg.Large); p == pb.Priority_PRIORITY_LARGE {
		c.Priority, topic = p, large
	}
	return schemas.Message{Topic: topic, Body: c}
}

// unrestorable returns the result of an item that cannot be brought back.
func (r *refusal) unrestorable(c *pb.DuplicationCommand, result, detail string) *pb.DuplicationResult {
	return &pb.DuplicationResult{
		Id: schemas.NewID(), Command: c.GetId(), Cause: c.GetCause(),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: c.GetSourceStore(), DestinationStore: c.GetDestinationStore(), Reason: c.GetReason(),
		Decision: string(duplicate.RowRestore), Result: result, Outcome: pb.Outcome_OUTCOME_NOTHING,
		Detail:  detail,
		Started: timestamppb.New(r.started), Finished: schemas.Finished(r.started, time.Now()),
		Attempt: int32(r.attempt), List: c.GetCause(),
		Worker: r.cfg.Worker, Host: r.cfg.Host, Software: r.cfg.Software,
	}
}
