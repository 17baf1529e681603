package core

import "testing"

// The positions to save are the committed offsets and, for partitions without a commit, the saved ones of the
// same topic.
func TestMergeSavedOffsets(t *testing.T) {
	type offsets = map[int32]int64
	for name, tt := range map[string]struct {
		was  SavedOffsets
		id   string
		done offsets
		want SavedOffsets
	}{
		"nothing":   {SavedOffsets{}, "x", nil, SavedOffsets{"x", nil}},
		"committed": {SavedOffsets{}, "x", offsets{0: 3}, SavedOffsets{"x", offsets{0: 3}}},
		"kept":      {SavedOffsets{"x", offsets{1: 5}}, "x", nil, SavedOffsets{"x", offsets{1: 5}}},
		"both, of two partitions": {SavedOffsets{"x", offsets{1: 5}}, "x", offsets{0: 3},
			SavedOffsets{"x", offsets{0: 3, 1: 5}}},
		"a commit that moved": {SavedOffsets{"x", offsets{0: 3}}, "x", offsets{0: 4},
			SavedOffsets{"x", offsets{0: 4}}},
		"a commit that was moved back": {SavedOffsets{"x", offsets{0: 3}}, "x", offsets{0: 0},
			SavedOffsets{"x", offsets{0: 0}}},
		"kept of a former topic": {SavedOffsets{"y", offsets{1: 5}}, "x", offsets{0: 3},
			SavedOffsets{"x", offsets{0: 3}}},
	} {
		if got := tt.was.Merge(tt.id, tt.done); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
