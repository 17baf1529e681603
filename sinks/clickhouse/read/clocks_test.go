package read_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
)

// A stamped Change is a record with Kafka's time.
type stamped struct {
	change *pb.Change
	kafka  time.Duration // after Epoch
}

// A clockRow is the records of one copy, in Kafka's order.
type clockRow struct {
	records []stamped
	newest  int           // the index of the record with the newest content or delete
	at      time.Duration // after Epoch: the time that orders it
	also    func(t *testing.T, r *pb.CopyRecord)
}

// clockRows are histories in which a clock is ahead of Kafka's. 2200 is the year.
func clockRows(item string) map[string]clockRow {
	const minute, hour = time.Minute, time.Hour
	of2200 := time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).Sub(clickhousetest.Epoch)
	put := func(at time.Duration) *pb.Change { return clickhousetest.Change(item, at) }
	as := func(op pb.Op, at time.Duration) *pb.Change {
		c := put(at)
		c.Op, c.Digests, c.Provenance = op, nil, pb.Provenance_PROVENANCE_UNSPECIFIED
		c.Id = schemas.ChangeID(c)
		return c
	}
	titled := as(pb.Op_OP_SET_PROPERTIES, of2200)
	titled.Properties = map[string]string{"title": "x"}
	titled.Id = schemas.ChangeID(titled)
	ofVersion := as(pb.Op_OP_DELETE, minute)
	ofVersion.Version = put(of2200).GetVersion()
	ofVersion.Id = schemas.ChangeID(ofVersion)
	bare := put(hour)
	bare.MediaType, bare.PropertiesUnknown = "", true
	copied := put(hour)
	copied.SourceTime, copied.Origin = clickhousetest.At(of2200), pb.Origin_ORIGIN_DUPLICATION
	claimed := put(hour)
	claimed.Provenance = pb.Provenance_PROVENANCE_CLAIMED
	delete(claimed.Digests, "sha256")
	adopted := put(hour)
	adopted.Origin = pb.Origin_ORIGIN_SWEEP
	if adopted.Id = schemas.ChangeID(adopted); adopted.GetId() != put(hour).GetId() {
		panic("a sweep's report has another id than the client's")
	}
	disputed := func(want bool) func(*testing.T, *pb.CopyRecord) {
		return func(t *testing.T, r *pb.CopyRecord) {
			if got := r.GetManifest().GetDisputed(); got != want {
				t.Errorf("disputed: %t", got)
			}
		}
	}
	return map[string]clockRow{
		"a put": {records: []stamped{{put(0), hour}}},
		"a put of 2200": {records: []stamped{{put(of2200), 0}}, also: func(t *testing.T, r *pb.CopyRecord) {
			if m := r.GetManifest(); !schemas.Reported(m).AsTime().Equal(clickhousetest.Epoch.Add(of2200)) {
				t.Errorf("reported at %v", m.GetReported().AsTime())
			}
		}},
		"a delete of 2200":             {records: []stamped{{as(pb.Op_OP_DELETE, of2200), 0}}},
		"a delete of 2200, then a put": {[]stamped{{as(pb.Op_OP_DELETE, of2200), 0}, {put(minute), hour}}, 1, minute, nil},
		"a put of 2200, then a put":    {[]stamped{{put(of2200), 0}, {put(minute), hour}}, 1, minute, nil},
		"a put of 2200, then a delete": {[]stamped{{put(of2200), 0}, {as(pb.Op_OP_DELETE, minute), hour}}, 1, minute,
			disputed(true)},
		"a put of 2200, then a delete of its version": {[]stamped{{put(of2200), 0}, {ofVersion, hour}}, 1, minute,
			disputed(false)},
		"a put of 2200, then a later delete": {[]stamped{{put(of2200), 0}, {as(pb.Op_OP_DELETE, of2200+hour), hour}}, 1,
			hour, disputed(false)},
		"a delete of content that is not on record": {[]stamped{{as(pb.Op_OP_DELETE, minute), hour}}, 0, minute,
			disputed(false)},
		"a put, then one of 2200": {[]stamped{{put(0), minute}, {put(of2200), hour}}, 1, hour, nil},
		"an hour ahead, and again later": {[]stamped{{put(hour), 0}, {put(minute), minute}, {put(hour), 2 * hour}},
			1, minute, nil},
		"again with fewer digests": {[]stamped{{put(hour), 0}, {put(minute), minute}, {claimed, 2 * hour},
			{put(hour), 3 * hour}}, 1, minute, nil},
		"ahead, deleted, and the same put again": {[]stamped{{put(hour), 0}, {as(pb.Op_OP_DELETE, minute), minute},
			{put(hour), 2 * hour}}, 1, minute, nil},
		"ahead, again while it is still ahead": {[]stamped{{put(hour), 0}, {put(minute), minute}, {put(hour), 30 * minute}},
			1, minute, nil},
		"ahead, deleted in that millisecond, and again": {[]stamped{{put(hour), 0}, {as(pb.Op_OP_DELETE, 0), minute},
			{put(hour), 2 * hour}}, 1, 0, nil},
		"deleted ahead, put in that millisecond, and deleted again": {[]stamped{{as(pb.Op_OP_DELETE, hour), 0},
			{put(0), minute}, {as(pb.Op_OP_DELETE, hour), 30 * minute}}, 1, 0, nil},
		"ahead, deleted, and again, all in that millisecond": {[]stamped{{put(hour), 0}, {as(pb.Op_OP_DELETE, 0), 0},
			{put(hour), 0}}, 2, 0, nil},
		"ahead, twice in that millisecond, deleted between, and again later": {[]stamped{{put(hour), 0},
			{as(pb.Op_OP_DELETE, 0), 0}, {put(hour), 0}, {put(hour), 30 * minute}}, 2, 0, nil},
		"deleted, ahead by a sweep in that millisecond, and again by the client": {[]stamped{{as(pb.Op_OP_DELETE, 0), 0},
			{adopted, 0}, {put(hour), 30 * minute}}, 0, 0, nil},
		"ahead, another put in that millisecond, and again": {[]stamped{{put(hour), 0}, {put(0), 0},
			{put(hour), 30 * minute}}, 1, 0, func(t *testing.T, r *pb.CopyRecord) {
			if got := r.GetManifest().GetDigests(); got["md5"] == "" || got["md5"] != put(0).GetDigests()["md5"] {
				t.Errorf("digests %v, want those of the other put", got)
			}
		}},
		"within a millisecond of Kafka": {records: []stamped{{put(0), -1000}}},
		"the second record stamped an hour earlier": {[]stamped{{put(-2 * hour), 0}, {put(-90 * minute), minute},
			{put(-2 * hour), -hour}}, 1, -90 * minute, nil},
		"properties of 2200, then a content without": {[]stamped{{put(-hour), -hour}, {titled, 0}, {bare, hour}}, 2, hour,
			func(t *testing.T, r *pb.CopyRecord) {
				if m := r.GetManifest(); m.GetProperties()["title"] != "x" ||
					m.GetPropertiesOf().GetVersion() != put(-hour).GetVersion() {
					t.Errorf("properties %v of %v", m.GetProperties(), m.GetPropertiesOf())
				}
			}},
		"a copy of a content of 2200, again later": {[]stamped{{copied, 2 * hour}, {copied, 5 * hour}}, 0, hour,
			func(t *testing.T, r *pb.CopyRecord) {
				if got, want := schemas.SourceTime(r.GetManifest()), clickhousetest.At(2*hour); !got.AsTime().Equal(
					clickhousetest.Millis(want).AsTime()) {
					t.Errorf("source in order at %v, want %v", got.AsTime(), want.AsTime())
				}
			}},
		"a copy of a content of 2200": {[]stamped{{copied, 2 * hour}}, 0, hour, func(t *testing.T, r *pb.CopyRecord) {
			if m := r.GetManifest(); !m.GetSourceTime().AsTime().Equal(clickhousetest.Epoch.Add(of2200)) ||
				!schemas.SourceTime(m).AsTime().Equal(clickhousetest.Millis(clickhousetest.At(2*hour)).AsTime()) {
				t.Errorf("source of %v, in order at %v", m.GetSourceTime().AsTime(), schemas.SourceTime(m).AsTime())
			}
		}},
	}
}

