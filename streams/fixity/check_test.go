package fixity

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func TestPassNeedsNoFreshRecords(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		start := time.Now()
		o := w.handle(task(w.record))
		verified := &pb.Evidence{
			State: stDigests, Digests: w.object.Digests, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		}
		want := &pb.FixityResult{
			Id: o.result.GetId(), Task: "t1", Cause: "c1", Account: at.Account, Store: at.Store, Space: at.Space, Item: at.Item,
			StoreKind: "mem", Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Verdict: pb.Verdict_VERDICT_PASS, Row: 1,
			Finding: "pass", Final: true, EvidenceLevel: 4, Content: verified, Stored: verified, Manifest: verified,
			Audit: verified, BytesRead: int64(len(good)), Attempt: 1, Worker: "worker-1", Host: "host-1",
			Software: "millrace-test", Round: "r1", Started: timestamppb.New(start), Finished: timestamppb.New(start),
			Object: record.Identity(w.object), Metadata: pb.Metadata_METADATA_INTACT,
			LastEvent: w.record.GetManifest().GetTime(), // of the records that the task carried
		}
		if !proto.Equal(o.result, want) {
			t.Errorf("got %v\nwant %v", o.result, want)
		}
		if len(o.result.GetId()) != 32 || w.asked != 0 || w.store.Count("Open") != 1 || w.store.Count("Stat") != 2 ||
			w.store.Count("Marker") != 0 {
			t.Errorf("id %q, %d fresh reads, calls %v", o.result.GetId(), w.asked, w.store.Calls())
		}
	})
}

func TestFindings(t *testing.T) {
	const fail, undecided = pb.Verdict_VERDICT_FAIL, pb.Verdict_VERDICT_UNDECIDED
	tests := map[string]struct {
		harm  func(*world)
		row   int32
		first pb.Verdict // of the first check
		last  pb.Verdict // of the last
	}{
		"one byte flipped": {func(w *world) { w.mem.Corrupt(at.Space, at.Item, []byte(rot)) }, 2, fail, fail},
		"truncated":        {func(w *world) { w.mem.Corrupt(at.Space, at.Item, []byte(good[:7])) }, 2, fail, fail},
		"bytes removed":    {func(w *world) { w.mem.Lose(at.Space, at.Item) }, 8, undecided, pb.Verdict_VERDICT_MISSING},
		"replaced":         {func(w *world) { w.put(rot) }, 13, undecided, fail},
		"rewritten by a foreign writer": {func(w *world) { w.mem.Rewrite(at.Space, at.Item, []byte(rot)) },
			13, undecided, fail},
		"rewritten, where others write": {func(w *world) {
			w.settings.ExternalWrites = true
			w.mem.Rewrite(at.Space, at.Item, []byte(rot))
		}, 10, undecided, pb.Verdict_VERDICT_NOT_CAPTURED},
		"copied to another disk with a fault, where others write": {func(w *world) {
			w.settings.ExternalWrites = true
			w.mem.Date(at.Space, at.Item, w.object.Modified.Truncate(time.Millisecond).Add(456789)) // as files are dated
			w.move(rot)
		}, 13, undecided, fail},
		"so copied, and dated ahead of its record": {func(w *world) {
			w.withoutClock()
			w.settings.ExternalWrites = true
			w.mem.Date(at.Space, at.Item, time.Unix(1<<32-1, 0)) // 2106
			w.move(rot)
		}, 13, undecided, fail},
		"so copied, and ordered by an earlier time than its own": {func(w *world) {
			w.settings.ExternalWrites = true
			m := w.record.Manifest
			m.Reported, m.Time = m.GetTime(), record.Time(m.GetTime().AsTime().Add(-time.Hour))
			w.move(rot)
		}, 13, undecided, fail},
		"rewritten before others were expected to write": {func(w *world) {
			w.mem.Rewrite(at.Space, at.Item, []byte(rot))
			w.settings.ExternalWrites, w.settings.ExternalWritesSince = true, time.Now().Add(time.Hour)
		}, 13, undecided, fail},
		"not reported": {func(w *world) {
			w.record = nothing()
		}, 9, undecided, pb.Verdict_VERDICT_NOT_CAPTURED},
		"properly deleted": {func(w *world) {
			w.delete()
			w.bury()
		}, 11, pb.Verdict_VERDICT_MOOT, pb.Verdict_VERDICT_MOOT},
		"brought back with its old time":  {func(w *world) { w.bury() }, 16, undecided, fail},
		"other bytes under its tombstone": {func(w *world) { w.put(rot); w.bury() }, 16, undecided, fail},
		"brought back, never read":        {func(w *world) { w.settings.NeverRead = true; w.bury() }, 16, undecided, fail},
		"audit row missing":               {func(w *world) { w.record.Audit = nothing().Audit }, 7, fail, fail},
		"manifest wrong":                  {func(w *world) { w.record.Manifest.Digests = sums(rot) }, 5, fail, fail},
		"never read, no digest": {func(w *world) {
			w.settings.NeverRead = true
			w.mem.Rewrite(at.Space, at.Item, []byte(good))
		}, 15, pb.Verdict_VERDICT_UNVERIFIED, pb.Verdict_VERDICT_UNVERIFIED},
		"never read, other digest": {func(w *world) {
			w.settings.NeverRead = true
			w.put(rot)
		}, 4, undecided, fail},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				tt.harm(w)
				time.Sleep(72 * time.Hour)
				w.is(w.handle(task(w.record)), tt.row, tt.first, tt.first != undecided)
				w.is(w.last(task(w.record)), tt.row, tt.last, true)
			})
		})
	}
}

