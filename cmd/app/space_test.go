package app

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/space"
	"github.com/millrace/millrace/streams/storage"
)

// Actions about a space reach the processes that use them. Only a space that is known to be missing
// can be declared gone.
func TestSpaceGone(t *testing.T) {
	s := newSite(t)
	s.cfg.HTTP.Listen = ""
	a := s.run(schemas.RoleChecker)
	must(t, ready(t.Context(), a.actions))
	two := StoreName{"acme", "2"}
	st, err := a.stores.configured(two)
	must(t, err)
	must(t, st.CreateSpace(t.Context(), storage.Space{Name: "there"}))
	by := Actor{Who: "ann", Reason: "the disk is lost", From: "cli"}
	for name, tt := range map[string]struct {
		of    StoreName
		space string
	}{
		"a space that is there":      {two, "there"},
		"a store without its marker": {StoreName{"acme", "3"}, "photos"},
		"no such store":              {StoreName{"acme", "9"}, "photos"},
	} {
		if err := a.SpaceGone(t.Context(), tt.of, tt.space, by); !errors.Is(err, precondition.Err) {
			t.Errorf("%s: got %v, want a precondition", name, err)
		}
	}
	until := func(gone bool) {
		t.Helper()
		s.until(func() error {
			if since := a.goneSpaces.Since("acme", "2", "photos"); since.IsZero() == gone {
				return errors.New("the action has not come")
			}
			return nil
		})
	}
	before := time.Now().Truncate(time.Millisecond)
	must(t, a.SpaceGone(t.Context(), two, "photos", by))
	until(true)
	if since := a.goneSpaces.Since("acme", "2", "photos"); since.Before(before) {
		t.Errorf("gone since %v, said at %v", since, before)
	}
	if late := s.run(schemas.RoleCopier); ready(t.Context(), late.actions) != nil ||
		late.goneSpaces.Since("acme", "2", "photos").IsZero() {
		t.Error("a process that starts does not know it")
	}
	must(t, a.SpaceBack(t.Context(), two, "photos", by))
	until(false)
}

// The time at which a space was declared gone is that of the broker, not that of the operator's
// clock.
func TestActionsAreDatedByTheBroker(t *testing.T) {
	s := newSite(t)
	s.cfg.HTTP.Listen = ""
	a := s.run(schemas.RoleChecker)
	must(t, ready(t.Context(), a.actions))
	ahead := timestamppb.New(time.Now().Add(2 * time.Hour))
	must(t, a.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Admin, Body: &pb.AdminAction{
		Id: schemas.NewID(), Time: ahead, Who: "ann", Action: space.ActionGone, Account: "acme", Store: "2",
		Space: "photos"}}))
	s.until(func() error {
		if a.goneSpaces.Since("acme", "2", "photos").IsZero() {
			return errors.New("the action has not come")
		}
		return nil
	})
	if since := a.goneSpaces.Since("acme", "2", "photos"); since.After(time.Now()) {
		t.Errorf("gone since %v, by the clock of the operator", since)
	}
}
