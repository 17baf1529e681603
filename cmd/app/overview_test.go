package app

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/retry"
)

// The overview has the copies of each store, the work that waits for roles, and what waits for a person.
func TestOverview(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 4)
	_, tasks := s.sweep(0, false)
	s.pass(tasks[:3], s.begun.Add(-time.Second))
	for item, state := range map[string]pb.IncidentState{"a": pb.IncidentState_INCIDENT_STATE_OPEN,
		"b": pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL, "c": pb.IncidentState_INCIDENT_STATE_CLOSED} {
		s.b.Send(schemas.Message{Topic: schemas.Incidents, Body: &pb.Incident{Id: schemas.ID("incident", item),
			Account: "acme", Store: "1", Space: "photos", Item: item, Kind: "replaced", Row: 13, State: state,
			Opened: timestamppb.New(s.begun), Updated: timestamppb.New(s.begun), StepCount: 1}})
	}
	s.b.Send(schemas.Message{Topic: schemas.Controls, Body: &pb.Control{Id: schemas.ID("pause"), Paused: true,
		Role: string(schemas.RolePlanner)}})
	s.b.Send(schemas.Message{Topic: schemas.DuplicationHigh, Body: &pb.DuplicationCommand{Id: schemas.ID("command"),
		Account: "acme", Space: "photos", Item: "a", SourceStore: "1", DestinationStore: "2",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE}})
	runUntilDead(t, &restored{verified: s.verified},
		kafka.PoolConfig{Role: schemas.RoleCopier, Topics: []schemas.Topic{schemas.DuplicationHigh}, MaxAttempts: 1},
		func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
			return nil, retry.Permanent(errUnavailable)
		}, 1)
	s.sink(schemas.RoleSink)
	stop := s.checking(2000)
	o, err := s.a.Overview(t.Context())
	stop()
	must(t, err)
	store := StoreOverview{StoreName: StoreName{"acme", "1"}, Copies: 4, Verified: 3, Share: 0.75, Overdue: 1, Bytes: 28,
		Burn: burnRate(1, 4, 0.999)}
	if !slices.Equal(o.Stores, []StoreOverview{store}) {
		t.Errorf("stores %+v, want %+v", o.Stores, store)
	}
	if len(o.Incidents) != 1 || o.Incidents[0].Kind != "replaced" || o.Incidents[0].Open != 2 ||
		o.Incidents[0].Waiting != 1 || !o.Incidents[0].Oldest.Equal(s.begun) || o.Waiting != 1 {
		t.Errorf("incidents %+v, of which %d wait", o.Incidents, o.Waiting)
	}
	if o.DeadLetters == nil || *o.DeadLetters != 1 {
		t.Errorf("dead letters %v, want 1", o.DeadLetters)
	}
	if !slices.Equal(o.Paused, []string{"role planner"}) || len(o.Inactive) != 0 ||
		!slices.Contains(o.Unserved, schemas.RoleChecker) {
		t.Errorf("paused %q, inactive %q, unserved %q", o.Paused, o.Inactive, o.Unserved)
	}
	if text, err := json.Marshal(o); err != nil || !strings.Contains(string(text), `"inactive":[],"unserved":["`) {
		t.Errorf("as JSON %s, %v", text, err)
	}
	i := slices.IndexFunc(o.Work, func(b RoleBacklog) bool { return b.Role == schemas.RoleChecker })
	if i != 0 {
		t.Fatalf("the checker has most to do: %+v", o.Work)
	}
	if w := o.Work[0]; w.Records < 50 || w.Records >= 2000 || w.Seconds == nil || *w.Seconds <= 0 || *w.Seconds > 3600 {
		t.Errorf("the backlog of the checker: %+v", w)
	}
}

// checking publishes n tasks, of which the group of the checker commits ten again and again until stop is called, but
// not the last 50.
func (s *swept) checking(n int) (stop func()) {
	s.t.Helper()
	var tasks []schemas.Message
	for i := range n {
		tasks = append(tasks, schemas.Message{Topic: schemas.FixityHigh, Body: &pb.FixityTask{Id: schemas.ID("task"),
			Account: "acme", Store: "1", Space: "photos", Item: fmt.Sprint("item ", i),
			Reason: pb.FixityReason_FIXITY_REASON_DEMAND, Time: timestamppb.New(s.begun)}})
	}
	s.b.Send(tasks...)
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for done := int64(10); ; done = min(done+10, int64(n)-50) {
			s.b.ReplaceMembers(schemas.RoleChecker, schemas.FixityHigh, map[int32]int64{0: done})
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended); <-stopped }
}

// The topics of a role add up; the slowest one says how long it takes, and unknown is not 0.
func TestBacklogs(t *testing.T) {
	lag := func(role schemas.Role, records int64, bytes int64, seconds float64) admin.Lag {
		l := admin.Lag{Role: role, Records: records}
		if bytes >= 0 {
			l.Bytes = &bytes
		}
		if seconds >= 0 {
			l.Seconds = &seconds
		}
		return l
	}
	want := func(role schemas.Role, records int64, bytes int64, seconds float64) RoleBacklog {
		l := lag(role, records, bytes, seconds)
		return RoleBacklog{role, records, l.Bytes, l.Seconds}
	}
	const checker, copier = schemas.RoleChecker, schemas.RoleCopier
	for name, tt := range map[string]struct {
		lags []admin.Lag
		want []RoleBacklog
	}{
		"nothing": {[]admin.Lag{lag(checker, 0, 0, 0)}, []RoleBacklog{}},
		"most come first": {[]admin.Lag{lag(copier, 1, 5, 2), lag(checker, 9, 7, 3)},
			[]RoleBacklog{want(checker, 9, 7, 3), want(copier, 1, 5, 2)}},
		"two topics": {[]admin.Lag{lag(copier, 1, 5, 2), lag(copier, 2, 6, 1)}, []RoleBacklog{want(copier, 3, 11, 2)}},
		"an empty topic is not unknown": {[]admin.Lag{lag(copier, 1, 5, 2), lag(copier, 0, -1, -1)},
			[]RoleBacklog{want(copier, 1, 5, 2)}},
		"one without progress": {[]admin.Lag{lag(copier, 1, 5, 2), lag(copier, 2, 6, -1), lag(copier, 3, 1, 7)},
			[]RoleBacklog{want(copier, 6, 12, -1)}},
		"one of unknown size": {[]admin.Lag{lag(copier, 1, -1, 2), lag(copier, 2, 6, 3)},
			[]RoleBacklog{want(copier, 3, -1, 3)}},
	} {
		if got := backlogsOf(tt.lags); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}
