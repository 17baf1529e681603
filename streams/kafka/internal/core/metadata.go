package core

import (
	"context"
	"errors"
	"fmt"
	"slices"

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

// Metadata asks a broker for topics by name: a list of all topics leaves out those that the client may not describe,
// and kadm fails for all if it may not describe one, and answers from a cache that may be seconds old.
func Metadata(ctx context.Context, cl *kgo.Client, names ...string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	for i := range names {
		req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{Topic: &names[i]})
	}
	if len(names) == 0 { // the request would be for all topics
		return new(kmsg.MetadataResponse), nil
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, fmt.Errorf("look up topics: %w", err)
	}
	resp.Topics = slices.DeleteFunc(resp.Topics, func(t kmsg.MetadataResponseTopic) bool { return t.Topic == nil })
	return resp, nil
}

// TopicIDs returns the ids of topics.
func TopicIDs(ctx context.Context, cl *kgo.Client, names ...string) (map[string]TopicID, error) {
	resp, err := Metadata(ctx, cl, names...)
	if err != nil {
		return nil, err
	}
	ids := map[string]TopicID{}
	for _, name := range names {
		ids[name] = TopicID{Err: fmt.Errorf("look up topic %s: it is missing in the response", name)}
	}
	for _, t := range resp.Topics {
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
