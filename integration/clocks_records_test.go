package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage/record"
)

// A fact is one record of a Change in Kafka's log.
type fact struct {
	*pb.Change
	effective time.Time // the earlier of the reported time and Kafka's time of the first record of the id
	first     time.Time // Kafka's time of the first record of the id
	offset    int64
}

// rank returns that of a fact among those of one time: a correction loses ties.
func (f fact) rank() int {
	if f.GetOrigin() == pb.Origin_ORIGIN_FIXITY {
		return 0
	}
	return 1
}

func (f fact) isDelete() bool {
	return f.GetOp() == pb.Op_OP_DELETE || f.GetOp() == pb.Op_OP_DELETE_SPACE
}

func (f fact) isContent() bool {
	switch f.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY, pb.Op_OP_CREATE_SPACE:
		return !schemas.IsCompletion(f.Change)
	}
	return false
}

// compare compares two facts by what is newest.
func (f fact) compare(g fact) int {
	return cmp.Or(f.effective.Compare(g.effective), cmp.Compare(f.rank(), g.rank()), cmp.Compare(f.offset, g.offset))
}

// factsOf returns the Changes of a log that are about a copy, in Kafka's order.
func factsOf(log []*schemas.Delivery, at schemas.Copy) (all []fact) {
	first := map[string]time.Time{}
	for _, d := range log {
		c, ok := d.Body.(*pb.Change)
		if !ok || schemas.CopyOf(c) != at {
			continue
		}
		if _, again := first[c.GetId()]; !again {
			first[c.GetId()] = d.Timestamp
		}
		f := fact{Change: c, effective: c.GetTime().AsTime(), offset: d.Offset}
		if f.first = first[c.GetId()]; f.first.Before(f.effective) {
			if f.effective = f.first; f.first.Before(d.Timestamp) {
				f.offset = 0 // a repeat
			}
		}
		all = append(all, f)
	}
	return all
}

// date sets the times of a record that is made from f.
func (f fact) date(r *pb.Record) {
	r.Time, r.Reported = timestamppb.New(f.effective), nil
	if f.effective.Before(f.GetTime().AsTime()) {
		r.Reported = f.GetTime()
	}
	if at := f.GetSourceTime(); at != nil && f.first.Before(at.AsTime()) && f.isContent() {
		r.SourceEffective = timestamppb.New(f.first)
	}
}

// newestOf returns the newest fact of which is says so; false if there is none.
func newestOf(facts []fact, is func(fact) bool) (fact, bool) {
	facts = slices.DeleteFunc(slices.Clone(facts), func(f fact) bool { return !is(f) })
	if len(facts) == 0 {
		return fact{}, false
	}
	return slices.MaxFunc(facts, fact.compare), true
}

// fold returns the record of a copy that follows from a log: what tables and fresh reads say by the rules of
// docs/clocks.md, but for properties.
func fold(log []*schemas.Delivery, at schemas.Copy) *pb.CopyRecord {
	facts := factsOf(log, at)
	written, isWritten := newestOf(facts, fact.isContent)
	gone, isGone := newestOf(facts, fact.isDelete)
	m := clickhousetest.NoRecord()
	if isWritten {
		m = clickhousetest.RecordOf(written.Change)
		m.Digests, m.Provenance, m.Claims = digestsOn(facts, written.GetId())
		written.date(m)
	}
	if isGone && (!isWritten || gone.compare(written) > 0) {
		if !isWritten {
			m = &pb.Record{SizeUnknown: true}
		}
		m.State, m.ChangeId, m.Origin = pb.RecordState_RECORD_STATE_TOMBSTONE, gone.GetId(), gone.GetOrigin()
		gone.date(m)
		m.Disputed = isWritten && (gone.GetVersion() == "" || gone.GetVersion() != written.GetVersion()) &&
			written.GetTime().AsTime().After(gone.GetTime().AsTime())
	}
	r := &pb.CopyRecord{Manifest: m, Audit: clickhousetest.EvidenceOf(m)}
	setChecks(r, log, at)
	return r
}

