package kafka_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

func controlKey(c *pb.Control) []byte {
	return []byte(schemas.Key(c.GetRole(), c.GetStore(), c.GetAccount(), c.GetSweep()))
}

func apply(t *testing.T, c *client.Controls, entries ...*pb.Control) {
	t.Helper()
	for _, e := range entries {
		if e.GetId() == "" {
			e.Id = schemas.NewID()
		}
		must(t, c.Apply(controlKey(e), e))
	}
}

// ends returns the time d after the start of fake time, as the end of a pause.
func ends(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(d))
}

func TestControls(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		entries []*pb.Control
		want    string // paused probes, and workers
	}{
		"nothing": {nil, ""},
		"everything": {[]*pb.Control{{Paused: true}},
			"copier copier/acme copier/acme/1 copier/acme/2 copier/umbrella/1 " +
				"planner planner/acme planner/acme/1 sweeper sweep:fixity sweep:audit"},
		"a role": {[]*pb.Control{{Role: "copier", Paused: true}},
			"copier copier/acme copier/acme/1 copier/acme/2 copier/umbrella/1"},
		"an account": {[]*pb.Control{{Account: "acme", Paused: true}},
			"copier/acme copier/acme/1 copier/acme/2 planner/acme planner/acme/1"},
		"a store": {[]*pb.Control{{Account: "acme", Store: "1", Paused: true}},
			"copier/acme/1 planner/acme/1"},
		"a store of every account": {[]*pb.Control{{Store: "1", Paused: true}},
			"copier/acme/1 copier/umbrella/1 planner/acme/1"},
		"a role and a store": {[]*pb.Control{{Role: "copier", Account: "acme", Store: "2", Paused: true}},
			"copier/acme/2"},
		"a role and an account": {[]*pb.Control{{Role: "copier", Account: "acme", Paused: true}},
			"copier/acme copier/acme/1 copier/acme/2"},
		"a sweep": {[]*pb.Control{{Sweep: "fixity", Paused: true}}, "sweep:fixity"},
		"the sweeper": {[]*pb.Control{{Role: "sweeper", Paused: true}},
			"sweeper sweep:fixity sweep:audit"},
		"several": {[]*pb.Control{{Role: "planner", Paused: true},
			{Account: "umbrella", Paused: true}}, "copier/umbrella/1 planner planner/acme planner/acme/1"},
		"workers": {[]*pb.Control{{Role: "copier", Workers: 3}}, "copier=3"},
		"workers of a paused role": {[]*pb.Control{{Role: "planner", Workers: 3, Paused: true}},
			"planner planner/acme planner/acme/1 planner=3"},
		"workers, then the default": {[]*pb.Control{{Role: "copier", Workers: 3}, {Role: "copier"}}, ""},
		"lifted":                    {[]*pb.Control{{Role: "copier", Paused: true}, {Role: "copier"}}, ""},
		"the newest of a key": {[]*pb.Control{{Role: "copier"},
			{Role: "copier", Paused: true, Until: ends(-time.Hour)}, {Role: "copier", Paused: true}},
			"copier copier/acme copier/acme/1 copier/acme/2 copier/umbrella/1"},
		"the newest, not the last to be made": {[]*pb.Control{{Role: "planner", Paused: true, Time: ends(0)},
			{Role: "planner", Time: ends(-time.Hour)}}, ""},
		"lifting a part lifts no more": {[]*pb.Control{{Paused: true}, {Role: "copier"}},
			"copier copier/acme copier/acme/1 copier/acme/2 copier/umbrella/1 " +
				"planner planner/acme planner/acme/1 sweeper sweep:fixity sweep:audit"},
		"until in the future": {[]*pb.Control{{Sweep: "fixity", Paused: true, Until: ends(time.Second)}},
			"sweep:fixity"},
		"until now": {[]*pb.Control{{Sweep: "fixity", Paused: true, Until: ends(0)}}, ""},
		"until past": {[]*pb.Control{{Role: "copier", Workers: 2, Paused: true,
			Until: ends(-time.Second)}}, "copier=2"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c client.Controls
				apply(t, &c, tt.entries...)
				if got := inForce(&c); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
				paused := func(word string) bool { return !strings.Contains(word, "=") }
				if got, want := c.AnyPaused(), slices.ContainsFunc(strings.Fields(tt.want), paused); got != want {
					t.Errorf("Any = %v, want %v", got, want)
				}
			})
		})
	}
	if got := inForce(nil); got != "" {
		t.Errorf("without Controls: %s", got)
	}
}

// inForce queries c with all probes of these tests.
func inForce(c *client.Controls) string {
	var out []string
	for _, p := range []struct {
		role           schemas.Role
		account, store string
	}{
		{"copier", "", ""}, {"copier", "acme", ""}, {"copier", "acme", "1"}, {"copier", "acme", "2"},
		{"copier", "umbrella", "1"},
		{"planner", "", ""}, {"planner", "acme", ""}, {"planner", "acme", "1"}, {"sweeper", "", ""},
	} {
		if p.account == "" && c.Role(p.role) != c.Paused(p.role, "", "") {
			out = append(out, "Role and Paused differ for "+string(p.role))
		}
		if c.Paused(p.role, p.account, p.store) {
			out = append(out, strings.Trim(fmt.Sprintf("%s/%s/%s", p.role, p.account, p.store), "/"))
		}
	}
	for _, s := range []string{"fixity", "audit"} {
		if c.Sweep(s) {
			out = append(out, "sweep:"+s)
		}
	}
	for _, r := range []schemas.Role{"copier", "planner"} {
		if n, set := c.Workers(r); set {
			out = append(out, fmt.Sprintf("%s=%d", r, n))
		}
	}
	return strings.Join(out, " ")
}

