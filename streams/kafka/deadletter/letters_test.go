package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

func deadLetters(t *testing.T, b *kafkatest.Broker) *deadletter.Letters {
	t.Helper()
	d, err := deadletter.New(b.Config())
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

// letters returns the letters that q selects, sorted by id.
func letters(t *testing.T, d *deadletter.Letters, q deadletter.Query) (all []*deadletter.Letter) {
	t.Helper()
	must(t, d.Each(t.Context(), q, func(l *deadletter.Letter) error { all = append(all, l); return nil }))
	slices.SortFunc(all, func(a, b *deadletter.Letter) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// kill makes n changes dead letters of a planner that rejects all.
func kill(t *testing.T, b *kafkatest.Broker, n int) {
	t.Helper()
	for i := range n {
		b.Send(parttest.Change(fmt.Sprintf("item-%d", i)))
	}
	g := parttest.Planner(t, b, func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		return nil, retry.Permanent(errors.New("no policy for " + d.Body.(*pb.Change).GetSpace() + "\nsecond line"))
	})
	must(t, parttest.Run(t, 10*time.Second, g))
}

func order() deadletter.Order {
	return deadletter.Order{Who: "ann", Reason: "mended", From: "cli"}
}

// A letter of a role without an again topic is sent to its original topic again, and keeps Kafka's time of its first
// record there, also if it becomes a letter again.
func TestRedriveKeepsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		kill(t, b, 1)
		letter, was := b.Read(schemas.Dead)[0], b.Read(schemas.Changes)[0].Timestamp
		for i, h := range letter.Headers {
			if h.Key == schemas.HeaderRole {
				letter.Headers[i].Value = []byte(schemas.RoleState)
			}
		}
		b.Write(letter)
		for range 2 {
			time.Sleep(time.Hour)
			l := letters(t, deadLetters(t, b), deadletter.Query{})
			got, err := deadLetters(t, b).Redrive(t.Context(), deadletter.Query{IDs: []string{l[len(l)-1].ID}}, order())
			if err != nil || got.Done != 1 {
				t.Fatalf("got %+v, %v", got, err)
			}
			var times []time.Time
			g := parttest.Planner(t, b, func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				times = append(times, d.Timestamp)
				return nil, retry.Permanent(errors.New("no policy"))
			})
			must(t, parttest.Run(t, 10*time.Second, g))
			if len(times) != 1 || !times[0].Equal(was) {
				t.Errorf("handled with the times %v, want %v", times, was)
			}
		}
	})
}

// A redriven letter has the original bytes, its history and no attempts. It goes to the role that failed and to
// no other. It is not sent again without Force.
func TestRedrive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		kill(t, b, 1)
		d := deadLetters(t, b)
		l := letters(t, d, deadletter.Query{})[0]
		body, err := l.Decode()
		if err != nil || l.State != deadletter.Open || l.Role != schemas.RolePlanner || l.Topic != schemas.Changes ||
			l.Class != "permanent" || l.Attempts != 1 || len(l.History) != 1 || body.(*pb.Change).GetItem() != "item-0" {
			t.Errorf("letter %+v, %v", l, err)
		}
		r, err := d.Redrive(t.Context(), deadletter.Query{IDs: []string{l.ID}}, order())
		if err != nil || r.Done != 1 || r.Refused != 0 {
			t.Fatalf("got %+v, %v", r, err)
		}
		again, was := b.Read(schemas.Again(schemas.RolePlanner)), b.Read(schemas.Changes)[0]
		if len(again) != 1 {
			t.Fatalf("%d records, want 1", len(again))
		}
		rec := again[0]
		if string(rec.Key) != string(was.Key) || string(rec.Value) != string(was.Value) ||
			rec.Header(schemas.HeaderID) != was.Header(schemas.HeaderID) {
			t.Errorf("got %+v, want the bytes of %+v", rec, was)
		}
		got := []string{rec.Header(schemas.HeaderOriginTopic), rec.Header(schemas.HeaderOriginOffset),
			rec.Header(schemas.HeaderAttempts), rec.Header(schemas.HeaderError)}
		if want := []string{"changes", "0", "0", ""}; !slices.Equal(got, want) ||
			!strings.Contains(rec.Header(schemas.HeaderHistory), "no policy") {
			t.Errorf("got %q, history %s", got, rec.Header(schemas.HeaderHistory))
		}
		closed := letters(t, d, deadletter.Query{Closed: true})
		if open := letters(t, d, deadletter.Query{}); len(open) != 0 || closed[0].State != deadletter.Redriven ||
			closed[0].By != "ann" || closed[0].Reason != "mended" {
			t.Errorf("open %v, closed %+v", open, closed[0])
		}
		r, err = d.Redrive(t.Context(), deadletter.Query{IDs: []string{l.ID}}, order())
		if err != nil || r.Done != 0 || r.Refused != 1 || !errors.Is(r.FirstRefusal, deadletter.ErrDecided) {
			t.Errorf("redriven twice: %+v, %v", r, err)
		}
		o := order()
		o.Force = true
		if r, err = d.Redrive(t.Context(), deadletter.Query{IDs: []string{l.ID}}, o); err != nil || r.Done != 1 {
			t.Errorf("with force: %+v, %v", r, err)
		}
		attempts := 0
		g := parttest.Planner(t, b, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			attempts = d.Attempt
			return parttest.Plan(ctx, d)
		})
		must(t, parttest.Run(t, 10*time.Second, g))
		if n := len(b.Read(schemas.DuplicationHigh)); n != 2 || attempts != 1 {
			t.Errorf("%d outputs, want 2; attempt %d, want 1", n, attempts)
		}
		if n, dead := len(b.Read(schemas.Changes)), len(b.Read(schemas.Dead)); n != 1 || dead != 1 {
			t.Errorf("%d records in the journal and %d dead letters, want 1 and 1", n, dead)
		}
		ids := map[string]bool{}
		for _, a := range b.Bodies(schemas.Admin) {
			ids[a.GetId()] = true
			if a := a.(*pb.AdminAction); !strings.HasPrefix(a.GetTarget(), l.ID+"@") || a.GetItem() != "item-0" ||
				a.GetAfter() != "redriven to again.planner" {
				t.Errorf("action %v", a)
			}
		}
		if len(ids) != 2 {
			t.Errorf("%d actions, want 2", len(ids))
		}
	})
}

