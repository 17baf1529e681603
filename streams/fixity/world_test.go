package fixity

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

const (
	good = "the bytes that were stored\n"
	rot  = "the bytez that were stored\n"
)

// at is the copy under test.
var at = schemas.Copy{Account: "acme", Store: "2", Space: "photos", Item: "a.jpg"}

func sums(content string) digest.Set {
	m, s := md5.Sum([]byte(content)), sha256.Sum256([]byte(content))
	return digest.Set{digest.MD5: hex.EncodeToString(m[:]), digest.SHA256: hex.EncodeToString(s[:])}
}

// specified returns the default settings.
func specified() Config {
	return Config{
		Settings: Settings{
			Recheck: []time.Duration{5 * time.Minute, 30 * time.Minute, 2 * time.Hour}, Settle: 24 * time.Hour,
		},
		MinInterval: time.Hour,
	}
}

// A world is one store with one copy, its record, and a checker.
type world struct {
	t        *testing.T
	mem      *mem.Store
	store    *storagetest.Faulty
	settings StoreSettings
	config   Config
	object   storage.Object
	// record is returned by Fresh, unless fresh is set.
	record *pb.CopyRecord
	fresh  func() ([]*pb.CopyRecord, error)
	asked  int // calls of Fresh
	// others are the records of the item in other stores.
	others map[string]*pb.Record
	// space is the manifest's record of the space: live if it is expected.
	space pb.RecordState
	// incident is the last action on the space's incident: opened or closed.
	incident string
	// publish, if set, decides about the publication of an incident: its error, and whether it is published all the same.
	publish func() (done bool, err error)
}

func (w *world) Open(_ context.Context, space schemas.Copy, _ string) error {
	return w.decide(space, "open")
}

func (w *world) Close(_ context.Context, space schemas.Copy, _ string) error {
	if w.incident != "open" {
		return nil
	}
	return w.decide(space, "closed")
}

func (w *world) decide(space schemas.Copy, incident string) error {
	if want := (schemas.Copy{Account: at.Account, Store: at.Store, Space: at.Space}); space != want {
		w.t.Errorf("incident of %v, want %v", space, want)
	}
	done, err := true, error(nil)
	if w.publish != nil {
		done, err = w.publish()
	}
	if done {
		w.incident = incident
	}
	return err
}

func (w *world) Store(account, id string) (storage.Store, bool) {
	return w.store, account == at.Account && id == at.Store
}

func (w *world) Settings(string, string) StoreSettings { return w.settings }

func (w *world) Others(_, _, _ string) []string { return slices.Sorted(maps.Keys(w.others)) }

func (w *world) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	w.asked++
	space := schemas.Copy{Account: at.Account, Store: at.Store, Space: at.Space}
	asked, own := copies, 1
	if len(copies) > 1 && copies[1] == space {
		own = 2
	}
	copies = copies[:own]
	for i, c := range asked[own:] {
		want := at
		if want.Store = w.Others("", "", "")[i]; c != want {
			w.t.Errorf("records of %v were asked for, want %v", c, want)
		}
	}
	if copies[0] != at || len(asked) > own && len(asked) != own+len(w.others) {
		w.t.Errorf("records of %v were asked for", asked)
	}
	records := []*pb.CopyRecord{w.record}
	if w.fresh != nil {
		var err error
		if records, err = w.fresh(); err != nil {
			return nil, err
		}
	}
	if len(copies) == 2 {
		records = append(records, &pb.CopyRecord{Manifest: &pb.Record{State: w.space}})
	}
	for _, c := range asked[own:] {
		records = append(records, &pb.CopyRecord{Manifest: w.others[c.Store]})
	}
	return records, nil
}

func (w *world) create() {
	if err := w.mem.CreateSpace(w.t.Context(), storage.Space{Name: at.Space}); err != nil {
		w.t.Fatal(err)
	}
}

// clock installs a store whose clock is ahead of the machine's.
func (w *world) clock(ahead time.Duration) {
	w.install(mem.Config{ID: at.Store, Now: func() time.Time { return time.Now().Add(ahead) }})
}

// withoutClock installs a store that does not tell its time.
func (w *world) withoutClock() { w.install(mem.Config{ID: at.Store}) }

func (w *world) install(cfg mem.Config) {
	var err error
	if w.mem, err = mem.New(cfg); err != nil {
		w.t.Fatal(err)
	}
	w.fill()
}

// newWorld stores the good bytes, records them, and lets three days pass.
func newWorld(t *testing.T) *world {
	w := &world{t: t, config: specified(), space: pb.RecordState_RECORD_STATE_LIVE}
	w.config.Worker, w.config.Host, w.config.Software = "worker-1", "host-1", "millrace-test"
	w.clock(0)
	return w
}

