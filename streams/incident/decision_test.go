package incident

import (
	"errors"
	"testing"
	"testing/synctest"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A decision is a step of the incident, as often as it is recorded, and so is that its work was ordered. A closed
// incident has none.
func TestDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l topic
		s := Subject{Account: "acme", Store: "2", Space: "photos", Kind: DeletesHeld, Name: "brake-1"}
		b := l.board()
		ann := Decision{By: "ann", Ref: "1", Reason: "no", Refused: true}
		must(t, b.Decide(t.Context(), s, ann))
		must(t, b.Ordered(t.Context(), s, "1", "it is not open"))
		must(t, b.Open(t.Context(), s, "why"))
		l.fail = errors.New("no answer")
		if err := b.Decide(t.Context(), s, ann); err == nil {
			t.Error("no error")
		}
		for range 2 {
			must(t, b.Decide(t.Context(), s, ann))
		}
		must(t, b.Update(t.Context(), s, "1 of 2"))
		for range 2 {
			must(t, b.Ordered(t.Context(), s, "1", "2 orders"))
		}
		l.checkNewest(t, pb.IncidentState_INCIDENT_STATE_REPAIRING, 4,
			"opened why", "refused no", "seen-again 1 of 2", "ordered 2 orders")
		must(t, b.Close(t.Context(), s, "done"))
		must(t, b.Decide(t.Context(), s, Decision{By: "bob", Ref: "2", Reason: "yes"}))
		l.checkNewest(t, pb.IncidentState_INCIDENT_STATE_CLOSED, 5,
			"opened why", "refused no", "seen-again 1 of 2", "ordered 2 orders", "closed done")
	})
}
