package clickhouse_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/streams/retry"
)

const auditView = "SELECT toString(sum(cityHash64(* EXCEPT source_time))) || ' ' || toString(count())" +
	" FROM {db}.audit_log_v"

// Replays of all batches, divided differently and in any order, do not change the views.
func TestReplay(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	all := clickhousetest.Changes(500)
	batch := clickhousetest.Deliver(schemas.Changes, 100, all...)
	must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
	want := clickhousetest.Value(t, db, auditView)
	if !strings.HasSuffix(want, " 500") {
		t.Fatalf("the view has %s rows, want 500", want)
	}
	s := clickhouse.NewSink(db)
	for range 2 {
		cuts := [][]*schemas.Delivery{batch[:50], batch[50:51], batch[51:300], batch[200:500]}
		rand.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
		for _, b := range cuts {
			must(t, s.Store(t.Context(), b))
		}
	}
	if got := clickhousetest.Value(t, db, auditView); got != want {
		t.Errorf("after the replays the view is %s, was %s", got, want)
	}
	if got := clickhousetest.Count(t, db, "audit_log"); got != "500" {
		t.Errorf("the table has %s rows, want 500: what had landed was inserted again", got)
	}
}

// Deleted rows are stored again when their records are read again. Other rows do not change.
func TestReplayFillsHoles(t *testing.T) {
	t.Parallel()
	all := clickhousetest.Changes(300)
	for i, b := range all[:50] { // of the previous year
		c := b.(*pb.Change)
		c.Time = timestamppb.New(clickhousetest.Epoch.AddDate(-1, 0, 0).Add(time.Duration(i) * time.Minute))
		c.Id = schemas.ChangeID(c)
	}
	batch := clickhousetest.Deliver(schemas.Changes, 0, all...)
	for name, damage := range map[string]string{
		"some rows":      "DELETE WHERE off < 50",
		"rows of each":   "DELETE WHERE off % 7 = 0",
		"a year":         "DROP PARTITION " + clickhousetest.Epoch.AddDate(-1, 0, 0).Format("2006"),
		"the other year": "DROP PARTITION " + clickhousetest.Epoch.Format("2006"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := clickhousetest.Open(t)
			must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
			want := clickhousetest.Value(t, db, auditView)
			must(t, db.Exec(t.Context(), "ALTER TABLE {db}.audit_log "+damage+" SETTINGS mutations_sync = 2"))
			if left := clickhousetest.Count(t, db, "audit_log_v"); left == "300" {
				t.Fatal("nothing was removed")
			}
			s := clickhouse.NewSink(db)
			for _, b := range [][]*schemas.Delivery{batch[:100], batch[100:200], batch[200:]} {
				must(t, s.Store(t.Context(), b))
			}
			if got := clickhousetest.Value(t, db, auditView); got != want {
				t.Errorf("the view is %s, was %s", got, want)
			}
			if got := clickhousetest.Count(t, db, "audit_log"); got != "300" {
				t.Errorf("the table has %s rows, want 300: what was there was inserted again", got)
			}
		})
	}
}

// A message that was published twice is one row in the view, from the richer report.
func TestPublishedTwice(t *testing.T) {
	t.Parallel()
	rich := clickhousetest.Change("a", 0)
	poor := clickhousetest.Change("a", 0)
	poor.Digests, poor.Provenance = map[string]string{"md5": rich.Digests["md5"]}, pb.Provenance_PROVENANCE_CLAIMED
	for name, order := range map[string][]schemas.Body{"richer first": {rich, poor}, "richer last": {poor, rich}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := clickhousetest.Open(t)
			s := clickhouse.NewSink(db)
			for i, b := range order {
				must(t, s.Store(t.Context(), clickhousetest.Deliver(schemas.Changes, int64(i), b)))
			}
			if got := clickhousetest.Value(t, db, "SELECT provenance || toString(length(digests))"+
				" FROM {db}.audit_log_v"); got != "verified2" {
				t.Errorf("the row is %s, want verified2", got)
			}
			if got := clickhousetest.Count(t, db, "audit_log"); got != "2" {
				t.Errorf("the table has %s rows, want 2: both have landed", got)
			}
			clickhousetest.Compare(t, "what is on record", clickhousetest.Fresh(t, db, schemas.CopyOf(rich)).GetAudit(),
				clickhousetest.EvidenceOf(clickhousetest.RecordOf(rich)))
		})
	}
}