// A letter goes to the again topic of its role, or to its first topic if there is none or the letter was edited.
// It is refused if its first topic is unknown.
func TestRedriveTo(t *testing.T) {
	t.Parallel()
	edited, err := protojson.Marshal(parttest.Change("other").Body)
	must(t, err)
	header := func(key, value string) schemas.Header { return schemas.Header{Key: key, Value: []byte(value)} }
	for name, tt := range map[string]struct {
		role, topic string
		value       []byte
		nothing     bool // the letter is a tombstone
		to          schemas.Topic
		item        string
		why         string
	}{
		"a role's own": {role: "copier", topic: "changes", to: schemas.Again(schemas.RoleCopier)},
		"the sink's":   {role: "sink", topic: "changes", to: schemas.Changes, item: "a"},
		"the state's":  {role: "state", topic: "changes", to: schemas.Changes, item: "a"},
		"edited":       {role: "planner", topic: "changes", value: edited, to: schemas.Changes, item: "other"},
		"edited badly": {role: "planner", topic: "changes", value: []byte(`{"itme": "x"}`),
			why: "with this value"},
		"edited beyond use":       {role: "planner", topic: "changes", value: []byte("garbage"), why: "with this value"},
		"of a topic without name": {role: "planner", why: `topic ""`},
		"of an unknown topic":     {role: "sink", topic: "gone", why: `topic "gone"`},
		"without a value":         {role: "sink", topic: "changes", nothing: true, to: schemas.Changes},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				rec, err := schemas.Encode(parttest.Change("a"))
				must(t, err)
				rec.Topic = schemas.Dead
				if tt.nothing {
					rec.Value = nil
				}
				rec.Headers = append(rec.Headers, header("traceparent", "00-1"), header(schemas.HeaderRole, tt.role),
					header(schemas.HeaderAttempts, "5"),
					header(schemas.HeaderHistory, `[{"attempt":5,"class":"transient","error":"x","times":5}]`))
				if tt.topic != "" {
					rec.Headers = append(rec.Headers, header(schemas.HeaderOriginTopic, tt.topic))
				}
				b.Write(kafkatest.Record{Record: rec})
				o := order()
				o.Value = tt.value
				d := deadLetters(t, b)
				r, err := d.Redrive(t.Context(), deadletter.Query{IDs: []string{"0-0"}}, o)
				must(t, err)
				if tt.why != "" {
					if r.Done != 0 || r.Refused != 1 || !strings.Contains(fmt.Sprint(r.FirstRefusal), tt.why) ||
						len(b.Read(schemas.Admin)) != 0 {
						t.Errorf("got %+v, want it refused: %s", r, tt.why)
					}
					return
				}
				got := b.Read(tt.to)
				if len(got) != 1 || r.Done != 1 {
					t.Fatalf("%d records, %+v, want 1", len(got), r)
				}
				if got[0].Header("traceparent") != "00-1" || got[0].Header(schemas.HeaderAttempts) != "0" ||
					got[0].Header(schemas.HeaderHistory) == "" {
					t.Errorf("headers %v", got[0].Headers)
				}
				if tt.nothing && got[0].Value != nil {
					t.Errorf("value %q, want none", got[0].Value)
				}
				if tt.item != "" {
					if c := b.Bodies(tt.to)[0].(*pb.Change); c.GetItem() != tt.item ||
						string(got[0].Key) != schemas.ItemKey("acme", "maps", tt.item) {
						t.Errorf("item %s under key %s, want %s", c.GetItem(), got[0].Key, tt.item)
					}
				}
			})
		})
	}
}

