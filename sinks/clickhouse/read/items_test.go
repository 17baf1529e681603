package read_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// storedChanges returns Changes of three items in three stores: written, written again, deleted, with digests that were
// claimed first and then verified, and in one space after another.
func storedChanges() (all []schemas.Body) {
	add := func(store, space, item string, at time.Duration, set func(*pb.Change)) {
		c := clickhousetest.Change(item, at)
		c.Store, c.Space = store, space
		if set != nil {
			set(c)
		}
		c.Id = schemas.ChangeID(c)
		all = append(all, c)
	}
	claimed := func(c *pb.Change) {
		c.Provenance, c.Digests = pb.Provenance_PROVENANCE_CLAIMED, map[string]string{"md5": schemas.ID("claimed")}
	}
	gone := func(origin pb.Origin) func(*pb.Change) {
		return func(c *pb.Change) {
			c.Op, c.Origin, c.Digests, c.Version, c.Size = pb.Op_OP_DELETE, origin, nil, "", 0
		}
	}
	for _, store := range []string{"1", "2", "10"} {
		for i, space := range []string{"photos", "photos-2", "a"} {
			for _, item := range []string{"a", "a/b", "ä"} {
				add(store, space, item, time.Duration(i)*time.Minute, claimed)
			}
			add(store, space, "a/b", time.Hour, nil) // verified
		}
		add(store, "photos", "a", time.Hour, gone(pb.Origin_ORIGIN_CLIENT))
	}
	add("2", "photos", "a", 2*time.Hour, func(c *pb.Change) { // put back
		c.SourceTime, c.SizeUnknown, c.Size = clickhousetest.At(time.Minute), true, 0
	})
	add("10", "photos", "only here", 0, gone(pb.Origin_ORIGIN_SWEEP))
	return all
}

