package steward

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestCommon(t *testing.T) {
	of := func(item, worker string, modified time.Duration) *pb.Incident {
		i := &pb.Incident{Item: item, Worker: worker}
		if modified >= 0 {
			i.Object = &pb.Identity{Modified: timestamppb.New(base.Add(modified))}
		}
		return i
	}
	const w1, w2, w3 = "h1/checker/1", "h1/checker/2", "h2/checker/1"
	for name, tt := range map[string]struct {
		all  []*pb.Incident
		want string
	}{
		"none":    {nil, ""},
		"one":     {[]*pb.Incident{of("a/b", w1, 0)}, ""},
		"nothing": {[]*pb.Incident{of("a", w1, 0), of("b", w3, time.Hour)}, ""},
		"a prefix": {[]*pb.Incident{of("a/b/c", "", -1), of("a/b/d/e", "", -1), of("a/bb", "", -1)},
			`; all are under the prefix "a/"`},
		"the prefix of one that has fewer segments": {[]*pb.Incident{of("a/b/c/d", "", -1), of("a/b/c", "", -1)},
			`; all are under the prefix "a/b/"`},
		"the begin of a name": {[]*pb.Incident{of("ab/c", "", -1), of("ac/c", "", -1)}, ""},
		"a worker": {[]*pb.Incident{of("a", w1, -1), of("b", w1, -1)},
			"; all were found by the worker h1/checker/1"},
		"a host":        {[]*pb.Incident{of("a", w1, -1), of("b", w2, -1)}, "; all were found on the host h1"},
		"several hosts": {[]*pb.Incident{of("a", w1, -1), of("b", w2, -1), of("c", w3, -1)}, ""},
		"an hour": {[]*pb.Incident{of("a", "", 0), of("b", "", 59*time.Minute)},
			"; all objects were modified in the hour from 2026-03-01T12:00:00Z"},
		"one whose time is unknown": {[]*pb.Incident{of("a", "", 0), of("b", "", -1), of("c", "", 0)}, ""},
		"everything": {[]*pb.Incident{of("a/b", w1, 0), of("a/c", w1, 0)}, `; all are under the prefix "a/"` +
			"; all were found by the worker h1/checker/1; all objects were modified in the hour from 2026-03-01T12:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			var c common
			for _, i := range tt.all {
				c.add(i)
			}
			if got := c.String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
