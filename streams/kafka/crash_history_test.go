package kafka

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What a commit records about deaths, and how the next owner reads it.
func TestCrashHistory(t *testing.T) {
	for name, tt := range map[string]struct {
		text      string
		committed int64
		want      crashHistory
	}{
		"of another": {"member-1", 10, crashHistory{deaths: map[int64]int{}}},
		"none":       {"", 10, crashHistory{deaths: map[int64]int{}}},
		"a stop":     {"millrace/1 A closed 0", 10, crashHistory{deaths: map[int64]int{}}},
		"our own":    {"millrace/1 B open 0 12:0* 14:0*", 10, crashHistory{deaths: map[int64]int{}}},
		"a death": {"millrace/1 A open 0 12:0* 14:0*", 10,
			crashHistory{deaths: map[int64]int{12: 1, 14: 1}, horizon: 138}},
		"a second one": {"millrace/1 A open 74 12:1* 14:1", 10,
			crashHistory{deaths: map[int64]int{12: 2, 14: 1}, horizon: 74}},
		"a stop after a death": {"millrace/1 A closed 74 12:2", 11,
			crashHistory{deaths: map[int64]int{12: 2}, horizon: 74}},
		"below the commit":     {"millrace/1 A closed 74 12:2", 80, crashHistory{deaths: map[int64]int{}}},
		"a death past horizon": {"millrace/1 A open 74", 80, crashHistory{deaths: map[int64]int{}, horizon: 208}},
		"unreadable": {"millrace/1 A open x 12 a:1 13:b*", 10,
			crashHistory{deaths: map[int64]int{}, horizon: 138}},
		"nothing but the opening": {"millrace/1 A open 0", 10, crashHistory{deaths: map[int64]int{}, horizon: 138}},
		"a death, one made progress": {"millrace/1 A open 0 12:0* 14:0", 10,
			crashHistory{deaths: map[int64]int{12: 1, 14: 0}, horizon: 138}},
		"a stop, one made progress": {"millrace/1 A closed 0 14:0", 10, crashHistory{deaths: map[int64]int{}}},
		"a stop, and more is done": {"millrace/1 A closed 0 ahead=900/3:AAU", 10,
			crashHistory{deaths: map[int64]int{}, completed: completedAhead{kgo.EpochOffset{Epoch: 3, Offset: 900},
				[]int64{10, 15}}}},
		"a death, and more is done": {"millrace/1 A open 0 ahead=900/3:AA 10:0*", 10,
			crashHistory{deaths: map[int64]int{10: 1}, horizon: 1028,
				completed: completedAhead{kgo.EpochOffset{Epoch: 3, Offset: 900}, []int64{10}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parseCrashHistory(tt.text, tt.committed, 64, "B"); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	c := crashHistory{deaths: map[int64]int{12: 1, 14: 2}, horizon: 74}
	for name, tt := range map[string]struct {
		open      bool
		committed int64
		now       map[int64]bool
		want      string
	}{
		"running": {true, 10, map[int64]bool{12: true, 20: true},
			"millrace/1 A open 74 14:2 12:1* 20:1*"},
		"past all":                  {false, 80, nil, ""},
		"progress after two deaths": {true, 10, map[int64]bool{14: false}, "millrace/1 A open 74 12:1 14:0"},
		"progress, beyond the horizon": {true, 10, map[int64]bool{90: false},
			"millrace/1 A open 74 14:2 12:1 90:0"},
		"progress while stopping": {false, 80, map[int64]bool{90: false}, ""},
		"suspect while stopping":  {true, 80, map[int64]bool{90: true}, "millrace/1 A open 0 90:0*"},
	} {
		if got := c.encode("A", tt.open, tt.committed, tt.now, completedAhead{}); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// Which later records a commit records as done, and what follows for a record.
func TestCompletedAhead(t *testing.T) {
	a := completedAhead{kgo.EpochOffset{Epoch: 3, Offset: 900}, []int64{100, 105, 700}}
	if got, want := a.encode(100), " ahead=900/3:AAXTBA"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := a.encode(900); got != "" {
		t.Errorf("got %q", got)
	}
	for name, tt := range map[string]struct {
		word      string
		committed int64
		want      completedAhead
	}{
		"as written":             {"ahead=900/3:AAXTBA", 100, a},
		"nothing is left":        {"ahead=900/3:", 100, completedAhead{end: a.end}},
		"it is committed":        {"ahead=900/3:AAXTBA", 900, completedAhead{}},
		"another word":           {"45:1*", 10, completedAhead{}},
		"without an epoch":       {"ahead=900:AA", 10, completedAhead{}},
		"without the unfinished": {"ahead=900/3", 10, completedAhead{}},
		"no base64":              {"ahead=900/3:A~", 10, completedAhead{}},
		"half a number":          {"ahead=900/3:gA", 10, completedAhead{}},
		"a step beyond the end":  {"ahead=900/3:0wQ", 500, completedAhead{}},
		"a large epoch":          {"ahead=900/99999999999:AA", 10, completedAhead{}},
	} {
		if got := parseCompletedAhead(tt.word, tt.committed); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
	for name, tt := range map[string]struct {
		offset int64
		epoch  int32
		want   bool
	}{
		"done":                                   {101, 3, true},
		"of an earlier leader":                   {101, 2, true},
		"left":                                   {105, 3, false},
		"behind the end":                         {900, 3, false},
		"written after the log had lost its end": {101, 4, false},
	} {
		if got := a.isDone(tt.offset, tt.epoch); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
	many := completedAhead{end: kgo.EpochOffset{Offset: 1 << 41}}
	suspects := map[int64]bool{}
	for i := range int64(8192) {
		many.unfinished = append(many.unfinished, 1<<40+8192*i)
		suspects[1<<40+8192*i] = true
	}
	text := new(crashHistory).encode("A", true, 1<<40, suspects, many)
	if len(text) > 4096 {
		t.Errorf("%d bytes of metadata, want at most what brokers accept", len(text))
	}
	got := parseCrashHistory(text, 1<<40, 64, "B").completed
	if n := len(got.unfinished); n < maxStragglers || got.end.Offset != many.unfinished[n] ||
		!slices.Equal(got.unfinished, many.unfinished[:n]) {
		t.Errorf("got %d that are left below %d, want the first ones, to the first that is not named", n, got.end.Offset)
	}
}

// Records that a process committed as done stay committed until a later owner has read all of them.
func TestCompletedAheadIsKept(t *testing.T) {
	c := parseCrashHistory("millrace/1 A closed 0 ahead=900/3:AAXTBA", 100, 64, "B")
	later := completedAhead{kgo.EpochOffset{Epoch: 4, Offset: 1000}, []int64{105}}
	for name, tt := range map[string]struct {
		committed int64
		more      completedAhead
		want      string
	}{
		"some is committed": {105, completedAhead{}, "millrace/1 A open 0 ahead=900/3:ANME"},
		"all is committed":  {905, completedAhead{}, "millrace/1 A open 0"},
		"more is done":      {105, later, "millrace/1 A open 0 ahead=1000/4:AA"},
	} {
		if got := c.encode("A", true, tt.committed, nil, tt.more); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
