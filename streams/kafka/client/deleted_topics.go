package client

import (
	"errors"
	"fmt"
	"sync"
)

// errTopicDeleted is wrapped by errors that end the process because a topic that it reads was deleted.
var errTopicDeleted = errors.New("this process holds state of the deleted topic")

// TopicDeletedError returns the error for a topic that was deleted and, if again is set, recreated.
func TopicDeletedError(topic string, recreated bool) error {
	if !recreated {
		return fmt.Errorf("topic %s was deleted: %w. Create it again, then start the process", topic, errTopicDeleted)
	}
	return fmt.Errorf("topic %s was deleted and recreated: %w. "+
		"Restart the process: it reads the new topic from its start. "+
		"Brokers before Kafka 4.2 take commits by name, and may have taken one of the old topic for the new one: "+
		"there, first set the offsets of its groups (kafka-consumer-groups.sh --reset-offsets --to-earliest)",
		topic, errTopicDeleted)
}

// DeletedTopics is the set of topics that the process has found deleted, recreated or not. It is safe for
// concurrent use. A nil *DeletedTopics ignores additions.
type DeletedTopics struct {
	mu    sync.Mutex // guards names
	names map[string]bool
}

// Add adds the topic with this name on the brokers.
func (d *DeletedTopics) Add(name string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil {
		d.names = map[string]bool{}
	}
	d.names[name] = true
}

// Has reports whether the topic with this name on the brokers was deleted.
func (d *DeletedTopics) Has(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[name]
}
