package fixity

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/rowdoc"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// An acceptCase is a case of the table about orders to accept a copy. Its name begins with its row.
type acceptCase struct {
	evidence symbolic
	edit     func(*acceptInput)
	result   string
}

// seenAt is the time of the newest record of acceptOf.
var seenAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// acceptOf returns the input for an order to accept the bytes b, an hour after the newest record. The manifest has
// another version.
func acceptOf(y symbolic, edit func(*acceptInput)) acceptInput {
	e := y.evidence()
	o := storage.Object{Item: at.Item, Version: "v2", Modified: seenAt.Add(time.Minute), Size: 3}
	m := &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Version: "v1", Digests: e.Manifest.Digests,
		Time: timestamppb.New(seenAt), Provenance: pb.Provenance_PROVENANCE_VERIFIED}
	if e.Manifest.Claimed {
		m.Provenance = pb.Provenance_PROVENANCE_CLAIMED
	}
	switch e.Manifest.State {
	case stBuried:
		m.State = pb.RecordState_RECORD_STATE_TOMBSTONE
	case stNone:
		m = &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
	}
	s := acceptInput{
		order: &pb.AcceptOrder{Object: record.Identity(o), Digests: digest.Set{"sha256": "b"}, By: "eve",
			LastEvent: timestamppb.New(seenAt)},
		row: Judge(e, StoreSettings{ExternalWrites: y.writes}).Row, evidence: e, object: o, statTime: seenAt.Add(time.Hour),
		records: &pb.CopyRecord{Manifest: m, Audit: &pb.Record{Time: timestamppb.New(seenAt.Add(-time.Hour))}},
	}
	if edit != nil {
		edit(&s)
	}
	return s
}

