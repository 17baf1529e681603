package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/deletion"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held/heldtest"
	planning "github.com/millrace/millrace/streams/plan"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A copyWorld is a source and a destination, stores 1 and 2 of account acme, of real drivers. It executes commands
// about one item, and has the records that follow from the Changes.
type copyWorld struct {
	t       *testing.T
	makers  map[string]storeMaker
	roots   map[string]string        // of file stores, by store
	stores  map[string]storage.Store // without faults
	faulty  map[string]*storagetest.Faulty
	rules   policy.Rules
	records map[schemas.Copy]*pb.Record
	changes []*pb.Change // of executors
	copier  *duplicate.Executor
	deleter *deletion.Deleter
	waited  bool         // commands have waited until their last interval
	next    schemas.Body // the command that waits behind each
	orders  []*pb.DeletionCommand
	results []*pb.DuplicationResult
}

// copySpace and copyItem are the space and the item of a copyWorld.
const copySpace, copyItem = "s", "a/ü 1.txt"

// at returns a copy of the item.
func (w *copyWorld) at(store string) schemas.Copy {
	return schemas.Copy{Account: "acme", Store: store, Space: copySpace, Item: copyItem}
}

// newCopyWorld returns a world of two empty stores. The functions make a store of an id; its root is "" unless it is a
// directory.
func newCopyWorld(t *testing.T, source, destination storeMaker) *copyWorld {
	t.Helper()
	w := &copyWorld{
		t: t, makers: map[string]storeMaker{"1": source, "2": destination},
		roots: map[string]string{}, stores: map[string]storage.Store{},
		faulty: map[string]*storagetest.Faulty{}, records: map[schemas.Copy]*pb.Record{},
		rules: policy.Rules{Revision: 3, Deletes: policy.Propagate, Since: time.Now().Add(-24 * time.Hour),
			Pairs: []policy.Pair{{Source: "1", Destination: "2"}}}}
	for id, open := range w.makers {
		s, root := open(t, true)
		w.must(s.CreateSpace(t.Context(), storage.Space{Name: copySpace}))
		w.stores[id], w.roots[id], w.faulty[id] = s, root, storagetest.NewFaulty(s)
	}
	var err error
	interval := []time.Duration{time.Hour}
	w.copier, err = duplicate.New(duplicate.Config{WaitIntervals: interval, MissingIntervals: interval,
		Restores: w}, w, w, w)
	w.must(err)
	topic := braketest.New(brake.Deletes)
	topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1000}
	w.deleter, err = deletion.New(deletion.Config{Brake: topic.Process(), Lists: noDecisions{heldtest.New()},
		Publisher: topic}, w, w, w)
	w.must(err)
	return w
}

// A storeMaker opens an empty store, with its marker or without. root is its directory if it has one.
type storeMaker func(t *testing.T, marked bool) (s storage.Store, root string)

// fileStore makes a store in a directory.
func fileStore(t *testing.T, marked bool) (storage.Store, string) {
	t.Helper()
	root := t.TempDir()
	s, err := file.Open(file.Config{ID: "acme/1", Root: root})
	if err == nil && marked {
		err = s.WriteMarker(t.Context())
	}
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, root
}

// store makes stores on the server, each with its own prefix.
func (r *realS3) store(t *testing.T, marked bool) (storage.Store, string) {
	t.Helper()
	s := r.at(t, r.config(t))
	if marked {
		bucket, key := s.own("marker.json")
		r.Put(t, bucket, key, string(r.marker))
	}
	return s, ""
}

func (w *copyWorld) must(err error) {
	w.t.Helper()
	must(w.t, err)
}

func (w *copyWorld) Store(_, id string) (storage.Store, bool)  { s, ok := w.faulty[id]; return s, ok }
func (w *copyWorld) Rules(string, string) (policy.Rules, bool) { return w.rules, true }

func (w *copyWorld) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	var all []*pb.CopyRecord
	for _, c := range copies {
		r := w.records[c]
		if r == nil {
			r = &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
		}
		all = append(all, &pb.CopyRecord{Manifest: r, Audit: r, LastPass: r.GetTime()})
	}
	return all, nil
}

