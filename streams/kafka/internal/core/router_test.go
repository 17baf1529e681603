package core

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

func TestPick(t *testing.T) {
	for name, tt := range map[string]struct {
		left time.Duration
		want string
	}{
		"overdue":             {-time.Hour, "30s"},
		"shorter than all":    {time.Second, "30s"},
		"just under a lane":   {5*time.Minute - 1, "30s"},
		"a lane":              {5 * time.Minute, "5m"},
		"between":             {59 * time.Minute, "5m"},
		"longer than all":     {100 * time.Hour, "1d"},
		"under the longest":   {24*time.Hour - 1, "1h"},
		"exactly the longest": {24 * time.Hour, "1d"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := LaneFor(client.Config{}.DelayLanes(), tt.left).Name; got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestNth(t *testing.T) {
	for name, tt := range map[string]struct {
		lanes []client.Lane
		limit time.Duration
		want  string
	}{
		"no limit":    {client.Config{}.DelayLanes(), 0, "30s 5m 1h 1d 1d"},
		"unavailable": {client.Config{}.DelayLanes(), maxUnavailableLane, "30s 5m 5m 5m 5m"},
		"store":       {client.Config{}.DelayLanes(), maxNamedLane, "30s 30s 30s 30s 30s"},
		"all are longer": {[]client.Lane{{Name: "1h", Delay: time.Hour}, {Name: "2h", Delay: 2 * time.Hour}},
			maxUnavailableLane, "1h 1h 1h 1h 1h"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for n := range 5 {
				got = append(got, laneForWait(tt.lanes, n, tt.limit).Name)
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("got %s, want %s", s, tt.want)
			}
		})
	}
}

// A header can only date a record of its own topic earlier than Kafka does.
func TestTimeOfRecord(t *testing.T) {
	kafka := time.UnixMilli(1_700_000_000_000)
	for name, tt := range map[string]struct {
		topic, stamp string
		want         int64
	}{
		"no header":                   {"", "", 1_700_000_000_000},
		"sent again":                  {"changes", "1600000000000", 1_600_000_000_000},
		"later than the record":       {"changes", "1800000000000", 1_700_000_000_000},
		"a letter, of another record": {"policies", "1600000000000", 1_700_000_000_000},
		"no topic":                    {"", "1600000000000", 1_700_000_000_000},
		"no number":                   {"changes", "yesterday", 1_700_000_000_000},
		"before all time":             {"changes", "-9223372036854775808", 1_700_000_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &kgo.Record{Timestamp: kafka}
			for key, v := range map[string]string{
				schemas.HeaderOriginTopic: tt.topic, schemas.HeaderOriginTimestamp: tt.stamp} {
				if v != "" {
					rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: key, Value: []byte(v)})
				}
			}
			var d schemas.Delivery
			r := NewRouter(client.Config{}, schemas.RoleState, 0)
			ir := &Record{Raw: rec, Topic: NewTopic(client.Config{}, "changes")}
			if r.FillDelivery(ir, &d); d.Timestamp.UnixMilli() != tt.want {
				t.Errorf("got %v", d.Timestamp)
			}
			if h := r.RetryHeaders(ir); !h.Timestamp.Equal(d.Timestamp) {
				t.Errorf("its letter would have %v", h.Timestamp)
			}
		})
	}
}