// Two events of one item and millisecond that set other properties are two rows, and the later one is in force.
func TestPropertiesOfOneMillisecond(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	set := func(colour string) *pb.Change {
		c := clickhousetest.Change("a", time.Hour)
		c.Op, c.Digests, c.Version, c.Provenance = pb.Op_OP_SET_PROPERTIES, nil, "", 0
		c.Properties = map[string]string{"colour": colour}
		c.Id = schemas.ChangeID(c)
		return c
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, clickhousetest.Change("a", 0), set("red"), set("blue"))
	if got := clickhousetest.Value(t, db, "SELECT arrayStringConcat(arraySort(groupArray(properties['colour'])), ' ')"+
		" FROM {db}.audit_log_v WHERE op = 'set_properties'"); got != "blue red" {
		t.Errorf("the view has %q, want both", got)
	}
	m := clickhousetest.Fresh(t, db, schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "a"}).GetManifest()
	if got := m.GetProperties()["colour"]; got != "blue" {
		t.Errorf("on record is %q, want the later one", got)
	}
}

func TestReusedOffsetIsInserted(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for _, item := range []string{"a", "b"} {
		must(t, clickhouse.NewSink(db).Store(t.Context(),
			clickhousetest.Deliver(schemas.Changes, 5, clickhousetest.Change(item, 0))))
	}
	if got := clickhousetest.Count(t, db, "audit_log_v"); got != "2" {
		t.Errorf("the view has %s rows, want 2: another message at a known offset is no repetition", got)
	}
}

// A batch of events of any age is one INSERT of at most 43 parts.
func TestAllYearsInOneBatch(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var all []schemas.Body
	for month := range 361 * 12 { // 1900 to 2260
		c := clickhousetest.Change("a", 0)
		c.Time = timestamppb.New(time.Date(1900, time.Month(1+month), 1, 0, 0, 0, 0, time.UTC))
		c.Id = schemas.ChangeID(c)
		all = append(all, c)
	}
	batch := clickhousetest.Deliver(schemas.Changes, 0, all...)
	must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
	partitions := clickhousetest.Value(t, db, "SELECT concat(toString(uniqExact(partition)), ' ', min(partition), ' ',"+
		" max(partition)) FROM system.parts WHERE database = ? AND table = 'audit_log' AND active", db.Config().Database)
	if partitions != "43 1999 2041" {
		t.Errorf("the rows are in the partitions %s, want 43 from 1999 to 2041", partitions)
	}
	if err := clickhouse.NewSink(db).Store(t.Context(), batch); err != nil { // as if read again
		t.Fatal(err)
	}
	proofs, err := clickhousetest.Verify(t, db, schemas.Changes,
		clickhousetest.KafkaTopic{Records: batch, End: 4332, Committed: 4332})
	if want := "audit_log: 4332 records, 4332 messages, 4332 rows"; err != nil ||
		clickhousetest.Describe(proofs[0]) != want {
		t.Errorf("got %s, %v, want %s", clickhousetest.Describe(proofs[0]), err, want)
	}
	if got := clickhousetest.Count(t, db, "audit_log"); got != "4332" {
		t.Errorf("the table has %s rows, want 4332: what had landed was inserted again", got)
	}
}