func acceptCases() map[string]acceptCase {
	replaced, resurrected := symbolic{c: "b", s: "b", m: "a", a: "a"}, symbolic{c: "b", s: "b", m: "tombstone", a: "none"}
	sameVersion := func(s *acceptInput) { s.records.Manifest.Version = "v2" }
	forced := func(s *acceptInput) { sameVersion(s); s.order.Force = true }
	return map[string]acceptCase{
		"A1 unknown": {symbolic{c: "b", s: "b", m: "unknown", a: "a"}, nil, ""},
		"A2 gone":    {symbolic{c: "404", s: "404", m: "a", a: "a"}, nil, "accept-outdated"},
		"A2 deleted": {symbolic{c: "404", s: "404", m: "tombstone", a: "none"}, nil, "accept-outdated"},
		"A3 another version": {replaced, func(s *acceptInput) {
			s.object.Version = "v3"
		}, "accept-outdated"},
		"A3 an order without an object": {replaced, func(s *acceptInput) { s.order.Object = nil }, "accept-outdated"},
		"A4 unread":                     {symbolic{c: "unread", s: "b", m: "a", a: "a"}, nil, "accept-refused"},
		"A5 other bytes":                {symbolic{c: "c", s: "c", m: "a", a: "a"}, nil, "accept-outdated"},
		"A5 no digests were seen":       {replaced, func(s *acceptInput) { s.order.Digests = nil }, "accept-outdated"},
		"A6 on record":                  {symbolic{c: "b", s: "b", m: "b", a: "b"}, nil, "accept-moot"},
		"A6 in the manifest":            {symbolic{c: "b", s: "b", m: "b", a: "a"}, nil, "accept-moot"},
		"A6 in the manifest alone":      {symbolic{c: "b", s: "b", m: "b", a: "none"}, nil, "accept-moot"},
		"A6 in the audit log":           {symbolic{c: "b", s: "b", m: "a", a: "b"}, nil, "accept-moot"},
		"A7 a later event": {replaced, func(s *acceptInput) {
			s.records.Manifest.Time = timestamppb.New(seenAt.Add(time.Second))
		}, "accept-outdated"},
		"A7 a later event in the audit log": {replaced, func(s *acceptInput) {
			s.records.Audit.Time = timestamppb.New(seenAt.Add(time.Second))
		}, "accept-outdated"},
		"A7 deleted again": {resurrected, func(s *acceptInput) {
			s.records.Manifest.Time = timestamppb.New(seenAt.Add(time.Second))
		}, "accept-outdated"},
		"A7 the first event": {replaced, func(s *acceptInput) { s.order.LastEvent = nil }, "accept-outdated"},
		"A7 decided long ago": {replaced, func(s *acceptInput) {
			s.order.Time, s.started = timestamppb.New(seenAt), seenAt.Add(25*time.Hour)
		}, "accept-outdated"},
		"A8 corrupt":                  {symbolic{c: "b", s: "a", m: "a", a: "a"}, nil, "accept-refused"},
		"A8 no quorum with the store": {symbolic{c: "b", s: "c", m: "a", a: "none"}, nil, "accept-refused"},
		"A8 under a tombstone, and not what the store reports": {
			symbolic{c: "b", s: "a", m: "tombstone", a: "none"}, nil, "accept-refused"},
		"A8 a digest that cannot be compared": {replaced, func(s *acceptInput) { s.row = RowUnverified }, "accept-refused"},
		"A9 a flipped byte":                   {replaced, sameVersion, "accept-refused"},
		"A9 a flipped byte without versions": {replaced, func(s *acceptInput) {
			m := s.records.GetManifest()
			m.Version, m.Size, s.object.Modified = "", 3, seenAt
		}, "accept-refused"},
		"A9 a flipped byte without versions, of unknown size": {replaced, func(s *acceptInput) {
			m := s.records.GetManifest()
			m.Version, m.SizeUnknown, s.object.Modified = "", true, seenAt.Add(500*time.Millisecond)
		}, "accept-refused"},
		"A9 a flipped byte under the ETag on record": {replaced, func(s *acceptInput) {
			s.records.Manifest.Version, s.records.Manifest.Etag, s.object.ETag = "", "e", "e"
		}, "accept-refused"},
		"A9 resurrected with a flipped byte": {resurrected, func(s *acceptInput) {
			sameVersion(s)
			s.records.Manifest.Digests = map[string]string{"sha256": "a"}
		}, "accept-refused"},
		"A10 the clock went back": {replaced, func(s *acceptInput) { s.statTime = seenAt }, "accept-refused"},
		"A10 less than a millisecond later": {replaced, func(s *acceptInput) {
			s.statTime = seenAt.Add(time.Microsecond)
		}, "accept-refused"},
		"A10 forced":                {replaced, func(s *acceptInput) { forced(s); s.statTime = seenAt }, "accept-refused"},
		"A11 replaced":              {replaced, nil, "accepted"},
		"A11 a flipped byte forced": {replaced, forced, "accepted"},
		"A11 no quorum":             {symbolic{c: "b", s: "b", m: "a", a: "c"}, nil, "accepted"},
		"A11 against a claim":       {symbolic{c: "b", s: "b", m: "a?", a: "a?"}, nil, "accepted"},
		"A11 this version, claimed": {symbolic{c: "b", s: "b", m: "a?", a: "a?"}, sameVersion, "accepted"},
		"A11 another copy differs":  {symbolic{c: "b", s: "b", m: "bare", a: "bare", differs: true}, nil, "accepted"},
		"A11 update":                {symbolic{c: "b", s: "b", m: "a", a: "a", newer: true, writes: true}, nil, "accepted"},
		"A11 resurrected":           {resurrected, nil, "accepted"},
		"A11 resurrected unchanged": {resurrected, sameVersion, "accepted"},
		"A11 not captured": {symbolic{c: "b", s: "b", m: "none", a: "none"}, func(s *acceptInput) {
			s.order.LastEvent, s.records.Audit = nil, nil
		}, "accepted"},
	}
}

func TestDecideAccept(t *testing.T) {
	for name, tt := range acceptCases() {
		t.Run(name, func(t *testing.T) {
			got := decideAccept(acceptOf(tt.evidence, tt.edit))
			if got.result != tt.result || string(got.row)+" " != name[:len(got.row)+1] {
				t.Errorf("got row %s %q (%s), want %q", got.row, got.result, got.detail, tt.result)
			}
			if (got.detail == "") != (tt.result == "" || tt.result == resultAccepted) {
				t.Errorf("detail %q of %q", got.detail, got.result)
			}
		})
	}
}

// Whatever the evidence, nothing is accepted but bytes that were read and seen, and that only the records contradict.
func TestDecideAcceptIsTotal(t *testing.T) {
	edits := []func(*acceptInput){nil, func(s *acceptInput) { s.records.Manifest.Version = "v2" },
		func(s *acceptInput) { s.object.Version = "v3" }, func(s *acceptInput) { s.order.LastEvent = nil },
		func(s *acceptInput) { s.statTime = seenAt }}
	rows := map[AcceptRow]bool{}
	every(func(y symbolic) {
		for n, edit := range edits {
			s := acceptOf(y, edit)
			got := decideAccept(s)
			rows[got.row] = true
			if got.result != resultAccepted {
				continue
			}
			known := n == 1 && s.evidence.Manifest.hasDigests() && !s.evidence.Manifest.Claimed
			hasB := func(w string) bool { return w == "b" || w == "b?" }
			if y.c != "b" || y.s != "b" && y.s != "none" || y.m == "unknown" || y.a == "unknown" || n > 1 || known ||
				!s.evidence.claimContradicted() && (hasB(y.m) || hasB(y.a) && y.m != "tombstone") {
				t.Fatalf("%+v, edit %d: accepted", y, n)
			}
		}
	})
	for row := range rowdoc.Constants(t, "acceptrow.go") {
		if !rows[AcceptRow(row)] {
			t.Errorf("row %s was not reached", row)
		}
	}
}