// EachItem returns what Records returns, for each item once and in order, also if the rows of the state are unmerged.
func TestEachItem(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	changes := storedChanges()
	for part := range slices.Chunk(changes, 5) { // a part of the table each
		clickhousetest.StoreBoth(t, db, schemas.Changes, int64(len(part)), part...)
	}
	slices.Reverse(changes)
	clickhousetest.StoreBoth(t, db, schemas.Changes, 1000, changes[:7]...) // repeated
	var got, want []string
	last := ""
	err := read.EachItem(t.Context(), db, "acme", func(space, item string, copies []read.StoredCopy) error {
		if key := space + "\x00" + item; key <= last {
			t.Errorf("%q after %q", key, last)
		} else {
			last = key
		}
		for _, c := range copies {
			got = append(got, fmt.Sprintf("%s/%s/%s %t %d %s %s %t %s", c.Store, space, item, c.Live, c.Size,
				c.Time.Format(time.RFC3339Nano), c.SourceTime.Format(time.RFC3339Nano), c.Inferred, c.Digests))
		}
		return nil
	})
	must(t, err)
	for _, c := range keysOf(changes) {
		records, err := read.Records(t.Context(), db, []schemas.Copy{c})
		must(t, err)
		want = append(want, describeStored(c, records[0].GetManifest()))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	stop := errors.New("stop")
	err = read.EachItem(t.Context(), db, "acme", func(string, string, []read.StoredCopy) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	n := 0
	err = read.EachItem(t.Context(), db, "nobody", func(string, string, []read.StoredCopy) error { n++; return nil })
	if err != nil || n != 0 {
		t.Errorf("an account without copies: %d items, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := read.EachItem(ctx, db, "acme", func(string, string, []read.StoredCopy) error { return nil }); err == nil {
		t.Error("no error of a cancelled read")
	}
	accounts, err := read.AccountsOnRecord(t.Context(), db)
	if err != nil || !slices.Equal(accounts, []string{"acme"}) {
		t.Errorf("accounts: got %q, %v", accounts, err)
	}
}

func keysOf(changes []schemas.Body) (all []schemas.Copy) {
	for _, b := range changes {
		if c := schemas.CopyOf(b.(*pb.Change)); !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// describeStored returns a record of the manifest in the form of the test.
func describeStored(c schemas.Copy, m *pb.Record) string {
	live := m.GetState() == pb.RecordState_RECORD_STATE_LIVE
	at := m.GetTime().AsTime().Truncate(time.Millisecond)
	var source time.Time
	var digests []string
	size, inferred := int64(0), false
	if live {
		size = schemas.SizeOf(m)
		if m.GetSourceTime() != nil {
			source = m.GetSourceTime().AsTime().Truncate(time.Millisecond)
		}
		for alg, d := range m.GetDigests() {
			digests = append(digests, alg+":"+d)
		}
		slices.Sort(digests)
	} else {
		inferred = m.GetOrigin() == pb.Origin_ORIGIN_SWEEP || m.GetOrigin() == pb.Origin_ORIGIN_FIXITY
	}
	return fmt.Sprintf("%s/%s/%s %t %d %s %s %t %s", c.Store, c.Space, c.Item, live, size, at.Format(time.RFC3339Nano),
		source.Format(time.RFC3339Nano), inferred, strings.Join(digests, " "))
}

// The two rows of a copy are merged also if they are in two blocks.
func TestEachItemInBlocks(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	f := fillSize{rows: 20_000}
	f.into(t, db, map[string]string{"copy_state": fillState})
	if err := db.Exec(t.Context(), "INSERT INTO {db}.copy_state (account, store, space, item, content) SELECT account,"+
		" store, space, item, content FROM {db}.copy_state"); err != nil {
		t.Fatal(err)
	}
	for _, rows := range []int{1999, 1 << 18} {
		items, copies := 0, 0
		err := read.EachItemInBlocks(t.Context(), db, "acme", rows,
			func(_, _ string, stored []read.StoredCopy) error {
				items++
				for _, c := range stored {
					if c.Live && c.Size == 1000 && strings.HasPrefix(c.Digests, "md5:") {
						copies++
					}
				}
				return nil
			})
		if err != nil || items != 10_000 || copies != 20_000 {
			t.Errorf("blocks of %d rows: %d items, %d copies, %v", rows, items, copies, err)
		}
	}
}

func TestPairsOfTheLog(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	at := func(s float64) time.Time {
		return time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
	}
	var all []schemas.Body
	add := func(to string, changed, started, finished float64, set func(*pb.DuplicationResult)) {
		r := &pb.DuplicationResult{Id: schemas.NewID(), Command: fmt.Sprint("c", len(all)), Account: "acme",
			Space: "photos", Item: fmt.Sprint("item-", len(all)), SourceStore: "1", DestinationStore: to,
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Decision: "C5", Result: "copied", Bytes: 600,
			Outcome: pb.Outcome_OUTCOME_DONE, ChangeTime: timestamppb.New(at(changed - 1e6)), // an old file
			Planned: timestamppb.New(at(changed)), Started: timestamppb.New(at(started)),
			Finished: timestamppb.New(at(finished))}
		if set != nil {
			set(r)
		}
		all = append(all, r)
	}
	for i := range 100 {
		add("2", float64(i)/10, float64(i)/10, float64(i)/10+0.5, nil)
	}
	add("2", 0, 20, 30, func(r *pb.DuplicationResult) { r.Newer = true })
	add("2", 0, 20, 30, func(r *pb.DuplicationResult) { r.Reason = pb.DuplicationReason_DUPLICATION_REASON_SWEEP })
	add("2", 0, 20, 30, func(r *pb.DuplicationResult) { r.Result = "superseded" })
	add("3", -1000, -900, -600, func(r *pb.DuplicationResult) { r.Bytes = 30_000 }) // before the window of delays
	add("3", 0, 0, 300, func(r *pb.DuplicationResult) { r.Bytes = 30_000 })         // spread over its time
	must(t, clickhouse.NewSink(db).Store(t.Context(),
		clickhousetest.Deliver(schemas.DuplicationResults, 0, all...)))
	delays, err := read.PairDelays(t.Context(), db, "acme", at(-60))
	if err != nil || len(delays) != 2 {
		t.Fatalf("delays: got %+v, %v", delays, err)
	}
	if d := delays[0]; d.Copies != 100 || d.P50 < 0.49 || d.P99 > 0.51 || d.Destination != "2" {
		t.Errorf("delays: got %+v", d)
	}
	if d := delays[1]; d != (read.PairDelay{Source: "1", Destination: "3", Copies: 1, P50: 300, P99: 300}) {
		t.Errorf("delays: got %+v", d)
	}
	rates, err := read.PairRates(t.Context(), db, "acme", at(-3600))
	want := []read.PairRate{
		{Source: "1", Destination: "2", Items: 102.0 / 60, Bytes: 102 * 10, Copies: 102},
		{Source: "1", Destination: "3", Items: 1.0 / 300, Bytes: 100, Copies: 2},
	}
	if err != nil || !slices.Equal(rates, want) {
		t.Errorf("rates: got %+v, %v, want %+v", rates, err, want)
	}
}
