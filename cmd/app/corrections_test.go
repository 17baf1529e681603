package app

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
)

// checkedStore is a store with one space, whose clock is set, and its checker, which reads the tables.
type checkedStore struct {
	t        *testing.T
	db       *clickhouse.DB
	mem      *mem.Store
	now      time.Time
	offset   int64
	settings fixity.StoreSettings
	checker  *fixity.Checker
}

func (c *checkedStore) Store(string, string) (storage.Store, bool)        { return c.mem, true }
func (c *checkedStore) Settings(string, string) fixity.StoreSettings      { return c.settings }
func (c *checkedStore) Others(string, string, string) []string            { return nil }
func (c *checkedStore) Open(context.Context, schemas.Copy, string) error  { return nil }
func (c *checkedStore) Close(context.Context, schemas.Copy, string) error { return nil }
func (c *checkedStore) copy(item string) schemas.Copy {
	return schemas.Copy{Account: "acme", Store: "2", Space: "photos", Item: item}
}

func newCheckedStore(t *testing.T) *checkedStore {
	c := &checkedStore{t: t, db: clickhousetest.Open(t), now: time.Now().Add(-200 * time.Hour).Truncate(time.Millisecond)}
	var err error
	c.mem, err = mem.New(mem.Config{ID: "2", Now: func() time.Time { return c.now }})
	c.must(err)
	c.must(c.mem.WriteMarker(t.Context()))
	c.must(c.mem.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	reader := clickhousetest.Reader(t, c.db, clickhousetest.Reached, read.ReaderConfig{})
	c.checker, err = fixity.New(fixity.Config{}, c, reader, c)
	c.must(err)
	return c
}

func (c *checkedStore) must(err error) {
	c.t.Helper()
	must(c.t, err)
}

// put stores an item, and returns its Change, which is not on record.
func (c *checkedStore) put(item, content string) *pb.Change {
	c.t.Helper()
	c.now = c.now.Add(time.Hour)
	o, err := c.mem.Put(c.t.Context(), "photos", item, strings.NewReader(content), storage.PutOptions{
		Size: storage.UnknownSize, Properties: storage.Properties{MediaType: "image/jpeg"}})
	c.must(err)
	change := record.Content(c.copy(item), o)
	change.Origin = pb.Origin_ORIGIN_CLIENT
	return record.Seal(change)
}

// record stores a Change in one of the tables, or in both.
func (c *checkedStore) record(change *pb.Change, audit, state bool) {
	c.t.Helper()
	c.offset++
	batch := clickhousetest.Deliver(schemas.Changes, c.offset, change)
	if audit {
		c.must(clickhouse.NewSink(c.db).Store(c.t.Context(), batch))
	}
	if state {
		c.must(clickhouse.NewState(c.db).Store(c.t.Context(), batch))
	}
}

// check runs a check an hour later, and returns its result and its Change.
func (c *checkedStore) check(item string, accept *pb.AcceptOrder) (r *pb.FixityResult, change *pb.Change) {
	c.t.Helper()
	c.now = c.now.Add(time.Hour)
	at := c.copy(item)
	out, err := c.checker.Handle(c.t.Context(), &schemas.Delivery{Attempt: 1, Body: &pb.FixityTask{Id: schemas.NewID(),
		Account: at.Account, Store: at.Store, Space: at.Space, Item: at.Item, Accept: accept,
		Reason: pb.FixityReason_FIXITY_REASON_DEMAND}})
	c.must(err)
	for _, m := range out {
		switch b := m.Body.(type) {
		case *pb.FixityResult:
			r = b
		case *pb.Change:
			change = b
		}
	}
	return r, change
}

// Each correction heals the tables: once it is stored, manifest and audit log have the bytes of the copy, and a check
// passes. What a client writes afterwards is newer.
func TestCorrectionsHealTheTables(t *testing.T) {
	need.Integration(t)
	c := newCheckedStore(t)
	other := func(change *pb.Change) *pb.Change {
		wrong := proto.CloneOf(change)
		wrong.Digests = map[string]string{"md5": schemas.ID("wrong")}
		return wrong
	}
	tests := map[string]struct {
		prepare func(item string)
		row     int32
		accept  bool
	}{
		"manifest wrong": {func(item string) {
			right := c.put(item, "right")
			c.record(right, true, false)
			c.record(other(right), false, true)
		}, 5, false},
		"manifest of another version": {func(item string) {
			right := c.put(item, "right")
			c.record(right, true, false)
			wrong := other(right)
			wrong.Version = "v0"
			c.record(record.Seal(wrong), false, true)
		}, 5, false},
		"manifest without a row": {func(item string) { c.record(c.put(item, "right"), true, false) }, 5, false},
		"audit log out of step": {func(item string) {
			right := c.put(item, "right")
			c.record(right, false, true)
			c.record(other(right), true, false)
		}, 6, false},
		"audit log without a row": {func(item string) { c.record(c.put(item, "right"), false, true) }, 7, false},
		"not captured":            {func(item string) { c.put(item, "right") }, 9, false},
		"update not captured": {func(item string) {
			c.record(c.put(item, "old"), true, true)
			c.put(item, "right")
			c.settings.ExternalWrites, c.settings.CorrectUpdates = true, true
		}, 10, false},
		"update accepted": {func(item string) {
			c.record(c.put(item, "old"), true, true)
			c.put(item, "right")
			c.settings.ExternalWrites = true
		}, 10, true},
		"replaced": {func(item string) {
			c.record(c.put(item, "old"), true, true)
			c.put(item, "right")
		}, 13, true},
		"resurrected": {func(item string) {
			right := c.put(item, "right")
			c.record(right, true, true)
			gone := record.Delete(c.copy(item), storage.Deleted{Time: c.now.Add(time.Minute)})
			c.record(record.Seal(gone), true, true)
		}, 16, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c.t, c.settings = t, fixity.StoreSettings{}
			item := strings.ReplaceAll(name, " ", "-")
			tt.prepare(item)
			found, change := c.check(item, nil)
			if found.GetRow() != tt.row || !found.GetFinal() || (change != nil) == tt.accept {
				t.Fatalf("row %d, final %v, change %v; want row %d", found.GetRow(), found.GetFinal(), change, tt.row)
			}
			if tt.accept {
				order := &pb.AcceptOrder{Incident: "i", IncidentId: "i", Action: "a", Object: found.GetObject(), By: "eve",
					Digests: found.GetContent().GetDigests(), LastEvent: found.GetLastEvent()}
				var r *pb.FixityResult
				if r, change = c.check(item, order); change == nil || change.GetApproved() != "eve" {
					t.Fatalf("got %v, change %v", r, change)
				}
			}
			c.record(change, true, true)
			c.record(change, true, true) // published twice
			passed, again := c.check(item, nil)
			if passed.GetRow() != 1 || passed.GetVerdict() != pb.Verdict_VERDICT_PASS || again != nil {
				t.Fatalf("after the correction: row %d, %v, change %v", passed.GetRow(), passed, again)
			}
			known := clickhousetest.Fresh(t, c.db, c.copy(item))
			for place, r := range map[string]*pb.Record{"manifest": known.GetManifest(), "audit log": known.GetAudit()} {
				if digest.Set(r.GetDigests()).Compare(change.GetDigests()) != digest.Agree ||
					r.GetState() != pb.RecordState_RECORD_STATE_LIVE {
					t.Errorf("%s: %v, want the digests of %v", place, r, change)
				}
			}
			if known.GetManifest().GetMediaType() != "image/jpeg" {
				t.Errorf("manifest: %v", known.GetManifest())
			}
			client := c.put(item, "newer")
			c.record(client, true, true)
			if passed, _ := c.check(item, nil); passed.GetRow() != 1 {
				t.Errorf("after a client's version: %v", passed)
			}
		})
	}
}