// Each row has a constant, a line in docs/decisions-fixity.md with its name and its result, and a named case.
func TestAcceptRowsAreDocumented(t *testing.T) {
	names := rowdoc.Constants(t, "acceptrow.go")
	lines := rowdoc.Lines(t, "../../docs/decisions-fixity.md",
		regexp.MustCompile("(?m)^\\| (A\\d+) \\| ([a-z ]+) \\| [^|]+ \\| (?:`([a-z-]+)`)?[^|]* \\|$"))
	results := map[string]string{}
	for name, tt := range acceptCases() {
		row := string(decideAccept(acceptOf(tt.evidence, tt.edit)).row)
		if row+" " != name[:len(row)+1] {
			t.Errorf("case %q is of row %s", name, row)
		}
		results[row] = tt.result
	}
	for row, name := range names {
		result, ok := results[row]
		if line := lines[row]; line == nil || line[2] != name || line[3] != result || !ok {
			t.Errorf("row %s: the document has %q, its constant is %q, its case has %q", row, line, name, result)
		}
	}
	if len(lines) != len(names) {
		t.Errorf("%d rows are documented, want %d", len(lines), len(names))
	}
}

// acceptTask returns the task of an operator who accepts what r has found.
func acceptTask(r *pb.FixityResult) *pb.FixityTask {
	next := task(nil)
	next.Id, next.Cause, next.Round = "accept-1", "action-1", ""
	next.Reason, next.Priority = pb.FixityReason_FIXITY_REASON_DEMAND, pb.Priority_PRIORITY_HIGH
	next.Accept = &pb.AcceptOrder{Incident: "acme/2/photos/a.jpg/replaced", IncidentId: "i1", Action: "action-1",
		Object: r.GetObject(), Digests: r.GetContent().GetDigests(), LastEvent: r.GetLastEvent(), By: "eve",
		Reason: "a curator wrote it"}
	return next
}

// recordChange puts a Change on record, unless the records have a later event.
func (w *world) recordChange(c *pb.Change) {
	w.t.Helper()
	if !c.GetTime().AsTime().After(lastEvent(w.record)) {
		w.t.Fatalf("change of %v does not become the newest record", c.GetTime().AsTime())
	}
	r := &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Digests: c.GetDigests(), Size: c.GetSize(),
		Provenance: c.GetProvenance(), Version: c.GetVersion(), Time: c.GetTime(), ChangeId: c.GetId()}
	w.record = &pb.CopyRecord{Manifest: r, Audit: proto.CloneOf(r)}
}

// acceptable are the findings whose content an operator may accept.
func acceptable() map[string]func(*world) {
	return map[string]func(*world){
		"replaced":            func(w *world) { w.put(rot) },
		"rewritten":           func(w *world) { w.mem.Rewrite(at.Space, at.Item, []byte(rot)) },
		"no quorum":           func(w *world) { w.put(rot); w.claim() },
		"update not captured": func(w *world) { w.settings.ExternalWrites = true; w.put(rot) },
		"resurrected":         func(w *world) { w.bury() },
	}
}

// Where the store does not tell its time, accepted content is just later than the records, as a correction is: a later
// event of a client is newer, whatever the clock of the checker says.
func TestAcceptWithoutClock(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.withoutClock()
		w.put(rot)
		time.Sleep(72 * time.Hour)
		o := w.handle(acceptTask(w.last(task(w.record)).result))
		want := record.Time(lastEvent(w.record).Add(time.Millisecond))
		if o.change == nil || !proto.Equal(o.change.GetTime(), want) {
			t.Errorf("got %v, want one of %v", o.change, want)
		}
	})
}

