package steward

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
)

// The decision about a list goes to the deleter of the destination.
func TestDecideList(t *testing.T) {
	at := time.Date(2026, 9, 1, 12, 0, 0, 500e6, time.UTC)
	for name, tt := range map[string]struct{ action, target, after, approved, refused string }{
		"approve deletes": {held.ActionApprove, "acme/2/photos//deletes-held/brake-1", "00000007:0=5", "brake-1", ""},
		"approve rewrites": {held.ActionApprove, "acme/2/photos//rewrites-held/rewrites-2", "00000007:0=5", "rewrites-2",
			""},
		"refuse deletes": {held.ActionRefuse, "acme/2/photos//deletes-held/brake-1", "00000007:0=5,3=9", "", "brake-1"},
		"refuse rewrites": {held.ActionRefuse, "acme/2/photos//rewrites-held/rewrites-1", "00000007:0=5", "",
			"rewrites-1"},
		"close":          {held.ActionClose, "acme/2/photos//deletes-held/brake-1", "00000007:0=5", "", ""},
		"without a list": {held.ActionApprove, "acme/2/photos//deletes-held", "00000007:0=5", "", ""},
		"of no kind":     {held.ActionRefuse, "acme/2/photos//deletes-held/other-1", "00000007:0=5", "", ""},
		"of an item":     {held.ActionRefuse, "acme/2/photos/a/deletes-held/brake-1", "00000007:0=5", "", ""},
		"nothing seen":   {held.ActionApprove, "acme/2/photos//deletes-held/brake-1", "", "", ""},
		"until a time": {held.ActionRefuse, "acme/2/photos//deletes-held/brake-1", "2026-09-01T12:00:00.5Z", "",
			""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			out, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: &pb.AdminAction{Id: "action", Who: "ann",
				Action: tt.action, Account: "acme", Store: "2", Space: "photos", Target: tt.target, After: tt.after,
				Reason: "a script", Time: timestamppb.New(at)}})
			if tt.approved+tt.refused == "" {
				if err != nil || len(out) > 0 {
					t.Errorf("got %v, %v", out, err)
				}
				return
			}
			if err != nil || len(out) != 1 {
				t.Fatalf("got %v, %v", out, err)
			}
			c, why := out[0].Body.(*pb.DeletionCommand), ""
			if tt.refused != "" {
				why = "a script"
			}
			if out[0].Topic != schemas.Deletions || c.GetApproveList() != tt.approved || c.GetRefuseList() != tt.refused ||
				c.GetApproved() != "ann" || c.GetCause() != "action" || c.GetWhy() != why || c.GetAccount() != "acme" ||
				c.GetDestinationStore() != "2" || c.GetSpace() != "photos" || !c.GetTime().AsTime().Equal(at) ||
				schemas.Validate(c) != nil {
				t.Errorf("got %v, %v", c, schemas.Validate(c))
			}
		})
	}
}
