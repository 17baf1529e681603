package hint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A site has one account with one store, in which bucket photos is space photos, and two stores have bucket twin.
type site struct {
	t     *testing.T
	store *storagetest.Faulty
	mem   *mem.Store
	rows  []Row
	h     *Handler

	record *pb.Record // of every copy
	away   error      // of the records
	asked  int        // how often for records
	claims bool       // hints are claims
}

func newSite(t *testing.T) *site {
	t.Helper()
	inner, err := mem.New(mem.Config{ID: "acme/1"})
	must(t, err)
	w := &site{t: t, mem: inner, store: storagetest.NewFaulty(inner)}
	must(t, w.mem.WriteMarker(t.Context()))
	must(t, w.mem.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	observer := NewObserver(w, time.Minute)
	if w.h, err = NewHandler(observer, w, w, func(r Row) { w.rows = append(w.rows, r) }); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *site) Store(account, id string) (storage.Store, bool) {
	return w.store, account == "acme" && id == "1"
}

func (w *site) Fresh(context.Context, []schemas.Copy) ([]*pb.CopyRecord, error) {
	w.asked++
	return []*pb.CopyRecord{{Manifest: w.record, Audit: w.record}}, w.away
}

func (w *site) Resolve(_ schemas.Topic, bucket, key string) (all []schemas.Copy, known bool) {
	one := schemas.Copy{Account: "acme", Store: "1", Space: bucket, Item: key}
	switch bucket {
	case "photos":
		return []schemas.Copy{one}, true
	case "elsewhere":
		one.Store = "9"
		return []schemas.Copy{one}, true
	case "twin":
		return []schemas.Copy{one, {Account: "acme", Store: "2", Space: bucket, Item: key}}, true
	}
	return nil, bucket == "own"
}

func (w *site) IsClaim(schemas.Topic, schemas.Copy) bool { return w.claims }

func (w *site) put(item, bytes string) storage.Object {
	w.t.Helper()
	o, err := w.mem.Put(w.t.Context(), "photos", item, strings.NewReader(bytes),
		storage.PutOptions{Size: storage.UnknownSize})
	must(w.t, err)
	return o
}

func event(name, bucket, key string) string {
	return fmt.Sprintf(
		`{"eventSource":"aws:s3","eventName":%q,"eventTime":"2026-05-04T10:00:00.5Z",`+
			`"s3":{"bucket":{"name":%q},"object":{"key":%q,"sequencer":"7"}}}`,
		name, bucket, key)
}

func (w *site) handle(ctx context.Context, events ...string) ([]schemas.Message, error) {
	return w.h.Handle(ctx, &schemas.Delivery{Topic: schemas.Foreign("events"),
		Timestamp: time.UnixMilli(1_700_000_000_000),
		Value:     []byte(`{"Records":[` + strings.Join(events, ",") + `]}`)})
}

func TestHandle(t *testing.T) {
	w := newSite(t)
	o := w.put("a b", "hello")
	for name, tt := range map[string]struct {
		events []string
		ops    []pb.Op
		row    Row
	}{
		"present": {[]string{event("ObjectCreated:Put", "photos", "a+b")}, []pb.Op{pb.Op_OP_ADD}, rowCurrent},
		"removed, but present": {[]string{event("ObjectRemoved:Delete", "photos", "a+b")}, []pb.Op{pb.Op_OP_ADD},
			rowStillPresent},
		"gone": {[]string{event("ObjectRemoved:Delete", "photos", "gone")}, []pb.Op{pb.Op_OP_DELETE},
			rowRemoved},
		"gone before it was seen": {[]string{event("ObjectCreated:Put", "photos", "gone")}, nil, rowAbsent},
		"irrelevant":              {[]string{event("ObjectTagging:Put", "unknown", "x")}, nil, rowIrrelevant},
		"no item's key":           {[]string{event("ObjectRemoved:Delete", "own", ".millrace/marker.json")}, nil, rowNoItem},
		"nothing":                 {nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w.rows = nil
			var ids []string
			for range 2 { // a redelivery gives the same
				out, err := w.handle(t.Context(), tt.events...)
				must(t, err)
				var ops []pb.Op
				for _, m := range out {
					c := m.Body.(*pb.Change)
					ops, ids = append(ops, c.GetOp()), append(ids, c.GetId())
					if c.GetOp() == pb.Op_OP_ADD && (c.GetVersion() != o.Version || c.GetItem() != "a b" || c.GetSize() != 5) {
						t.Errorf("got %v, want what Stat says", c)
					}
				}
				if !slices.Equal(ops, tt.ops) {
					t.Errorf("got %v, want %v", ops, tt.ops)
				}
			}
			if len(ids) == 2 && ids[0] != ids[1] {
				t.Errorf("ids %v: want one", ids)
			}
			if tt.row != "" && !slices.Equal(w.rows, []Row{tt.row, tt.row}) {
				t.Errorf("rows %v, want twice %q", w.rows, tt.row)
			}
		})
	}
}

