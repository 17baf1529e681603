package kafka

import "testing"

// What is kept of a topic is what was committed and, of partitions without a commit, what was kept of the same topic.
func TestMergeOfKeptTopics(t *testing.T) {
	type offsets = map[int32]int64
	for name, tt := range map[string]struct {
		was  keptTopic
		id   string
		done offsets
		want keptTopic
	}{
		"nothing":                      {keptTopic{}, "x", nil, keptTopic{"x", nil}},
		"committed":                    {keptTopic{}, "x", offsets{0: 3}, keptTopic{"x", offsets{0: 3}}},
		"kept":                         {keptTopic{"x", offsets{1: 5}}, "x", nil, keptTopic{"x", offsets{1: 5}}},
		"both, of two partitions":      {keptTopic{"x", offsets{1: 5}}, "x", offsets{0: 3}, keptTopic{"x", offsets{0: 3, 1: 5}}},
		"a commit that moved":          {keptTopic{"x", offsets{0: 3}}, "x", offsets{0: 4}, keptTopic{"x", offsets{0: 4}}},
		"a commit that was moved back": {keptTopic{"x", offsets{0: 3}}, "x", offsets{0: 0}, keptTopic{"x", offsets{0: 0}}},
		"kept of a former topic":       {keptTopic{"y", offsets{1: 5}}, "x", offsets{0: 3}, keptTopic{"x", offsets{0: 3}}},
	} {
		if got := tt.was.merge(tt.id, tt.done); !got.equal(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