// A letter counts as redriven only once it is published. If the decision is not recorded, it is published again.
func TestRedriveFaults(t *testing.T) {
	t.Parallel()
	again := schemas.Again(schemas.RolePlanner)
	for name, tt := range map[string]struct {
		topic schemas.Topic
		fault kafkatest.Fault
		fails bool
		sent  int // after the second call
		acts  int
	}{
		"not sent, and refused":       {again, kafkatest.Refused, true, 3, 3},
		"not sent at first":           {again, kafkatest.NotDone, false, 3, 3},
		"sent but reported lost":      {again, kafkatest.DoneNotAcknowledged, false, 3, 3},
		"not on record, and refused":  {schemas.Admin, kafkatest.Refused, true, 6, 3},
		"not on record at first":      {schemas.Admin, kafkatest.NotDone, false, 3, 3},
		"on record but reported lost": {schemas.Admin, kafkatest.DoneNotAcknowledged, false, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				kill(t, b, 3)
				d := deadLetters(t, b)
				times := 1
				if tt.fault == kafkatest.Refused {
					times = -1
				}
				mend := b.FailProduce(tt.topic, tt.fault, times)
				r, err := d.Redrive(t.Context(), deadletter.Query{}, order())
				if (err != nil) != tt.fails || tt.fails && r.Done != 0 || !tt.fails && r.Done != 3 {
					t.Errorf("got %+v, %v", r, err)
				}
				mend()
				if r, err := d.Redrive(t.Context(), deadletter.Query{}, order()); err != nil ||
					r.Done != 3 && tt.fails || r.Done != 0 && !tt.fails {
					t.Errorf("once more: %+v, %v", r, err)
				}
				if sent, acts := len(b.Read(again)), len(b.Read(schemas.Admin)); sent != tt.sent || acts != tt.acts {
					t.Errorf("%d sent, %d actions, want %d and %d", sent, acts, tt.sent, tt.acts)
				}
				if open := letters(t, d, deadletter.Query{}); len(open) != 0 {
					t.Errorf("%d are still open", len(open))
				}
			})
		})
	}
}

// A stopped redrive reports how many letters are done. The next one continues with the rest, and sends none twice.
func TestRedriveStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true})
		kill(t, b, 40)
		d := deadLetters(t, b)
		ctx, stop := context.WithCancel(t.Context())
		o := order()
		o.Rate = 10
		o.Progress = func(done int) {
			if done >= 7 {
				stop()
			}
		}
		start := time.Now()
		r, err := d.Redrive(ctx, deadletter.Query{}, o)
		if !errors.Is(err, context.Canceled) || r.Done < 7 || r.Done > 12 {
			t.Errorf("got %+v, %v", r, err)
		}
		if n := len(b.Read(schemas.Admin)); n != r.Done {
			t.Errorf("%d on record, want %d", n, r.Done)
		}
		o.Progress = nil
		if more, err := d.Redrive(t.Context(), deadletter.Query{}, o); err != nil || more.Done != 40-r.Done {
			t.Errorf("the rest: %+v, %v, want %d", more, err, 40-r.Done)
		}
		if took := time.Since(start); took < 3*time.Second || took > 5*time.Second {
			t.Errorf("40 letters at 10 a second took %v", took)
		}
		items := map[string]int{}
		for _, rec := range b.Read(schemas.Again(schemas.RolePlanner)) {
			items[string(rec.Key)]++
		}
		if len(items) != 40 {
			t.Errorf("%d items, want 40", len(items))
		}
		for item, n := range items {
			if n != 1 {
				t.Errorf("%s was sent %d times", item, n)
			}
		}
	})
}

// If a redrive is stopped after it has published a letter, it still records the decision.
func TestRedriveStopsInBetween(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
		kill(t, b, 3)
		d := deadLetters(t, b)
		mend := b.FailProduce(schemas.Admin, kafkatest.NotDone, -1)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		time.AfterFunc(time.Second, stop)
		time.AfterFunc(2*time.Second, mend)
		if r, err := d.Redrive(ctx, deadletter.Query{}, order()); err != nil || r.Done != 3 || ctx.Err() == nil {
			t.Errorf("got %+v, %v", r, err)
		}
		if open := letters(t, d, deadletter.Query{}); len(open) != 0 {
			t.Errorf("%d are open, and were sent", len(open))
		}
	})
}

