package app

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/ingest"
	"github.com/millrace/millrace/streams/ingest/hint"
	"github.com/millrace/millrace/streams/inventory"
	"github.com/millrace/millrace/streams/plan"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// In 2200 is the date of what these tests store and report.
var in2200 = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// clockDoors are the ways by which a Change reaches Kafka, and those that read it. Store 2 is in memory, dated by now,
// which is Kafka's time too.
type clockDoors struct {
	*checkedStore
	planner *plan.Planner
	changes []*pb.Change // that were published
}

func newClockDoors(t *testing.T) *clockDoors {
	d := &clockDoors{checkedStore: newCheckedStore(t)}
	var err error
	d.planner, err = plan.New(plan.Config{}, d)
	d.must(err)
	return d
}

// Rules returns those of a pair of stores.
func (d *clockDoors) Rules(string, string) (policy.Rules, bool) {
	return policy.Rules{Pairs: []policy.Pair{{Source: "2", Destination: "3"}}}, true
}

func (d *clockDoors) HasStore(string, string) bool { return true }

func (d *clockDoors) IsDestination(string, string, string) bool { return false }

// Resolve returns the copy of an object.
func (d *clockDoors) Resolve(_ schemas.Topic, _, key string) ([]schemas.Copy, bool) {
	return []schemas.Copy{d.copy(key)}, true
}

func (d *clockDoors) IsClaim(schemas.Topic, schemas.Copy) bool { return false }

// Publish remembers Changes.
func (d *clockDoors) Publish(_ context.Context, messages ...schemas.Message) error {
	for _, m := range messages {
		d.changes = append(d.changes, m.Body.(*pb.Change))
	}
	return nil
}

// land appends a Change to Kafka, where planner, sink and state read it. It returns the commands of the planner.
func (d *clockDoors) land(c *pb.Change) (commands []schemas.Message) {
	d.t.Helper()
	r, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c})
	d.must(err)
	body, err := schemas.Decode(schemas.Changes, r.Headers, r.Value)
	d.must(err)
	d.now, d.offset = d.now.Add(time.Second), d.offset+1
	batch := clickhousetest.Deliver(schemas.Changes, d.offset, body)
	batch[0].Timestamp = d.now
	commands, err = d.planner.Handle(d.t.Context(), batch[0])
	d.must(err)
	d.must(clickhouse.NewSink(d.db).Store(d.t.Context(), batch))
	d.must(clickhouse.NewState(d.db).Store(d.t.Context(), batch))
	return commands
}

// storeIn2200 stores an item that the store dates 2200.
func (d *clockDoors) storeIn2200(item string) *pb.Change {
	c := d.put(item, "ahead")
	d.mem.Date("photos", item, in2200)
	c.Time = timestamppb.New(in2200)
	return record.Seal(c)
}

