package pairs

import (
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/sweep"
)

// ReportKind is the kind of the reports of pairs.
const ReportKind = "pair"

// Report returns the report of a round that ended at a time, with the error that ended it, or nil. It is complete only
// if the round has compared both listings to their ends. The counts of an incomplete report are those until then.
func (p Pair) Report(r sweep.Result, at time.Time, failure error) *pb.Report {
	report := &pb.Report{
		Kind: ReportKind, Account: p.Account, Store: p.Source, DestinationStore: p.Destination, Space: p.Space,
		Round: r.ID, Started: timestamppb.New(r.Started), Finished: timestamppb.New(at), Counts: maps.Clone(r.Counts),
	}
	if failure != nil || r.Finished.IsZero() {
		report.Id = schemas.ID("report", ReportKind, r.ID, at.UTC().Format(time.RFC3339Nano))
		report.Detail = "the round has not ended"
		if failure != nil {
			report.Detail = failure.Error()
		}
		return report
	}
	report.Id = schemas.ID("report", ReportKind, r.ID)
	report.Finished, report.Complete = timestamppb.New(r.Finished), true
	return report
}
