package app

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
)

// A copy whose source was deleted is deleted once a person has asked for it and approved the list. One that the policy
// wants, and a source, are refused.
func TestRemove(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.archive(schemas.RoleDeleter, schemas.RoleSteward, schemas.RoleSink, schemas.RoleDelayer)
	ctx, ann := t.Context(), Actor{Who: "ann", Reason: "not needed", From: "cli"}
	s.inForce(x.app, "acme", "2")
	x.put("kept", "old", nil, "1", "2")
	x.put("wanted", "new", nil, "1", "2")
	x.remove("kept", "1")
	asks := func(store string, items ...string) error {
		_, err := x.app.Remove(ctx, RemovalRequest{Account: "acme", Space: "photos", Store: store, Items: items, By: ann})
		return err
	}
	for name, err := range map[string]error{
		"one is wanted": asks("2", "kept", "wanted"), "the source": asks("1", "wanted"), "no store": asks("9", "kept"),
	} {
		if !errors.Is(err, precondition.Err) {
			t.Errorf("%s: %v, want a precondition", name, err)
		}
	}
	all := RemovalRequest{Account: "acme", Space: "photos", Store: "2", Prefix: new(string), By: ann, DryRun: true}
	for _, all.DryRun = range []bool{true, false} {
		report, err := x.app.Remove(ctx, all)
		if err != nil || report.Ordered != 1 || report.Stay != 1 || strings.Join(report.Copies, " ") != "kept" {
			t.Fatalf("dry run: %t: got %+v, %v", all.DryRun, report, err)
		}
		if all.DryRun {
			continue
		}
		s.until(func() error {
			p, err := x.app.Removed(report)(ctx)
			if err == nil && p.Done != 1 {
				err = errors.New("the delete has no result")
			}
			return err
		})
		o, err := x.app.RemovalOutcome(ctx, report)
		if err != nil || o.Results["awaiting-approval"] != 1 || len(o.Failed) > 0 {
			t.Errorf("got %+v, %v", o, err)
		}
	}
	list := x.open(incident.DeletesHeld)
	if len(list) != 1 || list[0].GetSubject() != "asked-1" || EventOf(list[0]) != "" || x.content("kept", "2") != "old" {
		t.Fatalf("got %v", list)
	}
	if _, _, err := x.app.DecideList(ctx, list[0], ann, held.ActionRefuse); !errors.Is(err, precondition.Err) {
		t.Errorf("refused: %v", err)
	}
	if _, n, err := x.app.DecideList(ctx, list[0], ann, held.ActionApprove); err != nil || n != 1 {
		t.Fatalf("approved %d: %v", n, err)
	}
	s.untilTrue("the delete", func() bool {
		return x.content("kept", "2") == "absent" && len(x.open(incident.DeletesHeld)) == 0
	})
	if x.content("wanted", "2") != "new" {
		t.Error("the copy that the policy wants is gone")
	}
}
