package pairs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

func TestPage(t *testing.T) {
	w := newHarness(t)
	w.config.Large = 100
	w.rules.Exclude = []string{"*.tmp"}
	w.source.has("a", "b", "c", "d.tmp", "e")
	w.destination.has("a", "b", "f")
	w.source.objects[1].Size, w.source.objects[2].Size, w.destination.objects[0].Size = 100, 99, -1
	live := &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Version: "v1", Size: 100, Time: timestamppb.New(when),
		Origin: pb.Origin_ORIGIN_CLIENT, MediaType: "a/b", Properties: map[string]string{"k": "v"}}
	w.records[copyOf("1", "b")] = &pb.CopyRecord{Manifest: live, Audit: live}
	page := w.mustPage("")
	want := map[string]int64{"equal": 0, "equal_bytes": 0, "missing": 2, "missing_bytes": 106, "extra": 1,
		"extra_bytes": 7, "different": 1, "different_bytes": 100, "excluded": 1, "excluded_bytes": 7, "unknown": 1,
		"unknown_bytes": 7}
	if !page.Last || page.Next != nil || !maps.Equal(page.Counts, want) || items(page) != "b c e f" {
		t.Errorf("got %s, %v, last %t; want %v", items(page), page.Counts, page.Last, want)
	}
	none := &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
	known := proto.CloneOf(live)
	known.MediaType, known.Properties = "", nil
	command := func(item string, f func(*pb.DuplicationCommand)) *pb.DuplicationCommand {
		c := &pb.DuplicationCommand{
			Id:      schemas.ID("sweep", round.ID, "acme/photos/"+item, "2"),
			Account: "acme", Space: "photos", Item: item, SourceStore: "1", DestinationStore: "2",
			Reason: pb.DuplicationReason_DUPLICATION_REASON_SWEEP, Priority: pb.Priority_PRIORITY_LOW, Cause: round.ID,
			Time: timestamppb.New(when), PolicyRevision: 4, IfAbsent: true, SourceRecord: none, DestinationRecord: none,
		}
		f(c)
		return c
	}
	for i, want := range []schemas.Message{
		{Topic: schemas.DuplicationLarge, Body: command("b", func(c *pb.DuplicationCommand) {
			c.Priority, c.Size, c.IfAbsent, c.SourceRecord = pb.Priority_PRIORITY_LARGE, 100, false, known
		})},
		{Topic: schemas.DuplicationLow, Body: command("c", func(c *pb.DuplicationCommand) { c.Size = 99 })},
		{Topic: schemas.DuplicationLow, Body: command("e", func(c *pb.DuplicationCommand) { c.Size = 7 })},
		{Topic: schemas.DuplicationLow, Body: command("f", func(c *pb.DuplicationCommand) { c.SizeUnknown = true })},
	} {
		if got := page.Messages[i]; got.Topic != want.Topic || !proto.Equal(got.Body, want.Body) {
			t.Errorf("got  %s %v\nwant %s %v", got.Topic, got.Body, want.Topic, want.Body)
		}
	}
	order := []string{"marker 1", "marker 2", "list 1", "list 2", "marker 1", "marker 2", "records"}
	if !slices.Equal(w.calls, order) {
		t.Errorf("calls %v, want %v", w.calls, order)
	}
	again := w.mustPage("")
	for i, m := range again.Messages {
		if !proto.Equal(m.Body, page.Messages[i].Body) {
			t.Errorf("the same page has another message: %v", m)
		}
	}
}

// A page without differences reads no records.
func TestPageOfEqualItems(t *testing.T) {
	w := newHarness(t)
	w.source.has("a", "b")
	w.destination.has("a", "b")
	page := w.mustPage("")
	if !page.Last || len(page.Messages) > 0 || page.Counts["equal"] != 2 || page.Counts["equal_bytes"] != 14 ||
		slices.Contains(w.calls, "records") {
		t.Errorf("got %+v after %v", page, w.calls)
	}
}

