package app

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/sweep"
)

// The time of dry runs is that of the slowest store or pair, by measured rates; without one it is unknown, and not 0.
func TestWorkTime(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 0)
	deliveries := map[schemas.Topic][]*schemas.Delivery{}
	deliver := func(topic schemas.Topic, b schemas.Body) {
		deliveries[topic] = append(deliveries[topic], &schemas.Delivery{Topic: topic, From: topic, Incarnation: 1,
			Offset: int64(len(deliveries[topic])), Attempt: 1, Timestamp: s.begun, Body: b})
	}
	at := timestamppb.New(s.begun.Add(-time.Hour).Truncate(time.Minute).Add(time.Second))
	for i := range 120 { // in a minute: 2 a second, of 20 bytes
		deliver(schemas.FixityResults, &pb.FixityResult{Id: schemas.NewID(), Task: fmt.Sprint("t", i), Account: "acme",
			Store: "1", Space: "photos", Item: fmt.Sprint("item-", i), Verdict: pb.Verdict_VERDICT_PASS,
			Started: at, Finished: at, BytesRead: 10, Final: true})
		deliver(schemas.DuplicationResults, &pb.DuplicationResult{Id: schemas.NewID(), Command: schemas.NewID(),
			Account: "acme", Space: "photos", Item: fmt.Sprint("item-", i), SourceStore: "1", DestinationStore: "2",
			Decision: "C5", Result: "copied", Outcome: pb.Outcome_OUTCOME_DONE, Bytes: 100, Started: at, Finished: at})
	}
	for _, batch := range deliveries {
		must(t, clickhouse.NewSink(s.db).Store(t.Context(), batch))
	}
	amount := func(items, bytes int64) sweep.Amount { return sweep.Amount{Items: items, Bytes: bytes} }
	work := func(store, destination string, w sweep.Work) SweptSpace {
		return SweptSpace{schemas.Copy{Account: "acme", Store: store, Space: "photos"}, destination, sweep.Result{Work: w}}
	}
	for name, tt := range map[string]struct {
		work []SweptSpace
		want float64 // seconds; negative: unknown
	}{
		"nothing":      {[]SweptSpace{work("9", "", sweep.Work{})}, 0},
		"checks":       {[]SweptSpace{work("1", "", sweep.Work{Checks: amount(10, 10)})}, 5},
		"large checks": {[]SweptSpace{work("1", "", sweep.Work{Checks: amount(10, 2000)})}, 100},
		"of two spaces": {[]SweptSpace{work("1", "", sweep.Work{Checks: amount(10, 0)}),
			work("1", "", sweep.Work{Checks: amount(2, 0)})}, 6},
		"of an unread store":   {[]SweptSpace{work("2", "", sweep.Work{Checks: amount(1, 1)})}, -1},
		"copies":               {[]SweptSpace{work("1", "2", sweep.Work{Copies: amount(30, 0)})}, 15},
		"large copies":         {[]SweptSpace{work("1", "2", sweep.Work{Copies: amount(1, 2000)})}, 10},
		"of an unused pair":    {[]SweptSpace{work("2", "1", sweep.Work{Copies: amount(1, 1)})}, -1},
		"new without a policy": {[]SweptSpace{work("1", "", sweep.Work{Changes: amount(5, 5), Checks: amount(2, 0)})}, 1},
	} {
		got, err := s.a.WorkTime(t.Context(), tt.work)
		if err != nil || (got == nil) != (tt.want < 0) || got != nil && *got != tt.want {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, tt.want)
		}
	}
}
