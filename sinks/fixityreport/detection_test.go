package fixityreport

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// A sample finds damage to n copies with the probability 1 - (1 - p)^n. All bytes find everything, and none nothing.
func TestDetections(t *testing.T) {
	for name, tt := range map[string]struct {
		percent int
		copies  int64
		want    []Detection
		text    string
	}{
		"all bytes": {100, 1000, nil, ""},
		"a sample": {5, 1000, []Detection{{1, 0.05}, {10, 0.401263060762}, {100, 0.99407947078}},
			"5.0% of 1, 40.1% of 10, 99.4% of 100"},
		"few copies":  {10, 99, []Detection{{1, 0.1}, {10, 0.6513215599}}, "10.0% of 1, 65.1% of 10"},
		"almost all":  {99, 100, []Detection{{1, 0.99}, {10, 1}, {100, 1}}, "99.0% of 1, 100.0% of 10, 100.0% of 100"},
		"no bytes":    {0, 10, []Detection{{1, 0}, {10, 0}}, "0.0% of 1, 0.0% of 10"},
		"empty space": {5, 0, nil, ""},
	} {
		got := Detections(tt.percent, tt.copies)
		if !slices.Equal(got, tt.want) || DetectionText(got) != tt.text {
			t.Errorf("%s: got %v, %q; want %v, %q", name, got, DetectionText(got), tt.want, tt.text)
		}
	}
}

// The report of a round over a sample says what the sample finds; that of a round that reads all does not.
func TestDetectionInReports(t *testing.T) {
	sampled := round(map[string]int64{"pass": 20, "live": 20, "verified": 1, "read_percent": 5}, true)
	read := round(map[string]int64{"pass": 20, "live": 20, "verified": 20}, true)
	var got []jsonRound
	if err := json.Unmarshal([]byte(write(t, JSON, sampled, read)), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || len(got[0].Detection) != 2 || got[0].Detection[0] != (Detection{1, 0.05}) ||
		got[1].Detection != nil {
		t.Errorf("got %+v", got)
	}
	const cell, note = "<td>5.0% of 1, 40.1% of 10</td>", "the probability that the checks"
	if text := write(t, HTML, sampled, read); !strings.Contains(text, cell) || !strings.Contains(text, note) {
		t.Errorf("the page lacks the probabilities:\n%s", text)
	}
	if text := write(t, HTML, read); !strings.Contains(text, "<td></td>") || strings.Contains(text, note) {
		t.Errorf("the page has probabilities without a sample:\n%s", text)
	}
}
