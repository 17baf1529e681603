package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
)

// Every process knows the incidents that another one opened, and can close them. A process that
// starts reads them before its roles run.
func TestIncidentsReachEveryProcess(t *testing.T) {
	s := newSite(t)
	s.cfg.HTTP.Listen = ""
	one, two := s.run(schemas.RolePlanner), s.run(schemas.RoleDelayer)
	about := incident.Subject{Kind: incident.RecordsBehind, Name: "copy_state"}
	for _, a := range []*App{one, two} {
		must(t, ready(t.Context(), a.incidents))
	}
	must(t, one.incidentBoard.Open(t.Context(), about, "2 records"))
	s.until(func() error {
		if !two.incidentBoard.IsOpen(about) {
			return errors.New("the other process does not know the incident")
		}
		return nil
	})
	late := s.run(schemas.RolePlanner)
	known := false
	held := late.afterControls(part{"", func(context.Context) error {
		known = late.incidentBoard.IsOpen(about)
		return nil
	}})
	if err := held.run(t.Context()); err != nil || !known {
		t.Errorf("a role runs (%v) before the incidents are known", err)
	}
	must(t, two.incidentBoard.Close(t.Context(), about, ""))
	s.until(func() error {
		if one.incidentBoard.IsOpen(about) || late.incidentBoard.IsOpen(about) {
			return errors.New("the incident is open")
		}
		return nil
	})
}

// An action about the incident of a copy has the key of the results about the copy, whoever the
// operator is.
func TestActionsHaveTheKeyOfTheCopy(t *testing.T) {
	i := &pb.Incident{Account: "acme", Store: "2", Space: "photos", Item: "a/b", Kind: "content-corrupt"}
	keyOf := func(topic schemas.Topic, b schemas.Body) string {
		e, ok := schemas.Lookup(topic)
		if !ok {
			t.Fatalf("no topic %s", topic)
		}
		return e.Key(b)
	}
	want := keyOf(schemas.FixityResults, &pb.FixityResult{Account: "acme", Store: "2", Space: "photos", Item: "a/b"})
	for _, who := range []string{"ann", "eve"} {
		a := Actor{Who: who, Reason: "r", From: "cli"}.decision("close-incident", i)
		if got := keyOf(schemas.Admin, a); got != want || a.GetTarget() != schemas.IncidentKey(i) || a.GetWho() != who ||
			a.GetStore() != "2" {
			t.Errorf("got key %q of %v, want %q", got, a, want)
		}
	}
	if got := keyOf(schemas.DuplicationResults,
		&pb.DuplicationResult{Account: "acme", Space: "photos", Item: "a/b"}); got != want {
		t.Errorf("results of duplication have key %q, want %q", got, want)
	}
}

// Each of two processes with the role has the same partitions of all topics about copies.
func TestOneStewardHasAllOfACopy(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Kafka.Partitions = 5
	var all []*App
	for range 2 {
		all = append(all, s.another(schemas.RoleSteward))
	}
	owned := func(a *App) map[string]map[int32]bool {
		for _, r := range a.kafka.Metrics.State() {
			if r.Role == schemas.RoleSteward {
				return r.Owned
			}
		}
		return nil
	}
	s.until(func() error {
		total := 0
		for n, a := range all {
			own := 0
			for _, ids := range owned(a) {
				own += len(ids)
			}
			if own == 0 {
				return fmt.Errorf("process %d owns nothing", n)
			}
			total += own
		}
		if total != 4*5 {
			return fmt.Errorf("%d partitions are owned", total)
		}
		return nil
	})
	for n, a := range all {
		parts := owned(a)
		want := parts[s.cfg.Kafka.TopicPrefix+string(schemas.FixityResults)]
		for topic, ids := range parts {
			if !maps.Equal(ids, want) {
				t.Errorf("process %d owns %v of %s, and %v of %s", n, ids, topic, want, schemas.FixityResults)
			}
		}
	}
}