func TestAfter(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000).UTC()
	err := errors.New("reset")
	type result struct {
		topic                        string
		attempts, waits, unavailable int
		due                          time.Duration
	}
	for name, tt := range map[string]struct {
		trail RetryHeaders
		err   error
		want  result
	}{
		"transient, first":  {RetryHeaders{}, err, result{"delay.30s", 1, 0, 0, 30 * time.Second}},
		"transient, second": {RetryHeaders{Attempts: 1}, err, result{"delay.5m", 2, 0, 0, 5 * time.Minute}},
		"transient, fourth": {RetryHeaders{Attempts: 3, unavailable: 7}, err,
			result{"delay.1d", 4, 0, 0, 24 * time.Hour}},
		"transient, last": {RetryHeaders{Attempts: 4}, err, result{"dead", 5, 0, 0, 0}},
		"unavailable, at last": {RetryHeaders{Attempts: 4}, retry.Unavailable(err),
			result{"delay.30s", 4, 0, 1, 30 * time.Second}},
		"unavailable, often": {RetryHeaders{unavailable: 99}, retry.Unavailable(err),
			result{"delay.5m", 0, 0, 100, 5 * time.Minute}},
		"wait, without a due time": {RetryHeaders{Attempts: 4, Waits: 1}, retry.Wait(err, time.Time{}),
			result{"delay.5m", 4, 2, 0, 5 * time.Minute}},
		"wait, until then": {RetryHeaders{}, retry.Wait(err, now.Add(7*time.Hour)),
			result{"delay.1h", 0, 1, 0, 7 * time.Hour}},
		"wait, until the past": {RetryHeaders{}, retry.Wait(err, now.Add(-time.Hour)),
			result{"delay.30s", 0, 1, 0, 30 * time.Second}},
		"permanent":               {RetryHeaders{Attempts: 1}, retry.Permanent(err), result{"dead", 2, 0, 0, 0}},
		"permanent, deep inside":  {RetryHeaders{}, fmt.Errorf("copy: %w", retry.Permanent(err)), result{"dead", 1, 0, 0, 0}},
		"permanent by outer mark": {RetryHeaders{}, retry.Permanent(retry.Unavailable(err)), result{"dead", 1, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRouter(client.Config{Brokers: []string{"x"}}, schemas.RoleCopier, 0)
			rec := &kgo.Record{Key: []byte("k"), Value: []byte("v"),
				Headers: []kgo.RecordHeader{{Key: "ce_id", Value: []byte("1")}, {Key: schemas.HeaderAfter, Value: []byte("stale")}}}
			out := r.FailureRecord(&Record{Raw: rec, RetryHeaders: &tt.trail}, tt.err, now)
			tr := ParseRetryHeaders(out.Headers)
			got := result{out.Topic, tr.Attempts, tr.Waits, tr.unavailable, tr.After}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if string(out.Key) != "k" || string(out.Value) != "v" || out.Headers[0].Key != "ce_id" {
				t.Errorf("got %q %q %v: not the original", out.Key, out.Value, out.Headers)
			}
		})
	}
}

// Retry headers are parsed as they were written, the history stays bounded however a message fails, and other
// headers are unchanged.
func TestRetryHeaders(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(1_700_000_000_000).UTC()
		want := RetryHeaders{
			Topic: "changes", Partition: rapid.Int32Min(0).Draw(t, "partition"), Offset: rapid.Int64Min(0).Draw(t, "offset"),
			Timestamp: at.Local(), Role: "copier", Due: at.Add(time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "due"))),
			After:    time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "after")),
			Attempts: rapid.IntRange(0, 9).Draw(t, "attempts"), Waits: rapid.IntRange(0, 9).Draw(t, "waits"),
			unavailable: rapid.IntRange(0, 9).Draw(t, "unavailable"), Class: "transient", Err: rapid.String().Draw(t, "err"),
		}
		for _, cause := range rapid.SliceOfN(rapid.StringMatching("[a-z-]{1,12}"), 0, 12).Draw(t, "causes") {
			want.addWait(cause)
		}
		failures := rapid.SliceOfN(rapid.StringN(0, 3000, -1), 0, 30).Draw(t, "failures")
		for i, text := range failures {
			want.addFailure(Failure{Attempt: i, Class: "transient", Error: text, First: at, Last: at, Times: 1})
		}
		if len(want.History) > maxHistory {
			t.Fatalf("%d entries", len(want.History))
		}
		if n := len(want.History); n > 0 && (want.History[0].Attempt >= want.History[n-1].Attempt && n > 1 ||
			want.History[n-1].Error != cut(failures[len(failures)-1], maxError)) {
			t.Fatalf("not the first and the newest: %v", want.History)
		}
		old := []kgo.RecordHeader{{Key: "ce_id", Value: []byte("1")}, {Key: schemas.HeaderOriginOffset, Value: []byte("7")}}
		hs := want.Apply(old)
		if hs[0].Key != "ce_id" || slices.ContainsFunc(hs, func(h kgo.RecordHeader) bool {
			return h.Key == schemas.HeaderOriginOffset && string(h.Value) == "7" && want.Offset != 7
		}) {
			t.Fatalf("headers %v", hs)
		}
		got := ParseRetryHeaders(hs)
		want.Err = cut(want.Err, maxStack)
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
	})
}

