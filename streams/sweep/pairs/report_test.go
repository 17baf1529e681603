package pairs

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/sweep"
)

func TestReport(t *testing.T) {
	p := newHarness(t).config.Pair
	counts := map[string]int64{"equal": 1}
	end := when.Add(time.Hour)
	ended := sweep.Result{Round: round, Finished: end, Counts: counts}
	running := sweep.Result{Round: round, Counts: counts}
	for name, tt := range map[string]struct {
		result   sweep.Result
		failure  error
		finished time.Time
		detail   string
	}{
		"ended":            {ended, nil, end, ""},
		"failed":           {running, errors.New("away"), end.Add(1), "away"},
		"failed at an end": {ended, errors.New("away"), end.Add(1), "away"},
		"not ended":        {running, nil, end.Add(1), "the round has not ended"},
	} {
		t.Run(name, func(t *testing.T) {
			got := p.Report(tt.result, end.Add(1), tt.failure)
			want := &pb.Report{Id: got.GetId(), Kind: "pair", Account: "acme", Store: "1", DestinationStore: "2",
				Space: "photos", Round: round.ID, Started: timestamppb.New(when), Finished: timestamppb.New(tt.finished),
				Counts: counts, Complete: tt.detail == "", Detail: tt.detail}
			if !proto.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			if err := schemas.Validate(got); err != nil {
				t.Error(err)
			}
			if again := p.Report(tt.result, end.Add(1), tt.failure); again.GetId() != got.GetId() {
				t.Error("the same report has another id")
			}
		})
	}
	if p.Report(ended, end, nil).GetId() == p.Report(running, end, nil).GetId() {
		t.Error("a report of a whole round has the id of one of a part")
	}
}
