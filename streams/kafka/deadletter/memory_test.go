package deadletter_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// liveHeap returns the bytes of live objects on the heap.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Reading dead letters takes the memory of a few fetches, whatever their number, and about 100 bytes per decided
// letter.
func TestDeadLettersTakeLittleMemory(t *testing.T) {
	n := need.Amount(20_000, 100_000, 1_000_000)
	b := kafkatest.New(t, kafkatest.Options{Partitions: 4, RealTime: true, Loopback: true})
	stack := bytes.Repeat([]byte("goroutine 1 [running]: "), 8<<10/23)
	var inc uint32
	for from := 0; from < n; from += 1000 {
		var dead, acts []kafkatest.Record
		for i := from; i < from+1000; i++ {
			rec := parttest.Encoded(t, int32(i%4), parttest.Change(fmt.Sprint(i)))[0]
			rec.Topic = schemas.Dead
			rec.Headers = append(rec.Headers, mark(schemas.HeaderOriginTopic, string(schemas.Changes)),
				mark(schemas.HeaderError, string(stack)))
			dead = append(dead, rec)
		}
		b.Write(dead...)
		if inc == 0 {
			e, err := parttest.NewAdmin(t, b.Config()).Extent(t.Context(), schemas.Dead)
			must(t, err)
			inc = e.Incarnation
		}
		for i := from; i < from+1000; i++ { // decisions about half of them
			if i%2 == 0 {
				continue
			}
			target := fmt.Sprintf("%d-%d@%08x", i%4, i/4, inc)
			acts = append(acts, parttest.Encoded(t, int32(i%4), schemas.Message{Topic: schemas.Admin, Body: &pb.AdminAction{
				Id: schemas.ID("dead letter", "discard", target, "0"), Time: timestamppb.Now(),
				Who: "ann", Action: "discard", Target: target,
				Reason: "the store was given up for good on the first of May", Account: "acme", Space: "maps", Item: fmt.Sprint(i),
			}})...)
		}
		b.Write(acts...)
	}
	d := deadLetters(t, b)
	before, most, open, closed := liveHeap(), int64(0), 0, 0
	began := time.Now()
	err := d.Each(t.Context(), deadletter.Query{Closed: true}, func(l *deadletter.Letter) error {
		if l.State == deadletter.Open {
			open++
		} else if closed++; l.By != "ann" || l.Reason == "" {
			t.Errorf("letter %s is %s by %q for %q", l.ID, l.State, l.By, l.Reason)
		}
		if (open+closed)%(n/10) == 1 {
			most = max(most, liveHeap()-before)
		}
		return nil
	})
	if err != nil || open != n/2 || closed != n/2 {
		t.Errorf("%d letters are open and %d are not, %v, want %d of each", open, closed, err, n/2)
	}
	t.Logf("%d dead letters: %d MiB at most, in %v", n, most>>20, time.Since(began).Round(time.Millisecond))
	if want := int64(24<<20 + 100*n); most > want {
		t.Errorf("reading %d dead letters took %d MiB, want at most %d", n, most>>20, want>>20)
	}
}