// doors returns, by name, what is published about an item of 2200.
func (d *clockDoors) doors() map[string]func(item string) *pb.Change {
	t := d.t
	hinted := func(topic schemas.Topic, value []byte) *pb.Change {
		h := d.hintHandler(d)
		out, err := h.Handle(t.Context(), &schemas.Delivery{Topic: topic, Timestamp: d.now, Value: value})
		d.must(err)
		return out[0].Body.(*pb.Change)
	}
	return map[string]func(item string) *pb.Change{
		"kafka": d.storeIn2200,
		"http": func(item string) *pb.Change {
			metrics := ingest.NewMetrics(prometheus.NewRegistry())
			h, err := ingest.New(ingest.Config{}, d, d, metrics, slog.New(slog.DiscardHandler))
			d.must(err)
			c := d.storeIn2200(item)
			c.Id, c.Origin, c.Provenance = "", 0, 0
			body, err := protojson.Marshal(c)
			d.must(err)
			r := httptest.NewRequest(http.MethodPost, "/v1/changes", strings.NewReader(string(body)))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != http.StatusAccepted {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			return d.changes[len(d.changes)-1]
		},
		"notification": func(item string) *pb.Change {
			d.storeIn2200(item)
			return hinted(schemas.Foreign("events"), notification("ObjectCreated:Put", "photos", item))
		},
		"claim": func(item string) *pb.Change {
			m := hint.Claim("loader", d.storeIn2200(item))
			return hinted(m.Topic, m.Value)
		},
		"watch": func(item string) *pb.Change {
			d.storeIn2200(item)
			s, err := hint.NewObserver(d, time.Minute).Observe(t.Context(), d.copy(item))
			d.must(err)
			s.Received = d.now
			return hint.Decide(d.copy(item), hint.Hint{Kind: hint.Created, Vendor: "watch", Event: "written"}, s).Change
		},
		"import": func(item string) *pb.Change {
			d.storeIn2200(item)
			target := inventory.Target{Account: "acme", Store: "2", Space: "photos", Default: d.now}
			c, err := target.Change(inventory.Entry{Item: item, Size: 5, Time: in2200})
			d.must(err)
			return c
		},
		"reconcile": func(item string) *pb.Change {
			d.storeIn2200(item)
			none := func(context.Context, schemas.Copy, string) iter.Seq2[reconcile.Row, error] {
				return func(func(reconcile.Row, error) bool) {}
			}
			incident := func(context.Context, schemas.Copy, string) error { return nil }
			space := d.copy("")
			pages, err := reconcile.New(reconcile.Config{Space: space}, reconcile.Deps{Store: d.mem, Rows: none,
				Fresh:        func(context.Context) error { return nil },
				Settle:       func(context.Context, time.Duration, int) error { return nil },
				OpenIncident: incident, CloseIncident: incident, DeclaredGone: func() bool { return false }})
			d.must(err)
			page, err := pages(t.Context(), sweep.Round{ID: schemas.NewID(), Started: time.Now()}, nil)
			d.must(err)
			for _, m := range page.Messages {
				if c, ok := m.Body.(*pb.Change); ok && c.GetItem() == item {
					return c
				}
			}
			t.Fatalf("not adopted: %v", page.Counts)
			return nil
		},
		"correction": func(item string) *pb.Change {
			d.storeIn2200(item)
			_, c := d.check(item, nil)
			return c
		},
	}
}

// A Change of what is dated 2200 passes every door, is no dead letter, and is older than what follows it.
func TestClocks(t *testing.T) {
	d := newClockDoors(t)
	for name, door := range d.doors() {
		t.Run(name, func(t *testing.T) {
			d.t = t
			c := door(name)
			if c == nil {
				t.Fatal("no Change")
			}
			commands := d.land(c)
			for _, m := range commands {
				if at := schemas.ChangedAt(m.Body.(*pb.DuplicationCommand)).AsTime(); at.After(d.now) {
					t.Errorf("a command of %v", at)
				}
			}
			if len(commands) == 0 && c.GetOrigin() != pb.Origin_ORIGIN_FIXITY {
				t.Error("no command")
			}
			m := clickhousetest.Fresh(t, d.db, d.copy(name)).GetManifest()
			if m.GetChangeId() != c.GetId() || m.GetTime().AsTime().After(d.now) ||
				!schemas.Reported(m).AsTime().Equal(c.GetTime().AsTime()) {
				t.Errorf("on record is %v, want %s", m, c.GetId())
			}
			later := d.put(name, "later")
			d.land(later)
			if m := clickhousetest.Fresh(t, d.db, d.copy(name)).GetManifest(); m.GetChangeId() != later.GetId() {
				t.Errorf("on record is %v, want the later put %s", m, later.GetId())
			}
			if r, _ := d.check(name, nil); r.GetRow() != int32(fixity.RowPass) {
				t.Errorf("the check of the later put: row %d %s", r.GetRow(), r.GetFinding())
			}
		})
	}
	t.Run("delete", func(t *testing.T) {
		d.t = t
		d.land(d.put("deleted", "before"))
		gone := record.Delete(d.copy("deleted"), storage.Deleted{Time: in2200})
		gone.Origin = pb.Origin_ORIGIN_CLIENT
		d.land(record.Seal(gone))
		if m := clickhousetest.Fresh(t, d.db, d.copy("deleted")).GetManifest(); m.GetState() !=
			pb.RecordState_RECORD_STATE_TOMBSTONE || !schemas.Reported(m).AsTime().Equal(in2200) {
			t.Errorf("on record is %v, want the delete", m)
		}
		d.land(d.put("deleted", "again"))
		if r, _ := d.check("deleted", nil); r.GetRow() != int32(fixity.RowPass) {
			t.Errorf("put again: row %d %s", r.GetRow(), r.GetFinding())
		}
		d.mem.Lose("photos", "deleted")
		switch r, _ := d.check("deleted", nil); r.GetVerdict() {
		case pb.Verdict_VERDICT_MOOT, pb.Verdict_VERDICT_PASS:
			t.Errorf("lost: row %d %s %v", r.GetRow(), r.GetFinding(), r.GetVerdict())
		}
	})
}

// A fileStore is a store of files, which are dated by their modification time.
type fileStore struct {
	*checkedStore
	files *file.Store
}

func (s fileStore) Store(string, string) (storage.Store, bool) { return s.files, true }

// The correction that records a file of 2100 is older than what a client puts in its place.
func TestClocksOfAFile(t *testing.T) {
	d := newClockDoors(t)
	root := t.TempDir()
	files, err := file.Open(file.Config{ID: "2", Root: root})
	d.must(err)
	defer files.Close()
	d.must(files.WriteMarker(t.Context()))
	d.must(files.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	path, in2100 := filepath.Join(root, "photos", "a"), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	d.must(os.WriteFile(path, []byte("old"), 0o600))
	d.must(os.Chtimes(path, in2100, in2100))
	d.checker, err = fixity.New(fixity.Config{}, fileStore{d.checkedStore, files},
		clickhousetest.Reader(t, d.db, clickhousetest.Reached, read.ReaderConfig{}), d)
	d.must(err)
	_, correction := d.check("a", nil)
	d.now = time.Now().Add(-time.Minute)
	if correction == nil {
		t.Fatal("the file is not recorded")
	}
	d.land(correction)
	if r, again := d.check("a", nil); r.GetRow() != int32(fixity.RowPass) || again != nil {
		t.Errorf("recorded: row %d %s, Change %v", r.GetRow(), r.GetFinding(), again)
	}
	d.must(os.Remove(path))
	o, err := files.Put(t.Context(), "photos", "a", strings.NewReader("new"),
		storage.PutOptions{Size: storage.UnknownSize})
	d.must(err)
	c := record.Content(d.copy("a"), o)
	c.Origin = pb.Origin_ORIGIN_CLIENT
	d.now = time.Now().Add(time.Second)
	d.land(record.Seal(c))
	if r, _ := d.check("a", nil); r.GetRow() != int32(fixity.RowPass) {
		t.Errorf("replaced: row %d %s %s", r.GetRow(), r.GetFinding(), r.GetDetail())
	}
}
