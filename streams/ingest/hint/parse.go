package hint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/jsonpart"
)

// Bounds of a notification.
const (
	maxDepth = 4    // envelopes in envelopes
	maxHints = 1000 // in one notification
)

// errForm is wrapped by the errors of Parse: the bytes are no notification that this version knows.
var errForm = errors.New("not a notification of an object store")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errForm, fmt.Sprintf(format, args...))
}

// Parse reads a notification: what object stores write to a topic or send to a webhook, and the envelopes of the
// services in between. Notifications that tell of nothing, such as s3:TestEvent, hold no hints.
//
//	{"Records": [...]}                     AWS, MinIO (beside EventName and Key), Ceph, versitygw
//	[...]                                  older versitygw
//	{"EventName", "Key"}                   MinIO without records
//	{"detail-type", "detail"}              EventBridge
//	{"Type": "Notification", "Message"}    SNS, around any of these
//	{"Messages": [{"Body"}]}               SQS, as received; and as Records of Lambda: body, Sns.Message
//	{"Event": "s3:TestEvent"}              none
//
// Keys come decoded. AWS and MinIO write them as forms do: %2F is a slash and + is a space. Ceph, versitygw and
// EventBridge write them as they are, as MinIO does in Key beside the records. An unknown vendor is read as AWS.
func Parse(value []byte) ([]Hint, error) {
	p := &parser{}
	if err := p.value(value, 0); err != nil {
		return nil, err
	}
	return p.hints, nil
}

type parser struct{ hints []Hint }

// An envelope has the fields of all forms.
type envelope struct {
	Records    json.RawMessage `json:"Records"`
	Messages   json.RawMessage `json:"Messages"`
	EventName  string          `json:"EventName"`
	Key        string          `json:"Key"`
	Type       string          `json:"Type"`
	Message    string          `json:"Message"`
	Event      string          `json:"Event"`
	DetailType string          `json:"detail-type"`
	Time       string          `json:"time"`
	Detail     json.RawMessage `json:"detail"`
}

func (p *parser) value(value []byte, depth int) error {
	if depth > maxDepth {
		return malformed("more than %d envelopes in each other", maxDepth)
	}
	value = bytes.TrimSpace(value)
	if len(value) == 0 {
		return malformed("it is empty")
	}
	if value[0] == '[' {
		return p.records(value, depth)
	}
	var e envelope
	if err := json.Unmarshal(value, &e); err != nil {
		return malformed("%v", err)
	}
	switch {
	case isSet(e.Records):
		return p.records(e.Records, depth)
	case isSet(e.Messages):
		return elements(e.Messages, "message", func(raw []byte) error {
			var m struct {
				Body string `json:"Body"`
			}
			if err := json.Unmarshal(raw, &m); err != nil {
				return malformed("%v", err)
			}
			return p.value([]byte(m.Body), depth+1)
		})
	case e.Event == "s3:TestEvent":
		return nil
	case e.Type == "Notification" && e.Message != "":
		return p.value([]byte(e.Message), depth+1)
	case e.Type == "SubscriptionConfirmation", e.Type == "UnsubscribeConfirmation":
		return nil
	case e.DetailType != "":
		return p.bridged(value, e)
	case e.EventName != "" && e.Key != "":
		return p.minio(value, e)
	}
	return malformed("it has no Records, and is none of the other forms")
}

// A message is a Lambda's record of SQS or SNS, around a notification.
type message struct {
	EventSource string `json:"eventSource"`
	Body        string `json:"body"`
	Sns         struct {
		Message string `json:"Message"`
	} `json:"Sns"`
}