// Approvals and closings reach the steward of the copy, whichever process runs it and whoever gives
// them.
func TestActionsReachTheSteward(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Kafka.Partitions = 5
	var all []*App
	for range 2 {
		all = append(all, s.another(schemas.RoleSteward))
	}
	known := &kept{all: map[string]*pb.Incident{}}
	table, err := kafka.NewTable(all[0].kafka, schemas.Incidents, known.apply)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- table.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	const items = 12
	var found []schemas.Message
	for n := range items {
		found = append(found, schemas.Message{Topic: schemas.FixityResults, Body: &pb.FixityResult{
			Id: schemas.NewID(), Account: "acme", Store: "2", Space: "photos", Item: fmt.Sprint(n), Row: 14,
			Finding: "no-quorum",
			Verdict: pb.Verdict_VERDICT_FAIL, Final: true, Started: timestamppb.Now(), Finished: timestamppb.Now(),
		}})
	}
	must(t, all[0].producer.Publish(t.Context(), found...))
	count := func(state pb.IncidentState) func() error {
		return func() error {
			if n := known.in(state); n != items {
				return fmt.Errorf("%d incidents are %v, want %d", n, state, items)
			}
			return nil
		}
	}
	s.until(count(pb.IncidentState_INCIDENT_STATE_OPEN))
	for n, i := range known.list() {
		must(t, all[n%2].CloseIncident(t.Context(), i,
			Actor{Who: fmt.Sprintf("operator %d", n), Reason: "seen", From: "cli"}))
	}
	s.until(count(pb.IncidentState_INCIDENT_STATE_CLOSED))
}

// A frozen steward publishes old decisions after another one has taken over. The owner of the copy
// republishes the newer ones without another message about the copy; so does the next owner.
func TestOverwrittenIncidentIsPublishedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Kafka.Partitions = 3
	one := s.another(schemas.RoleSteward)
	known := &kept{all: map[string]*pb.Incident{}}
	found := &pb.FixityResult{Id: schemas.NewID(), Account: "acme", Store: "2", Space: "photos", Item: "a", Row: 14,
		Finding: "no-quorum",
		Verdict: pb.Verdict_VERDICT_FAIL, Final: true, Started: timestamppb.Now(), Finished: timestamppb.Now()}
	publish := func(topic schemas.Topic, b schemas.Body) {
		t.Helper()
		must(t, one.producer.Publish(t.Context(), schemas.Message{Topic: topic, Body: b}))
	}
	until := func(state pb.IncidentState) *pb.Incident {
		t.Helper()
		s.until(func() error {
			if err := one.readTable(t.Context(), schemas.Incidents, known.apply,
				func(context.Context) error { return nil }); err != nil {
				return err
			}
			if known.in(state) != 1 {
				return fmt.Errorf("the newest record is not %v: %v", state, known.list())
			}
			return nil
		})
		return known.list()[0]
	}
	publish(schemas.FixityResults, found)
	older := until(pb.IncidentState_INCIDENT_STATE_OPEN)
	must(t, one.CloseIncident(t.Context(), older, Actor{Who: "eve", Reason: "seen", From: "cli"}))
	until(pb.IncidentState_INCIDENT_STATE_CLOSED)
	publish(schemas.Incidents, older)
	until(pb.IncidentState_INCIDENT_STATE_CLOSED)
	s.another(schemas.RoleSteward) // half of the partitions move
	publish(schemas.Incidents, older)
	until(pb.IncidentState_INCIDENT_STATE_CLOSED)
	if n := s.said.Count("republish incidents that another process has overwritten"); n < 2 {
		t.Errorf("the log says %d times that incidents were published again, want twice", n)
	}
}

// another runs a role in another process, and returns when it has started.
func (s *site) another(role schemas.Role) *App {
	s.t.Helper()
	cfg := *s.cfg
	s.cfg = &cfg
	cfg.HTTP.Listen = free(s.t)
	s.url = "http://" + cfg.HTTP.Listen
	a := s.run(role)
	s.await("/startupz", 200)
	return a
}

// kept has the latest record of each incident.
type kept struct {
	mu  sync.Mutex
	all map[string]*pb.Incident // guarded by mu
}

func (k *kept) apply(key []byte, d *schemas.Delivery) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[string(key)] = d.Body.(*pb.Incident)
	return nil
}

func (k *kept) list() (all []*pb.Incident) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, i := range k.all {
		all = append(all, i)
	}
	return all
}

func (k *kept) in(state pb.IncidentState) (n int) {
	for _, i := range k.list() {
		if i.GetState() == state {
			n++
		}
	}
	return n
}
