package duplicate

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

var (
	intervals = []time.Duration{time.Minute, time.Hour}
	missing   = []time.Duration{2 * time.Minute, 2 * time.Hour, 4 * time.Hour}
)

// A world is two stores of account acme, 1 and 2, a policy from 1 to 2, and the journal of all Changes.
type world struct {
	t        *testing.T
	mem      map[string]*mem.Store
	faulty   map[string]*storagetest.Faulty
	rules    policy.Rules
	journal  *journal
	executor *Executor
	now      time.Time // by the executor's clock
}

func (w *world) time() time.Time { return w.now }

func (w *world) Store(_, id string) (storage.Store, bool) {
	s, ok := w.faulty[id]
	return s, ok
}

func (w *world) Rules(string, string) (policy.Rules, bool) { return w.rules, true }

// A journal merges Changes into records, as the state tables and the audit log do.
type journal struct {
	mu    sync.Mutex
	rows  map[schemas.Copy]*pb.Record
	asked int
	err   error
	// meanwhile is called while records are read; nil: no call.
	meanwhile func()
	// spaces has the audit records of spaces. Their manifests are in rows.
	spaces spaceRecords
	// set has the times of the newest properties that were set apart from the content.
	set map[schemas.Copy]time.Time
	// unchecked: no live content has passed a check yet.
	unchecked bool
}

func (j *journal) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked++
	err := j.err
	if j.meanwhile != nil {
		j.meanwhile()
	}
	var records []*pb.CopyRecord
	for _, c := range copies {
		r := j.rows[c]
		if r == nil {
			r = &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
		}
		if c.Item == "" {
			records = append(records, &pb.CopyRecord{Manifest: r, Audit: j.spaces.of(c)})
			continue
		}
		k := &pb.CopyRecord{Manifest: r, Audit: r}
		if isLive(r) && !j.unchecked {
			k.LastPass = r.GetTime()
		}
		records = append(records, k)
	}
	return records, err
}

func (j *journal) add(c *pb.Change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := schemas.CopyOf(c)
	if at.Item == "" {
		j.spaces.add(c)
		return
	}
	if schemas.IsCompletion(c) {
		if r := j.rows[at]; r.GetChangeId() == c.GetId() && len(r.GetDigests()) == 0 {
			r = proto.CloneOf(r)
			r.Digests, r.Provenance = c.GetDigests(), c.GetProvenance()
			j.rows[at] = r
		}
		return
	}
	if old := j.rows[at]; old != nil && old.GetTime().AsTime().After(c.GetTime().AsTime()) {
		return
	}
	switch c.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		old := j.rows[at]
		j.rows[at] = recordOf(c).GetManifest()
		switch {
		case j.set[at].After(c.GetTime().AsTime()):
			j.rows[at].MediaType, j.rows[at].Properties = old.GetMediaType(), old.GetProperties()
		case isLive(old) && c.GetPropertiesUnknown():
			keep(j.rows[at], old)
		}
	case pb.Op_OP_SET_PROPERTIES:
		if old := j.rows[at]; old != nil && !j.set[at].After(c.GetTime().AsTime()) {
			j.set[at] = c.GetTime().AsTime()
			set := proto.Clone(old).(*pb.Record)
			set.MediaType, set.Properties, set.PropertiesOf = c.GetMediaType(), c.GetProperties(), nil
			j.rows[at] = set
		}
	case pb.Op_OP_DELETE:
		j.rows[at] = &pb.Record{State: pb.RecordState_RECORD_STATE_TOMBSTONE, Time: c.GetTime(), Origin: c.GetOrigin()}
	}
}

