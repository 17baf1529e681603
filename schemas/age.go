package schemas

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// maxAge bounds what a damaged result says about its own age.
const maxAge = 365 * 24 * time.Hour

// HasAge reports whether the messages of t are results of work: they stand at Kafka's time of their record minus their
// age, which is finished minus started by one monotonic clock. A record that is written later would stand too late.
func (t Topic) HasAge() bool { return t == FixityResults || t == DuplicationResults }

// Finished returns the end of work that ends now. It is counted from the start by the monotonic clock, so a step of the
// wall clock does not change the age of the result.
func Finished(started, now time.Time) *timestamppb.Timestamp {
	return timestamppb.New(started.Add(now.Sub(started)))
}

// DateByKafka moves the times of a result from the clock of its worker to that of Kafka: it finished at Kafka's time of
// its record, and started its age before. What stores and operators have dated stays. The digest of a provider,
// evidence level 3, was computed at a time of the store, which is only bounded by Kafka's.
func DateByKafka(d *Delivery) {
	if d.Timestamp.UnixMilli() <= 0 { // unknown
		return
	}
	now := timestamppb.New(d.Timestamp)
	switch r := d.Body.(type) {
	case *pb.FixityResult:
		if r.GetEvidenceLevel() == 3 {
			if r.GetStarted().AsTime().After(d.Timestamp) {
				r.Started, r.Finished = now, now
			}
			return
		}
		if r.GetNext() != nil {
			r.Next = timestamppb.New(d.Timestamp.Add(between(r.GetFinished(), r.GetNext())))
		}
		r.Started, r.Finished = timestamppb.New(d.Timestamp.Add(-between(r.GetStarted(), r.GetFinished()))), now
	case *pb.DuplicationResult:
		if r.GetStarted() != nil {
			r.Started = timestamppb.New(d.Timestamp.Add(-between(r.GetStarted(), r.GetFinished())))
		}
		r.Finished = now
	}
}

// between returns the time from a to b, within bounds.
func between(a, b *timestamppb.Timestamp) time.Duration {
	return min(max(b.AsTime().Sub(a.AsTime()), 0), maxAge)
}
