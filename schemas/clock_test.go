package schemas_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestEarlier(t *testing.T) {
	kafka, of1965 := time.Date(2026, 3, 4, 6, 6, 7, 891e6, time.UTC), time.Date(1965, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		kafka, reported, want time.Time
	}{
		"before":                           {kafka, kafka.Add(-time.Hour - 5), kafka.Add(-time.Hour - 5)},
		"the same millisecond":             {kafka, kafka.Add(999_999), kafka.Add(999_999)},
		"one millisecond ahead":            {kafka, kafka.Add(1e6 + 7), kafka},
		"of 2200":                          {kafka, time.Date(2200, 1, 1, 0, 0, 0, 7, time.UTC), kafka},
		"before 1970":                      {kafka, of1965, of1965},
		"below a millisecond of Kafka":     {kafka.Add(7), kafka.Add(2e6), kafka},
		"a record without a time of Kafka": {time.Time{}, kafka.Add(time.Hour), kafka.Add(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := schemas.Earlier(timestamppb.New(tt.reported), tt.kafka).AsTime(); !got.Equal(tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestTimesOfARecord(t *testing.T) {
	at, ahead := timestamppb.New(time.Unix(1, 0)), timestamppb.New(time.Unix(2, 0))
	for name, tt := range map[string]struct{ got, want *timestamppb.Timestamp }{
		"reported":            {schemas.Reported(&pb.Record{Time: at}), at},
		"reported ahead":      {schemas.Reported(&pb.Record{Time: at, Reported: ahead}), ahead},
		"no record":           {schemas.Reported(nil), nil},
		"source":              {schemas.SourceTime(&pb.Record{SourceTime: at}), at},
		"source ahead":        {schemas.SourceTime(&pb.Record{SourceTime: ahead, SourceEffective: at}), at},
		"no source":           {schemas.SourceTime(&pb.Record{Time: at}), nil},
		"cause":               {schemas.ChangedAt(&pb.DuplicationCommand{ChangeTime: at, Time: ahead}), at},
		"cause ahead":         {schemas.ChangedAt(&pb.DuplicationCommand{ChangeTime: ahead, Effective: at}), at},
		"caused by no Change": {schemas.ChangedAt(&pb.DuplicationCommand{Time: at}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if !proto.Equal(tt.got, tt.want) {
				t.Errorf("got %v, want %v", tt.got, tt.want)
			}
		})
	}
}
