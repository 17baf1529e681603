package hint

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// Records reads the newest records of copies, in the order of copies.
type Records interface {
	Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error)
}

// rowKnown: a claim, or created and dated by the event, and the content that is present is on record: no Change. It
// must not take the digests of the content away from the record.
const rowKnown Row = "known"

// rowDifferent: a claim, and the item is on record, but not with the content that is present: no Change. A claim must
// not replace what is on record: the sweep reconcile has the copy checked.
const rowDifferent Row = "different"

// claims is the prefix of the names of foreign topics that stand for claims.
const claims = "http/"

// ClaimTopic returns the topic of the claims of a sender. Claims that wait or become dead letters have this topic.
func ClaimTopic(sender string) schemas.Topic { return schemas.Foreign(claims + sender) }

// Claim returns the message to the ingester for an event about a copy that millrace writes. Of what the event says only
// the copy is believed. The topic names the sender: only the ingester publishes messages with this topic.
func Claim(sender string, c *pb.Change) schemas.Message {
	at := schemas.CopyOf(c)
	value, err := protojson.Marshal(&pb.Change{
		Account: at.Account, Store: at.Store, Space: at.Space, Item: at.Item,
		Op: c.GetOp(), Time: c.GetTime(), Version: c.GetVersion(),
	})
	if err != nil {
		panic(fmt.Sprintf("hint: encode the claim about %s: %v", at, err)) // its texts are UTF-8, its time is in range
	}
	key := schemas.Key(at.Account, at.Space, at.Item)
	return schemas.Message{Topic: ClaimTopic(sender), Key: []byte(key), Value: value}
}

// claimOf returns the claim in a delivery, and the agent of its Change. isClaim is false if the delivery has another
// topic. Its error is permanent.
func claimOf(d *schemas.Delivery) (c *pb.Change, agent string, isClaim bool, err error) {
	name, _ := d.Topic.Foreign()
	if !strings.HasPrefix(name, claims) {
		return nil, "", false, nil
	}
	c = new(pb.Change)
	if err := protojson.Unmarshal(d.Value, c); err != nil {
		return nil, "", true, retry.Permanent(fmt.Errorf("parse claim by %s: %w", name, err))
	}
	return c, strings.TrimSuffix(name, "/"), true, nil
}

// handleClaim looks at the copy of a hint, which is not believed. What is absent is no Change: the sweeps find real
// removals, and a claim must not explain a loss.
func (h *Handler) handleClaim(ctx context.Context, d *schemas.Delivery, at schemas.Copy, one Hint,
) ([]schemas.Message, error) {
	s, err := h.observer.Observe(ctx, at)
	if err != nil {
		return nil, err
	}
	if s.Received = d.Timestamp; s.Present {
		if known, err := h.isKnown(ctx, at, s.Object, true); known || err != nil {
			return nil, err
		}
	}
	return h.publish(Decide(at, one, s)), nil
}
