package fixity

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// requests checks the copy and returns the requests that were made, in order, and the row.
func (w *world) requests(task *pb.FixityTask) (string, Row) {
	var made []string
	w.store.Before(func(_ context.Context, c storagetest.Call) error {
		made = append(made, strings.ToLower(c.Method))
		return nil
	})
	fresh := w.fresh
	w.fresh = func() ([]*pb.CopyRecord, error) {
		made = append(made, "records")
		if fresh != nil {
			return fresh()
		}
		return []*pb.CopyRecord{w.record}, nil
	}
	o := w.handle(task)
	return strings.Join(made, " "), Row(o.result.GetRow())
}

// recordOnlySHA1 records an algorithm that a checker computes only if it is on record.
func (w *world) recordOnlySHA1() {
	sum := sha1.Sum([]byte(good))
	only := map[string]string{digest.SHA1: hex.EncodeToString(sum[:])}
	w.record.Manifest.Digests, w.record.Audit.Digests = only, only
}

func (w *world) withoutRecords() {
	w.fresh = func() ([]*pb.CopyRecord, error) { return nil, errors.New("has not caught up") }
}

func (w *world) fail(method string, skip int) {
	w.store.Script(storagetest.Fault{Method: method, Skip: skip})
}

func (w *world) corrupt() { w.mem.Corrupt(at.Space, at.Item, []byte(rot)) }

// The requests of a first check in each row. No row costs more than these, and their order shows which evidence is
// later.
func TestRequests(t *testing.T) {
	const never = "stat stat"
	const observed = "stat open stat"
	tests := map[string]struct {
		prepare func(*world, *pb.FixityTask)
		row     Row
		want    string
	}{
		"pass": {func(*world, *pb.FixityTask) {}, RowPass, observed},
		"pass, the task carries no records": {func(_ *world, t *pb.FixityTask) { t.Known = nil },
			RowPass, observed + " records"},
		"pass, an algorithm only on record": {func(w *world, t *pb.FixityTask) {
			w.recordOnlySHA1()
			t.Known = nil
		}, RowPass, observed + " records open"},
		"pass, properties altered": {func(w *world, t *pb.FixityTask) {
			t.Known = w.setAltered().GetKnown()
		}, RowPass, observed + " records stat"},
		"pass, properties unknown": {func(w *world, _ *pb.FixityTask) { w.mem.Strip(at.Space, at.Item) },
			RowPass, observed + " records stat"},
		"pass, properties and records unknown": {func(w *world, _ *pb.FixityTask) {
			w.mem.Strip(at.Space, at.Item)
			w.withoutRecords()
		}, RowPass, observed + " records"},
		"pass, at the second attempt": {func(w *world, _ *pb.FixityTask) {
			w.store.Script(storagetest.Fault{Method: "Open", Err: storage.ErrChanged})
		}, RowPass, "stat open " + observed},
		"pass, not read": {func(w *world, _ *pb.FixityTask) { w.settings.NeverRead = true }, RowPass, never},
		"content corrupt": {func(w *world, _ *pb.FixityTask) { w.corrupt() },
			RowContentCorrupt, observed + " records stat open"},
		"store digest wrong": {func(w *world, _ *pb.FixityTask) {
			w.put(rot)
			w.mem.Corrupt(at.Space, at.Item, []byte(good))
		}, RowStoreDigestWrong, observed + " records stat open"},
		"store digest wrong, not read": {func(w *world, _ *pb.FixityTask) {
			w.settings.NeverRead = true
			w.put(rot)
		}, RowStoreDigestWrongUnread, never + " records stat"},
		"manifest wrong": {func(w *world, _ *pb.FixityTask) { w.record.Manifest.Digests = sums(rot) },
			RowManifestWrong, observed + " records stat"},
		"audit mismatch": {func(w *world, _ *pb.FixityTask) { w.record.Audit.Digests = sums(rot) },
			RowAuditMismatch, observed + " records stat"},
		"audit missing": {func(w *world, _ *pb.FixityTask) { w.record.Audit = nothing().Audit },
			RowAuditMissing, observed + " records stat"},
		"content missing": {func(w *world, _ *pb.FixityTask) { w.mem.Lose(at.Space, at.Item) },
			RowContentMissing, observed + " marker records stat"},
		"content missing with its space": {func(w *world, _ *pb.FixityTask) {
			w.vanish()
			w.space = pb.RecordState_RECORD_STATE_NONE
		}, RowContentMissing, observed + " marker records stat"},
		"not captured": {func(w *world, t *pb.FixityTask) { w.record, t.Known = nothing(), nil },
			RowNotCaptured, observed + " records stat"},
		"not captured, final": {func(w *world, t *pb.FixityTask) { w.record, t.Known, t.Baseline = nothing(), nil, true },
			RowNotCaptured, observed + " records stat open"},
		"not captured, final, not read": {func(w *world, t *pb.FixityTask) {
			w.record, w.settings.NeverRead, t.Known, t.Baseline = nothing(), true, nil, true
		}, RowNotCaptured, never + " records stat"},
		"update not captured": {func(w *world, _ *pb.FixityTask) {
			w.settings.ExternalWrites = true
			w.mem.Rewrite(at.Space, at.Item, []byte(rot))
		}, RowUpdateNotCaptured, observed + " records stat"},
		"moot": {func(w *world, _ *pb.FixityTask) { w.delete(); w.bury() }, RowMoot, observed + " marker records stat"},
		"replaced": {func(w *world, _ *pb.FixityTask) { w.put(rot) },
			RowReplaced, observed + " records stat open"},
		"no quorum": {func(w *world, _ *pb.FixityTask) {
			w.record.Manifest.Provenance, w.record.Audit.Provenance = 0, 0
			w.corrupt()
		}, RowNoQuorum, observed + " records stat open"},
		"unverified": {func(w *world, _ *pb.FixityTask) {
			w.settings.NeverRead = true
			w.mem.Rewrite(at.Space, at.Item, []byte(good))
		}, RowUnverified, never},
		"resurrected":            {func(w *world, _ *pb.FixityTask) { w.bury() }, RowResurrected, observed + " records stat"},
		"unknown by first stat":  {func(w *world, _ *pb.FixityTask) { w.fail("Stat", 0) }, RowUnknown, "stat"},
		"unknown by second stat": {func(w *world, _ *pb.FixityTask) { w.fail("Stat", 1) }, RowUnknown, observed},
		"unknown by open":        {func(w *world, _ *pb.FixityTask) { w.fail("Open", 0) }, RowUnknown, observed},
		"unknown, item without bytes": {func(w *world, _ *pb.FixityTask) {
			w.store.Script(storagetest.Fault{Method: "Open", Err: storage.ErrNotFound})
		}, RowUnknown, observed + " marker"},
		"unknown by marker": {func(w *world, _ *pb.FixityTask) { w.delete(); w.mem.Mark("9") },
			RowUnknown, observed + " marker"},
		"unknown by records": {func(w *world, _ *pb.FixityTask) { w.corrupt(); w.withoutRecords() },
			RowUnknown, observed + " records"},
		"unknown, space expected": {func(w *world, _ *pb.FixityTask) { w.vanish() },
			RowUnknown, observed + " marker records"},
		"unknown by third stat": {func(w *world, _ *pb.FixityTask) { w.corrupt(); w.fail("Stat", 2) },
			RowUnknown, observed + " records stat"},
		"unknown by second open": {func(w *world, _ *pb.FixityTask) { w.corrupt(); w.fail("Open", 1) },
			RowUnknown, observed + " records stat open"},
		"unknown, readings differ": {func(w *world, _ *pb.FixityTask) {
			w.store.Script(storagetest.Fault{Method: "Open", Flip: true})
		}, RowUnknown, observed + " records stat open"},
	}
	rows := map[Row]bool{}
	for name, tt := range tests {
		rows[tt.row] = true
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				next := task(w.record)
				tt.prepare(w, next)
				time.Sleep(72 * time.Hour)
				if got, row := w.requests(next); got != tt.want || row != tt.row {
					t.Errorf("got %q, row %d, want %q, row %d", got, row, tt.want, tt.row)
				}
			})
		})
	}
	for row := RowPass; row <= RowResurrected; row++ {
		if !rows[row] {
			t.Errorf("row %d has no case", row)
		}
	}
}

