package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// The repair of the last copy that a store has lost of a space waits for an approval, which the steward hands on to it.
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
			if i.GetParent() == held.GetId() && i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL {
				all = append(all, i)
			}
		}
		return all
	}
	s.untilTrue("a repair waits", func() bool { return len(waiting()) > 0 })
	by := Actor{Who: "eve", Reason: "the disk is mounted", From: "cli"}
	_, err := x.app.ApproveRepair(t.Context(), held, by)
	x.must(err)
	s.untilTrue("all repairs are done", func() bool {
		return len(x.open(incident.RepairsHeld))+len(x.open("content-missing")) == 0
	})
	x.holds("2", want)
	held.State = pb.IncidentState_INCIDENT_STATE_REPAIRING
	if _, err := x.app.ApproveRepair(t.Context(), held, by); !errors.Is(err, precondition.Err) {
		t.Errorf("approved again: %v", err)
	}
}

// A store that has lost all copies of two spaces has one incident that waits, whose approval is that of both.
func TestEmptiedStoreIsRepairedAfterApproval(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Fixity.Recheck, s.cfg.Fixity.Settle = []time.Duration{200 * time.Millisecond}, 0
	s.cfg.Accounts[0].Stores[1].Repair = "auto"
	x := s.archive(everyRole...)
	s.inForce(x.app, "acme", "2")
	const items = 10
	spaces := []string{"films", "sounds"}
	var put, checks []schemas.Message
	for _, space := range spaces {
		for _, id := range []string{"1", "2"} {
			x.must(x.store(id).CreateSpace(t.Context(), storage.Space{Name: space}))
		}
		for n := range items {
			item := fmt.Sprint("item-", n)
			for _, id := range []string{"1", "2"} {
				o, err := x.store(id).Put(t.Context(), space, item, strings.NewReader(item),
					storage.PutOptions{Size: int64(len(item))})
				x.must(err)
				c := record.Content(schemas.Copy{Account: "acme", Store: id, Space: space, Item: item}, o)
				c.Origin = pb.Origin_ORIGIN_CLIENT
				put = append(put, schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
			}
			checks = append(checks, schemas.Message{Topic: schemas.FixityHigh, Body: &pb.FixityTask{Id: schemas.NewID(),
				Account: "acme", Store: "2", Space: space, Item: item, Reason: pb.FixityReason_FIXITY_REASON_DEMAND}})
		}
	}
	x.publish(put...)
	x.idle()
	left := func() (n int) {
		for _, space := range spaces {
			all, err := filepath.Glob(filepath.Join(s.cfg.Accounts[0].Stores[1].Root, space, "item-*"))
			x.must(err)
			n += len(all)
		}
		return n
	}
	for _, c := range checks {
		task := c.Body.(*pb.FixityTask)
		x.must(os.Remove(filepath.Join(s.cfg.Accounts[0].Stores[1].Root, task.GetSpace(), task.GetItem())))
	}
	x.publish(checks...)
	parent := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
	var held *pb.Incident
	s.untilTrue("one incident stands for all that wait", func() bool {
		counts, err := read.CountIncidents(t.Context(), x.app.DB(), "acme")
		x.must(err)
		waiting, missing := int64(0), int64(0)
		for _, c := range counts {
			if waiting += c.Waiting; c.Kind == "content-missing" {
				missing = c.Open
			}
		}
		for _, i := range x.open(incident.RepairsHeld) {
			if schemas.IncidentKey(i) == parent.Key() {
				held = i
			}
		}
		return held != nil && waiting == 1 && missing+int64(left()) >= 2*items
	})
	if n := left(); n == 2*items {
		t.Errorf("%d copies are repaired without an approval", n)
	}
	_, err := x.app.ApproveRepair(t.Context(), held, Actor{Who: "eve", Reason: "the disk is mounted", From: "cli"})
	x.must(err)
	s.untilTrue("all repairs are done", func() bool {
		return left() == 2*items && len(x.open(incident.RepairsHeld))+len(x.open("content-missing")) == 0
	})
}
