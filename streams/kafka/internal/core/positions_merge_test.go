package core

import "testing"

// The positions to save are the committed offsets and, for partitions without a commit, the saved ones of the
// same topic.
func TestMergeSavedPositions(t *testing.T) {
	type offsets = map[int32]int64
	for name, tt := range map[string]struct {
		was  TopicPositions
		id   string
		done offsets
		want TopicPositions
	}{
		"nothing":   {TopicPositions{}, "x", nil, TopicPositions{"x", nil}},
		"committed": {TopicPositions{}, "x", offsets{0: 3}, TopicPositions{"x", offsets{0: 3}}},
		"kept":      {TopicPositions{"x", offsets{1: 5}}, "x", nil, TopicPositions{"x", offsets{1: 5}}},
		"both, of two partitions": {TopicPositions{"x", offsets{1: 5}}, "x", offsets{0: 3},
			TopicPositions{"x", offsets{0: 3, 1: 5}}},
		"a commit that moved": {TopicPositions{"x", offsets{0: 3}}, "x", offsets{0: 4},
			TopicPositions{"x", offsets{0: 4}}},
		"a commit that was moved back": {TopicPositions{"x", offsets{0: 3}}, "x", offsets{0: 0},
			TopicPositions{"x", offsets{0: 0}}},
		"kept of a former topic": {TopicPositions{"y", offsets{1: 5}}, "x", offsets{0: 3},
			TopicPositions{"x", offsets{0: 3}}},
	} {
		if got := tt.was.Merge(tt.id, tt.done); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
