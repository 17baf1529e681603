package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// errRemade is wrapped by the errors that end a process since a topic that it reads was deleted.
var errTopicDeleted = errors.New("what the process holds is of the topic that was deleted")

// remade is the error of a topic that was deleted, and made again or not.
func topicDeleted(topic string, again bool) error {
	if !again {
		return fmt.Errorf("topic %s was deleted: %w. Make it again, then start the process", topic, errTopicDeleted)
	}
	return fmt.Errorf("topic %s was deleted and made again: %w. Start the process again: it reads the new topic from its start. "+
		"Brokers before Kafka 4.2 take commits by name, and may have taken one of the old topic as of the new one: "+
		"there, first set the offsets of its groups (kafka-consumer-groups.sh --reset-offsets --to-earliest)", topic, errTopicDeleted)
}

// DeletedTopics are the topics that the parts of a process have found deleted, whether or not they were made again. They
// are safe for concurrent use; a nil *DeletedTopics keeps nothing.
type DeletedTopics struct {
	mu    sync.Mutex // guards names
	names map[string]bool
}

func (d *DeletedTopics) add(name string) {
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

func (d *DeletedTopics) has(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[name]
}

// WatchTopics returns an error when a topic of the catalogue is deleted, whether or not it is made again. Clients do not
// get over that: they read nothing of the new topic, and of one that is only deleted they report nothing. A topic that
// two looks in a row do not see is deleted. From then on Config.Deleted has it, before tasks are drained. Without an error
// it returns nil when ctx is done.
func (a *Admin) WatchTopics(ctx context.Context) error {
	names := a.allTopicNames()
	known, missing := map[string]kadm.TopicID{}, map[string]bool{}
	for ctx.Err() == nil {
		now, err := a.adm.ListTopics(ctx, names...)
		if err != nil && ctx.Err() == nil {
			a.cfg.logger().Warn("look again whether topics were made again", "wait", metadataInterval, "err", err)
		}
		if err == nil {
			if err := detectDeleted(known, missing, now, a.cfg.Deleted); err != nil {
				return err
			}
		}
		_ = retry.Sleep(ctx, metadataInterval) // only ctx ends it early
	}
	return nil
}

// allNames are the names of all topics of the catalogue, and of those of others.
func (a *Admin) allTopicNames() (names []string) {
	for _, e := range schemas.Catalogue(a.cfg.laneNames()...) {
		names = append(names, a.cfg.topic(e.Topic))
	}
	return append(names, a.cfg.Foreign...)
}

// changed returns an error if a topic of known has another id by now, or is missing again. It notes in known those that
// are there, and in missing those of known that are not. What now says of a topic with an error is not known. deleted is
// given the topics of the error.
func detectDeleted(known map[string]kadm.TopicID, missing map[string]bool, now kadm.TopicDetails, deleted *DeletedTopics) error {
	var errs []error
	for _, t := range now.Sorted() {
		id, is := known[t.Topic]
		switch {
		case t.Err == nil && is && t.ID != id:
			deleted.add(t.Topic)
			errs = append(errs, topicDeleted(t.Topic, true))
		case t.Err == nil:
			known[t.Topic] = t.ID
			delete(missing, t.Topic)
		case !is || !errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		case missing[t.Topic]:
			deleted.add(t.Topic)
			errs = append(errs, topicDeleted(t.Topic, false))
		default:
			missing[t.Topic] = true
		}
	}
	return errors.Join(errs...)
}