// New dead letters are left to the next redrive, so that a letter that fails again is not redriven for ever.
func TestRedriveEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		kill(t, b, 20)
		parttest.Background(t, parttest.Planner(t, b, func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
			return nil, retry.Permanent(errors.New("still no policy"))
		}))
		o := order()
		o.Rate = 4
		d := deadLetters(t, b)
		if r, err := d.Redrive(t.Context(), deadletter.Query{}, o); err != nil || r.Done != 20 {
			t.Errorf("got %+v, %v", r, err)
		}
		time.Sleep(10 * time.Second)
		open := letters(t, d, deadletter.Query{})
		if len(open) != 20 || len(open[0].History) != 2 {
			t.Errorf("%d open, want 20, with both failures in their history: %+v", len(open), open[0].History)
		}
	})
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		kill(t, b, 3)
		d := deadLetters(t, b)
		o := order()
		o.Reason = ""
		if _, err := d.Discard(t.Context(), deadletter.Query{}, o); err == nil {
			t.Error("discarded without a reason")
		}
		all := letters(t, d, deadletter.Query{})
		if r, err := d.Discard(t.Context(), deadletter.Query{IDs: []string{all[0].ID, all[0].ID}}, order()); err != nil ||
			r.Done != 1 {
			t.Errorf("got %+v, %v", r, err)
		}
		if got := letters(t, d, deadletter.Query{}); len(got) != 2 || got[0].ID != all[1].ID {
			t.Errorf("open: %v", got)
		}
		if got := letters(t, d, deadletter.Query{IDs: []string{all[0].ID}}); len(got) != 1 ||
			got[0].State != deadletter.Discarded {
			t.Errorf("got %v", got)
		}
		if n := len(b.Read(schemas.Dead)); n != 3 {
			t.Errorf("%d dead letters are kept, want 3", n)
		}
		if n := len(b.Read(schemas.Again(schemas.RolePlanner))); n != 0 {
			t.Errorf("%d were sent", n)
		}
	})
}

func TestDeadQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		kill(t, b, 2)
		time.Sleep(time.Hour)
		noon := time.Now()
		b.Write(kafkatest.Record{Partition: -1, Record: schemas.Record{Topic: schemas.Dead, Key: []byte("k"),
			Value: []byte("v"), Headers: []schemas.Header{
				{Key: schemas.HeaderRole, Value: []byte("copier")},
				{Key: schemas.HeaderOriginTopic, Value: []byte("duplication.high")},
				{Key: schemas.HeaderClass, Value: []byte("transient")},
				{Key: schemas.HeaderError, Value: []byte("reset by peer")}}}})
		d := deadLetters(t, b)
		for name, tt := range map[string]struct {
			q    deadletter.Query
			want int
		}{
			"all":            {deadletter.Query{}, 3},
			"role":           {deadletter.Query{Role: schemas.RoleCopier}, 1},
			"topic":          {deadletter.Query{Topic: schemas.Changes}, 2},
			"class":          {deadletter.Query{Class: "transient"}, 1},
			"cause":          {deadletter.Query{Cause: "by peer"}, 1},
			"since":          {deadletter.Query{Since: noon}, 1},
			"role and class": {deadletter.Query{Role: schemas.RoleCopier, Class: "permanent"}, 0},
		} {
			if got := letters(t, d, tt.q); len(got) != tt.want {
				t.Errorf("%s: %d letters, want %d", name, len(got), tt.want)
			}
			if (name != "all") != tt.q.Restricted() {
				t.Errorf("%s: narrow is %t", name, tt.q.Restricted())
			}
		}
		for _, id := range []string{"0-99", "9-0", "nonsense", "-1-0", "0--1", "", "0-"} {
			err := d.Each(t.Context(), deadletter.Query{IDs: []string{id}}, func(*deadletter.Letter) error { return nil })
			if !errors.Is(err, deadletter.ErrNotFound) {
				t.Errorf("%q: %v", id, err)
			}
		}
	})
}

// Decisions about a letter do not apply to a letter at the same offset of a recreated topic.
func TestRecreatedDeadTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Dead, Key: []byte("k"), Value: []byte("old")}})
		d := deadLetters(t, b)
		if r, err := d.Discard(t.Context(), deadletter.Query{IDs: []string{"0-0"}}, order()); err != nil || r.Done != 1 {
			t.Fatalf("got %+v, %v", r, err)
		}
		b.Recreate(schemas.Dead, 1)
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Dead, Key: []byte("k"), Value: []byte("new")}})
		d = deadLetters(t, b)
		if got := letters(t, d, deadletter.Query{}); len(got) != 1 || string(got[0].Value) != "new" {
			t.Errorf("open: %v", got)
		}
	})
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
