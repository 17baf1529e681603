package core

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A TopicID is the id of the topic with some name. An empty id without an error means that there is no such topic.
type TopicID struct {
	ID  string
	Err error
}

// errNoTopicIDs is returned for brokers without topic ids: Kafka before 2.8, and some other implementations.
var errNoTopicIDs = errors.New("the brokers report no topic ids")

// TopicIDs returns the ids of topics. It asks for them by name: a list of all topics leaves out those that the
// client may not describe, and kadm answers from a cache that may be seconds old.
func TopicIDs(ctx context.Context, cl *kgo.Client, names ...string) (map[string]TopicID, error) {
	req := kmsg.NewPtrMetadataRequest()
	for i := range names {
		req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{Topic: &names[i]})
	}
	if len(req.Topics) == 0 {
		return nil, nil
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, fmt.Errorf("look up topics: %w", err)
	}
	ids := map[string]TopicID{}
	for _, name := range names {
		ids[name] = TopicID{Err: fmt.Errorf("look up topic %s: it is missing in the response", name)}
	}
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			ids[*t.Topic] = TopicID{}
		case err != nil:
			ids[*t.Topic] = TopicID{Err: fmt.Errorf("look up topic %s: %w", *t.Topic, err)}
		case t.TopicID == [16]byte{}:
			ids[*t.Topic] = TopicID{Err: fmt.Errorf("look up topic %s: %w", *t.Topic, errNoTopicIDs)}
		default:
			ids[*t.Topic] = TopicID{ID: kadm.TopicID(t.TopicID).String()}
		}
	}
	return ids, nil
}
