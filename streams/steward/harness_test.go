package steward

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

const (
	open      = pb.IncidentState_INCIDENT_STATE_OPEN
	awaiting  = pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
	repairing = pb.IncidentState_INCIDENT_STATE_REPAIRING
	shut      = pb.IncidentState_INCIDENT_STATE_CLOSED
)

var (
	at   = schemas.Copy{Account: "acme", Store: "2", Space: "photos", Item: "a.jpg"}
	base = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	want = map[string]string{"sha256": "aa"}
	bad1 = map[string]string{"sha256": "bb"}
)

// A harness is a Steward with its dependencies and published messages.
type harness struct {
	t       *testing.T
	steward *Steward
	modes   map[string]Mode             // by store
	records map[schemas.Copy]*pb.Record // manifests
	failure error                       // of Fresh
	silent  bool                        // Fresh does not answer
	clock   int                         // minutes since base
	topic   map[string]*pb.Incident     // published incidents, by key
	orders  []*pb.DuplicationCommand    // published
	tasks   []*pb.FixityTask            // published
	deletes []*pb.DeletionCommand       // published
	log     *slog.Logger
	large   int64 // size of items of class large
}

// record makes i the newest record of its key.
func (w *harness) record(i *pb.Incident) {
	key := schemas.IncidentKey(i)
	w.topic[key] = proto.CloneOf(i)
	w.steward.Apply([]byte(key), w.topic[key])
}

func (w *harness) RepairMode(_, store string, _ time.Time) Mode { return w.modes[store] }

func (w *harness) Others(_, _, store string) []string {
	return slices.DeleteFunc([]string{"1", "2", "3"}, func(s string) bool { return s == store })
}

func (w *harness) Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	if w.silent {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	var out []*pb.CopyRecord
	for _, c := range copies {
		r := w.records[c]
		if r == nil {
			r = &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
		}
		out = append(out, &pb.CopyRecord{Manifest: r, Audit: r})
	}
	return out, w.failure
}

func newHarness(t *testing.T) *harness {
	w := &harness{
		t: t, modes: map[string]Mode{"1": Approve, "2": Auto, "3": Auto},
		records: map[schemas.Copy]*pb.Record{}, topic: map[string]*pb.Incident{},
		log: slog.New(slog.DiscardHandler),
	}
	for _, store := range []string{"1", "3"} {
		w.records[in(store)] = live(want)
	}
	w.restart()
	return w
}

func in(store string) schemas.Copy {
	c := at
	c.Store = store
	return c
}

func live(digests map[string]string) *pb.Record {
	return &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Digests: digests,
		Provenance: pb.Provenance_PROVENANCE_VERIFIED}
}

// restart replaces the Steward with a new one that has read the topic.
func (w *harness) restart() {
	s, err := New(Config{Large: w.large}, Deps{Stores: w, Records: w, Log: w.log})
	if err != nil {
		w.t.Fatal(err)
	}
	w.steward = s
	for key, i := range w.topic {
		s.Apply([]byte(key), i)
	}
}

// handleWithoutPublishing handles a message and drops its outputs.
func (w *harness) handleWithoutPublishing(b schemas.Body) []schemas.Message {
	w.t.Helper()
	out, err := w.steward.Handle(w.t.Context(), &schemas.Delivery{Body: b})
	if err != nil {
		w.t.Fatalf("Handle: %v", err)
	}
	return out
}

// handle handles a message and publishes its outputs.
func (w *harness) handle(b schemas.Body) []schemas.Message {
	w.t.Helper()
	out := w.handleWithoutPublishing(b)
	for _, m := range out {
		switch b := m.Body.(type) {
		case *pb.Incident:
			w.record(b)
		case *pb.DuplicationCommand:
			if m.Topic != schemas.DuplicationHigh {
				w.t.Errorf("order on %s", m.Topic)
			}
			w.orders = append(w.orders, b)
		case *pb.FixityTask:
			w.tasks = append(w.tasks, b)
		case *pb.DeletionCommand:
			if m.Topic != schemas.Deletions || schemas.Validate(b) != nil {
				w.t.Errorf("delete on %s: %v", m.Topic, b)
			}
			w.deletes = append(w.deletes, b)
		}
	}
	return out
}

// next returns a time one minute after the last one.
func (w *harness) next() *timestamppb.Timestamp {
	w.clock++
	return timestamppb.New(base.Add(time.Duration(w.clock) * time.Minute))
}

// A with changes a result.
type with func(*pb.FixityResult)

// ahead dates a result as Kafka does that comes from a checker whose clock is ahead.
func ahead(by time.Duration) with {
	return func(r *pb.FixityResult) {
		kafka := r.GetFinished().AsTime()
		for _, at := range []**timestamppb.Timestamp{&r.Started, &r.Finished} {
			*at = timestamppb.New((*at).AsTime().Add(by))
		}
		schemas.DateByKafka(&schemas.Delivery{Body: r, Timestamp: kafka})
	}
}

