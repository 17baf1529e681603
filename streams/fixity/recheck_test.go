package fixity

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func TestRecheckTask(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.mem.Lose(at.Space, at.Item)
		first := w.handle(task(w.record))
		want := &pb.FixityTask{
			Id: schemas.ID("recheck", "t1", "1"), Account: at.Account, Store: at.Store, Space: at.Space, Item: at.Item,
			Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Priority: pb.Priority_PRIORITY_LOW, Cause: "c1", Round: "r1",
			Recheck: 1, Known: w.record, Time: first.result.GetFinished(), First: first.result.GetStarted(),
			Previous: first.result.GetId(), Found: &pb.Found{Row: 8, Since: first.result.GetStarted()},
		}
		if !proto.Equal(first.again, want) {
			t.Errorf("got %v\nwant %v", first.again, want)
		}
		if !first.result.GetNext().AsTime().Equal(first.due) {
			t.Errorf("result says next %v, re-check is due %v", first.result.GetNext(), first.due)
		}
		// The messages were lost: the second execution has the same task.
		again := w.handle(task(w.record))
		if again.again.GetId() != first.again.GetId() || again.result.GetId() == first.result.GetId() {
			t.Errorf("done again: task %s, was %s; result %s, was %s",
				again.again.GetId(), first.again.GetId(), again.result.GetId(), first.result.GetId())
		}
	})
}

// What a re-check finds for the first time is re-checked from the first interval on. An answer that does not come in
// between changes nothing, and after fixity.settle a copy that always changes is concluded.
func TestRecheckOfAnotherFinding(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(rot)
		time.Sleep(72 * time.Hour)
		next, start := task(w.record), time.Now()
		step := func(number int32) *pb.Found {
			t.Helper()
			o := w.handle(next)
			if o.again.GetRecheck() != number {
				t.Fatalf("re-check %d of %v, want %d", o.again.GetRecheck(), o.result, number)
			}
			time.Sleep(time.Until(o.due))
			next = o.again
			return next.GetFound()
		}
		step(1)
		step(2)
		w.store.Script(storagetest.Fault{Method: "Stat"})
		step(2)
		step(3)
		w.put(rot + rot)
		step(1)
		w.delete()
		step(1)
		step(2)
		got := step(3)
		if want := (&pb.Found{Row: 8, Since: timestamppb.New(start)}); !proto.Equal(got, want) {
			t.Errorf("found %v, want %v", got, want)
		}
		time.Sleep(24 * time.Hour)
		w.put(rot)
		w.is(w.handle(next), 13, pb.Verdict_VERDICT_FAIL, true)
	})
}

// The bytes of a store that is not to be read any more are still read to re-check what was found before.
func TestRecheckOfAFindingBeforeNeverRead(t *testing.T) {
	for name, later := range map[string]time.Duration{"set after the finding": time.Hour, "set before it": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.mem.Lose(at.Space, at.Item)
				next := w.handle(task(w.record)).again
				w.put(good)
				w.record = w.now()
				w.settings.NeverRead, w.settings.NeverReadSince = true, time.Now().Add(later)
				time.Sleep(2 * time.Hour)
				read := w.handle(next).result.GetContent().GetState() == pb.EvidenceState_EVIDENCE_STATE_DIGESTS
				if read != (later > 0) {
					t.Errorf("read: %t", read)
				}
				first := w.handle(task(w.record)).result.GetContent().GetState()
				if first != pb.EvidenceState_EVIDENCE_STATE_UNREAD {
					t.Errorf("the first check has %v", first)
				}
			})
		})
	}
}