// keep copies the properties of old to r, whose store cannot report any.
func keep(r, old *pb.Record) {
	r.MediaType, r.Properties, r.PropertiesOf = old.GetMediaType(), old.GetProperties(), old.GetPropertiesOf()
	has := old.GetMediaType() != "" || len(old.GetProperties()) > 0
	if has && r.PropertiesOf == nil && old.GetTime().AsTime().Before(r.GetTime().AsTime()) {
		r.PropertiesOf = &pb.Content{Version: old.GetVersion(), Digests: old.GetDigests()}
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, mem: map[string]*mem.Store{}, faulty: map[string]*storagetest.Faulty{},
		rules: policy.Rules{Revision: 3, Pairs: []policy.Pair{pair}, Deletes: policy.Propagate, Since: hour(-1000)},
		now:   hour(9), journal: &journal{rows: map[schemas.Copy]*pb.Record{}, spaces: spaceRecords{},
			set: map[schemas.Copy]time.Time{}}}
	for i, id := range []string{"1", "2"} {
		s, err := mem.New(mem.Config{ID: id, Now: func() time.Time { return hour(9 + i) }}) // their clocks differ by an hour
		if err != nil {
			t.Fatal(err)
		}
		w.mem[id], w.faulty[id] = s, storagetest.NewFaulty(s)
		s.Mark(id)
		w.must(s.CreateSpace(t.Context(), storage.Space{Name: "photos", Properties: map[string]string{"k": "v"}}))
	}
	var err error
	config := Config{WaitIntervals: intervals, MissingIntervals: missing, Worker: "w", Host: "h", Software: "s",
		Now: w.time}
	w.executor, err = New(config, w, w, w.journal)
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func at(store string) schemas.Copy {
	return schemas.Copy{Account: "acme", Store: store, Space: "photos", Item: "a.jpg"}
}

// put stores bytes without a Change.
func (w *world) put(store, text string) storage.Object {
	w.t.Helper()
	o, err := w.mem[store].Put(w.t.Context(), "photos", "a.jpg", strings.NewReader(text), storage.PutOptions{
		Size:       storage.UnknownSize,
		Properties: storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}},
	})
	w.must(err)
	return o
}

func (w *world) remove(store string) storage.Deleted {
	w.t.Helper()
	d, err := w.mem[store].Delete(w.t.Context(), "photos", "a.jpg", storage.DeleteOptions{})
	w.must(err)
	return d
}

// reported puts a client's Change into the journal.
func (w *world) reported(c *pb.Change) *pb.Change {
	c.Origin = pb.Origin_ORIGIN_CLIENT
	w.journal.add(record.Seal(c))
	return c
}

func (w *world) added(store, text string) *pb.Change {
	return w.reported(record.Content(at(store), w.put(store, text)))
}

// command returns the planner's command for a Change of store 1.
func command(c *pb.Change) *pb.DuplicationCommand {
	found := c.GetOrigin() == pb.Origin_ORIGIN_SWEEP || c.GetOrigin() == pb.Origin_ORIGIN_FIXITY
	return &pb.DuplicationCommand{
		Id: schemas.ID("command", c.GetId(), "2"), Account: "acme", Space: "photos", Item: "a.jpg",
		SourceStore: "1", DestinationStore: "2", Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
		Priority: pb.Priority_PRIORITY_HIGH, Cause: c.GetId(), CauseOp: c.GetOp(), ChangeTime: c.GetTime(),
		ChangeVersion: c.GetVersion(), Size: c.GetSize(), Digests: c.GetDigests(), Provenance: c.GetProvenance(),
		PolicyRevision: 3, Time: c.GetTime(), IfAbsent: found && c.GetApproved() == "", Approved: c.GetApproved(),
	}
}

// manual returns a command without a cause.
func manual() *pb.DuplicationCommand {
	return &pb.DuplicationCommand{Id: "manual", Account: "acme", Space: "photos", Item: "a.jpg",
		SourceStore: "1", DestinationStore: "2", Reason: pb.DuplicationReason_DUPLICATION_REASON_MANUAL}
}

// bare returns the command of a client's Change that says nothing of the content.
func bare() *pb.DuplicationCommand {
	c := manual()
	c.Reason, c.CauseOp = pb.DuplicationReason_DUPLICATION_REASON_CHANGE, pb.Op_OP_ADD
	return c
}

// swept returns a command of the duplication sweep without records.
func swept() *pb.DuplicationCommand {
	c := manual()
	c.Id, c.Reason = schemas.ID("sweep", "round"), pb.DuplicationReason_DUPLICATION_REASON_SWEEP
	return c
}

// repair returns the steward's command after a failed check of store 2.
func (w *world) repair(expected digest.Set) *pb.DuplicationCommand {
	c := manual()
	c.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
	c.Repair = &pb.RepairOrder{Incident: "incident", Digests: expected, Check: "check", Number: 1}
	if o, err := w.mem["2"].Stat(w.t.Context(), "photos", "a.jpg"); err == nil {
		c.Repair.Failed = record.Identity(o)
	}
	return c
}

// did holds the messages of an execution.
type did struct {
	t       *testing.T
	changes []*pb.Change
	tasks   map[schemas.Topic][]*pb.FixityTask
	orders  []*pb.DeletionCommand
	again   []*pb.DuplicationCommand // the same command once more
	result  *pb.DuplicationResult
}

// run executes a command and, if it succeeds, puts its Changes into the journal.
func (w *world) run(c *pb.DuplicationCommand, waits int) (did, error) {
	w.t.Helper()
	got, err := w.crash(c, waits)
	for _, change := range got.changes {
		w.journal.add(change)
	}
	return got, err
}