func TestRowError(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	tests := map[string]struct {
		break_ func(*pb.Change)
		field  string
	}{
		"id is not hex":   {func(c *pb.Change) { c.Id = strings.Repeat("x", 32) }, "id"},
		"id is short":     {func(c *pb.Change) { c.Id = "abcd" }, "id"},
		"time is missing": {func(c *pb.Change) { c.Time = nil }, "ts"},
		"time is far away": {func(c *pb.Change) { c.Time = timestamppb.New(time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)) },
			"ts"},
		"digest is not hex": {func(c *pb.Change) { c.Digests["md5"] = "zz" }, "digests"},
		"source time": {func(c *pb.Change) {
			c.SourceTime = timestamppb.New(time.Date(1899, 1, 1, 0, 0, 0, 0, time.UTC))
		}, "source_time"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			bad := clickhousetest.Change("bad", 0)
			tc.break_(bad)
			batch := clickhousetest.Deliver(schemas.Changes, 40, clickhousetest.Change("good", 0), bad,
				clickhousetest.Change("fine", 0))
			err := clickhouse.NewSink(db).Store(t.Context(), batch)
			var got *clickhouse.RowError
			if !errors.As(err, &got) || !retry.IsPermanent(err) {
				t.Fatalf("Store = %v, want a permanent RowError", err)
			}
			if topic, partition, offset := got.Record(); got.Field != tc.field || topic != schemas.Changes || partition != 3 ||
				offset != 41 {
				t.Errorf("the error is about %s of %s/%d@%d, want %s of changes/3@41", got.Field, topic, partition, offset,
					tc.field)
			}
			if n := clickhousetest.Count(t, db, "audit_log"); n != "0" {
				t.Errorf("%s rows of the batch have landed, want none", n)
			}
		})
	}
}

// A proxy is between a DB and its server, and breaks connections at chosen moments.
type proxy struct {
	addr string
	// mode is what the proxy does with inserts: it forwards them, cuts the connection before the server has the rows,
	// cuts it after the server has responded and before the response arrives, or holds the rows back until release is
	// closed.
	mode atomic.Int32
	sent atomic.Int64 // bytes to the server since mode was set
	l    net.Listener
	gone chan struct{} // closed when the proxy stops

	// For the one insert that is held back:
	release chan struct{} // closed by the test
	held    chan struct{} // closed when the proxy has all of its rows
	landed  chan struct{} // closed when the server has responded
}

// close stops the proxy and closes its connections.
func (p *proxy) close() {
	close(p.gone)
	p.l.Close()
}

func (p *proxy) fail(mode int32) {
	p.sent.Store(0)
	p.mode.Store(mode)
}

const (
	passing = iota
	failedNotPersisted
	failedButPersisted
	heldBack
)

func newProxy(t *testing.T, server string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	p := &proxy{addr: l.Addr().String(), l: l, gone: make(chan struct{}),
		release: make(chan struct{}), held: make(chan struct{}), landed: make(chan struct{})}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(client, server)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn, server string) {
	defer client.Close()
	done := make(chan struct{})
	defer close(done)
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		select {
		case <-p.gone:
			client.Close()
		case <-done:
		}
	}()
	const rows = 20_000 // more bytes than any statement has, and fewer than every batch of these tests
	const endOfStream = 5
	go func() {
		defer client.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := up.Read(buf)
			if err != nil {
				return
			}
			if mode := p.mode.Load(); mode >= failedButPersisted && p.sent.Load() > rows {
				if buf[n-1] != endOfStream {
					continue
				}
				if mode == heldBack {
					close(p.landed)
				}
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 1<<20)
	var held []byte
	for {
		n, err := client.Read(buf)
		if err != nil || p.mode.Load() == failedNotPersisted && p.sent.Load()+int64(n) > rows {
			return
		}
		p.sent.Add(int64(n))
		if p.mode.Load() == heldBack && p.sent.Load() > rows {
			if held = append(held, buf[:n]...); !bytes.HasSuffix(held, noMoreRows) {
				continue
			}
			close(p.held)
			<-p.release
			_, _ = up.Write(held) // if it fails, no row is stored, and the test fails
			<-p.landed
			return
		}
		if _, err := up.Write(buf[:n]); err != nil {
			return
		}
	}
}

// noMoreRows is the empty block at the end of an insert.
var noMoreRows = []byte{2, 0, 1, 0, 2, 255, 255, 255, 255, 0, 0, 0}