// The source came back from a snapshot while its re-check waited, and the record has changed since the first check. Its
// bytes are those that the task has on record, and they are no pass: that would count as one of the newer content.
func TestRecheckReadsRecordsAfresh(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		next := task(w.record)
		next.Recheck = 1
		changed := proto.CloneOf(w.record)
		for _, r := range []*pb.Record{changed.Manifest, changed.Audit} {
			r.Version, r.ChangeId, r.Digests = "v2", "c2", digest.Set{digest.MD5: strings.Repeat("0", 32)}
			r.Time = timestamppb.New(time.Now().Add(-48 * time.Hour))
		}
		w.record = changed
		if o := w.handle(next); o.result.GetVerdict() == pb.Verdict_VERDICT_PASS || w.asked != 1 {
			t.Errorf("got %v after %d reads of records, want no pass", o.result, w.asked)
		}
		w.fresh = func() ([]*pb.CopyRecord, error) { return nil, retry.Unavailable(errors.New("away")) }
		w.is(w.handle(next), int32(RowUnknown), pb.Verdict_VERDICT_UNKNOWN, false)
	})
}

// A record may be long; the part that a task carries is not.
func TestRecheckTaskOfLongProperties(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for _, r := range []*pb.Record{w.record.Manifest, w.record.Audit} {
			r.Properties = map[string]string{"k": strings.Repeat("v", 130<<10)}
		}
		w.mem.Lose(at.Space, at.Item)
		fresh := w.handle(task(nil)).again
		w.fresh = func() ([]*pb.CopyRecord, error) { return nil, errors.New("no answer") }
		carried := w.handle(task(w.record)).again
		for name, got := range map[string]*pb.FixityTask{"read afresh": fresh, "carried": carried} {
			if _, err := schemas.Encode(schemas.Message{Topic: schemas.FixityHigh, Body: got}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if !proto.Equal(got.GetKnown(), schemas.WithoutProperties(w.record)) {
				t.Errorf("%s: carries %v", name, got.GetKnown())
			}
		}
	})
}

