package app

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/ingest"
	"github.com/millrace/millrace/streams/ingest/hint"
)

// A destination accepts events about a checked store to which millrace copies, and handles and stores what they become.
type destination struct {
	*checkedStore
	hints   *hint.Handler
	changes int // that were stored
}

// hintHandler returns a handler of hints that reads the tables.
func (c *checkedStore) hintHandler(r hint.Resolver) *hint.Handler {
	reader := clickhousetest.Reader(c.t, c.db, clickhousetest.Reached, read.ReaderConfig{})
	h, err := hint.NewHandler(hint.NewObserver(c, time.Minute), reader, r, nil)
	c.must(err)
	return h
}

func (*destination) HasStore(string, string) bool { return true }

func (*destination) IsDestination(_, _, store string) bool {
	return store == "2"
}

func (*destination) Resolve(schemas.Topic, string, string) ([]schemas.Copy, bool) { return nil, false }

func (*destination) IsClaim(schemas.Topic, schemas.Copy) bool { return false }

func (d *destination) Publish(ctx context.Context, msgs ...schemas.Message) error {
	for _, m := range msgs {
		if c, ok := m.Body.(*pb.Change); ok {
			d.changes++
			d.record(c, true, true)
			continue
		}
		out, err := d.hints.Handle(ctx, &schemas.Delivery{Topic: m.Topic, Value: m.Value, Timestamp: time.Now()})
		d.must(err)
		d.must(d.Publish(ctx, out...))
	}
	return nil
}

// An ingest token takes no protection from a copy that millrace writes, whatever its events claim: rot is found and
// repaired, and a loss is no delete.
func TestTokenBlindsNoCheck(t *testing.T) {
	d := &destination{checkedStore: newCheckedStore(t)}
	d.hints = d.hintHandler(d)
	const token = "0123456789abcdef-loader"
	h, err := ingest.New(ingest.Config{Tokens: []ingest.Token{
		{Name: "loader", Account: "acme", Stores: []string{"2"}, Secret: token}}}, d, d, nil, slog.New(slog.DiscardHandler))
	d.must(err)
	claim := func(item string, op pb.Op, edit func(*pb.Change)) {
		c := &pb.Change{Op: op, Store: "2", Space: "photos", Item: item, Size: 4,
			Time: timestamppb.New(d.now.Add(time.Minute))}
		if edit != nil {
			edit(c)
		}
		body, err := protojson.Marshal(c)
		d.must(err)
		r := httptest.NewRequest(http.MethodPost, "/v1/changes", strings.NewReader(string(body)))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusAccepted || !strings.Contains(w.Body.String(), "looked-at") {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
	}
	digests := func(sum string) func(*pb.Change) {
		return func(c *pb.Change) { c.Digests = map[string]string{"md5": sum} }
	}
	const rotten = "38084d87e02607ebb19c0dedeb7768fc"
	for name, tt := range map[string]struct {
		claim  func(item string)
		damage func(item string)
		row    int32
	}{
		"rot": {func(string) {}, func(item string) { d.mem.Corrupt("photos", item, []byte("gaad")) }, 2},
		"rot, another content claimed": {func(item string) { claim(item, pb.Op_OP_ADD, digests(schemas.ID("anything"))) },
			func(item string) { d.mem.Corrupt("photos", item, []byte("gaad")) }, 2},
		"rot, its digest claimed": {func(string) {}, func(item string) {
			d.mem.Corrupt("photos", item, []byte("gaad"))
			claim(item, pb.Op_OP_UPDATE, digests(rotten))
		}, 2},
		"rot, the version claimed": {func(string) {}, func(item string) {
			d.mem.Corrupt("photos", item, []byte("gaad"))
			o, err := d.mem.Stat(t.Context(), "photos", item)
			d.must(err)
			claim(item, pb.Op_OP_ADD, func(c *pb.Change) {
				c.Version, c.Digests, c.Time = o.Version, map[string]string{"md5": rotten}, timestamppb.New(o.Modified)
			})
		}, 2},
		"other content": {func(string) {}, func(item string) {
			d.put(item, "other")
			claim(item, pb.Op_OP_UPDATE, nil)
		}, 13},
		"loss": {func(string) {}, func(item string) { d.mem.Lose("photos", item) }, 8},
		"loss, a delete claimed": {func(item string) { claim(item, pb.Op_OP_DELETE, nil) },
			func(item string) { d.mem.Lose("photos", item) }, 8},
		"loss, a delete claimed afterwards": {func(string) {}, func(item string) {
			d.mem.Lose("photos", item)
			claim(item, pb.Op_OP_DELETE, nil)
		}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			d.t = t
			item := strings.ReplaceAll(name, " ", "-")
			d.record(d.put(item, "good"), true, true)
			d.changes = 0
			tt.claim(item)
			if r, _ := d.check(item, nil); r.GetRow() != 1 {
				t.Errorf("the intact copy: got row %d %s", r.GetRow(), r.GetFinding())
			}
			tt.damage(item)
			if r, _ := d.check(item, nil); r.GetRow() != tt.row || d.changes > 0 {
				t.Errorf("the damaged copy: got row %d %s and %d Changes, want row %d and none", r.GetRow(), r.GetFinding(),
					d.changes, tt.row)
			}
		})
	}
	d.t = t
	d.put("new", "good")
	claim("new", pb.Op_OP_ADD, digests(rotten))
	if r, _ := d.check("new", nil); d.changes != 1 || r.GetRow() != 1 && r.GetRow() != 9 {
		t.Errorf("of a content that is not on record: got %d Changes, and row %d %s", d.changes, r.GetRow(), r.GetFinding())
	}
}
