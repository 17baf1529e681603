package sweep

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A CheckRequest asks for a check of a copy that a sweep has found to differ from the records.
type CheckRequest struct {
	Sweep string
	Copy  schemas.Copy
	Size  int64 // in bytes; 0 or less: unknown
	Large int64 // the smallest size of class large; 0: none is
}

// Task returns the task of the check, with an id for each sweep, round and copy. The checker reads the records itself.
func (c CheckRequest) Task(round Round) schemas.Message {
	topic, priority := taskClass(c.Size, c.Large)
	return schemas.Message{Topic: topic, Body: &pb.FixityTask{
		Id:      schemas.ID(c.Sweep, round.ID, c.Copy.String()),
		Account: c.Copy.Account, Store: c.Copy.Store, Space: c.Copy.Space, Item: c.Copy.Item,
		Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Priority: priority, Cause: round.ID,
		Time: timestamppb.New(round.Started), Size: max(c.Size, 0),
	}}
}

// taskClass returns the topic and the priority of checks of a copy of a size.
func taskClass(size, large int64) (schemas.Topic, pb.Priority) {
	if large > 0 && size >= large {
		return schemas.FixityLarge, pb.Priority_PRIORITY_LARGE
	}
	return schemas.FixityLow, pb.Priority_PRIORITY_LOW
}