// An insert that ends late, after another process has repeated it, leaves rows in the table but does not change the
// views.
func TestLateAttempt(t *testing.T) {
	t.Parallel()
	direct := clickhousetest.Open(t)
	p := newProxy(t, clickhousetest.Addr(t))
	cfg := direct.Config()
	cfg.Addresses = []string{p.addr}
	late := clickhousetest.Connect(t, cfg)
	batch := clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Changes(600)...)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	p.fail(heldBack)
	var g errgroup.Group
	g.Go(func() error { return clickhouse.NewSink(late).Store(ctx, batch) })
	wait := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatalf("%s: not within a minute", what)
		}
	}
	wait("the first attempt sends its rows", p.held)
	giveUp()
	if err := g.Wait(); err == nil {
		t.Fatal("the first attempt succeeded although the server has not seen its rows")
	}
	s := clickhouse.NewSink(direct)
	for _, part := range [][]*schemas.Delivery{batch[:200], batch[200:]} {
		must(t, s.Store(t.Context(), part))
	}
	want := clickhousetest.Value(t, direct, auditView)
	close(p.release)
	wait("the first attempt lands", p.landed)
	if got := clickhousetest.Count(t, direct, "audit_log"); got != "1200" {
		t.Errorf("the table has %s rows, want 1200: those of both attempts", got)
	}
	if got := clickhousetest.Value(t, direct, auditView); got != want || !strings.HasSuffix(got, " 600") {
		t.Errorf("the view is %s, was %s", got, want)
	}
	must(t, clickhouse.NewSink(direct).Store(t.Context(), batch))
	if got := clickhousetest.Count(t, direct, "audit_log"); got != "1200" {
		t.Errorf("after a replay the table has %s rows, want 1200", got)
	}
	proofs, err := clickhousetest.Verify(t, direct, schemas.Changes,
		clickhousetest.KafkaTopic{Records: batch, End: 600, Committed: 600})
	if want := "audit_log: 600 records, 600 messages, 600 rows"; err != nil || clickhousetest.Describe(proofs[0]) != want {
		t.Errorf("got %s, %v, want %s", clickhousetest.Describe(proofs[0]), err, want)
	}
}

// An INSERT of rows of several years is several parts, which are committed one by one. Whatever has landed of an INSERT
// that failed, the next one inserts the rest.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mode int32
		lost string // a partition that did not land
	}{
		"not persisted":            {failedNotPersisted, ""},
		"but persisted":            {failedButPersisted, ""},
		"but persisted in part":    {failedButPersisted, "2025"},
		"the oldest not persisted": {failedButPersisted, "1999"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := clickhousetest.Open(t)
			p := newProxy(t, clickhousetest.Addr(t))
			cfg := direct.Config()
			cfg.Addresses = []string{p.addr}
			db, err := clickhouse.Open(cfg, nil)
			must(t, err)
			defer db.Close()
			s := clickhouse.NewSink(db)
			all := clickhousetest.Changes(1000)
			for i, years := range []int{1, 27, 90, -20} {
				for _, b := range all[500+100*i : 600+100*i] {
					c := b.(*pb.Change)
					c.Time = timestamppb.New(c.GetTime().AsTime().AddDate(-years, 0, 0))
					c.Id = schemas.ChangeID(c)
				}
			}
			must(t, s.Store(t.Context(), clickhousetest.Deliver(schemas.Changes, 0, all[:400]...)))
			p.fail(tc.mode)
			batch := clickhousetest.Deliver(schemas.Changes, 400, all[400:]...)
			err = s.Store(t.Context(), batch)
			if retry.ClassOf(err) != retry.ClassUnavailable {
				t.Fatalf("Store = %v, want class unavailable", err)
			}
			p.fail(passing)
			if tc.lost != "" {
				must(t, direct.Exec(t.Context(), "ALTER TABLE {db}.audit_log DROP PARTITION "+tc.lost))
				if got := clickhousetest.Count(t, direct, "audit_log"); got == "1000" || got == "400" {
					t.Fatalf("the table has %s rows, want a part of the batch", got)
				}
			}
			must(t, s.Store(t.Context(), batch))
			for _, from := range []string{"audit_log", "audit_log_v"} {
				if got := clickhousetest.Count(t, direct, from); got != "1000" {
					t.Errorf("%s has %s rows, want 1000", from, got)
				}
			}
		})
	}
}

func TestStoreWithoutServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	l.Close()
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{l.Addr().String()}}, nil)
	must(t, err)
	defer db.Close()
	for name, store := range map[string]func() error{
		"sink": func() error {
			return clickhouse.NewSink(db).Store(t.Context(),
				clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Change("a", 0)))
		},
		"state": func() error {
			return clickhouse.NewState(db).Store(t.Context(),
				clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Change("a", 0)))
		},
	} {
		if err := store(); retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("%s: Store = %v, want class unavailable", name, err)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
