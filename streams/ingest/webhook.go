package ingest

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/ingest/hint"
)

// webhook is the prefix of the names of foreign topics that stand for notifications by webhook.
const webhook = "webhook/"

// WebhookTopic returns the topic of notifications by webhook for an account and store. Both may be empty. Notifications
// that wait or become dead letters have this topic.
func WebhookTopic(account, store string) schemas.Topic {
	return schemas.Foreign(webhook + account + "/" + store)
}

// Webhook is the inverse of WebhookTopic.
func Webhook(t schemas.Topic) (account, store string, ok bool) {
	name, _ := t.Foreign()
	if name, ok = strings.CutPrefix(name, webhook); ok {
		account, store, ok = strings.Cut(name, "/")
	}
	return account, store, ok
}

// An acceptedNotification is the response with status 202 to a notification. Its hints are handled later.
type acceptedNotification struct {
	Accepted int `json:"accepted"` // hints that Kafka has acknowledged
	Ignored  int `json:"ignored"`  // hints that never lead to a Change
}

// notifications handles the notification of an object store. It only writes the hints to Kafka. The ingester reads them
// from there, so that they can wait for a store that is unavailable.
func (h *Handler) notifications(r request) (any, *problem) {
	account, store := r.sender.account, r.URL.Query().Get("store")
	if account == "" {
		account = r.URL.Query().Get("account")
	}
	switch all := r.sender.stores; {
	case store == "" && len(all) == 1:
		store = all[0]
	case store == "" && len(all) > 1:
		return nil, refusal(http.StatusUnprocessableEntity, "store", "the token is for stores %q: name one: ?store=", all)
	case store != "" && !r.sender.may(store):
		return nil, refusal(http.StatusForbidden, "store", "the token is for stores %q, not for %q", all, store)
	}
	if store != "" && !h.stores.HasStore(account, store) {
		return nil, refusal(http.StatusUnprocessableEntity, "store", "account %q has no store %q", account, store)
	}
	hints, err := hint.Parse(r.body)
	if err != nil {
		h.metrics.events(wayWebhook, outcomeRefused, 1)
		return nil, refusal(http.StatusBadRequest, "form", "%v", err)
	}
	msgs := hint.Split(WebhookTopic(account, store), hints)
	for i, m := range msgs {
		if n := len(m.Key) + len(m.Value); n > schemas.MaxBytes {
			h.metrics.events(wayWebhook, outcomeRefused, len(msgs))
			return nil, refusal(http.StatusRequestEntityTooLarge, "too-large",
				"record %d has %d bytes, at most %d", i, n, schemas.MaxBytes)
		}
	}
	h.subscription(r)
	if p := h.publish(r, wayWebhook, msgs); p != nil {
		return nil, p
	}
	return acceptedNotification{len(msgs), len(hints) - len(msgs)}, nil
}

// subscription logs the request of SNS to confirm a subscription. The operator has to confirm it. The process does not
// open the URL itself, because anyone could make it open any URL.
func (h *Handler) subscription(r request) {
	var s struct{ Type, TopicArn, SubscribeURL string }
	if json.Unmarshal(r.body, &s) == nil && s.Type == "SubscriptionConfirmation" {
		h.log.Warn("confirm SNS subscription: open the URL if the subscription is yours",
			"topic", s.TopicArn, "url", s.SubscribeURL, "account", r.sender.account)
	}
}