// Refuses implements duplicate.Restores.
func (w *copyWorld) Refuses(string, string) string { return "" }

// Proven implements duplicate.Restores: the records prove all that a case restores.
func (w *copyWorld) Proven(context.Context, schemas.Copy, digest.Set) (digest.Set, error) {
	return nil, nil
}

// record merges a Change into the records, in the order of the log.
func (w *copyWorld) record(c *pb.Change) {
	at := schemas.CopyOf(c)
	switch c.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		w.records[at] = &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Digests: c.GetDigests(),
			Provenance: c.GetProvenance(), Size: c.GetSize(), Version: c.GetVersion(), Etag: c.GetEtag(), Time: c.GetTime(),
			ChangeId: c.GetId(), SourceTime: c.GetSourceTime(), SourceVersion: c.GetSourceVersion(), Origin: c.GetOrigin(),
			MediaType: c.GetMediaType(), Properties: c.GetProperties()}
	case pb.Op_OP_SET_PROPERTIES:
		if old := w.records[at]; old != nil {
			set := proto.CloneOf(old)
			set.MediaType, set.Properties = c.GetMediaType(), c.GetProperties()
			w.records[at] = set
		}
	case pb.Op_OP_DELETE:
		w.records[at] = &pb.Record{State: pb.RecordState_RECORD_STATE_TOMBSTONE, Time: c.GetTime(), Origin: c.GetOrigin()}
	}
}

// write stores bytes without a Change.
func (w *copyWorld) write(store, text string, o storage.PutOptions) storage.Object {
	w.t.Helper()
	o.Size = int64(len(text))
	put, err := w.stores[store].Put(w.t.Context(), copySpace, copyItem, strings.NewReader(text), o)
	w.must(err)
	return put
}

// named are the properties of client's items.
var named = storage.PutOptions{
	Properties: storage.Properties{MediaType: "text/plain", User: map[string]string{"by": "me"}},
}

// reported records the Change of a client, and returns the planner's command.
func (w *copyWorld) reported(c *pb.Change) *pb.DuplicationCommand {
	w.t.Helper()
	c.Origin = pb.Origin_ORIGIN_CLIENT
	w.record(record.Seal(c))
	return w.planned(c)
}

func (w *copyWorld) planned(c *pb.Change) *pb.DuplicationCommand {
	w.t.Helper()
	rules := w.rules
	rules.Pairs = []policy.Pair{{Source: "1", Destination: "2"}}
	commands := planning.Plan(rules, c)
	if len(commands) != 1 {
		w.t.Fatalf("%d commands for %v", len(commands), c)
	}
	commands[0].Time = c.GetTime()
	return commands[0]
}

// put stores an item at the source, as a client does.
func (w *copyWorld) put(text string) *pb.DuplicationCommand {
	w.t.Helper()
	return w.reported(record.Content(w.at("1"), w.write("1", text, named)))
}

// remove deletes the item of a store without a Change.
func (w *copyWorld) remove(store string) storage.Deleted {
	w.t.Helper()
	d, err := w.stores[store].Delete(w.t.Context(), copySpace, copyItem, storage.DeleteOptions{})
	w.must(err)
	return d
}

// delete deletes the item at the source, as a client does.
func (w *copyWorld) delete() *pb.DuplicationCommand {
	w.t.Helper()
	return w.reported(record.Delete(w.at("1"), w.remove("1")))
}

// earlierDelete returns the command of a delete of an hour ago, after which the item was put again.
func (w *copyWorld) earlierDelete() *pb.DuplicationCommand {
	w.t.Helper()
	c := record.Delete(w.at("1"), storage.Deleted{Time: time.Now().Add(-time.Hour)})
	c.Origin = pb.Origin_ORIGIN_CLIENT
	return w.planned(record.Seal(c))
}