// Accepted content is recorded as a Change that the operator has approved and that is later than the records. Then a
// check passes.
func TestAccept(t *testing.T) {
	for name, prepare := range acceptable() {
		for clock, ahead := range map[string]time.Duration{"": 0, ", the store's clock an hour ahead": time.Hour,
			", an hour behind": -time.Hour} {
			t.Run(name+clock, func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					if ahead != 0 {
						w.clock(ahead)
					}
					prepare(w)
					time.Sleep(72 * time.Hour)
					found := w.last(task(w.record))
					if found.change != nil {
						t.Fatalf("recorded without a decision: %v", found.change)
					}
					next := acceptTask(found.result)
					o := w.handle(next)
					if !o.result.GetFinal() || o.result.GetAcceptResult() != "accepted" || o.change == nil ||
						o.result.GetCorrection() != o.change.GetId() || !proto.Equal(o.result.GetAccept(), next.GetAccept()) {
						t.Fatalf("got %v, change %v", o.result, o.change)
					}
					object, err := w.mem.Stat(t.Context(), at.Space, at.Item)
					must(t, err)
					object.Digests = found.result.GetContent().GetDigests()
					want := record.Content(at, object)
					record.At(want, object, time.Now().Add(ahead)) // no time passes during a check
					want.Origin, want.Agent, want.Cause, want.Approved = pb.Origin_ORIGIN_FIXITY, "checker", "accept-1", "eve"
					want.Evidence = o.change.GetEvidence()
					if want = record.Seal(want); !proto.Equal(o.change, want) {
						t.Errorf("got  %v\nwant %v", o.change, want)
					}
					evidence := maps.Clone(o.change.GetEvidence())
					for _, piece := range []string{"row", "C", "S", "M", "A"} {
						if evidence[piece] == "" {
							t.Errorf("the evidence lacks %s: %v", piece, evidence)
						}
						delete(evidence, piece)
					}
					if want := map[string]string{"incident": "acme/2/photos/a.jpg/replaced", "accepted": "action-1",
						"why": "a curator wrote it"}; !maps.Equal(evidence, want) {
						t.Errorf("evidence %v, want %v", evidence, want)
					}
					w.recordChange(o.change)
					w.is(w.handle(task(nil)), 1, pb.Verdict_VERDICT_PASS, true)
					// The order is handled again.
					again := w.handle(next)
					w.is(again, 1, pb.Verdict_VERDICT_PASS, true)
					if again.change != nil || again.result.GetAcceptResult() != "accept-moot" {
						t.Errorf("handled again: %v, %v", again.result, again.change)
					}
					// A client writes later.
					time.Sleep(time.Second)
					if w.put("mine"); !w.object.Modified.After(o.change.GetTime().AsTime()) {
						t.Errorf("the change is of %v, what a client wrote later of %v", o.change.GetTime(), w.object.Modified)
					}
				})
			})
		}
	}
}

// What has happened since the decision is never recorded as what the operator accepted. The check goes on without the
// order.
func TestAcceptAfterAChange(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(*world)
		result    string
		row       int32
	}{
		"a client's version, reported": {func(w *world) { w.put("mine"); w.record = w.now() }, "accept-outdated", 1},
		"a client's version":           {func(w *world) { w.put("mine") }, "accept-outdated", 13},
		"a client's version on record only": {func(w *world) {
			w.record.Manifest.Time = timestamppb.New(time.Now().Add(-48 * time.Hour))
		}, "accept-outdated", 13},
		"deleted":               {func(w *world) { w.delete(); w.bury() }, "accept-outdated", 11},
		"deleted, not reported": {func(w *world) { w.delete() }, "accept-outdated", 8},
		"a flipped byte": {func(w *world) {
			w.mem.Corrupt(at.Space, at.Item, []byte("flipped"))
		}, "accept-outdated", 2},
		"never read": {func(w *world) { w.settings.NeverRead = true }, "accept-refused", 4},
		"put right by hand": {func(w *world) {
			w.put(good)
		}, "accept-outdated", 1},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.put(rot)
				time.Sleep(72 * time.Hour)
				next := acceptTask(w.last(task(w.record)).result)
				tt.meanwhile(w)
				o := w.handle(next)
				if o.change != nil || o.result.GetCorrection() != "" || o.result.GetAcceptResult() != tt.result ||
					o.result.GetAcceptDetail() == "" || o.result.GetRow() != tt.row {
					t.Errorf("got row %d, %s (%s), change %v; want row %d, %s", o.result.GetRow(), o.result.GetAcceptResult(),
						o.result.GetAcceptDetail(), o.change, tt.row, tt.result)
				}
				if o.again.GetAccept() != nil {
					t.Errorf("the re-check has the order: %v", o.again)
				}
			})
		})
	}
}

