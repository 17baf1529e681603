package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// control is a record of a role for an account; with workers it is never active.
func control(id string, workers int32) schemas.Message {
	return schemas.Message{Topic: schemas.Controls,
		Body: &pb.Control{Id: schemas.ID(id), Role: string(schemas.RoleCopier), Account: "acme", Workers: workers}}
}

// openUnreadable waits until n incidents of unreadable records are open.
func openUnreadable(s *site, a *App, n int) (open []incident.Subject) {
	s.t.Helper()
	s.until(func() error {
		if open = a.incidentBoard.OpenOf(incident.RecordUnreadable); len(open) != n {
			return fmt.Errorf("open are %v, want %d", open, n)
		}
		return nil
	})
	return open
}

// An unreadable record of a table is an incident and a metric, and the process is not ready, until
// a later record of its key can be read.
func TestUnreadableRecord(t *testing.T) {
	s := newSite(t)
	a := s.run(schemas.RoleDelayer)
	s.await("/readyz", 200)
	s.await("/metrics", 200, `millrace_kafka_table_unreadable{topic="control"} 0`,
		`millrace_kafka_table_unreadable{topic="policies"} 0`)
	must(t, a.producer.Publish(t.Context(), control("refused", 3)))
	about := openUnreadable(s, a, 1)[0]
	s.await("/readyz", 503, "record cannot be read: "+about.Name)
	s.await("/livez", 200)
	s.await("/metrics", 200, `millrace_kafka_table_unreadable{topic="control"} 1`)
	must(t, a.producer.Publish(t.Context(), control("good", 0)))
	openUnreadable(s, a, 0)
	s.await("/readyz", 200)
	s.await("/metrics", 200, `millrace_kafka_table_unreadable{topic="control"} 0`)
}

// When an operator accepts an unreadable record, every process is ready, also those that start later.
func TestUnreadableRecordIsAccepted(t *testing.T) {
	s := newSite(t)
	a := s.run(schemas.RoleDelayer)
	s.await("/readyz", 200)
	must(t, a.producer.Publish(t.Context(), control("refused", 3)))
	about := openUnreadable(s, a, 1)[0]
	s.await("/readyz", 503, "millrace incident close "+about.Key())
	must(t, a.CloseIncident(t.Context(), about.Incident(), Actor{Who: "eve", Reason: "of a tool of ours", From: "cli"}))
	s.await("/readyz", 200)
	openUnreadable(s, a, 0)
	late := s.another(schemas.RoleDelayer)
	s.await("/readyz", 200)
	if !late.incidentBoard.Accepted(about) || len(late.unreadable.List()) != 1 {
		t.Errorf("a process that starts later has %v unreadable, and the incident closed: %t", late.unreadable.List(),
			late.incidentBoard.Accepted(about))
	}
	must(t, a.producer.Publish(t.Context(), control("another", 3)))
	if other := openUnreadable(s, late, 1)[0]; other == about {
		t.Error("another record has the incident of the first")
	}
}

// A process is ready if its roles do not depend on the unreadable records.
func TestTablesThatRolesDependOn(t *testing.T) {
	for name, tt := range map[string]struct {
		role                         schemas.Role
		policies, incidents, control bool
	}{
		"ingester": {schemas.RoleIngester, true, false, true},
		"delayer":  {schemas.RoleDelayer, false, false, true},
		"planner":  {schemas.RolePlanner, true, false, true},
		"steward":  {schemas.RoleSteward, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := needsOf([]schemas.Role{tt.role})
			if n.table(schemas.Policies) != tt.policies || n.table(schemas.Incidents) != tt.incidents ||
				n.table(schemas.Controls) != tt.control {
				t.Errorf("depends on %+v", n)
			}
		})
	}
}

