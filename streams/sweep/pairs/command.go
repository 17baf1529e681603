package pairs

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
)

// commands returns the commands for entries, with the records of both sides.
func (s *pairSweep) commands(
	ctx context.Context, round sweep.Round, rules policy.Rules, entries []found,
) ([]schemas.Message, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	copies := make([]schemas.Copy, 0, 2*len(entries))
	for _, e := range entries {
		c := schemas.Copy{Account: s.Account, Store: s.Source, Space: s.Space, Item: e.Key}
		copies = append(copies, c, c.In(s.Destination))
	}
	records, err := s.deps.Records.Fresh(ctx, copies)
	if err == nil && len(records) != len(copies) {
		err = fmt.Errorf("found %d records for %d copies", len(records), len(copies))
	}
	if err != nil {
		return nil, fmt.Errorf("read the records of what differs: %w", err)
	}
	messages := make([]schemas.Message, len(entries))
	for i := range entries {
		messages[i] = s.itemCommand(round, rules, &entries[i], records[2*i:2*i+2])
	}
	return messages, nil
}

// itemCommand returns the command for an entry. records are those of the source and of the destination.
func (s *pairSweep) itemCommand(
	round sweep.Round, rules policy.Rules, e *found, records []*pb.CopyRecord,
) schemas.Message {
	c := s.command(round, rules, e.Key)
	c.SourceRecord = schemas.WithoutProperties(records[0]).GetManifest()
	c.DestinationRecord = schemas.WithoutProperties(records[1]).GetManifest()
	c.IfAbsent = isGuess(e, c.GetSourceRecord())
	topic := schemas.DuplicationLow
	if c.SizeUnknown = !e.InFirst || e.First.Size < 0; !c.SizeUnknown {
		c.Size = e.First.Size
		if p, large := rules.Class(c.Size, s.Large); p == pb.Priority_PRIORITY_LARGE {
			c.Priority, topic = p, large
		}
	}
	return schemas.Message{Topic: topic, Body: c}
}

// spaceCommand returns the command for the space itself.
func (s *pairSweep) spaceCommand(round sweep.Round, rules policy.Rules) schemas.Message {
	c := s.command(round, rules, "")
	c.IfAbsent = true
	return schemas.Message{Topic: schemas.DuplicationLow, Body: c}
}

func (s *pairSweep) command(round sweep.Round, rules policy.Rules, item string) *pb.DuplicationCommand {
	return &pb.DuplicationCommand{
		Id:      schemas.ID("sweep", round.ID, schemas.ItemKey(s.Account, s.Space, item), s.Destination),
		Account: s.Account, Space: s.Space, Item: item, SourceStore: s.Source, DestinationStore: s.Destination,
		Reason: pb.DuplicationReason_DUPLICATION_REASON_SWEEP, Priority: pb.Priority_PRIORITY_LOW,
		Cause: round.ID, Time: timestamppb.New(round.Started), PolicyRevision: rules.Revision,
	}
}

// isGuess reports whether the finding rests on the listings alone. It does not if the source's record is of a client's
// report, or of a copy, and says the same: it describes the content that was listed, or the item was deleted.
func isGuess(e *found, r *pb.Record) bool {
	if o := r.GetOrigin(); o == pb.Origin_ORIGIN_SWEEP || o == pb.Origin_ORIGIN_FIXITY {
		return true
	}
	switch r.GetState() {
	case pb.RecordState_RECORD_STATE_LIVE:
		same := digest.Set(r.GetDigests()).Compare(e.First.Digests)
		return !e.InFirst || same == digest.Disagree || same == digest.Incomparable && !record.IsOf(r, e.First)
	case pb.RecordState_RECORD_STATE_TOMBSTONE:
		return e.InFirst
	}
	return true
}
