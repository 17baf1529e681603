package ingest

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/ingest/hint"
)

// webhook goes before the names of topics that are none: those of what comes by webhook.
const webhook = "webhook/"

// WebhookTopic names what comes by webhook for an account, and for one of its stores where the sender says so; both
// may be empty. What waits, or is a dead letter, stands under this name.
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

// A noted answer says what became of a notification that was answered with 202: its hints will be looked into.
type noted struct {
	Accepted int `json:"accepted"` // hints that Kafka has acknowledged
	Ignored  int `json:"ignored"`  // those of which no Change tells
}

// notifications takes what object stores tell. It is written to Kafka as it is, and looked into from there, so that a
// store that is away is waited for.
func (h *Handler) notifications(r request) (any, *problem) {
	account, store := r.sender.account, r.URL.Query().Get("store")
	if account == "" {
		account = r.URL.Query().Get("account")
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
			return nil, refusal(http.StatusRequestEntityTooLarge, "too-large", "record %d has %d bytes, at most %d", i, n, schemas.MaxBytes)
		}
	}
	h.subscription(r)
	if p := h.publish(r, wayWebhook, msgs); p != nil {
		return nil, p
	}
	return noted{len(msgs), len(hints) - len(msgs)}, nil
}

// subscription tells of SNS, which wants to be told that its notifications are wanted. Whoever set it up does that: a
// process that opens every address it is sent would open others' too.
func (h *Handler) subscription(r request) {
	var s struct{ Type, TopicArn, SubscribeURL string }
	if json.Unmarshal(r.body, &s) == nil && s.Type == "SubscriptionConfirmation" {
		h.log.Warn("SNS asks to confirm a subscription: open the address if it is yours", "topic", s.TopicArn, "url", s.SubscribeURL, "account", r.sender.account)
	}
}