// The re-check is due an interval after the records were read, however long the evidence takes to confirm.
func TestConfirmationLeavesTheDueTime(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(rot)
		w.store.Script(storagetest.Fault{Method: "Stat", Skip: 2, Delay: time.Minute},
			storagetest.Fault{Method: "Open", Skip: 1, Delay: time.Hour})
		read := time.Now()
		o := w.handle(task(w.record))
		w.is(o, 13, pb.Verdict_VERDICT_UNDECIDED, false)
		if want := read.Add(5 * time.Minute); !o.due.Equal(want) || time.Since(read) != time.Hour+time.Minute {
			t.Errorf("due %v, want %v; the check took %v", o.due, want, time.Since(read))
		}
	})
}

// A reading for an algorithm that is only on record may differ from the first. Then neither is the content.
func TestMismatchOfAlgorithmReading(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.recordOnlySHA1()
		w.store.Script(storagetest.Fault{Method: "Open", Flip: true})
		if made, row := w.requests(task(nil)); made != "stat open stat records open" || row != RowUnknown {
			t.Errorf("got %q, row %d", made, row)
		}
		w.store.Script(storagetest.Fault{Method: "Open", Flip: true})
		r := w.handle(task(nil)).result
		confirmed := digest.Set(r.GetConfirmed().GetDigests())
		if r.GetDetail() != detailTransport || r.GetContent().GetState() != stUnknown ||
			confirmed.Compare(sums(good)) != digest.Agree {
			t.Errorf("detail %q, content %v, confirmed %v", r.GetDetail(), r.GetContent(), r.GetConfirmed())
		}
	})
}