// Bytes that have changed under one version are damage. Only an order with force records them.
func TestAcceptOfAFlippedByte(t *testing.T) {
	for name, force := range map[string]bool{"refused": false, "forced": true} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				var err error
				if w.mem, err = mem.New(mem.Config{ID: at.Store, Digests: []string{}}); err != nil {
					t.Fatal(err)
				}
				w.fill()
				for _, r := range []*pb.Record{w.record.Manifest, w.record.Audit} {
					r.Digests = sums(good)
				}
				w.mem.Corrupt(at.Space, at.Item, []byte(rot))
				found := w.last(task(w.record))
				w.is(found, 13, pb.Verdict_VERDICT_FAIL, true)
				next := acceptTask(found.result)
				next.Accept.Force = force
				o := w.handle(next)
				switch {
				case !force && (o.change != nil || o.result.GetAcceptResult() != "accept-refused"):
					t.Errorf("got %v, change %v", o.result, o.change)
				case force && (o.change == nil || o.change.GetEvidence()["forced"] != "true"):
					t.Errorf("got %v, change %v", o.result, o.change)
				}
			})
		})
	}
}

// While a store or the records do not answer nothing is decided, and the re-check has the order. A write during the
// check makes the decision outdated.
func TestAcceptUnderFaults(t *testing.T) {
	noAnswer := errors.New("no answer")
	for name, tt := range map[string]struct {
		fault  func(*world)
		result string // of the first check
		last   string
	}{
		"records unknown": {func(w *world) {
			w.fresh = func() ([]*pb.CopyRecord, error) {
				w.fresh = nil
				return nil, noAnswer
			}
		}, "", "accepted"},
		"store away": {func(w *world) { w.store.Script(storagetest.Fault{Method: "Stat"}) }, "", "accepted"},
		"bytes end in an error": {func(w *world) {
			w.store.Script(storagetest.Fault{Method: "Open", Mid: true})
		}, "", "accepted"},
		"bytes flipped in flight": {func(w *world) {
			w.store.Script(storagetest.Fault{Method: "Open", Flip: true, After: 3})
		}, "", "accepted"},
		"store away after the records": {func(w *world) {
			w.store.Script(storagetest.Fault{Method: "Stat", Skip: 2})
		}, "", "accepted"},
		"a client writes after the bytes were read": {func(w *world) { w.before("Stat", 2, func() { w.put("mine") }) },
			"accept-outdated", ""},
		"a client writes while the records are read": {func(w *world) { w.before("Stat", 3, func() { w.put("mine") }) },
			"accept-outdated", ""},
		"a client deletes while the records are read": {func(w *world) { w.before("Stat", 3, w.delete) },
			"accept-outdated", ""},
		"a client writes again and again": {func(w *world) {
			w.store.Before(func(_ context.Context, c storagetest.Call) error {
				if c.Method == "Stat" {
					w.put("mine")
				}
				return nil
			})
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.put(rot)
				time.Sleep(72 * time.Hour)
				next := acceptTask(w.last(task(w.record)).result)
				tt.fault(w)
				o := w.handle(next)
				if o.change != nil || o.result.GetAcceptResult() != tt.result {
					t.Fatalf("got %s (%s), change %v, want %q", o.result.GetAcceptResult(), o.result.GetAcceptDetail(), o.change,
						tt.result)
				}
				if carried := o.again.GetAccept() != nil; carried != (tt.result == "") {
					t.Fatalf("the re-check has the order: %v", carried)
				}
				if tt.last == "" {
					return
				}
				time.Sleep(time.Until(o.due))
				if o = w.handle(o.again); o.result.GetAcceptResult() != tt.last || o.change == nil {
					t.Errorf("got %s (%s), change %v, want %q", o.result.GetAcceptResult(), o.result.GetAcceptDetail(), o.change,
						tt.last)
				}
			})
		})
	}
}

// before calls f before the nth call of a method of the store from now on.
func (w *world) before(method string, n int, f func()) {
	w.store.Before(func(_ context.Context, c storagetest.Call) error {
		if c.Method != method {
			return nil
		}
		if n--; n == 0 {
			f()
		}
		return nil
	})
}

// A task that carries an order and the Known records of a re-check is decided from fresh records.
func TestAcceptReadsTheRecordsAfresh(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(rot)
		time.Sleep(72 * time.Hour)
		next := acceptTask(w.last(task(w.record)).result)
		next.Known, next.Recheck = schemas.WithoutProperties(w.record), 1
		asked := w.asked
		if o := w.handle(next); o.change == nil || w.asked != asked+1 {
			t.Errorf("change %v after %d readings of the records", o.change, w.asked-asked)
		}
	})
}