// An invalid control is permanently rejected, and the controls before it stay in force.
func TestControlsMalformed(t *testing.T) {
	for name, tt := range map[string]struct {
		key  string // empty: the key of the entry
		c    *pb.Control
		want string
	}{
		"the key of another":        {"copier///", &pb.Control{Role: "planner"}, "does not match its fields"},
		"a sweep and an account":    {"", &pb.Control{Sweep: "fixity", Account: "acme"}, "both a sweep and a role"},
		"negative workers":          {"", &pb.Control{Role: "copier", Workers: -1}, "is negative"},
		"workers of everything":     {"", &pb.Control{Workers: 2}, "to a role only"},
		"workers of a store's role": {"", &pb.Control{Role: "copier", Store: "1", Workers: 2}, "to a role only"},
		"workers of a sweep":        {"", &pb.Control{Sweep: "fixity", Workers: 2}, "to a role only"},
		"an until that is no time": {"", &pb.Control{Role: "copier", Until: &timestamppb.Timestamp{Nanos: -1}},
			"read until"},
	} {
		t.Run(name, func(t *testing.T) {
			var c client.Controls
			apply(t, &c, &pb.Control{Role: "copier", Account: "acme", Paused: true}, &pb.Control{Role: "planner", Workers: 2})
			before := inForce(&c)
			key := []byte(tt.key)
			if tt.key == "" {
				key = controlKey(tt.c)
			}
			err := c.Apply(key, tt.c)
			if !retry.IsPermanent(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Apply = %v, want a permanent error with %q", err, tt.want)
			}
			if got := inForce(&c); got != before {
				t.Errorf("in force %q, want %q", got, before)
			}
		})
	}
}

// A watcher is notified once of all changes since it looked and of pauses that expired, and of nothing else.
func TestControlsWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c client.Controls
		changed, cancel := c.Watch()
		gone, cancelGone := c.Watch()
		cancelGone()
		checkChanged := func(want bool) {
			t.Helper()
			synctest.Wait()
			got := false
			select {
			case <-changed:
				got = true
			default:
			}
			if got != want {
				t.Errorf("notified %v, want %v", got, want)
			}
		}
		checkChanged(false)
		apply(t, &c, &pb.Control{Role: "copier", Paused: true}, &pb.Control{Role: "planner", Paused: true})
		checkChanged(true)
		checkChanged(false)
		apply(t, &c, &pb.Control{Role: "copier", Paused: true, Reason: "another"})
		checkChanged(false)
		apply(t, &c, &pb.Control{Role: "planner"}, &pb.Control{Account: "acme", Paused: true, Until: ends(time.Hour)})
		checkChanged(true)
		time.Sleep(time.Hour - time.Nanosecond)
		checkChanged(false)
		if !c.Paused("planner", "acme", "1") {
			t.Error("a pause ended before its time")
		}
		time.Sleep(time.Nanosecond)
		checkChanged(true)
		if c.Paused("planner", "acme", "1") || !c.Role("copier") {
			t.Error("an until ended nothing, or another's pause")
		}
		must(t, c.Apply(controlKey(&pb.Control{Role: "copier"}), nil))
		checkChanged(true)
		if c.AnyPaused() {
			t.Error("paused after a tombstone")
		}
		cancel()
		apply(t, &c, &pb.Control{Paused: true})
		checkChanged(false)
		if len(gone) > 0 {
			t.Error("a watcher was notified after its cancellation")
		}
	})
}

// Two processes follow the topic: a control is in force in both within a second. A third one that starts
// later finds it, and malformed records delay nothing.
func TestControlsFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		a, z := follow(t, b), follow(t, b)
		check := func(want string, of ...*client.Controls) {
			t.Helper()
			time.Sleep(time.Second)
			for i, c := range of {
				if got := inForce(c); got != want {
					t.Errorf("process %d: got %q, want %q", i, got, want)
				}
			}
		}
		check("", a, z)
		b.Send(control(&pb.Control{Sweep: "fixity", Paused: true}))
		check("sweep:fixity", a, z)
		record := func(key, value string) kafkatest.Record {
			r := kafkatest.Record{Partition: -1}
			r.Topic, r.Key, r.Value = schemas.Controls, []byte(key), []byte(value)
			return r
		}
		odd := record("///", "")
		var err error
		if odd.Record, err = schemas.Encode(control(&pb.Control{Role: "copier", Paused: true})); err != nil {
			t.Fatal(err)
		}
		odd.Key = []byte("///") // the key of everything
		b.Write(record("///", "{"), odd)
		b.Send(control(&pb.Control{Role: "copier", Workers: 5}))
		check("sweep:fixity copier=5", a, z)
		gone := record("///fixity", "")
		gone.Value = nil
		b.Write(gone)
		b.Compact()
		check("copier=5", a, z, follow(t, b))
	})
}

// follow returns ready Controls that follow the topic until the test ends.
func follow(t *testing.T, b *kafkatest.Broker) *client.Controls {
	t.Helper()
	c, err := kafka.NewControls(b.Config())
	must(t, err)
	parttest.Background(t, c)
	<-c.Ready()
	return c
}

func control(c *pb.Control) schemas.Message {
	c.Id = schemas.NewID()
	return schemas.Message{Topic: schemas.Controls, Body: c}
}
