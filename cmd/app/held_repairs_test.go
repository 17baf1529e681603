package app

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
)

// Of a space that a store has lost, the repairs beyond the limit wait on a list, which a person approves.
func TestEmptiedSpaceIsRepairedAfterApproval(t *testing.T) {
	t.Parallel()
	const all, limit = 12, 9
	s := newSite(t)
	s.cfg.Fixity.Recheck, s.cfg.Fixity.Settle = nil, 0
	s.cfg.Accounts[0].Stores[1].Repair = "auto"
	x := s.archive(everyRole...)
	s.inForce(x.app, "acme", "2")
	want := map[string]string{}
	for n := range all {
		item := fmt.Sprintf("item-%02d", n)
		want[item] = item
		x.put(item, item, nil, "1", "2")
	}
	x.idle()
	for item := range want {
		x.must(os.Remove(x.path(1, item)))
		x.publish(schemas.Message{Topic: schemas.FixityHigh, Body: &pb.FixityTask{Id: schemas.NewID(), Account: "acme",
			Store: "2", Space: "photos", Item: item, Reason: pb.FixityReason_FIXITY_REASON_DEMAND}})
	}
	waiting := func() (n int) {
		for _, i := range x.open("content-missing") {
			if i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL {
				n++
			}
		}
		return n
	}
	s.untilTrue("the repairs beyond the limit wait", func() bool {
		return waiting() == all-limit && x.waiting(incident.RepairsHeld) == all-limit &&
			len(x.open("content-missing")) == all-limit
	})
	by := Actor{Who: "eve", Reason: "the disk is mounted", From: "cli"}
	list := x.open(incident.RepairsHeld)[0]
	if _, _, err := x.app.DecideList(t.Context(), list, by, held.ActionRefuse); !errors.Is(err, precondition.Err) {
		t.Errorf("refused: %v", err)
	}
	_, n, err := x.app.DecideList(t.Context(), list, by, held.ActionApprove)
	if x.must(err); n != all-limit {
		t.Errorf("approved %d repairs", n)
	}
	s.untilTrue("all repairs are done", func() bool {
		return len(x.open(incident.RepairsHeld))+len(x.open("content-missing")) == 0
	})
	x.holds("2", want)
	x.idle()
	if _, _, err := x.app.DecideList(t.Context(), list, by, held.ActionClose); !errors.Is(err, precondition.Err) {
		t.Errorf("closed after it was approved: %v", err)
	}
}
