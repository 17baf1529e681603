package clickhouse_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A permutation is one order of the records of one history. Each has a copy of its own.
type permutation struct {
	copy    schemas.Copy
	records []historyRecord // by offset
	order   []int
}

// permutations returns all orders of all histories of n records, at two times.
func permutations(n int) (all []permutation) {
	var steps []step
	for _, kind := range stepKinds() {
		steps = append(steps, step{kind, 0}, step{kind, time.Millisecond})
	}
	histories := [][]step{nil}
	for range n {
		var longer [][]step
		for _, h := range histories {
			for _, s := range steps {
				longer = append(longer, append(h[:len(h):len(h)], s))
			}
		}
		histories = longer
	}
	for i, h := range histories {
		for _, order := range orders(n) {
			item := fmt.Sprint(i, "-", order)
			all = append(all, permutation{schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: item},
				history(item, h), order})
		}
	}
	return all
}

// orders returns the permutations of 0 to n-1.
func orders(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, o := range orders(n - 1) {
		for i := range n {
			all = append(all, append(append(append([]int{}, o[:i]...), n-1), o[i:]...))
		}
	}
	return all
}

// Every history of up to three records (two in "make test"), stored in every order and then again, ends in the state
// of the model, before and after a merge, and is counted so.
func TestStateInEveryOrder(t *testing.T) {
	t.Parallel()
	for n := 1; n <= need.Amount(2, 3, 3); n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			db := clickhousetest.Open(t)
			all := permutations(n)
			for round := range 2 * n {
				storeNth(t, db, all, round)
			}
			compareAll(t, db, all)
			must(t, db.Exec(t.Context(), "OPTIMIZE TABLE {db}.copy_state FINAL"))
			compareAll(t, db, all)
		})
	}
}

// storeNth stores one record of every history, with one insert for each topic.
func storeNth(t *testing.T, db *clickhouse.DB, all []permutation, round int) {
	t.Helper()
	batches := map[schemas.Topic][]*schemas.Delivery{}
	for _, a := range all {
		h := a.records[a.order[round%len(a.order)]]
		batches[h.topic] = append(batches[h.topic], clickhousetest.Deliver(h.topic, h.offset, h.body)...)
	}
	s := clickhouse.NewState(db)
	for _, batch := range batches {
		must(t, s.Store(t.Context(), batch))
	}
}

func compareAll(t *testing.T, db *clickhouse.DB, all []permutation) {
	t.Helper()
	copies := make([]schemas.Copy, len(all))
	for i, a := range all {
		copies[i] = a.copy
	}
	records, err := read.Records(t.Context(), db, copies)
	must(t, err)
	of := copies[0]
	of.Item = ""
	listed := map[schemas.Copy]*pb.CopyRecord{} // from the view copy_merged
	if err := read.EachLive(t.Context(), db, of, func(k schemas.KnownCopy) error {
		listed[k.Copy] = k.Record
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var want read.SpaceStatus
	wrong := 0
	for i, a := range all {
		records[i].Audit = nil
		m := model(a.records)
		if !proto.Equal(records[i], m) {
			if wrong++; wrong < 5 {
				t.Errorf("after %v in the order %v\n got %v\nwant %v", a.records, a.order, records[i], m)
			}
		}
		if m.GetManifest().GetState() == pb.RecordState_RECORD_STATE_LIVE {
			if !proto.Equal(listed[a.copy], m) {
				t.Errorf("%v is listed with %v, want %v", a.copy, listed[a.copy], m)
			}
			want.Live++
			want.Bytes += m.GetManifest().GetSize()
			if m.GetLastPass() != nil {
				want.Verified++
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d copies are wrong", wrong, len(all))
	}
	status, err := read.FixityStatus(t.Context(), db, read.StatusQuery{Account: "acme"})
	if err != nil || len(status) != 1 {
		t.Fatalf("FixityStatus = %v, %v", status, err)
	}
	got := read.SpaceStatus{Live: status[0].Live, Bytes: status[0].Bytes, Verified: status[0].Verified}
	if len(listed) != int(want.Live) {
		t.Errorf("%d copies are listed, want %d", len(listed), want.Live)
	}
	if got != want {
		t.Errorf("counted are %+v, want %+v", got, want)
	}
}