func TestCorrections(t *testing.T) {
	updated := func(w *world, _ *pb.FixityTask) { w.settings.ExternalWrites = true; w.put(rot) }
	tests := map[string]struct {
		prepare func(*world, *pb.FixityTask)
		row     int32
		change  bool
	}{
		"not reported": {func(w *world, _ *pb.FixityTask) { w.record = nothing() }, 9, true},
		"baseline":     {func(w *world, t *pb.FixityTask) { w.record, t.Baseline = nothing(), true }, 9, true},
		"row without digests": {func(w *world, _ *pb.FixityTask) {
			w.record.Manifest.Digests, w.record.Audit.Digests = nil, nil
		}, 9, true},
		"audit row missing": {func(w *world, _ *pb.FixityTask) { w.record.Audit = nothing().Audit }, 7, true},
		"unread, not reported": {func(w *world, _ *pb.FixityTask) {
			w.record, w.settings.NeverRead = nothing(), true
		}, 9, false},
		"manifest wrong":         {func(w *world, _ *pb.FixityTask) { w.record.Manifest.Digests = sums(rot) }, 5, true},
		"manifest without a row": {func(w *world, _ *pb.FixityTask) { w.record.Manifest = nothing().Manifest }, 5, true},
		"manifest wrong, about another version": {func(w *world, _ *pb.FixityTask) {
			w.record.Manifest.Digests, w.record.Manifest.Version = sums(rot), "v0"
		}, 5, true},
		"manifest later than the check": {func(w *world, _ *pb.FixityTask) {
			w.record.Manifest.Digests = sums(rot)
			w.config.Settle, w.record.Manifest.Time = 0, timestamppb.New(time.Now().Add(100*24*time.Hour))
		}, 5, false},
		"manifest wrong, unread": {func(w *world, _ *pb.FixityTask) {
			w.record.Manifest.Digests, w.settings.NeverRead = sums(rot), true
		}, 5, false},
		"audit log out of step": {func(w *world, _ *pb.FixityTask) { w.record.Audit.Digests = sums(rot) }, 6, true},
		"audit log out of step, unread": {func(w *world, _ *pb.FixityTask) {
			w.record.Audit.Digests, w.settings.NeverRead = sums(rot), true
		}, 6, false},
		"update not captured": {updated, 10, false},
		"update not captured, auto": {func(w *world, t *pb.FixityTask) {
			updated(w, t)
			w.settings.CorrectUpdates = true
		}, 10, true},
		"update not captured, auto, but later": {func(w *world, t *pb.FixityTask) {
			updated(w, t)
			w.settings.CorrectUpdates, w.settings.CorrectUpdatesSince = true, time.Now().Add(72*time.Hour+time.Minute)
		}, 10, false},
		"update not captured, auto, but written before": {func(w *world, t *pb.FixityTask) {
			updated(w, t)
			w.settings.CorrectUpdates, w.settings.CorrectUpdatesSince = true, time.Now().Add(time.Minute)
		}, 10, false},
		"replaced, auto": {func(w *world, t *pb.FixityTask) { w.put(rot); w.settings.CorrectUpdates = true }, 13, false},
		"replaced":       {func(w *world, _ *pb.FixityTask) { w.put(rot) }, 13, false},
		"resurrected":    {func(w *world, t *pb.FixityTask) { w.bury(); t.Baseline = true }, 16, false},
		"pass":           {func(*world, *pb.FixityTask) {}, 1, false},
		"others write, untold": {func(w *world, _ *pb.FixityTask) {
			w.record, w.settings.ExternalWrites = nothing(), true
		}, 9, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				next := task(nil)
				tt.prepare(w, next)
				time.Sleep(72 * time.Hour)
				o := w.handle(next)
				atOnce := name == "baseline" || name == "row without digests"
				if tt.row == 9 && atOnce != o.result.GetFinal() {
					t.Fatalf("final at the first check: %v", o.result.GetFinal())
				}
				for o.again != nil {
					if o.change != nil || o.result.GetFinding() == findingCorrected {
						t.Fatalf("undecided, and yet %s, %v", o.result.GetFinding(), o.change)
					}
					time.Sleep(time.Until(o.due))
					next = o.again
					o = w.handle(next)
				}
				if o.result.GetRow() != tt.row || (o.change != nil) != tt.change {
					t.Fatalf("row %d, change %v; want row %d, change: %v", o.result.GetRow(), o.change, tt.row, tt.change)
				}
				if finding := o.result.GetFinding(); tt.row == 5 && (finding == findingCorrected) != tt.change {
					t.Errorf("finding %s, change: %v", finding, tt.change)
				}
				if !tt.change {
					return
				}
				if (tt.row == 9 || tt.row == 10) && o.result.GetConfirmed().GetState() != stDigests {
					t.Error("taken in without a second reading")
				}
				want := record.Content(at, w.object)
				want.Evidence = o.change.GetEvidence()
				switch {
				case name == "row without digests":
					record.Complete(want, w.record.GetManifest())
				case tt.row != 7 && tt.row != 9: // just later than the records
					record.At(want, w.object, lastEvent(w.record).Add(time.Millisecond))
				}
				want.Origin, want.Agent, want.Cause = pb.Origin_ORIGIN_FIXITY, "checker", next.GetId()
				if want = record.Seal(want); !proto.Equal(o.change, want) || o.result.GetCorrection() != want.GetId() {
					t.Errorf("got %v\nwant %v\nthe result names %q", o.change, want, o.result.GetCorrection())
				}
				read := w.object.Digests
				if o.change.GetEvidence()["C"] != "md5:"+read[digest.MD5]+" sha256:"+read[digest.SHA256] {
					t.Errorf("evidence %v", o.change.GetEvidence())
				}
				if tt.row == 9 || tt.row == 7 {
					return
				}
				w.recordChange(o.change)
				w.is(w.handle(task(nil)), 1, pb.Verdict_VERDICT_PASS, true)
			})
		})
	}
}

