package admin_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

func jobRecord(t *testing.T, partition int32, name string) kafkatest.Record {
	t.Helper()
	r, err := schemas.Encode(schemas.Message{Topic: schemas.Jobs,
		Body: &pb.Job{Id: schemas.ID(name), Name: name, Started: timestamppb.Now(), Finished: timestamppb.Now()}})
	must(t, err)
	return kafkatest.Record{Record: r, Partition: partition}
}

// Read returns each message of an extent once, and leaves out other records and those after the end.
func TestRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		a := parttest.NewAdmin(t, b.Config())
		for i := range 5 {
			b.Write(jobRecord(t, 0, fmt.Sprint("a", i)))
		}
		b.WriteTransaction(true, jobRecord(t, 0, "committed"))                                     // 5, 6
		b.WriteTransaction(false, jobRecord(t, 0, "aborted"))                                      // 7, 8
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Jobs, Value: []byte("x")}}) // 9
		// 0, 1: the partition ends with a control record
		b.WriteTransaction(true, jobRecord(t, 1, "last"))
		b.Trim(schemas.Jobs, 0, 2)
		e, err := a.Extent(t.Context(), schemas.Jobs)
		must(t, err)
		if !maps.Equal(e.Starts, map[int32]int64{0: 2, 1: 0}) || !maps.Equal(e.Ends, map[int32]int64{0: 10, 1: 2}) ||
			e.Incarnation == 0 {
			t.Errorf("got %+v", e)
		}
		b.Write(jobRecord(t, 0, "too late"), jobRecord(t, 1, "too late"))
		got := map[string]string{}
		if err := a.Read(t.Context(), schemas.Jobs, e, func(d *schemas.Delivery, unreadable error) error {
			name := "unreadable"
			if j, ok := d.Body.(*pb.Job); ok && unreadable == nil {
				name = j.GetName()
			} else if !errors.Is(unreadable, schemas.ErrMalformed) || d.Body != nil || d.From != schemas.Jobs {
				t.Errorf("%+v: %v", d, unreadable)
			}
			if d.Incarnation != e.Incarnation {
				t.Errorf("incarnation %d, want %d", d.Incarnation, e.Incarnation)
			}
			got[fmt.Sprintf("%d/%d", d.Partition, d.Offset)] += name
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"0/2": "a2", "0/3": "a3", "0/4": "a4", "0/5": "committed",
			"0/9": "unreadable", "1/0": "last"}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %v\nwant %v", got, want)
		}
		full := errors.New("full")
		fails := func(*schemas.Delivery, error) error { return full }
		if err := a.Read(t.Context(), schemas.Jobs, e, fails); !errors.Is(err, full) {
			t.Errorf("got %v, want the callback's error", err)
		}
		b.Recreate(schemas.Jobs, 2)
		if anew, err := a.Extent(t.Context(), schemas.Jobs); err != nil || anew.Incarnation == e.Incarnation {
			t.Errorf("a topic made anew is %+v, %v: was %+v", anew, err, e)
		}
		if _, err := a.Extent(t.Context(), "nowhere"); err == nil || !strings.Contains(err.Error(), "nowhere") {
			t.Errorf("a topic that is not there: %v", err)
		}
	})
}

// Read leaves out compacted records and tombstones.
func TestReadCompacted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := parttest.NewAdmin(t, b.Config())
		for i := range 3 {
			b.Send(schemas.Message{Topic: schemas.Incidents,
				Body: &pb.Incident{Id: schemas.ID("i"), Account: "acme", Store: "1", Space: "s", Item: "i", Kind: "k",
					State:  pb.IncidentState_INCIDENT_STATE_OPEN,
					Opened: timestamppb.Now(), Updated: timestamppb.Now(), StepCount: int32(i)}})
		}
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Incidents, Key: []byte("gone")}, Partition: -1})
		time.Sleep(time.Hour)
		b.Compact()
		e, err := a.Extent(t.Context(), schemas.Incidents)
		must(t, err)
		var got []int64
		if err := a.Read(t.Context(), schemas.Incidents, e, func(d *schemas.Delivery, unreadable error) error {
			got = append(got, d.Offset)
			return unreadable
		}); err != nil || len(got) == 0 || len(got) > 3 || got[len(got)-1] != 2 {
			t.Errorf("got offsets %v, %v", got, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		succeeds := func(*schemas.Delivery, error) error { return nil }
		if err := a.Read(ctx, schemas.Incidents, e, succeeds); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that it was stopped", err)
		}
	})
}

// Reading a topic that is recreated meanwhile fails.
func TestReadRecreatedTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := parttest.NewAdmin(t, b.Config())
		b.Write(jobRecord(t, 0, "a"), jobRecord(t, 0, "b"))
		e, err := a.Extent(t.Context(), schemas.Jobs)
		must(t, err)
		b.Recreate(schemas.Jobs, 1)
		b.Write(jobRecord(t, 0, "c"))
		if err := a.Read(t.Context(), schemas.Jobs, e, func(*schemas.Delivery, error) error { return nil }); err == nil ||
			!strings.Contains(err.Error(), "partition 0: the log ends at 1, but ended at 2 before") {
			t.Errorf("got %v", err)
		}
	})
}

func TestCommitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		a := parttest.NewAdmin(t, b.Config())
		if got, err := a.Committed(t.Context(), schemas.RoleSink, schemas.Jobs); err != nil || len(got) != 0 {
			t.Errorf("before any commit: %v, %v", got, err)
		}
		b.FailFetch(schemas.Jobs, kafkatest.Refused, -1)
		b.Write(jobRecord(t, 0, "a"))
		e, err := a.Extent(t.Context(), schemas.Jobs)
		must(t, err)
		if err := a.Read(t.Context(), schemas.Jobs, e, func(*schemas.Delivery, error) error { return nil }); err == nil {
			t.Error("a topic that may not be read is read to its end")
		}
	})
}