// Whatever clocks are ahead, and in whatever batches their records are stored, also twice: manifest and audit log order
// the Changes of a copy by the earlier of their time and Kafka's time of the first record, and show the reported time.
func TestClocks(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	item, ahead := 0, ""
	for name := range clockRows("") {
		for how, sizes := range map[string][]int{"one by one": {1, 1, 1, 1}, "at once": {4}, "twice": {4, -4, 1, 1, 1, 1}} {
			item++
			if name == "an hour ahead, and again later" {
				ahead = fmt.Sprint("item-", item)
			}
			row := clockRows(fmt.Sprint("item-", item))[name]
			t.Run(name+", "+how, func(t *testing.T) {
				var batch []*schemas.Delivery
				for i, r := range row.records {
					d := clickhousetest.Deliver(schemas.Changes, int64(100*item+i), r.change)[0]
					d.Timestamp = clickhousetest.Epoch.Add(r.kafka)
					batch = append(batch, d)
				}
				storeIn(t, db, batch, sizes)
				checkClocks(t, db, batch, row)
			})
		}
	}
	got, err := verify.Manifest(t.Context(), db, verify.ManifestConfig{})
	if err != nil || len(got.Differ) > 0 || got.Copies != int64(item) {
		t.Errorf("verify --manifest: %+v, %v", got, err)
	}
	disputed := 0
	err = read.EachItem(t.Context(), db, "acme", func(space, item string, copies []read.StoredCopy) error {
		m := clickhousetest.Fresh(t, db, schemas.Copy{Account: "acme", Store: "1", Space: space, Item: item}).GetManifest()
		if copies[0].Disputed != m.GetDisputed() {
			t.Errorf("%s: EachItem says that it is disputed: %t", item, copies[0].Disputed)
		} else if m.GetDisputed() {
			disputed++
		}
		return nil
	})
	if err != nil || disputed == 0 {
		t.Errorf("%d disputed deletes, %v", disputed, err)
	}
	// A state that is made from the log has the first records of Changes that were ahead, too.
	must(t, db.Exec(t.Context(), "TRUNCATE TABLE {db}.copy_state"))
	all := clickhouse.Gap{Topic: schemas.Changes, Incarnation: 7, Partition: 3, To: 1 << 40}
	must(t, verify.FillState(t.Context(), db, all))
	again := clickhousetest.Deliver(schemas.Changes, 1<<30, clickhousetest.Change(ahead, time.Hour))
	again[0].Timestamp = clickhousetest.Epoch.Add(5 * time.Hour)
	storeIn(t, db, again, []int{1})
	got, err = verify.Manifest(t.Context(), db, verify.ManifestConfig{})
	if err != nil || len(got.Differ) > 0 || got.Copies != int64(item) {
		t.Errorf("verify --manifest of a filled state: %+v, %v", got, err)
	}
	if n := clickhousetest.Count(t, db, "manifest"); n != fmt.Sprint(item) {
		t.Errorf("the manifest has %s copies, want %d", n, item)
	}
}

