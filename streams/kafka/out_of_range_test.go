package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

func checkRemoved(t *testing.T, err error, group string, untold bool) {
	t.Helper()
	for _, want := range []string{group, "offset 5", "partition 0", "starts at 12", "7 of them",
		"--group " + group + " ", ":0 --reset-offsets --to-earliest"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("error %v, want it to say %q", err, want)
		}
	}
	if got := strings.Contains(fmt.Sprint(err), "open incident"); got != untold {
		t.Errorf("error %v", err)
	}
}

func checkIncidents(t *testing.T, b *kafkatest.Broker, subject string, want int) {
	t.Helper()
	bodies := b.Bodies(schemas.Incidents)
	if len(bodies) != want {
		t.Fatalf("%d incidents, want %d", len(bodies), want)
	}
	for _, body := range bodies {
		i := body.(*pb.Incident)
		if i.GetKind() != "records-removed" || i.GetAccount() != "-" || i.GetItem() != "" ||
			i.GetSubject() != subject || i.GetState() != pb.IncidentState_INCIDENT_STATE_OPEN ||
			len(i.GetSteps()) != 1 || !strings.Contains(i.GetSteps()[0].GetDetail(), "7 of them") {
			t.Errorf("incident %v", i)
		}
	}
}

// The removal of unread records is reported even if nothing was committed. A group that is new after the removal
// starts at the log start.
func TestRecordsRemovedBeforeACommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Numbered(20, 20)...)
		b.Trim(schemas.Changes, 0, 12)
		must(t, parttest.Run(t, 10*time.Second, parttest.Planner(t, b, parttest.Plan)))
		if n := len(b.Read(schemas.DuplicationHigh)); n != 8 || len(b.Read(schemas.Incidents)) != 0 {
			t.Errorf("%d outputs, want 8", n)
		}
		parttest.Commit(t, b.Config(), "millrace.planner", schemas.Changes, 50) // the log ends at 20
		err := parttest.Run(t, 10*time.Second, parttest.Planner(t, b, parttest.Plan))
		if err == nil || !strings.Contains(err.Error(), "lost records at its end") || len(b.Read(schemas.Incidents)) != 0 {
			t.Errorf("beyond the end: %v", err)
		}
	})
}

// A reader whose records were removed before it read them stops and says so. It opens one incident, however often
// it restarts, and continues once an operator has reset its group.
func TestRecordsRemoved(t *testing.T) {
	t.Parallel()
	const n, at, start = 20, 5, 12
	type part = interface{ Run(context.Context) error }
	for name, tt := range map[string]struct {
		role  schemas.Role
		topic schemas.Topic
		make  func(*testing.T, *kafkatest.Broker, *memoryTable) part
	}{
		"group": {schemas.RolePlanner, schemas.Changes, func(t *testing.T, b *kafkatest.Broker, _ *memoryTable) part {
			return parttest.Planner(t, b, parttest.Plan)
		}},
		"batch group": {schemas.RoleSink, schemas.Changes, func(t *testing.T, b *kafkatest.Broker, tb *memoryTable) part {
			return sink(t, b, kafka.BatchConfig{}, tb)
		}},
		"pool": {schemas.RoleCopier, schemas.DuplicationLow, func(t *testing.T, b *kafkatest.Broker, _ *memoryTable) part {
			p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleCopier,
				Topics: []schemas.Topic{schemas.DuplicationHigh, schemas.DuplicationLow}}, parttest.Plan)
			must(t, err)
			return p
		}},
		"delayer": {schemas.RoleDelayer, schemas.Delay("30s"),
			func(t *testing.T, b *kafkatest.Broker, _ *memoryTable) part { return parttest.Delayer(t, b) }},
	} {
		for _, f := range []struct {
			name      string
			fault     kafkatest.Fault
			times     int
			published int
		}{{name: "published", published: 1}, {"publishing failed", kafkatest.Refused, -1, 0},
			{"published but not acknowledged", kafkatest.DoneNotAcknowledged, 1, 1}} {
			t.Run(name+", "+f.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
					rec, err := schemas.Encode(parttest.Change("a"))
					must(t, err)
					rec.Topic = tt.topic
					write, stop := b.Writer()
					for range n {
						write(kafkatest.Record{Record: rec})
					}
					stop()
					group := "millrace." + string(tt.role)
					if tt.topic == schemas.DuplicationLow {
						group += ".low"
					}
					parttest.Commit(t, b.Config(), group, tt.topic, at)
					b.Trim(tt.topic, 0, start)
					if f.times != 0 {
						defer b.FailProduce(schemas.Incidents, f.fault, f.times)()
					}
					tb := &memoryTable{}
					for range 3 {
						checkRemoved(t, parttest.Run(t, time.Minute, tt.make(t, b, tb)), group, f.published == 0)
					}
					checkIncidents(t, b, group+" millrace."+string(tt.topic)+" 0", f.published)
					if got := b.Committed(tt.role, tt.topic)[0]; got != at || len(tb.rows) != 0 {
						t.Errorf("committed %d, stored %v", got, tb.rows)
					}
					parttest.Commit(t, b.Config(), group, tt.topic, start) // the remedy in the error
					if err := parttest.Run(t, 30*time.Second, tt.make(t, b, tb)); err != nil {
						t.Error(err)
					}
					if got := b.Committed(tt.role, tt.topic)[0]; got != n && tt.role != schemas.RoleDelayer {
						t.Errorf("committed %d in the end, want %d", got, n)
					}
				})
			})
		}
	}
}