// A correction is later than the row that it corrects and earlier than any later write of a client, since state is
// merged by time. Both times are by the store's clock, which may differ from the machine's.
func TestCorrectionsAreNewerThanTheRow(t *testing.T) {
	prepare := map[string]func(*world){
		"on no record": func(w *world) { w.record = nothing() },
		"another content without digests, a second later": func(w *world) {
			for _, r := range []*pb.Record{w.record.Manifest, w.record.Audit} {
				r.Digests, r.Provenance, r.Version = nil, pb.Provenance_PROVENANCE_UNSPECIFIED, "another"
				r.Time = timestamppb.New(w.object.Modified.Add(time.Second))
			}
		},
	}
	for name, prepare := range prepare {
		for clock, ahead := range map[string]time.Duration{"": 0, ", the store's clock an hour ahead": time.Hour,
			", an hour behind": -time.Hour} {
			t.Run(name+clock, func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					if ahead != 0 {
						w.clock(ahead)
					}
					prepare(w)
					o := w.last(task(nil))
					if o.result.GetRow() != 9 || o.change == nil {
						t.Fatalf("row %d, change %v", o.result.GetRow(), o.change)
					}
					c, m := o.change.GetTime().AsTime(), w.record.GetManifest().GetTime()
					if m != nil && !c.After(m.AsTime()) {
						t.Errorf("the correction is of %v, what it corrects of %v", c, m.AsTime())
					}
					time.Sleep(time.Second)
					if w.put(rot); !w.object.Modified.After(c) {
						t.Errorf("the correction is of %v, what a client wrote a second later of %v", c, w.object.Modified)
					}
				})
			})
		}
	}
}

// Digests that are added to a reported content are a completion of the Change that reported it, with its id and its
// time. For a content that is not on record, or recorded otherwise, they are another Change.
func TestCorrectionsNameTheCompletedChange(t *testing.T) {
	reported := schemas.ID("reported")
	bare := func(w *world, f func(*pb.Record)) {
		for _, r := range []*pb.Record{w.record.Manifest, w.record.Audit} {
			r.Digests, r.Provenance, r.ChangeId = nil, pb.Provenance_PROVENANCE_UNSPECIFIED, reported
			f(r)
		}
	}
	tests := map[string]struct {
		prepare func(*world)
		want    string
	}{
		"reported": {func(w *world) { bare(w, func(*pb.Record) {}) }, reported},
		"reported by its version": {func(w *world) {
			bare(w, func(r *pb.Record) { r.Version, r.Time = w.object.Version, timestamppb.New(r.GetTime().AsTime().Add(1)) })
		}, reported},
		"reported ahead of its time": {func(w *world) {
			bare(w, func(r *pb.Record) { r.Reported = timestamppb.New(r.GetTime().AsTime().Add(174 * 365 * 24 * time.Hour)) })
		}, reported},
		"another version": {func(w *world) { bare(w, func(r *pb.Record) { r.Version = "another" }) }, ""},
		"another time": {func(w *world) {
			bare(w, func(r *pb.Record) { r.Version, r.Time = "", timestamppb.New(r.GetTime().AsTime().Add(-time.Second)) })
		}, ""},
		"another size": {func(w *world) { bare(w, func(r *pb.Record) { r.Version = ""; r.Size++ }) }, ""},
		"an unknown size, which is no size of an empty content": {func(w *world) {
			w.put("")
			w.record = w.now()
			time.Sleep(72 * time.Hour)
			bare(w, func(r *pb.Record) { r.Version, r.SizeUnknown = "", true })
		}, ""},
		"on no record":  {func(w *world) { w.record = nothing() }, ""},
		"in one record": {func(w *world) { bare(w, func(*pb.Record) {}); w.record.Manifest = nothing().Manifest }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				tt.prepare(w)
				o := w.last(task(nil))
				if o.result.GetRow() != 9 || o.change == nil {
					t.Fatalf("row %d, change %v", o.result.GetRow(), o.change)
				}
				got, m := o.change, w.record.GetManifest()
				if got.GetEvidence()[schemas.Completes] != tt.want || schemas.IsCompletion(got) != (tt.want != "") {
					t.Errorf("got %v, want one that completes %q", got, tt.want)
				}
				if tt.want == "" {
					return
				}
				if !proto.Equal(got.GetTime(), schemas.Reported(m)) || got.GetVersion() != m.GetVersion() ||
					got.GetModified() != nil || o.result.GetCorrection() != tt.want {
					t.Errorf("got %v, corrected %s; on record %v", got, o.result.GetCorrection(), m)
				}
			})
		})
	}
}

