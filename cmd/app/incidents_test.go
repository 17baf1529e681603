package app

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/incident"
)

// What one process opens, every other one knows and may close; a process that starts knows it before its roles run.
func TestIncidentsReachEveryProcess(t *testing.T) {
	s := newSite(t)
	s.cfg.HTTP.Listen = ""
	one, two := s.run(schemas.RolePlanner), s.run(schemas.RoleDelayer)
	about := incident.Subject{Kind: incident.RecordsBehind, Name: "copy_state"}
	for _, a := range []*App{one, two} {
		if err := ready(t.Context(), a.incidents); err != nil {
			t.Fatal(err)
		}
	}
	if err := one.board.Open(t.Context(), about, "2 records"); err != nil {
		t.Fatal(err)
	}
	s.until(func() error {
		if !two.board.IsOpen(about) {
			return errors.New("the other process does not know the incident")
		}
		return nil
	})
	late := s.run(schemas.RolePlanner)
	known := false
	held := late.controlled(part{"", func(context.Context) error {
		known = late.board.IsOpen(about)
		return nil
	}})
	if err := held.run(t.Context()); err != nil || !known {
		t.Errorf("a role runs (%v) before the incidents are known", err)
	}
	if err := two.board.Close(t.Context(), about, ""); err != nil {
		t.Fatal(err)
	}
	s.until(func() error {
		if one.board.IsOpen(about) || late.board.IsOpen(about) {
			return errors.New("the incident is open")
		}
		return nil
	})
}