func TestFirstMismatchIsReadTwice(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.mem.Corrupt(at.Space, at.Item, []byte(rot))
		r := w.handle(task(w.record)).result
		if got, want := digest.Set(r.GetConfirmed().GetDigests()), sums(rot); got.Compare(want) != digest.Agree {
			t.Errorf("confirmed with %v, want %v", got, want)
		}
		if r.GetBytesRead() != 2*int64(len(rot)) || r.GetEvidenceLevel() != 4 || w.store.Count("Open") != 2 {
			t.Errorf("%d bytes read at E%d in %d readings", r.GetBytesRead(), r.GetEvidenceLevel(), w.store.Count("Open"))
		}
	})
}

func TestStaleRecordsOfTheTask(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		stale := proto.CloneOf(w.record)
		w.put(rot)
		w.record = w.now()
		o := w.handle(task(stale))
		w.is(o, 1, pb.Verdict_VERDICT_PASS, true)
		if w.asked != 1 {
			t.Errorf("records were read %d times, want 1", w.asked)
		}
	})
}

func TestAlgorithmOnRecordOnly(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sum := sha1.Sum([]byte(good))
		only := map[string]string{digest.SHA1: hex.EncodeToString(sum[:])}
		w.record.Manifest.Digests, w.record.Audit.Digests = only, only
		o := w.handle(task(nil))
		w.is(o, 1, pb.Verdict_VERDICT_PASS, true)
		if len(o.result.GetContent().GetDigests()) != 3 || w.store.Count("Open") != 2 {
			t.Errorf("content %v after %d readings", o.result.GetContent(), w.store.Count("Open"))
		}
		w.is(w.handle(task(w.record)), 1, pb.Verdict_VERDICT_PASS, true)
		if n := w.store.Count("Open"); n != 3 {
			t.Errorf("%d readings after a task that carries the records, want 3", n)
		}
	})
}

func TestTasksThatCannotBeChecked(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		elsewhere, nameless := task(nil), task(nil)
		elsewhere.Store, nameless.Item = "7", ""
		for name, body := range map[string]schemas.Body{"unknown store": elsewhere, "no item": nameless,
			"no task": &pb.Change{}} {
			got, err := w.checker().Handle(t.Context(), &schemas.Delivery{Body: body})
			if !retry.IsPermanent(err) || got != nil {
				t.Errorf("%s: %v, %v, want a permanent error", name, got, err)
			}
		}
		w.store.Script(storagetest.Fault{Method: "Stat", Err: storage.ErrName})
		if _, err := w.checker().Handle(t.Context(), &schemas.Delivery{Body: task(nil)}); !retry.IsPermanent(err) {
			t.Errorf("a name that the store cannot hold: %v, want a permanent error", err)
		}
	})
}

func TestNew(t *testing.T) {
	w := &world{}
	bad := specified()
	bad.Recheck = []time.Duration{0}
	bad.Restarts = -1
	if _, err := New(bad, w, w, w); err == nil || !strings.Contains(err.Error(), "recheck") ||
		!strings.Contains(err.Error(), "restarts") {
		t.Errorf("got %v, want both faults", err)
	}
	if _, err := New(specified(), nil, w, w); err == nil {
		t.Error("no stores, no error")
	}
}

func BenchmarkHandle(b *testing.B) {
	store, err := mem.New(mem.Config{ID: at.Store})
	must(b, err)
	must(b, store.CreateSpace(b.Context(), storage.Space{Name: at.Space}))
	o, err := store.Put(b.Context(), at.Space, at.Item, strings.NewReader(strings.Repeat("x", 8<<10)),
		storage.PutOptions{Size: storage.UnknownSize})
	must(b, err)
	w := &world{store: storagetest.NewFaulty(store), object: o, config: specified()}
	c, err := New(w.config, w, w, w)
	must(b, err)
	known := w.now()
	b.SetBytes(8 << 10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Handle(b.Context(), &schemas.Delivery{Body: task(known)}); err != nil {
			b.Fatal(err)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
