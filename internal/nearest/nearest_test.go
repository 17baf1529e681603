package nearest_test

import (
	"testing"

	"github.com/millrace/millrace/internal/nearest"
)

func TestOf(t *testing.T) {
	known := []string{"brokers", "topic_prefix", "partitions", "tls", "sasl", "spacesToIgnore"}
	for word, want := range map[string]string{
		"brokrs": "brokers", "borkers": "brokers", "Brokers": "brokers", "topicprefix": "topic_prefix", "ssl": "sasl",
		"tsl":            "tls",
		"spacestoignore": "spacesToIgnore", "colour": "", "": "",
	} {
		t.Run(word, func(t *testing.T) {
			if got := nearest.Of(word, known); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
