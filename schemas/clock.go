package schemas

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Earlier returns the time that orders a Change: t, which it reports, or Kafka's time of its first record if that is
// earlier. Times are compared in whole milliseconds, because Kafka's time has no smaller part. A zero time of Kafka is
// unknown.
func Earlier(t *timestamppb.Timestamp, kafka time.Time) *timestamppb.Timestamp {
	if t == nil || kafka.IsZero() || t.AsTime().UnixMilli() <= kafka.UnixMilli() {
		return t
	}
	return timestamppb.New(kafka.Truncate(time.Millisecond))
}

// Reported returns the time that the store or client gave the content of r. Objects, ids, metadata of copies and output
// have this time; Record.time only orders.
func Reported(r *pb.Record) *timestamppb.Timestamp { return cmp.Or(r.GetReported(), r.GetTime()) }

// SourceTime returns the time that orders the content that the copy of r was made from; nil if it is unknown.
func SourceTime(r *pb.Record) *timestamppb.Timestamp {
	return cmp.Or(r.GetSourceEffective(), r.GetSourceTime())
}

// ChangedAt returns the time that orders the Change that caused c; nil if no Change did.
func ChangedAt(c *pb.DuplicationCommand) *timestamppb.Timestamp {
	return cmp.Or(c.GetEffective(), c.GetChangeTime())
}
