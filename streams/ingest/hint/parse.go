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
	maxDepth = 4    // nested envelopes
	maxHints = 1000 // hints in one notification
)

// errForm is wrapped by the errors of Parse: the bytes are not a notification in a known format.
var errForm = errors.New("not a notification of an object store")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errForm, fmt.Sprintf(format, args...))
}

// Parse parses a notification that an object store writes to a topic or sends to a webhook, possibly in envelopes of
// other services. Test notifications, such as s3:TestEvent, have no hints.
//
//	{"Records": [...]}                     AWS, MinIO (with EventName and Key), Ceph, versitygw
//	[...]                                  older versitygw
//	{"EventName", "Key"}                   MinIO without records
//	{"detail-type", "detail"}              EventBridge
//	{"Type": "Notification", "Message"}    SNS, around any of these
//	{"Messages": [{"Body"}]}               SQS, as received; and as Records of Lambda: body, Sns.Message
//	{"Event": "s3:TestEvent"}              none
//
// The keys of the result are decoded. AWS and MinIO encode keys like HTML forms: %2F is a slash and + is a space. Ceph,
// versitygw and EventBridge do not encode them, nor does MinIO in the field Key outside of records. An unknown vendor
// is treated as AWS.
func Parse(value []byte) ([]Hint, error) {
	p := &parser{}
	if err := p.value(value, 0); err != nil {
		return nil, err
	}
	return p.hints, nil
}

type parser struct{ hints []Hint }

// An envelope has the fields of all formats.
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
		return p.eventBridge(value, e)
	case e.EventName != "" && e.Key != "":
		return p.minio(value, e)
	}
	return malformed("it has no Records and is in none of the other formats")
}

// A message is a record of SQS or SNS in the format of Lambda, with a notification as its body.
type message struct {
	EventSource string `json:"eventSource"`
	Body        string `json:"body"`
	Sns         struct {
		Message string `json:"Message"`
	} `json:"Sns"`
}

// isSet reports whether a field is present and not null.
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

// An s3Record is one record in the format of S3. It omits fields that differ between vendors and are not needed: sizes
// are strings for some, and 0 for some operations of others.
type s3Record struct {
	EventSource  string `json:"eventSource"`
	EventTime    string `json:"eventTime"`
	EventName    string `json:"eventName"`
	UserIdentity struct {
		PrincipalID string `json:"principalId"` // versitygw writes PrincipalId
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
	var r s3Record
	if err := json.Unmarshal(raw, &r); err != nil {
		return malformed("%v", err)
	}
	if r.EventName == "" {
		return malformed("eventName is missing")
	}
	o := r.S3.Object
	h := Hint{
		Kind: kindOf(r.EventName), Vendor: vendorOf(r.EventSource, r.S3.ConfigurationID),
		Event:  strings.TrimPrefix(r.EventName, "s3:"),
		Bucket: r.S3.Bucket.Name, Key: o.Key, Version: o.VersionID, ETag: o.ETag, Sequence: o.Sequencer,
		User: r.UserIdentity.PrincipalID,
		raw:  append(append([]byte(`{"Records":[`), raw...), "]}"...),
	}
	if h.Vendor == "aws" || h.Vendor == "minio" {
		key, err := url.QueryUnescape(o.Key)
		if err != nil {
			return malformed("s3.object.key: %v", err)
		}
		h.Key = key
	}
	h.OfVersion = h.removesVersion(strings.HasSuffix(h.Event, "MarkerCreated") || strings.HasSuffix(h.Event, ":Current"))
	return p.add(h, r.EventTime, "eventTime")
}

// minio parses the format of MinIO without records, which has only the event, bucket and key.
func (p *parser) minio(value []byte, e envelope) error {
	bucket, key, _ := strings.Cut(e.Key, "/")
	return p.add(Hint{
		Kind: kindOf(e.EventName), Vendor: "minio", Event: strings.TrimPrefix(e.EventName, "s3:"),
		Bucket: bucket, Key: key, raw: value,
	}, "", "")
}

// eventBridge parses the format of EventBridge.
func (p *parser) eventBridge(value []byte, e envelope) error {
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
		Requester    string `json:"requester"`
		DeletionType string `json:"deletion-type"`
	}
	if err := json.Unmarshal(e.Detail, &d); err != nil {
		return malformed("detail: %v", err)
	}
	h := Hint{
		Kind: eventBridgeKind(e.DetailType), Vendor: "eventbridge", Event: e.DetailType, Bucket: d.Bucket.Name,
		Key:     d.Object.Key,
		Version: d.Object.VersionID, ETag: d.Object.ETag, Sequence: d.Object.Sequencer, User: d.Requester, raw: value,
	}
	h.OfVersion = h.removesVersion(d.DeletionType == "Delete Marker Created")
	return p.add(h, e.Time, "time")
}

// removesVersion returns Hint.OfVersion. marker: a delete marker was made, which is the removal of the item.
func (h Hint) removesVersion(marker bool) bool {
	return h.Kind == Removed && !marker && h.Version != "" && h.Version != "null"
}

func (p *parser) add(h Hint, at, field string) error {
	if len(p.hints) == maxHints {
		return malformed("it has more than %d records", maxHints)
	}
	if h.Kind != Irrelevant && (h.Bucket == "" || h.Key == "") {
		return malformed("%s has no bucket or no key", h.Event)
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

// vendorOf returns the vendor of a record. versitygw has the source aws:s3 too, but its configurations have special
// names.
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

// kindOf returns the kind of an event by its name.
func kindOf(event string) Kind {
	event = strings.TrimPrefix(event, "s3:")
	switch event { // exceptions in their groups
	case "ObjectSynced:Create", "ObjectSynced:Create:Replicated":
		return Created
	case "ObjectSynced:Delete", "ObjectSynced:DeletionMarkerCreated", "ObjectLifecycle:Expiration:Current":
		return Removed
	case "ObjectRemoved:NoOP", "TestEvent": // MinIO: no object was removed
		return Irrelevant
	}
	group, _, _ := strings.Cut(event, ":")
	switch group {
	case "ObjectCreated":
		return Created
	case "ObjectRemoved", "LifecycleExpiration":
		return Removed
	case "ObjectTagging", "ObjectAcl", "ObjectRestore", "ObjectTransition", "LifecycleTransition", "IntelligentTiering",
		"Replication",
		"ObjectReplication", "ObjectAccessed", "ObjectLifecycle", "LifecycleDelMarkerExpiration", "BucketCreated",
		"BucketRemoved", "Scanner", "ILM":
		return Irrelevant
	}
	return Other
}

// eventBridgeKind returns the kind of an event by its name in EventBridge.
func eventBridgeKind(event string) Kind {
	switch event {
	case "Object Created":
		return Created
	case "Object Deleted":
		return Removed
	case "Object Restore Initiated", "Object Restore Completed", "Object Restore Expired", "Object Storage Class Changed",
		"Object Access Tier Changed", "Object ACL Updated", "Object Tags Added", "Object Tags Deleted":
		return Irrelevant
	}
	return Other
}