// The Change that the audit log lacks is published under the id that the manifest has, whatever its time.
func TestMissingChangeHasItsOwnID(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		c := record.Content(at, w.object)
		c.Time = timestamppb.New(w.object.Modified.Add(time.Hour)) // the time of an earlier correction
		m := w.record.Manifest
		m.Time, m.ChangeId = c.Time, schemas.ChangeID(c)
		m.SourceTime, m.SourceVersion = timestamppb.New(w.object.Modified.Add(-time.Hour)), "s1"
		w.record.Audit = nothing().Audit
		o := w.last(task(nil))
		if got := o.change; got.GetId() != m.GetChangeId() || !proto.Equal(got.GetSourceTime(), m.GetSourceTime()) ||
			got.GetSourceVersion() != "s1" {
			t.Errorf("got %v, want that of %v", got, m)
		}
	})
}

func TestRecentlyChecked(t *testing.T) {
	tests := map[string]struct {
		reason  pb.FixityReason
		ago     time.Duration
		recheck int32
		skipped bool
	}{
		"a minute ago":       {pb.FixityReason_FIXITY_REASON_SWEEP, time.Minute, 0, true},
		"long enough ago":    {pb.FixityReason_FIXITY_REASON_SWEEP, time.Hour, 0, false},
		"asked for":          {pb.FixityReason_FIXITY_REASON_DEMAND, time.Minute, 0, false},
		"after a repair":     {pb.FixityReason_FIXITY_REASON_REPAIR, time.Minute, 0, false},
		"a sweep's re-check": {pb.FixityReason_FIXITY_REASON_SWEEP, time.Minute, 1, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				next := task(w.record)
				next.Reason, next.Recheck = tt.reason, tt.recheck
				next.Known.LastPass = timestamppb.New(time.Now().Add(-tt.ago))
				o := w.handle(next)
				if !tt.skipped {
					w.is(o, 1, pb.Verdict_VERDICT_PASS, true)
					return
				}
				w.is(o, 0, pb.Verdict_VERDICT_SKIPPED, true)
				if o.result.GetFinding() != "skipped" || o.result.GetDetail() != "recently checked" || len(w.store.Calls()) != 0 {
					t.Errorf("%v after calls %v", o.result, w.store.Calls())
				}
			})
		})
	}
}

// The settle time is over by Kafka's clock, and the next check is due by that of the process.
func TestSettle(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"right": 0, "ahead": 48 * time.Hour, "behind": -48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.put(rot) // its Change is not on record yet
				time.Sleep(72 * time.Hour)
				w.record.Manifest.Time = timestamppb.New(time.Now().Add(-ahead - time.Hour))
				w.config.At = func(t time.Time) time.Time { return t.Add(-ahead) }
				w.config.Recheck = nil
				o := w.handle(task(nil))
				w.is(o, 13, pb.Verdict_VERDICT_UNDECIDED, false)
				if want := time.Now().Add(23 * time.Hour); !o.due.Equal(want) {
					t.Errorf("due %v, want %v", o.due, want)
				}
				time.Sleep(time.Until(o.due))
				w.is(w.handle(o.again), 13, pb.Verdict_VERDICT_FAIL, true)
			})
		})
	}
}