func (w *world) fill() {
	w.store = storagetest.NewFaulty(w.mem)
	must(w.t, w.mem.WriteMarker(w.t.Context()))
	w.create()
	w.put(good)
	w.record = w.now()
	time.Sleep(72 * time.Hour)
}

func (w *world) put(content string) {
	o, err := w.mem.Put(w.t.Context(), at.Space, at.Item, strings.NewReader(content),
		storage.PutOptions{Size: storage.UnknownSize})
	must(w.t, err)
	w.object = o
}

// move gives the copy other bytes and another version, as when its directory is copied. Its date stays.
func (w *world) move(content string) {
	o, err := w.mem.Stat(w.t.Context(), at.Space, at.Item)
	must(w.t, err)
	w.mem.Rewrite(at.Space, at.Item, []byte(content))
	w.mem.Date(at.Space, at.Item, o.Modified)
}

func (w *world) delete() {
	if _, err := w.mem.Delete(w.t.Context(), at.Space, at.Item, storage.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// now returns a record of the object as it is now.
func (w *world) now() *pb.CopyRecord {
	r := &pb.Record{
		State: pb.RecordState_RECORD_STATE_LIVE, Digests: maps.Clone(w.object.Digests), Size: w.object.Size,
		Provenance: pb.Provenance_PROVENANCE_VERIFIED, Version: w.object.Version, Time: record.Time(w.object.Modified),
		ChangeId: record.Seal(record.Content(at, w.object)).GetId(),
	}
	return &pb.CopyRecord{Manifest: r, Audit: proto.CloneOf(r)}
}

// bury records that the copy was deleted.
func (w *world) bury() {
	w.record.Manifest.State = pb.RecordState_RECORD_STATE_TOMBSTONE
	w.record.Audit.State = pb.RecordState_RECORD_STATE_TOMBSTONE
}

func nothing() *pb.CopyRecord {
	none := &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
	return &pb.CopyRecord{Manifest: none, Audit: none}
}

func task(known *pb.CopyRecord) *pb.FixityTask {
	if known != nil { // shared with the world, so that tests alter both
		known.PropertiesHash = schemas.WithoutProperties(known).GetPropertiesHash()
	}
	return &pb.FixityTask{
		Id: "t1", Account: at.Account, Store: at.Store, Space: at.Space, Item: at.Item,
		Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Priority: pb.Priority_PRIORITY_LOW,
		Cause: "c1", Round: "r1", Known: known,
	}
}

// An outcome holds the messages of a check.
type outcome struct {
	result *pb.FixityResult
	change *pb.Change
	again  *pb.FixityTask
	due    time.Time
}

func (w *world) checker() *Checker {
	c, err := New(w.config, w, w, w)
	must(w.t, err)
	return c
}

func (w *world) handle(task *pb.FixityTask) outcome {
	w.t.Helper()
	messages, err := w.checker().Handle(w.t.Context(), &schemas.Delivery{Topic: schemas.FixityLow, Body: task, Attempt: 1})
	if err != nil {
		w.t.Fatalf("Handle: %v", err)
	}
	var o outcome
	for _, m := range messages {
		switch b := m.Body.(type) {
		case *pb.FixityResult:
			if o.result != nil || m.Topic != schemas.FixityResults {
				w.t.Errorf("result on %s, and one before: %v", m.Topic, o.result)
			}
			o.result = b
		case *pb.Change:
			if m.Topic != schemas.Changes {
				w.t.Errorf("change on %s", m.Topic)
			}
			o.change = b
		case *pb.FixityTask:
			if m.Topic != schemas.FixityHigh || m.Due.IsZero() {
				w.t.Errorf("re-check on %s, due %v", m.Topic, m.Due)
			}
			o.again, o.due = b, m.Due
		}
	}
	if o.result == nil {
		w.t.Fatalf("no result among %v", messages)
	}
	if o.result.GetFinal() != (o.again == nil) {
		w.t.Errorf("final is %v, re-check %v", o.result.GetFinal(), o.again)
	}
	return o
}

// last runs the re-checks, each when it is due, and returns the final outcome.
func (w *world) last(task *pb.FixityTask) outcome {
	w.t.Helper()
	for range 10 {
		o := w.handle(task)
		if o.again == nil {
			return o
		}
		time.Sleep(time.Until(o.due))
		task = o.again
	}
	w.t.Fatal("the re-checks do not end")
	return outcome{}
}

func (w *world) is(o outcome, row int32, verdict pb.Verdict, final bool) {
	w.t.Helper()
	r := o.result
	if r.GetRow() != row || r.GetVerdict() != verdict || r.GetFinal() != final {
		w.t.Errorf("got row %d, %v, final %v (%s), want row %d, %v, final %v",
			r.GetRow(), r.GetVerdict(), r.GetFinal(), r.GetDetail(), row, verdict, final)
	}
}

func in(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
}
