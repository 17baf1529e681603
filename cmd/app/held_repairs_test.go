package app

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// The repair of the last copy that a store has lost of a space waits for an approval.
func TestEmptiedSpaceIsRepairedAfterApproval(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Fixity.Recheck, s.cfg.Fixity.Settle = nil, 0
	s.cfg.Accounts[0].Stores[1].Repair = "auto"
	x := s.archive(everyRole...)
	s.inForce(x.app, "acme", "2")
	want := map[string]string{}
	for n := range 3 {
		item := fmt.Sprint("item-", n)
		want[item] = item
		x.put(item, item, nil, "1", "2")
	}
	x.idle()
	for item := range want {
		x.must(os.Remove(x.path(1, item)))
		x.publish(schemas.Message{Topic: schemas.FixityHigh, Body: &pb.FixityTask{Id: schemas.NewID(), Account: "acme",
			Store: "2", Space: "photos", Item: item, Reason: pb.FixityReason_FIXITY_REASON_DEMAND}})
	}
	s.untilTrue("the repairs are held", func() bool { return len(x.open(incident.RepairsHeld)) == 1 })
	held := x.open(incident.RepairsHeld)[0]
	waiting := func() (all []*pb.Incident) {
		for _, i := range x.open("content-missing") {
			if i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL {
				all = append(all, i)
			}
		}
		return all
	}
	s.untilTrue("a repair waits", func() bool { return len(waiting()) > 0 })
	by := Actor{Who: "eve", Reason: "the disk is mounted", From: "cli"}
	x.idle() // the sink
	_, err := x.app.ApproveHeld(t.Context(), held, by)
	x.must(err)
	s.untilTrue("all repairs are done", func() bool {
		return len(x.open(incident.RepairsHeld))+len(x.open("content-missing")) == 0
	})
	x.holds("2", want)
	if _, err := x.app.ApproveHeld(t.Context(), held, by); !errors.Is(err, precondition.Err) {
		t.Errorf("approved again: %v", err)
	}
}