// An operator accepts a copy that another program has replaced, and one that came back after its delete. Both are
// copied to the other store. Another one that came back is deleted. Each incident is closed by the check that follows.
func TestOperatorDecidesAboutCopies(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Fixity.Recheck, s.cfg.Fixity.Settle = nil, 0
	s.cfg.Accounts[0].Stores[0].Repair, s.cfg.Accounts[0].Stores[1].Repair = "approve", "auto"
	x := s.archive(everyRole...)
	ctx, a := t.Context(), x.app
	s.inForce(a, "acme", "2")
	for _, item := range []string{"replaced", "kept", "unwanted", "rotten"} {
		x.put(item, item, nil, "1", "2")
	}
	x.idle()
	x.remove("kept", "1", "2")
	x.remove("unwanted", "1", "2")
	x.idle()
	for _, item := range []string{"replaced", "kept", "unwanted"} {
		x.behind("1", item, "found "+item)
	}
	rotten := x.path(0, "rotten")
	info, err := os.Stat(rotten)
	x.must(err)
	x.must(errors.Join(os.WriteFile(rotten, []byte("rotteN"), 0o600), os.Chtimes(rotten, info.ModTime(), info.ModTime())))
	found := func(kind, item string) (i *pb.Incident) {
		t.Helper()
		x.publish(schemas.Message{Topic: schemas.FixityHigh, Body: &pb.FixityTask{Id: schemas.NewID(), Account: "acme",
			Store: "1", Space: "photos", Item: item, Reason: pb.FixityReason_FIXITY_REASON_DEMAND}})
		s.untilTrue("the incident "+kind+" of "+item, func() bool {
			for _, open := range x.open(kind) {
				if open.GetItem() == item {
					i = open
				}
			}
			return i != nil
		})
		return i
	}
	by := Actor{Who: "eve", Reason: "a curator did it", From: "cli"}
	replaced, kept := found("replaced", "replaced"), found("resurrected", "kept")
	for _, i := range []*pb.Incident{replaced, kept} {
		_, err := a.Accept(ctx, i, by, false)
		x.must(err)
	}
	_, err = a.ApproveRepair(ctx, found("resurrected", "unwanted"), by)
	x.must(err)
	if _, err := a.Accept(ctx, found("content-corrupt", "rotten"), by, true); !errors.Is(err, precondition.Err) {
		t.Errorf("corrupt bytes are accepted: %v", err)
	}
	s.untilTrue("the end of the incidents", func() bool {
		return len(x.open("replaced"))+len(x.open("resurrected")) == 0
	})
	x.holds("2", map[string]string{"replaced": "found replaced", "kept": "found kept", "unwanted": "absent"})
	x.holds("1", map[string]string{"replaced": "found replaced", "kept": "found kept", "unwanted": "absent"})
	x.idle()
	for item, want := range map[string]pb.RecordState{"replaced": pb.RecordState_RECORD_STATE_LIVE,
		"kept": pb.RecordState_RECORD_STATE_LIVE, "unwanted": pb.RecordState_RECORD_STATE_TOMBSTONE} {
		records, err := read.Records(ctx, a.db, []schemas.Copy{{Account: "acme", Store: "1", Space: "photos", Item: item}})
		x.must(err)
		if m := records[0].GetManifest(); m.GetState() != want {
			t.Errorf("%s is on record as %v", item, m)
		}
	}
}