// other returns a command for the item with a reason and without a cause.
func (w *copyWorld) other(r pb.DuplicationReason) *pb.DuplicationCommand {
	return &pb.DuplicationCommand{Id: schemas.ID("command", r.String()), Account: "acme", Space: copySpace, Item: copyItem,
		SourceStore: "1", DestinationStore: "2", Reason: r, Time: timestamppb.Now(),
		IfAbsent: r == pb.DuplicationReason_DUPLICATION_REASON_SWEEP}
}

// run executes a command, and the deletes that it orders twice each, and records the Changes. It returns the rows and
// results.
func (w *copyWorld) run(c *pb.DuplicationCommand) (ends []string) {
	w.t.Helper()
	waits := map[string]int{}
	if w.waited {
		waits = map[string]int{"source-newer": 1, "source-missing": 1, "copy-differs": 1}
	}
	ends = append(ends, w.handle(w.copier.Handle, &schemas.Delivery{Topic: schemas.DuplicationHigh, Body: c, Attempt: 1,
		WaitsBy: waits, Timestamp: time.Now(), Successor: w.next}))
	orders := w.orders
	w.orders = nil
	for _, order := range append(orders, orders...) {
		ends = append(ends, w.handle(w.deleter.Handle, &schemas.Delivery{Topic: schemas.Deletions, Body: order, Attempt: 1,
			Timestamp: time.Now()}))
	}
	return ends
}

type handler func(context.Context, *schemas.Delivery) ([]schemas.Message, error)

// handle executes a message, and returns the row and the result in which it ended.
func (w *copyWorld) handle(f handler, d *schemas.Delivery) string {
	w.t.Helper()
	w.results = nil
	out, err := f(w.t.Context(), d)
	if err != nil {
		row, _, _ := strings.Cut(strings.TrimPrefix(err.Error()[strings.Index(err.Error(), "row "):], "row "), " ")
		return row + " " + retry.ClassOf(err).String()
	}
	for _, m := range out {
		switch b := m.Body.(type) {
		case *pb.Change:
			w.changes = append(w.changes, b)
			w.record(b)
		case *pb.DeletionCommand:
			w.orders = append(w.orders, b)
		case *pb.DuplicationResult:
			w.results = append(w.results, b)
		}
	}
	if len(w.results) != 1 {
		w.t.Fatalf("%d results of %v", len(w.results), d.Body)
	}
	return w.results[0].GetDecision() + " " + w.results[0].GetResult()
}

// content returns the bytes of the item in a store; "" if it is absent.
func (w *copyWorld) content(store string) string {
	w.t.Helper()
	r, _, err := w.stores[store].Open(w.t.Context(), copySpace, copyItem, "")
	if errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrNoSpace) {
		return ""
	}
	w.must(err)
	defer r.Close()
	b, err := io.ReadAll(r)
	w.must(err)
	return string(b)
}

// effects returns the calls of executors that change a store, as "2 Put", in order.
func (w *copyWorld) effects() (all []string) {
	for _, id := range []string{"1", "2"} {
		for _, c := range w.faulty[id].Calls() {
			if slices.Contains([]string{"Put", "SetProperties", "Delete", "CreateSpace", "SetSpace", "DeleteSpace"}, c.Method) {
				all = append(all, id+" "+c.Method)
			}
		}
	}
	return all
}

// changed returns the different Changes of executors, as "2 ADD", in order.
func (w *copyWorld) changed() string {
	var all []string
	ids := map[string]bool{}
	for _, c := range w.changes {
		if !ids[c.GetId()] {
			ids[c.GetId()] = true
			all = append(all, c.GetStore()+" "+strings.TrimPrefix(c.GetOp().String(), "OP_"))
		}
	}
	return shorten(all)
}

// shorten joins words and replaces repetitions by their number.
func shorten(words []string) string {
	var all []string
	for i := 0; i < len(words); {
		n := 1
		for i+n < len(words) && words[i+n] == words[i] {
			n++
		}
		all = append(all, words[i])
		if n > 1 {
			all[len(all)-1] += fmt.Sprintf(" ×%d", n)
		}
		i += n
	}
	return strings.Join(all, ", ")
}