// Several hints become one message each, without irrelevant ones.
func TestHandleSplits(t *testing.T) {
	w := newSite(t)
	w.put("a", "hello")
	out, err := w.handle(t.Context(), event("ObjectCreated:Put", "photos", "a"), event("ObjectAcl:Put", "photos", "a"),
		event("ObjectRemoved:Delete", "unknown", "b"))
	if err != nil || len(out) != 2 || !slices.Equal(w.rows, []Row{rowIrrelevant}) {
		t.Fatalf("got %v, %v, rows %v", out, err, w.rows)
	}
	if w.store.Count("Stat") != 0 {
		t.Error("it queried the store")
	}
	for i, want := range []string{"photos/a", "unknown/b"} {
		if m := out[i]; string(m.Key) != want || m.Topic != schemas.Foreign("events") || m.Body != nil {
			t.Errorf("got %+v, want key %s", m, want)
		}
	}
	if one, err := w.h.Handle(t.Context(), &schemas.Delivery{Topic: out[0].Topic, Value: out[0].Value}); err != nil ||
		len(one) != 1 {
		t.Errorf("got %v, %v", one, err)
	}
	if _, err := w.h.Handle(t.Context(), &schemas.Delivery{Topic: out[1].Topic,
		Value: out[1].Value}); !retry.IsPermanent(err) {
		t.Errorf("got %v, want a permanent error", err)
	}
}

// A failure is an error of its class, never a Change.
func TestHandleFaults(t *testing.T) {
	unavailable := retry.Unavailable(errors.New("store unavailable"))
	created, removed := event("ObjectCreated:Put", "photos", "a"), event("ObjectRemoved:Delete", "photos", "gone")
	for name, tt := range map[string]struct {
		fault storagetest.Fault
		event string
		class retry.Class
	}{
		"stat failed":                       {storagetest.Fault{Method: "Stat"}, created, retry.Transient},
		"stat was done and reported failed": {storagetest.Fault{Method: "Stat", Applied: true}, created, retry.Transient},
		"store unavailable": {storagetest.Fault{Method: "Stat", Err: unavailable}, created,
			retry.ClassUnavailable},
		"absence, marker not read": {storagetest.Fault{Method: "Marker"}, removed, retry.ClassUnavailable},
		"absence, marker missing": {storagetest.Fault{Method: "Marker", Err: storage.ErrNoMarker}, removed,
			retry.ClassUnavailable},
		"absence, marker of another": {storagetest.Fault{Method: "Marker",
			Err: retry.Permanent(storage.ErrWrongMarker)}, removed, retry.ClassPermanent},
		"space absent, marker missing": {storagetest.Fault{Method: "Marker", Err: storage.ErrNoMarker},
			event("ObjectRemoved:Delete", "photos", "gone"), retry.ClassUnavailable},
		"a name that no store has": {storagetest.Fault{Method: "Stat", Err: retry.Permanent(storage.ErrName)}, created,
			retry.ClassPermanent},
		"unknown bucket": {storagetest.Fault{Method: "Put"}, event("ObjectCreated:Put", "unknown", "a"),
			retry.ClassPermanent},
		"bucket of two stores": {storagetest.Fault{Method: "Put"}, event("ObjectCreated:Put", "twin", "a"),
			retry.ClassPermanent},
		"store not configured": {storagetest.Fault{Method: "Put"}, event("ObjectCreated:Put", "elsewhere", "a"),
			retry.ClassPermanent},
		"no notification": {storagetest.Fault{Method: "Put"}, `"x"`, retry.ClassPermanent},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSite(t)
			w.put("a", "hello")
			w.store.Script(tt.fault)
			out, err := w.handle(t.Context(), tt.event)
			if len(out) != 0 || err == nil || retry.ClassOf(err) != tt.class {
				t.Errorf("got %v, %v of class %v, want class %v", out, err, retry.ClassOf(err), tt.class)
			}
		})
	}
}

// The copy of a delivery is known before it is handled if it has one hint about one copy.
func TestPlace(t *testing.T) {
	w := newSite(t)
	for name, tt := range map[string]struct {
		value string
		want  string
	}{
		"one": {`{"Records":[` + event("ObjectCreated:Put", "photos", "a") + `]}`, "acme/1/photos/a"},
		"several": {`{"Records":[` + event("ObjectCreated:Put", "photos", "a") + "," +
			event("ObjectCreated:Put", "photos", "b") + `]}`, ""},
		"irrelevant":     {`{"Records":[` + event("ObjectAcl:Put", "photos", "a") + `]}`, ""},
		"unknown bucket": {`{"Records":[` + event("ObjectCreated:Put", "x", "a") + `]}`, ""},
		"garbage":        {`x`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := w.h.Copy(&schemas.Delivery{Value: []byte(tt.value)})
			if ok != (tt.want != "") || ok && got.String() != tt.want {
				t.Errorf("got %v, %v, want %q", got, ok, tt.want)
			}
		})
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