func TestPageBounds(t *testing.T) {
	for name, tt := range map[string]struct {
		entries, commands int
		want              []string
	}{
		"of entries":          {2, 0, []string{"a, next b", "c, next d", "e, last"}},
		"of commands":         {0, 2, []string{"a c, next c", "e, last"}},
		"of one entry":        {1, 0, []string{"a, next a", ", next b", "c, next c", ", next d", "e, next e", ", last"}},
		"of all commands":     {0, 3, []string{"a c e, next e", ", last"}},
		"the defaults":        {0, 0, []string{"a c e, last"}},
		"whichever is first":  {2, 1, []string{"a, next a", "c, next c", "e, next e", ", last"}},
		"larger than all":     {6, 4, []string{"a c e, last"}},
		"as many as there is": {5, 0, []string{"a c e, next e", ", last"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.config.MaxEntries, w.config.MaxCommands = tt.entries, tt.commands
			w.source.has("a", "b", "d", "e")
			w.destination.has("b", "c", "d")
			var got []string
			for cursor := ""; ; {
				p := w.mustPage(cursor)
				if p.Last {
					got = append(got, items(p)+", last")
					break
				}
				cursor = string(p.Next)
				got = append(got, items(p)+", next "+cursor)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFull(t *testing.T) {
	w := newHarness(t)
	w.config.Full = true
	w.rules.Exclude = []string{"*.tmp"}
	w.source.has("a", "b", "c.tmp", "d")
	w.destination.has("a", "b", "c.tmp")
	w.source.objects[1].Size = -1
	page := w.mustPage("")
	if got := items(page); got != "/ a b d" || page.Emitted != 4 || page.Counts["equal"] != 1 {
		t.Errorf("got %s, %v", got, page.Counts)
	}
	if got := items(w.mustPage("a")); got != "b d" {
		t.Errorf("the second page has %s", got)
	}
}

func TestSpaces(t *testing.T) {
	for name, tt := range map[string]struct {
		noSource, noDestination bool
		source, destination     []string
		cursor                  string
		full                    bool
		want                    string
	}{
		"only at the source":              {false, true, []string{"a"}, nil, "", false, "/ a"},
		"only at the source, empty":       {false, true, nil, nil, "", false, "/"},
		"only at the destination":         {true, false, nil, []string{"a"}, "", false, "/ a"},
		"only at the destination, empty":  {true, false, nil, nil, "", false, "/"},
		"on neither side":                 {true, true, nil, nil, "", false, ""},
		"on neither side, full":           {true, true, nil, nil, "", true, ""},
		"on both, empty":                  {false, false, nil, nil, "", false, ""},
		"on both, empty, full":            {false, false, nil, nil, "", true, "/"},
		"only at the source, second page": {false, true, []string{"a", "b"}, nil, "a", false, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.config.Full = tt.full
			w.source.has(tt.source...)
			w.destination.has(tt.destination...)
			w.source.noSpace, w.destination.noSpace = tt.noSource, tt.noDestination
			page := w.mustPage(tt.cursor)
			if got := items(page); got != tt.want || !page.Last || page.Emitted != int64(len(page.Messages)) {
				t.Errorf("got %q, %v; want %q", got, page.Counts, tt.want)
			}
			if n := slices.IndexFunc(commands(page), func(c *pb.DuplicationCommand) bool { return c.GetItem() == "" }); n == 0 {
				c := commands(page)[0]
				if page.Messages[0].Topic != schemas.DuplicationLow || c.GetSourceRecord() != nil || !c.GetIfAbsent() {
					t.Errorf("got %v", page.Messages[0])
				}
			}
		})
	}
}

func TestNotInPolicy(t *testing.T) {
	for name, f := range map[string]func(*harness){
		"no policy":  func(w *harness) { w.noPolicy = true },
		"other pair": func(w *harness) { w.rules.Pairs = []policy.Pair{{Source: "2", Destination: "1"}} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.source.has("a")
			f(w)
			if _, err := w.page(""); !errors.Is(err, ErrNotInPolicy) || !retry.IsPermanent(err) || len(w.calls) > 0 {
				t.Errorf("got %v, after %v", err, w.calls)
			}
		})
	}
}

func TestExclusionLists(t *testing.T) {
	const text = "a\nc\n"
	sum := sha256.Sum256([]byte(text))
	ref := policy.ExcludeList{URL: "https://x/y", SHA256: hex.EncodeToString(sum[:]), Of: policy.OfIDs}
	list, err := policy.ReadList(strings.NewReader(text), ref)
	if err != nil {
		t.Fatal(err)
	}
	w := newHarness(t)
	w.rules.ExcludeLists, w.lists = []policy.ExcludeList{ref}, []*policy.List{list}
	w.source.has("a", "b", "c")
	if page := w.mustPage(""); items(page) != "b" || page.Counts["excluded"] != 2 {
		t.Errorf("got %s, %v", items(page), page.Counts)
	}
	s, err := New(w.config, Deps{Source: w.source, Destination: w.destination, Rules: w, Records: w})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s(t.Context(), round, nil); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("without lists: got %v, want an error of class unavailable", err)
	}
	w.lists = nil
	if _, err := w.page(""); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("with a missing list: got %v, want an error of class unavailable", err)
	}
}

func TestNewRefuses(t *testing.T) {
	w := newHarness(t)
	good := Deps{Source: w.source, Destination: w.destination, Rules: w, Records: w}
	for name, f := range map[string]func(*Config, *Deps){
		"no account":      func(c *Config, _ *Deps) { c.Account = "" },
		"no space":        func(c *Config, _ *Deps) { c.Space = "" },
		"one store":       func(c *Config, _ *Deps) { c.Destination = "1" },
		"negative":        func(c *Config, _ *Deps) { c.MaxEntries = -1 },
		"no destination":  func(_ *Config, d *Deps) { d.Destination = nil },
		"no rules":        func(_ *Config, d *Deps) { d.Rules = nil },
		"no records":      func(_ *Config, d *Deps) { d.Records = nil },
		"negative large":  func(c *Config, _ *Deps) { c.Large = -1 },
		"no source store": func(_ *Config, d *Deps) { d.Source = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c, d := w.config, good
			f(&c, &d)
			if _, err := New(c, d); err == nil {
				t.Error("got no error")
			}
		})
	}
}

// Items that are not selected count as excluded, also in a full round.
func TestItemsThatAreExcluded(t *testing.T) {
	w := newHarness(t)
	w.source.has("a", "b.tmp")
	w.destination.has("c.tmp")
	w.config.Items = func(item string) bool { return !strings.HasSuffix(item, ".tmp") }
	for _, w.config.Full = range []bool{false, true} {
		page := w.mustPage("")
		if got := items(page); !strings.HasSuffix(got, "a") || strings.Contains(got, "tmp") || page.Counts["excluded"] != 2 {
			t.Errorf("full %t: got %q, %v", w.config.Full, got, page.Counts)
		}
	}
}
