package pairs

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestIsGuess(t *testing.T) {
	live, tombstone := pb.RecordState_RECORD_STATE_LIVE, pb.RecordState_RECORD_STATE_TOMBSTONE
	record := func(state pb.RecordState, f func(*pb.Record)) *pb.Record {
		r := &pb.Record{State: state, Version: "v1", Origin: pb.Origin_ORIGIN_CLIENT, Size: 7, Time: timestamppb.New(when)}
		if f != nil {
			f(r)
		}
		return r
	}
	origin := func(o pb.Origin) func(*pb.Record) { return func(r *pb.Record) { r.Origin = o } }
	version := func(v string) func(*pb.Record) { return func(r *pb.Record) { r.Version = v } }
	md5 := func(version, value string) func(*pb.Record) {
		return func(r *pb.Record) { r.Version, r.Digests = version, map[string]string{"md5": value} }
	}
	later := func(r *pb.Record) { r.Version, r.Time = "", timestamppb.New(when.Add(time.Second)) }
	larger := func(r *pb.Record) { r.Version, r.Size = "", 9 }
	unsized := func(r *pb.Record) { r.Version, r.Size, r.SizeUnknown = "", 0, true }
	both := entryOf(object(nil), sized(8))
	gone := entryOf(nil, object(nil))
	withMD5 := entryOf(withDigest("md5", "aa"), sized(8))
	for name, tt := range map[string]struct {
		e      *entry
		record *pb.Record
		want   bool
	}{
		"reported by a client":       {both, record(live, nil), false},
		"a copy, in a chain":         {both, record(live, origin(pb.Origin_ORIGIN_DUPLICATION)), false},
		"imported":                   {both, record(live, origin(pb.Origin_ORIGIN_IMPORT)), false},
		"found by a sweep":           {both, record(live, origin(pb.Origin_ORIGIN_SWEEP)), true},
		"found by a check":           {both, record(live, origin(pb.Origin_ORIGIN_FIXITY)), true},
		"nothing on record":          {both, record(pb.RecordState_RECORD_STATE_NONE, nil), true},
		"record unknown":             {both, nil, true},
		"another version":            {both, record(live, version("v2")), true},
		"another version, same md5":  {withMD5, record(live, md5("v2", "aa")), false},
		"same version, another md5":  {withMD5, record(live, md5("v1", "bb")), true},
		"no version":                 {both, record(live, version("")), false},
		"no version, another time":   {both, record(live, later), true},
		"no version, another size":   {both, record(live, larger), true},
		"no version, size unknown":   {both, record(live, unsized), true},
		"missing, reported":          {entryOf(object(nil), nil), record(live, nil), false},
		"deleted by a client":        {gone, record(tombstone, nil), false},
		"found deleted by a sweep":   {gone, record(tombstone, origin(pb.Origin_ORIGIN_SWEEP)), true},
		"gone, and live on record":   {gone, record(live, nil), true},
		"there, and deleted":         {both, record(tombstone, nil), true},
		"gone, nothing on record":    {gone, record(pb.RecordState_RECORD_STATE_NONE, nil), true},
		"size unknown in the store":  {entryOf(sized(-1), nil), record(live, version("")), true},
		"both sizes unknown, no ver": {entryOf(sized(-1), nil), record(live, unsized), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isGuess(&found{entry: *tt.e}, tt.record); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}