// storeIn stores a batch in batches of the given sizes; a negative one goes back.
func storeIn(t *testing.T, db *clickhouse.DB, batch []*schemas.Delivery, sizes []int) {
	t.Helper()
	at := 0
	for _, n := range sizes {
		end := max(min(at+n, len(batch)), 0)
		if end > at {
			part := batch[at:end]
			must(t, clickhouse.NewState(db).Store(t.Context(), part))
			must(t, clickhouse.NewSink(db).Store(t.Context(), part))
		}
		at = end
	}
}

func checkClocks(t *testing.T, db *clickhouse.DB, batch []*schemas.Delivery, row clockRow) {
	t.Helper()
	newest := row.records[row.newest].change
	want := timestamppb.New(clickhousetest.Epoch.Add(row.at))
	r := clickhousetest.Fresh(t, db, schemas.CopyOf(newest))
	for where, got := range map[string]*pb.Record{"manifest": r.GetManifest(), "audit log": r.GetAudit()} {
		at := got.GetTime().AsTime()
		if got.GetChangeId() != newest.GetId() || at.UnixMilli() != want.AsTime().UnixMilli() ||
			!schemas.Reported(got).AsTime().Equal(newest.GetTime().AsTime()) {
			t.Errorf("%s: %s at %v, reported at %v; want %s at %v, %v", where, got.GetChangeId(), at,
				schemas.Reported(got).AsTime(), newest.GetId(), want.AsTime(), newest.GetTime().AsTime())
		}
	}
	shown := clickhousetest.Value(t, db, "SELECT concat(change, ' ', toString(toUnixTimestamp64Milli(time)), ' ',"+
		" toString(live)) FROM {db}.manifest WHERE item = ?", newest.GetItem())
	live := 1
	if newest.GetOp() == pb.Op_OP_DELETE {
		live = 0
	}
	if w := fmt.Sprint(newest.GetId(), " ", newest.GetTime().AsTime().UnixMilli(), " ", live); shown != w {
		t.Errorf("the view manifest has %s, want %s", shown, w)
	}
	if id := clickhousetest.Value(t, db, "SELECT argMax(id, (least(ts, first), newest)) FROM {db}.audit_log_v"+
		" WHERE item = ? AND op != 'set_properties'", newest.GetItem()); id != newest.GetId() {
		t.Errorf("the view audit_log_v has %s as the newest, want %s", id, newest.GetId())
	}
	if row.also != nil {
		row.also(t, r)
	}
}