// isSet says whether a field is there and not null.
func isSet(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// elements calls f with each element of an array.
func elements(array []byte, kind string, f func([]byte) error) error {
	n := 0
	err := jsonpart.Elements(array, func(raw []byte) error {
		if err := f(raw); err != nil {
			return fmt.Errorf("%s %d: %w", kind, n, err)
		}
		n++
		return nil
	})
	if err != nil && !errors.Is(err, errForm) {
		return malformed("%v", err)
	}
	return err
}

func (p *parser) records(array []byte, depth int) error {
	return elements(array, "record", func(raw []byte) error {
		var m message
		if err := json.Unmarshal(raw, &m); err != nil {
			return malformed("%v", err)
		}
		switch m.EventSource {
		case "aws:sqs":
			return p.value([]byte(m.Body), depth+1)
		case "aws:sns":
			return p.value([]byte(m.Sns.Message), depth+1)
		}
		return p.record(raw)
	})
}

// A rec is one record of the S3 form. What differs between vendors, and is not needed, is left out: sizes are text
// in some, and 0 for some operations in others.
type rec struct {
	EventSource  string `json:"eventSource"`
	EventTime    string `json:"eventTime"`
	EventName    string `json:"eventName"`
	UserIdentity struct {
		PrincipalID string `json:"principalId"` // PrincipalId, at versitygw
	} `json:"userIdentity"`
	S3 struct {
		ConfigurationID string `json:"configurationId"`
		Bucket          struct {
			Name string `json:"name"`
		} `json:"bucket"`
		Object struct {
			Key       string `json:"key"`
			ETag      string `json:"eTag"`
			VersionID string `json:"versionId"`
			Sequencer string `json:"sequencer"`
		} `json:"object"`
	} `json:"s3"`
}

func (p *parser) record(raw json.RawMessage) error {
	var r rec
	if err := json.Unmarshal(raw, &r); err != nil {
		return malformed("%v", err)
	}
	if r.EventName == "" {
		return malformed("eventName is missing")
	}
	o := r.S3.Object
	h := Hint{
		Kind: kindOf(r.EventName), Vendor: vendorOf(r.EventSource, r.S3.ConfigurationID), Event: strings.TrimPrefix(r.EventName, "s3:"),
		Bucket: r.S3.Bucket.Name, Key: o.Key, Version: o.VersionID, ETag: o.ETag, Sequence: o.Sequencer, User: r.UserIdentity.PrincipalID,
		raw: append(append([]byte(`{"Records":[`), raw...), "]}"...),
	}
	if h.Vendor == "aws" || h.Vendor == "minio" {
		key, err := url.QueryUnescape(o.Key)
		if err != nil {
			return malformed("s3.object.key: %v", err)
		}
		h.Key = key
	}
	return p.add(h, r.EventTime, "eventTime")
}

// minio reads the form in which all that MinIO says are the event and where.
func (p *parser) minio(value []byte, e envelope) error {
	bucket, key, _ := strings.Cut(e.Key, "/")
	return p.add(Hint{Kind: kindOf(e.EventName), Vendor: "minio", Event: strings.TrimPrefix(e.EventName, "s3:"), Bucket: bucket, Key: key, raw: value}, "", "")
}

// bridged reads the form of EventBridge.
func (p *parser) bridged(value []byte, e envelope) error {
	var d struct {
		Bucket struct {
			Name string `json:"name"`
		} `json:"bucket"`
		Object struct {
			Key       string `json:"key"`
			ETag      string `json:"etag"`
			VersionID string `json:"version-id"`
			Sequencer string `json:"sequencer"`
		} `json:"object"`
		Requester string `json:"requester"`
	}
	if err := json.Unmarshal(e.Detail, &d); err != nil {
		return malformed("detail: %v", err)
	}
	return p.add(Hint{
		Kind: bridgedKind(e.DetailType), Vendor: "eventbridge", Event: e.DetailType, Bucket: d.Bucket.Name, Key: d.Object.Key,
		Version: d.Object.VersionID, ETag: d.Object.ETag, Sequence: d.Object.Sequencer, User: d.Requester, raw: value,
	}, e.Time, "time")
}

func (p *parser) add(h Hint, at, field string) error {
	if len(p.hints) == maxHints {
		return malformed("it holds more than %d records", maxHints)
	}
	if h.Kind != Aside && (h.Bucket == "" || h.Key == "") {
		return malformed("%s names no bucket, or no key", h.Event)
	}
	if !utf8.ValidString(h.Bucket) || !utf8.ValidString(h.Key) {
		return malformed("key %q of bucket %q is not UTF-8", h.Key, h.Bucket)
	}
	if at != "" {
		t, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return malformed("%s: %v", field, err)
		}
		h.Time = t.UTC()
	}
	p.hints = append(p.hints, h)
	return nil
}

// vendorOf says whose a record is. versitygw calls itself aws:s3, but has configurations of its own names.
func vendorOf(source, configuration string) string {
	switch source {
	case "minio:s3":
		return "minio"
	case "ceph:s3":
		return "ceph"
	}
	switch configuration {
	case "kafka-global", "nats-global", "webhook-global", "rabbitmq-global":
		return "versitygw"
	}
	return "aws"
}

// kindOf says what an event is, by its name.
func kindOf(event string) Kind {
	event = strings.TrimPrefix(event, "s3:")
	switch event { // among those of their groups
	case "ObjectSynced:Create", "ObjectSynced:Create:Replicated":
		return Created
	case "ObjectSynced:Delete", "ObjectSynced:DeletionMarkerCreated", "ObjectLifecycle:Expiration:Current":
		return Removed
	case "ObjectRemoved:NoOP", "TestEvent": // MinIO: there was nothing
		return Aside
	}
	group, _, _ := strings.Cut(event, ":")
	switch group {
	case "ObjectCreated":
		return Created
	case "ObjectRemoved", "LifecycleExpiration":
		return Removed
	case "ObjectTagging", "ObjectAcl", "ObjectRestore", "ObjectTransition", "LifecycleTransition", "IntelligentTiering", "Replication",
		"ObjectReplication", "ObjectAccessed", "ObjectLifecycle", "LifecycleDelMarkerExpiration", "BucketCreated", "BucketRemoved", "Scanner", "ILM":
		return Aside
	}
	return Other
}

// bridgedKind is kindOf for the names of EventBridge.
func bridgedKind(event string) Kind {
	switch event {
	case "Object Created":
		return Created
	case "Object Deleted":
		return Removed
	case "Object Restore Initiated", "Object Restore Completed", "Object Restore Expired", "Object Storage Class Changed",
		"Object Access Tier Changed", "Object ACL Updated", "Object Tags Added", "Object Tags Deleted":
		return Aside
	}
	return Other
}