// A file that was restored without its attributes gets its properties back from the records, and keeps its bytes.
func TestLostPropertiesOfFiles(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Fixity.Recheck, s.cfg.Fixity.Settle = nil, 0
	s.cfg.Accounts[0].Stores[0].Repair, s.cfg.Accounts[0].Stores[1].Repair = "approve", "auto"
	x := s.archive(everyRole...)
	ctx := t.Context()
	s.inForce(x.app, "acme", "2")
	want := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	for _, id := range []string{"1", "2"} {
		o, err := x.store(id).Put(ctx, "photos", "a", strings.NewReader("bytes"),
			storage.PutOptions{Size: storage.UnknownSize, Properties: want})
		x.must(err)
		c := record.Content(schemas.Copy{Account: "acme", Store: id, Space: "photos", Item: "a"}, o)
		if c.Origin = pb.Origin_ORIGIN_CLIENT; id != "1" {
			c.Origin = pb.Origin_ORIGIN_DUPLICATION
		}
		x.publish(schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
	}
	x.idle()
	x.must(os.Remove(x.path(1, "a")))
	x.behind("2", "a", "bytes")
	o, err := x.store("2").Stat(ctx, "photos", "a")
	x.must(err)
	if !o.PropertiesUnknown {
		t.Fatalf("the properties are not lost: %+v", o)
	}
	x.publish(schemas.Message{Topic: schemas.FixityHigh, Body: &pb.FixityTask{Id: schemas.NewID(), Account: "acme",
		Store: "2", Space: "photos", Item: "a", Reason: pb.FixityReason_FIXITY_REASON_DEMAND}})
	s.untilTrue("the properties are back", func() bool {
		o, err := x.store("2").Stat(ctx, "photos", "a")
		x.must(err)
		return !o.PropertiesUnknown && o.Properties.MediaType == want.MediaType && maps.Equal(o.Properties.User, want.User)
	})
	x.idle()
	s.untilTrue("the end of the incident", func() bool {
		all, err := read.SelectIncidents(ctx, x.app.DB(), read.IncidentSelection{Closed: true})
		x.must(err)
		return len(all) == 1 && all[0].GetKind() == "metadata-damaged" &&
			all[0].GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED
	})
	x.holds("2", map[string]string{"a": "bytes"})
}