// A space is ordered by its Changes as an item is.
func TestClocksOfASpace(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	space := func(op pb.Op, name string, at time.Time) *pb.Change {
		c := &pb.Change{Op: op, Account: "acme", Store: "1", Space: name, Time: timestamppb.New(at),
			Origin: pb.Origin_ORIGIN_CLIENT}
		c.Id = schemas.ChangeID(c)
		return c
	}
	ahead := time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
	offset := int64(0)
	for name, ops := range map[string][2]pb.Op{
		"created ahead, then deleted": {pb.Op_OP_CREATE_SPACE, pb.Op_OP_DELETE_SPACE},
		"deleted ahead, then created": {pb.Op_OP_DELETE_SPACE, pb.Op_OP_CREATE_SPACE},
	} {
		for i, c := range []*pb.Change{space(ops[0], name, ahead), space(ops[1], name, clickhousetest.Epoch),
			space(ops[0], name, ahead)} {
			d := clickhousetest.Deliver(schemas.Changes, offset, c)
			d[0].Timestamp = clickhousetest.Epoch.Add(time.Duration(i-1) * time.Hour)
			storeIn(t, db, d, []int{1})
			offset++
		}
		want := pb.RecordState_RECORD_STATE_LIVE
		if ops[1] == pb.Op_OP_DELETE_SPACE {
			want = pb.RecordState_RECORD_STATE_TOMBSTONE
		}
		r := clickhousetest.Fresh(t, db, schemas.Copy{Account: "acme", Store: "1", Space: name}).GetAudit()
		if r.GetState() != want || !r.GetTime().AsTime().Equal(clickhousetest.Epoch.Truncate(time.Millisecond)) {
			t.Errorf("%s: got %v at %v", name, r.GetState(), r.GetTime().AsTime())
		}
	}
}
