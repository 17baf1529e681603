package app

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// published collects the keys of incidents.
type published struct{ keys []string }

func (p *published) Publish(_ context.Context, msgs ...schemas.Message) error {
	for _, m := range msgs {
		p.keys = append(p.keys, schemas.IncidentKey(m.Body.(*pb.Incident)))
	}
	return nil
}

// All deletes of a space that wait for approval have one incident.
func TestHeldDeletesAreOneIncident(t *testing.T) {
	var p published
	a := &App{incidentBoard: incident.NewBoard(&p, slog.New(slog.DiscardHandler))}
	for _, c := range []schemas.Copy{
		{Account: "acme", Store: "2", Space: "photos", Item: "a"},
		{Account: "acme", Store: "2", Space: "photos", Item: "b"},
		{Account: "acme", Store: "3", Space: "photos", Item: "a"},
		{Account: "acme", Store: "2", Space: "photos", Item: "a"},
	} {
		if err := a.deleteHeld(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"acme/2/photos//deletes-held", "acme/3/photos//deletes-held"}; !slices.Equal(p.keys, want) {
		t.Errorf("published %q, want %q", p.keys, want)
	}
}
