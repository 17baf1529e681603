package steward

import (
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestRefuseList(t *testing.T) {
	for name, tt := range map[string]struct{ target, after, list string }{
		"deletes":        {"acme/2/photos//deletes-held/brake-1", "2026-09-01T12:00:00.5Z", "brake-1"},
		"rewrites":       {"acme/2/photos//rewrites-held/rewrites-1", "2026-09-01T12:00:00.5Z", "rewrites-1"},
		"without a list": {"acme/2/photos//deletes-held", "2026-09-01T12:00:00.5Z", ""},
		"without a time": {"acme/2/photos//deletes-held/brake-1", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			out, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: &pb.AdminAction{Id: "action", Who: "ann",
				Action: ActionRefuse, Account: "acme", Store: "2", Space: "photos", Target: tt.target, After: tt.after,
				Reason: "a script"}})
			if err != nil || (len(out) == 1) != (tt.list != "") {
				t.Fatalf("got %v, %v", out, err)
			}
			if tt.list == "" {
				return
			}
			c := out[0].Body.(*pb.DeletionCommand)
			if out[0].Topic != schemas.Deletions || c.GetRefuseList() != tt.list || c.GetApproveList() != "" ||
				c.GetApproved() != "ann" || c.GetCause() != "action" || c.GetWhy() != "a script" ||
				c.GetDestinationStore() != "2" || c.GetTime().AsTime().Format(time.RFC3339Nano) != tt.after ||
				schemas.Validate(c) != nil {
				t.Errorf("got %v", c)
			}
		})
	}
}
