package steward

import (
	"errors"
	"reflect"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Orders carry the size of the item, and large items have topics of their own, also when an order is published again.
func TestSizeOfOrders(t *testing.T) {
	type sent struct {
		topic    schemas.Topic
		priority pb.Priority
		size     int64
	}
	const high, large = pb.Priority_PRIORITY_HIGH, pb.Priority_PRIORITY_LARGE
	silent := func(w *harness) { w.failure = errors.New("has not caught up") }
	wasLost := func(bytes int64) func(*harness) schemas.Body {
		return func(w *harness) schemas.Body {
			r := w.lostResult("was-lost")
			r.Bytes = bytes
			return r
		}
	}
	result := func(row int32, size int64) func(*harness) schemas.Body {
		return func(w *harness) schemas.Body {
			return w.result(row, func(r *pb.FixityResult) {
				if r.Object != nil {
					r.Object.Size = size
				}
			})
		}
	}
	for name, tt := range map[string]struct {
		known int64 // size on record of the copies to repair from
		setUp func(*harness)
		of    func(*harness) schemas.Body
		want  sent
	}{
		"repair of a small one":          {99, nil, result(2, 3), sent{schemas.DuplicationHigh, high, 99}},
		"repair of a large one":          {100, nil, result(2, 3), sent{schemas.DuplicationLarge, large, 100}},
		"repair of one that is gone":     {100, nil, result(8, 0), sent{schemas.DuplicationLarge, large, 100}},
		"repair, the record has no size": {0, nil, result(2, 101), sent{schemas.DuplicationLarge, large, 101}},
		"properties of a large one": {0, nil, func(w *harness) schemas.Body {
			return w.result(1, damaged, func(r *pb.FixityResult) { r.Object.Size = 100 })
		}, sent{schemas.DuplicationLarge, large, 100}},
		"put off, small":                     {99, silent, result(2, 99), sent{schemas.FixityHigh, high, 99}},
		"put off, large":                     {99, silent, result(2, 100), sent{schemas.FixityLarge, large, 100}},
		"put off, of one that is gone":       {99, silent, result(8, 0), sent{schemas.FixityHigh, high, 0}},
		"check of what was lost, small":      {99, nil, wasLost(5), sent{schemas.FixityHigh, high, 5}},
		"check of what was lost, large":      {99, nil, wasLost(500), sent{schemas.FixityLarge, large, 500}},
		"check of a lost copy, size unknown": {99, nil, wasLost(0), sent{schemas.FixityHigh, high, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			for _, r := range w.records {
				r.Size = tt.known
			}
			if tt.setUp != nil {
				tt.setUp(w)
			}
			cause := tt.of(w)
			for range 2 { // its outputs are lost, except the incident
				w.large = 100
				w.restart()
				var got []sent
				for _, m := range w.handleWithoutPublishing(cause) {
					switch b := m.Body.(type) {
					case *pb.Incident:
						w.topic[schemas.IncidentKey(b)] = b
					case *pb.DuplicationCommand:
						got = append(got, sent{m.Topic, b.GetPriority(), b.GetSize()})
					case *pb.FixityTask:
						got = append(got, sent{m.Topic, b.GetPriority(), b.GetSize()})
					}
				}
				if wasLost := w.topic[key("content-missing")].GetState() == open; wasLost && got == nil {
					return // published again, the incident of a lost copy requests nothing
				}
				if want := []sent{tt.want}; !reflect.DeepEqual(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			}
		})
	}
}