// Waits are counted by cause, in any order. A wait without a cause only counts as a wait. A cause beyond the
// limit counts all waits, so that no message waits forever.
func TestWaitsAreCountedByCause(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000).UTC()
	r := NewRouter(client.Config{Brokers: []string{"x"}}, schemas.RoleCopier, 0)
	rec := &kgo.Record{Topic: r.Config.Topic(schemas.Again(schemas.RoleCopier)), Key: []byte("k"), Value: []byte("v"),
		Headers: RetryHeaders{Topic: schemas.DuplicationHigh}.Apply(nil)}
	wait := func(cause string) {
		t.Helper()
		err := retry.Wait(errors.New("not yet"), time.Time{})
		if cause != "" {
			err = fmt.Errorf("row: %w", retry.WaitFor(cause, errors.New("not yet"), time.Time{}))
		}
		rec = &kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value,
			Headers: r.FailureRecord(&Record{Raw: rec, Topic: NewTopic(r.Config, rec.Topic)}, err, now).Headers}
	}
	counts := func() (got schemas.Delivery) {
		r.FillDelivery(&Record{Raw: rec, Topic: NewTopic(r.Config, rec.Topic)}, &got)
		return got
	}
	for _, cause := range []string{"newer", "newer", "missing", "", "newer"} {
		wait(cause)
	}
	d := counts()
	if d.Waits != 5 || d.WaitsFor("newer") != 3 || d.WaitsFor("missing") != 1 || d.WaitsFor("chunks") != 0 {
		t.Errorf("got %d waits, of them %v", d.Waits, d.WaitsBy)
	}
	third := client.Config{}.DelayLanes()[2].Delay // of its cause
	if after := ParseRetryHeaders(rec.Headers).After; after != third {
		t.Errorf("due after %v after the fifth", after)
	}
	for i := range 20 {
		wait(fmt.Sprint("cause-", i))
	}
	if d = counts(); len(d.WaitsBy) != schemas.MaxCauses || d.WaitsFor("newer") != 3 ||
		d.WaitsFor("cause-19") != d.Waits || d.Waits != 25 {
		t.Errorf("got %d waits, of them %v", d.Waits, d.WaitsBy)
	}
}

// Headers that anyone may have written cause no failure.
func FuzzParseRetryHeaders(f *testing.F) {
	f.Add(schemas.HeaderAttempts, []byte("-3"))
	f.Add(schemas.HeaderHistory, []byte(`[{"attempt":1}]`))
	f.Add(schemas.HeaderDue, []byte("tomorrow"))
	f.Add(schemas.HeaderAfter, []byte("-1y"))
	f.Add(schemas.HeaderWaitsByCause, []byte("a=1 b=-2 =3 c"))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		tr := ParseRetryHeaders([]kgo.RecordHeader{{Key: key, Value: value}})
		if tr.Attempts < 0 || tr.Waits < 0 || tr.unavailable < 0 {
			t.Errorf("got %+v", tr)
		}
		ParseRetryHeaders(tr.Apply(nil))
	})
}