// A record that one process can read and another cannot: the first neither accepts nor closes it
// for the other.
func TestRecordThatOneProcessReads(t *testing.T) {
	s := newSite(t)
	a := s.run(schemas.RoleDelayer)
	s.await("/readyz", 200)
	must(t, a.producer.Publish(t.Context(), control("refused", 3)))
	about := openUnreadable(s, a, 1)[0]
	s.await("/readyz", 503, "record cannot be read: "+about.Name)
	able := &App{kafka: a.kafka, incidentBoard: a.incidentBoard, unreadable: client.NewUnreadables()}
	able.kafka.Unreadables = able.unreadable
	report := func(context.Context) error { return able.reportUnreadable(t.Context()) }
	read := func([]byte, *schemas.Delivery) error { return nil }
	must(t, able.readTable(t.Context(), schemas.Controls, read, report))
	if !able.unreadable.Complete(schemas.Controls) || !a.incidentBoard.IsOpen(about) {
		t.Error("the incident is closed, or the topic was not read")
	}

	// An older version that closes the incident nevertheless accepts nothing.
	must(t, a.incidentBoard.Close(t.Context(), about, "a later record of its key can be read, or its key is gone"))
	s.await("/readyz", 503, "record cannot be read: "+about.Name)
	must(t, a.reportUnreadable(t.Context()))
	openUnreadable(s, a, 1) // the board may still read its own record of the close
}

// A good record followed while no process ran: the next process closes the incident.
func TestUnreadableRecordOfThePast(t *testing.T) {
	s := newSite(t)
	s.cfg.HTTP.Listen = ""
	a, err := Open(t.Context(), s.cfg, Options{Log: s.said.Log()}) // it does not run
	must(t, err)
	t.Cleanup(a.Close)
	must(t, a.ensureTopics(t.Context()))
	must(t, a.producer.Publish(t.Context(), control("refused", 3)))
	past := incident.Subject{Kind: incident.RecordUnreadable}
	note := func(_ []byte, d *schemas.Delivery) error {
		past.Name = client.UnreadableRecord{Topic: d.Topic, Partition: d.Partition, Offset: d.Offset}.Coordinates()
		return nil
	}
	must(t, a.readTable(t.Context(), schemas.Controls, note, func(context.Context) error { return nil }))
	unknown := incident.Subject{Kind: incident.RecordUnreadable, Name: "again.copier/0@7"} // of no table here
	for _, about := range []incident.Subject{past, unknown} {
		must(t, a.incidentBoard.Open(t.Context(), about, "was there"))
	}
	must(t, a.producer.Publish(t.Context(), control("good", 0)))
	next := s.run(schemas.RoleDelayer)
	s.until(func() error {
		if !next.incidentBoard.IsOpen(unknown) || next.incidentBoard.IsOpen(past) {
			return fmt.Errorf("open are %v, want %v", next.incidentBoard.OpenOf(incident.RecordUnreadable), unknown)
		}
		return nil
	})
}

// A partition that is blocked by a batch that cannot be parsed is an incident and a metric, and the
// process is not ready. Its due records do not count, so the process stays live.
func TestUnreadableBatch(t *testing.T) {
	s := newSite(t)
	b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Loopback: true, RealTime: true})
	s.cfg.Kafka.Brokers = b.Config().Brokers
	b.WriteDamaged(schemas.Again(schemas.RoleCopier), 0, 2)
	a := s.run(schemas.RoleCopier)
	want := incident.Subject{Kind: incident.BatchUnreadable, Name: "millrace.copier.low again.copier/0@0"}
	s.until(func() error {
		if open := a.incidentBoard.OpenOf(incident.BatchUnreadable); len(open) != 1 || open[0] != want {
			return fmt.Errorf("open are %v", open)
		}
		return nil
	})
	s.await("/readyz", 503, "--to-offset 2 --execute")
	s.await("/livez", 200)
	h := a.newHealth(needs{}, nil)
	h.Collect(t.Context())
	_, report := get(t, h.Handler(a.registry), http.MethodGet, "/livez")
	if !strings.Contains(report, `"kafka": "ok"`) || !strings.Contains(report, `"role": "copier"`) ||
		strings.Count(report, `"due": 0`) != strings.Count(report, `"due": `) {
		t.Errorf("got %s, want that nothing is due", report)
	}
	s.await("/metrics", 200, `millrace_kafka_partitions_stopped{topic="again.copier"} 1`)
}
