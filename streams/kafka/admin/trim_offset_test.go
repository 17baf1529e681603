package admin

import (
	"slices"
	"testing"
)

func TestTrimOffset(t *testing.T) {
	type commits = map[string]map[int32]int64
	at := func(n int64) map[int32]int64 { return map[int32]int64{0: n} }
	both := []string{"a", "b"}
	for name, tt := range map[string]struct {
		readers            []string
		commits            commits
		starts, ends, aged map[int32]int64
		want               int64
		blocks             []trimBlock
		lacked             map[int32]int64
		unsure             bool
	}{
		"up to the slowest reader": {both, commits{"a": at(7), "b": at(5)}, at(0), at(10), at(10), 5, nil, nil, false},
		"up to what is old":        {both, commits{"a": at(7), "b": at(5)}, at(0), at(10), at(3), 3, nil, nil, false},
		"nothing is old":           {both, commits{"a": at(7)}, at(2), at(10), at(2), 2, nil, nil, false},
		"trimmed before":           {both, commits{"a": at(7), "b": at(5)}, at(5), at(10), at(10), 5, nil, nil, false},
		"a reader below the start": {both, commits{"a": at(7), "b": at(1)}, at(5), at(10), at(10), 5, nil, nil, false},
		"a reader without a commit": {both, commits{"a": at(7), "b": {1: 9}}, at(0), at(10), at(10),
			0, []trimBlock{{"b", "t", false}}, nil, false},
		"both without": {both, commits{"a": {}, "b": {}}, at(0), at(10), at(10), 0,
			[]trimBlock{{"a", "t", false}, {"b", "t", false}}, nil, false},
		"a reader that is not known": {both, commits{"a": at(7)}, at(0), at(10), at(10), 0, nil, nil, false},
		"a reader beyond the end": {both, commits{"a": at(11), "b": at(5)}, at(0), at(10), at(10),
			0, []trimBlock{{"a", "t", true}}, nil, false},
		"empty, and never read":    {both, commits{"a": {}, "b": {}}, at(4), at(4), at(4), 4, nil, nil, false},
		"the start is not known":   {both, commits{"a": at(7), "b": at(5)}, nil, at(10), at(10), 0, nil, nil, false},
		"the end is not known":     {both, commits{"a": at(7), "b": at(5)}, at(0), nil, at(10), 0, nil, nil, false},
		"what is old is not known": {both, commits{"a": at(7), "b": at(5)}, at(0), at(10), nil, 0, nil, nil, false},
		// the latest record stays
		"all read, all old, one only": {[]string{"a"}, commits{"a": at(10)}, at(0), at(10), at(10), 9, nil, nil, false},
		"only the newest is left":     {[]string{"a"}, commits{"a": at(10)}, at(9), at(10), at(10), 9, nil, nil, false},
		"empty, and all read":         {[]string{"a"}, commits{"a": at(4)}, at(4), at(4), at(4), 4, nil, nil, false},
		"a table lacks some":          {both, commits{"a": at(7), "b": at(9)}, at(0), at(10), at(10), 3, nil, at(3), false},
		"a table lacks later ones":    {both, commits{"a": at(7), "b": at(5)}, at(0), at(10), at(10), 5, nil, at(6), false},
		"a table lacks all":           {both, commits{"a": at(7), "b": at(5)}, at(2), at(10), at(10), 2, nil, at(0), false},
		"another partition is lacked": {both, commits{"a": at(7), "b": at(5)}, at(0), at(10), at(10),
			5, nil, map[int32]int64{1: 0}, false},
		"what lacks is not known": {both, commits{"a": at(7), "b": at(5)}, at(2), at(10), at(10), 2, nil, nil, true},
	} {
		l := &trimState{name: "t", readers: tt.readers, commits: tt.commits, starts: tt.starts,
			ends: tt.ends, keptFrom: tt.aged, heldFrom: tt.lacked, heldUnknown: tt.unsure}
		if got, blocks := l.trimOffset(0); got != tt.want || !slices.Equal(blocks, tt.blocks) {
			t.Errorf("%s: %d, %v, want %d, %v", name, got, blocks, tt.want, tt.blocks)
		}
	}
}
