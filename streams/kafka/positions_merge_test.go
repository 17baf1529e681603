package kafka

import "testing"

// The positions to save are the committed offsets and, for partitions without a commit, the saved ones of the
// same topic.
func TestMergeSavedPositions(t *testing.T) {
	type offsets = map[int32]int64
	for name, tt := range map[string]struct {
		was  topicPositions
		id   string
		done offsets
		want topicPositions
	}{
		"nothing":   {topicPositions{}, "x", nil, topicPositions{"x", nil}},
		"committed": {topicPositions{}, "x", offsets{0: 3}, topicPositions{"x", offsets{0: 3}}},
		"kept":      {topicPositions{"x", offsets{1: 5}}, "x", nil, topicPositions{"x", offsets{1: 5}}},
		"both, of two partitions": {topicPositions{"x", offsets{1: 5}}, "x", offsets{0: 3},
			topicPositions{"x", offsets{0: 3, 1: 5}}},
		"a commit that moved": {topicPositions{"x", offsets{0: 3}}, "x", offsets{0: 4},
			topicPositions{"x", offsets{0: 4}}},
		"a commit that was moved back": {topicPositions{"x", offsets{0: 3}}, "x", offsets{0: 0},
			topicPositions{"x", offsets{0: 0}}},
		"kept of a former topic": {topicPositions{"y", offsets{1: 5}}, "x", offsets{0: 3},
			topicPositions{"x", offsets{0: 3}}},
	} {
		if got := tt.was.merge(tt.id, tt.done); !got.equal(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