// digestsOn merges the digests of all records of one id: the verified ones, of reports before completions, and the
// claims that they contradict; without verified ones the claims. Of reports the last stays, of completions the first.
func digestsOn(facts []fact, id string) (digests digest.Set, p pb.Provenance, claims digest.Set) {
	claimed, verified := digest.Set{}, digest.Set{}
	for _, f := range facts {
		switch {
		case f.GetId() != id || schemas.IsCompletion(f.Change):
		case f.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED:
			maps.Copy(verified, f.GetDigests())
		default:
			maps.Copy(claimed, f.GetDigests())
		}
	}
	for _, f := range facts {
		for alg, d := range f.GetDigests() {
			if f.GetId() == id && schemas.IsCompletion(f.Change) && verified[alg] == "" {
				verified[alg] = d
			}
		}
	}
	switch {
	case len(verified) > 0:
		maps.DeleteFunc(claimed, func(alg, d string) bool { return verified[alg] == "" || verified[alg] == d })
		return verified, pb.Provenance_PROVENANCE_VERIFIED, claimed
	case len(claimed) > 0:
		return claimed, pb.Provenance_PROVENANCE_CLAIMED, nil
	}
	return nil, pb.Provenance_PROVENANCE_UNSPECIFIED, nil
}

// setChecks sets what the checks of a copy say.
func setChecks(r *pb.CopyRecord, log []*schemas.Delivery, at schemas.Copy) {
	for _, d := range log {
		f, ok := d.Body.(*pb.FixityResult)
		if !ok || schemas.CopyOf(f) != at {
			continue
		}
		started := clickhousetest.Millis(f.GetStarted())
		if r.LastAttempt.AsTime().Before(started.AsTime()) {
			r.LastAttempt = started
		}
		if f.GetVerdict() == pb.Verdict_VERDICT_PASS && r.LastPass.AsTime().Before(started.AsTime()) &&
			digest.Set(r.Manifest.GetDigests()).Compare(f.GetContent().GetDigests()) == digest.Agree {
			r.LastPass = started
		}
	}
}

// Fresh returns records that have all of the log.
func (w *clockWorld) Fresh(_ context.Context, copies []schemas.Copy) (all []*pb.CopyRecord, _ error) {
	for _, c := range copies {
		all = append(all, fold(w.log, c))
	}
	return all, nil
}

// testClockRecords checks that the tables say of random histories, in any order and twice, what fold does.
func testClockRecords(t *testing.T) {
	need.Integration(t)
	p := newSetup(t)
	p.want(t, 0, "applied", "migrate")
	a, _ := p.openClient(t)
	var log []*schemas.Delivery
	var copies []schemas.Copy
	for seed := range uint64(need.Amount(30, 100, 300)) {
		w := newClockWorld(t)
		if err := w.run(drawScript(seed)); err != nil {
			t.Logf("seed %d: %v", seed, err)
		}
		item, ids := fmt.Sprint("item ", seed), map[string]string{}
		for _, d := range w.log {
			d := *d
			d.Offset, d.Incarnation = int64(len(log)), 1
			switch b := proto.Clone(d.Body).(type) {
			case *pb.Change:
				b.Item, d.Body = item, b
				if of := b.GetEvidence()[schemas.Completes]; of != "" {
					b.Evidence[schemas.Completes] = ids[of]
				}
				was := b.GetId()
				ids[was] = record.Seal(b).GetId()
			case *pb.FixityResult:
				b.Item, b.Id, d.Body = item, schemas.ID(item, b.GetId()), b
			default:
				continue
			}
			log = append(log, &d)
		}
		for _, store := range []string{"1", "2", "3"} {
			copies = append(copies, schemas.Copy{Account: "acme", Store: store, Space: clockSpace, Item: item})
		}
	}
	dice := rand.New(rand.NewPCG(43, 43)) //nolint:gosec // cases must be reproducible
	for _, topic := range []schemas.Topic{schemas.Changes, schemas.FixityResults} {
		batch := slices.DeleteFunc(slices.Clone(log), func(d *schemas.Delivery) bool { return d.Topic != topic })
		for _, all := range [][]*schemas.Delivery{batch[len(batch)/2:], batch} {
			all = slices.Clone(all)
			dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			err := errors.Join(clickhouse.NewState(a.DB()).Store(t.Context(), all),
				clickhouse.NewSink(a.DB()).Store(t.Context(), all))
			must(t, err)
		}
	}
	got, err := clickhousetest.Reader(t, a.DB(), clickhousetest.Reached, read.ReaderConfig{}).Fresh(t.Context(), copies)
	must(t, err)
	for i, c := range copies {
		clickhousetest.Compare(t, c.String(), got[i], fold(log, c))
	}
}
