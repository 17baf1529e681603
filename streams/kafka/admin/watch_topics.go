package admin

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

// WatchTopics returns an error when a topic of the catalogue is deleted, even if it is recreated, and with the ingester
// among roles when a foreign topic is. The logins of other roles may not list foreign topics. Clients do not recover
// from that: they read nothing of a recreated topic, and report no error for a deleted one. A topic counts as deleted
// if it is missing in two listings in a row. It is added to Config.Deleted before WatchTopics returns, and so before
// tasks are drained. Topics that the login may not describe are not watched, which is logged once. WatchTopics returns
// nil when ctx is done.
func (a *Admin) WatchTopics(ctx context.Context, roles ...schemas.Role) error {
	names := a.catalogueNames()
	if slices.Contains(roles, schemas.RoleIngester) {
		names = append(names, a.cfg.Foreign...)
	}
	known, missing, refused := map[string]kadm.TopicID{}, map[string]bool{}, map[string]bool{}
	for ctx.Err() == nil {
		now, err := a.listTopics(ctx, names)
		if err != nil && ctx.Err() == nil {
			a.cfg.Logger().Warn("retry listing topics", "retry_after", client.MetadataInterval, "err", err)
		}
		if err == nil {
			logRefused(a.cfg.Logger(), refused, now)
			if err := detectDeleted(known, missing, now, a.cfg.Deleted); err != nil {
				return err
			}
		}
		_ = retry.Sleep(ctx, client.MetadataInterval) // the error is that of ctx
	}
	return nil
}

// listTopics asks a broker for the ids of topics.
func (a *Admin) listTopics(ctx context.Context, names []string) (kadm.TopicDetails, error) {
	resp, err := core.Metadata(ctx, a.cl, names...)
	if err != nil {
		return nil, err
	}
	now := kadm.TopicDetails{}
	for _, t := range resp.Topics {
		now[*t.Topic] = kadm.TopicDetail{Topic: *t.Topic, ID: t.TopicID, Err: kerr.ErrorForCode(t.ErrorCode)}
	}
	return now, nil
}

// catalogueNames returns the names of all topics of the catalogue.
func (a *Admin) catalogueNames() (names []string) {
	for _, e := range schemas.Catalogue(a.cfg.LaneNames()...) {
		names = append(names, a.cfg.Topic(e.Topic))
	}
	return names
}

// detectDeleted returns an error if a topic of known has another id now, or is missing for the second time. It
// updates known with the topics in now, and missing with topics of known that are not in now. Topics with other
// errors are skipped. Deleted topics are added to deleted.
func detectDeleted(
	known map[string]kadm.TopicID, missing map[string]bool, now kadm.TopicDetails, deleted *client.DeletedTopics,
) error {
	var errs []error
	for _, t := range now.Sorted() {
		id, is := known[t.Topic]
		switch {
		case t.Err == nil && is && t.ID != id:
			deleted.Add(t.Topic)
			errs = append(errs, client.TopicDeletedError(t.Topic, true))
		case t.Err == nil:
			known[t.Topic] = t.ID
			delete(missing, t.Topic)
		case !is || !errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		case missing[t.Topic]:
			deleted.Add(t.Topic)
			errs = append(errs, client.TopicDeletedError(t.Topic, false))
		default:
			missing[t.Topic] = true
		}
	}
	return errors.Join(errs...)
}

// logRefused logs the topics that the login may not describe any more, and those that it may describe again. refused
// are those of the last listing, which it updates.
func logRefused(log *slog.Logger, refused map[string]bool, now kadm.TopicDetails) {
	var lost, back []string
	for _, t := range now.Sorted() {
		is := errors.Is(t.Err, kerr.TopicAuthorizationFailed)
		switch {
		case is && !refused[t.Topic]:
			lost = append(lost, t.Topic)
		case !is && refused[t.Topic]:
			back = append(back, t.Topic)
		}
		refused[t.Topic] = is
	}
	if len(lost) > 0 {
		log.Warn("stop watching topics: the login lacks Describe on them, and a deleted one is not noticed",
			"topics", strings.Join(lost, ","))
	}
	if len(back) > 0 {
		log.Info("watch topics again", "topics", strings.Join(back, ","))
	}
}