// of makes a result one of another item, which has good copies.
func of(item string) with { return func(r *pb.FixityResult) { r.Item = item } }

func because(r pb.FixityReason) with { return func(f *pb.FixityResult) { f.Reason = r } }

// result returns the final result of a check that found row.
func (w *harness) result(row int32, changes ...with) *pb.FixityResult {
	w.clock++
	verified := &pb.Evidence{
		State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: want, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
	}
	r := &pb.FixityResult{
		Account: at.Account, Store: at.Store, Space: at.Space, Item: at.Item, Row: row, Final: true,
		Verdict: pb.Verdict_VERDICT_FAIL, EvidenceLevel: 4, Reason: pb.FixityReason_FIXITY_REASON_SWEEP,
		Started:  timestamppb.New(base.Add(time.Duration(w.clock) * time.Minute)),
		Finished: timestamppb.New(base.Add(time.Duration(w.clock)*time.Minute + time.Second)),
		Content:  &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: bad1},
		Manifest: verified, Audit: verified, Object: &pb.Identity{Version: "v1", Size: 3},
		LastEvent: timestamppb.New(base.Add(-time.Hour)),
	}
	switch row {
	case 1:
		r.Verdict, r.Finding = pb.Verdict_VERDICT_PASS, "pass"
	case 2:
		r.Finding = "content-corrupt"
	case 5:
		r.Finding = "manifest-wrong" // corrected: manifest-corrected
	case 6:
		r.Finding = "audit-mismatch"
	case 7:
		r.Finding = "audit-missing"
	case 8:
		r.Verdict, r.Finding, r.Object = pb.Verdict_VERDICT_MISSING, "content-missing", nil
		r.Content = &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_ABSENT}
	case 9:
		none := &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_NONE}
		r.Verdict, r.Finding, r.Manifest, r.Audit = pb.Verdict_VERDICT_NOT_CAPTURED, "not-captured", none, none
	case 10:
		r.Verdict, r.Finding = pb.Verdict_VERDICT_NOT_CAPTURED, "not-captured-update"
	case 11:
		r.Verdict, r.Finding, r.EvidenceLevel = pb.Verdict_VERDICT_MOOT, "moot", 1
	case 12:
		r.Verdict, r.Finding, r.Final = pb.Verdict_VERDICT_UNKNOWN, "unknown", false
	case 13:
		r.Finding = "replaced"
	case 14:
		r.Finding = "no-quorum"
	case 16:
		r.Finding = "resurrected"
		r.Manifest = &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_TOMBSTONE}
		r.Audit = &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_NONE}
	}
	for _, c := range changes {
		c(r)
	}
	r.Id = "check-" + strconv.Itoa(w.clock)
	return r
}

// repairResult returns the result of a repair order.
func (w *harness) repairResult(order *pb.DuplicationCommand, result string) *pb.DuplicationResult {
	at := w.next()
	return &pb.DuplicationResult{
		Id: "result-" + strconv.Itoa(w.clock), Command: order.GetId(), Incident: order.GetRepair().GetIncident(),
		Account: order.GetAccount(), Space: order.GetSpace(), Item: order.GetItem(),
		SourceStore: order.GetSourceStore(), DestinationStore: order.GetDestinationStore(),
		Decision: "C0", Result: result, Started: at, Finished: at,
	}
}

func (w *harness) approval(kind string) *pb.AdminAction { return w.approvalOf(key(kind)) }

func (w *harness) approvalOf(key string) *pb.AdminAction {
	at1, i := w.next(), w.topic[key]
	return &pb.AdminAction{
		Incident: i.GetId(), Seen: Seen(i), Id: "admin-" + strconv.Itoa(w.clock), Time: at1, Who: "eve",
		Action: "approve-repair", Target: key, Reason: "looked at it",
	}
}

func key(kind string) string {
	return schemas.Key(at.Account, at.Store, at.Space, at.Item, kind)
}

// checkIncident checks the state and steps of the incident of a kind.
func (w *harness) checkIncident(kind string, state pb.IncidentState, steps ...string) {
	w.t.Helper()
	i := w.topic[key(kind)]
	var got []string
	for _, s := range i.GetSteps() {
		got = append(got, s.GetAction())
	}
	if i.GetState() != state || !slices.Equal(got, steps) || int(i.GetStepCount()) != len(steps) {
		w.t.Errorf("%s is %v with %d steps %v, want %v with %v", kind, i.GetState(), i.GetStepCount(), got, state, steps)
	}
}

func (w *harness) lostResult(result string) *pb.DuplicationResult {
	at1 := w.next()
	return &pb.DuplicationResult{
		Id: "lost-" + strconv.Itoa(w.clock), Account: at.Account, Space: at.Space, Item: at.Item,
		SourceStore: "1", DestinationStore: "2", Result: result, Started: at1, Finished: at1, Digests: want,
	}
}