func (w *world) mustRun(c *pb.DuplicationCommand) did {
	w.t.Helper()
	got, err := w.run(c, 0)
	w.must(err)
	return got
}

// crash executes a command and publishes nothing.
func (w *world) crash(c *pb.DuplicationCommand, waits int) (did, error) {
	w.t.Helper()
	return w.waited(c, map[string]int{"source-newer": waits, "source-missing": waits, "copy-differs": waits,
		waitNotEmpty: waits})
}

// waited is crash for a command with these numbers of waits, by cause.
func (w *world) waited(c *pb.DuplicationCommand, waits map[string]int) (did, error) {
	w.t.Helper()
	d := &schemas.Delivery{Topic: schemas.DuplicationHigh, Body: c, Attempt: 1, WaitsBy: waits, Timestamp: hour(9)}
	out, err := w.executor.Handle(w.t.Context(), d)
	if err != nil {
		if out != nil {
			w.t.Errorf("messages beside an error: %v", out)
		}
		return did{}, err
	}
	return sort(w.t, out), nil
}

func sort(t *testing.T, out []schemas.Message) did {
	t.Helper()
	got := did{t: t, tasks: map[schemas.Topic][]*pb.FixityTask{}}
	for _, m := range out {
		if got.result != nil {
			t.Errorf("a message after the result: %v", m)
		}
		switch b := m.Body.(type) {
		case *pb.Change:
			if m.Topic != schemas.Changes || b.GetId() != schemas.ChangeID(b) {
				t.Errorf("topic %s or id of Change %v", m.Topic, b)
			}
			got.changes = append(got.changes, b)
		case *pb.FixityTask:
			got.tasks[m.Topic] = append(got.tasks[m.Topic], b)
		case *pb.DeletionCommand:
			got.orders = append(got.orders, b)
		case *pb.DuplicationCommand:
			if wait := time.Until(m.Due); m.Topic != schemas.DuplicationHigh || wait <= 0 || wait > observeAgain {
				t.Errorf("again in topic %s, in %s", m.Topic, wait)
			}
			got.again = append(got.again, b)
		case *pb.DuplicationResult:
			got.result = b
		default:
			t.Errorf("a %T in %s", b, m.Topic)
		}
	}
	if got.result == nil {
		t.Fatal("no result")
	}
	return got
}

// ends checks row, result and outcome, and the numbers of Changes and tasks.
func (d did) ends(row, result string, outcome pb.Outcome, changes, tasks int) {
	d.t.Helper()
	n := 0
	for _, t := range d.tasks {
		n += len(t)
	}
	r := d.result
	if r.GetDecision() != row || r.GetResult() != result || r.GetOutcome() != outcome || len(d.changes) != changes ||
		n != tasks {
		d.t.Errorf("got %s %s %v (%s), %d changes, %d tasks; want %s %s %v, %d, %d", r.GetDecision(), r.GetResult(),
			r.GetOutcome(),
			r.GetDetail(), len(d.changes), n, row, result, outcome, changes, tasks)
	}
	if failed := strings.HasPrefix(r.GetDetail(), "observe after the write: "); failed != (len(d.again) == 1) {
		d.t.Errorf("%d commands to observe again, and detail %q", len(d.again), r.GetDetail())
	}
}

// holds checks the content of a store; "" is none.
func (w *world) holds(store, want string) {
	w.t.Helper()
	r, _, err := w.mem[store].Open(w.t.Context(), "photos", "a.jpg", "")
	if errors.Is(err, storage.ErrNotFound) && want == "" {
		return
	}
	w.must(err)
	got, err := io.ReadAll(r)
	w.must(err)
	if string(got) != want {
		w.t.Errorf("store %s holds %q, want %q", store, got, want)
	}
}

// untouched checks that a store was not written to.
func (w *world) untouched(store string) {
	w.t.Helper()
	for _, method := range []string{"Put", "SetProperties", "Delete", "CreateSpace", "SetSpace", "DeleteSpace",
		"WriteMarker"} {
		if n := w.faulty[store].Count(method); n > 0 {
			w.t.Errorf("%d calls of %s of store %s", n, method, store)
		}
	}
}

func ms(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t.Truncate(time.Millisecond)) }

// alter changes the properties of a copy without an event.
func (w *world) alter(store string) {
	w.t.Helper()
	w.mem[store].Alter("photos", "a.jpg", storage.Properties{MediaType: "text/plain"})
}
