package kafka

import "testing"

// The stream that has most is the one that is stored, and no more than Parallel are at it.
func TestHurry(t *testing.T) {
	for name, tt := range map[string]struct {
		bytes []int64
		taken []bool
		want  int // the one that is to store what it has; -1: none
	}{
		"nothing is read":       {[]int64{0, 0}, []bool{false, false}, -1},
		"the largest":           {[]int64{3, 9, 5}, []bool{false, false, false}, 1},
		"of those that wait":    {[]int64{3, 9, 5}, []bool{false, true, false}, 2},
		"as many as may are":    {[]int64{3, 9, 5}, []bool{false, true, true}, -1},
		"the others have none":  {[]int64{0, 9, 0}, []bool{false, true, false}, -1},
		"one that is at it yet": {[]int64{0, 9, 1}, []bool{false, true, false}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := &BatchGroup{cfg: BatchConfig{Parallel: 2}, streams: map[partition]*stream{}}
			all := make([]*stream, len(tt.bytes))
			for i := range all {
				all[i] = &stream{partition: partition{"changes", int32(i)}, bytes: tt.bytes[i], taken: tt.taken[i], wake: make(chan struct{}, 1)}
				g.streams[all[i].partition] = all[i]
			}
			g.hurry()
			for i, s := range all {
				if s.due != (i == tt.want) {
					t.Errorf("stream %d: due is %v", i, s.due)
				}
			}
		})
	}
}
