package hint

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	must(t, err)
	return v.UTC()
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	must(t, err)
	return b
}

// The notifications of each vendor. The files are the examples of:
//
//	aws-*               Amazon S3 User Guide, "Event message structure" and "How to enable and configure event
//	                    notifications" (s3:TestEvent); keys with a space and a plus
//	minio-put           MinIO, "Bucket notifications"; key as event-notification.go escapes it
//	minio-access        an event in the access format of targets
//	minio-20260212-*    sent by MinIO of 2026-02-12 (7aac2a2c5b7c), by topic and by webhook
//	versitygw-1.8.0-*   sent by versitygw 1.8.0, both ways: its ETags have quotes, its sequencer restarts with the
//	                    process
//	ceph-put            Ceph, "Bucket notifications", "Events"; key as rgw_pubsub.cc writes it, unescaped
//	versitygw-*         s3event/event.go and webhook.go of versitygw (older: an array)
//	eventbridge-*       Amazon S3 User Guide, "EventBridge event message structure"
//	sns, sqs, lambda-*  Amazon SNS, SQS and Lambda Developer Guides, around aws-put
func TestParse(t *testing.T) {
	aws := Hint{Kind: Created, Vendor: "aws", Event: "ObjectCreated:Put", Bucket: "amzn-s3-demo-bucket",
		Key:  "red flower+1.jpg",
		Time: at(t, "1970-01-01T00:00:00Z"), Version: "096fKKXTRTtl3on89fVO.nfljtsv6qko",
		ETag:     "d41d8cd98f00b204e9800998ecf8427e",
		Sequence: "0055AED6DCD90281E5", User: "AIDAJDPLRKLG7UEXAMPLE"}
	versity := Hint{Kind: Removed, Vendor: "versitygw", Event: "ObjectRemoved:DeleteObjects", Bucket: "photos",
		Key:  "a+b%20c.jpg",
		Time: at(t, "2024-03-01T11:00:01Z"), Sequence: "17B8B3C4D5E6F700", User: "access"}
	for name, want := range map[string][]Hint{
		"aws-put": {aws},
		"aws-lifecycle": {
			{Kind: Removed, Vendor: "aws", Event: "LifecycleExpiration:DeleteMarkerCreated", Bucket: "amzn-s3-demo-bucket",
				Key:  "expiration/delete",
				Time: at(t, "2021-10-07T01:12:41Z"), Version: "mtvV.eXcEbkuVxLkCgF", ETag: "d41d8cd98f00b204e9800998ecf8427e",
				Sequence: "0055AED6DCD90281E6", User: "s3.amazonaws.com"},
			{Kind: Irrelevant, Vendor: "aws", Event: "ObjectTagging:Put", Bucket: "amzn-s3-demo-bucket", Key: "tagged",
				Time: at(t, "2021-10-07T01:12:42Z")},
		},
		"minio-put": {{Kind: Created, Vendor: "minio", Event: "ObjectCreated:Put", Bucket: "images", Key: "2024/my photo.jpg",
			Time: at(t, "2024-01-12T17:58:12.569Z"), ETag: "d8e8fca2dc0f896fd7cb4cb0031ba249", Sequence: "17A9AB4FA93B35D8",
			User: "minio"}},
		"minio-access": {{Kind: Removed, Vendor: "minio", Event: "ObjectRemoved:Delete", Bucket: "images",
			Key: "2024/100% + 1.jpg"}},
		"minio-20260212-put": {{Kind: Created, Vendor: "minio", Event: "ObjectCreated:Put", Bucket: "minio-topic",
			Key:  "photos/emoji \U0001F39E",
			Time: at(t, "2026-11-22T04:50:05.838Z"), ETag: "4834de1a91efda50bb1a951b464bfb5d", Sequence: "18EA44C3038D9F55",
			User: "access"}},
		"minio-20260212-delete": {{Kind: Removed, Vendor: "minio", Event: "ObjectRemoved:Delete", Bucket: "minio-hook",
			Key:  `photos/quote"&<>?#=;`,
			Time: at(t, "2026-11-22T04:50:06.697Z"), Sequence: "18EA44C336A7B954", User: "access"}},
		"versitygw-1.8.0-put": {{Kind: Created, Vendor: "versitygw", Event: "ObjectCreated:Put", Bucket: "versitygw-topic",
			Key:  `photos/quote"&<>?#=;`,
			Time: at(t, "2026-11-22T04:50:05Z"), ETag: `"4e81237d5c5711b2db6a186578d3f428"`, Sequence: "A8", User: "access"}},
		"versitygw-1.8.0-delete": {{Kind: Removed, Vendor: "versitygw", Event: "ObjectRemoved:Delete",
			Bucket: "versitygw-hook", Key: "photos/emoji \U0001F39E",
			Time: at(t, "2026-11-22T04:50:06Z"), Sequence: "B0", User: "access"}},
		"ceph-put": {{Kind: Created, Vendor: "ceph", Event: "ObjectCreated:Put", Bucket: "mybucket1", Key: "my+image%1.jpg",
			Time: at(t, "2019-11-22T13:47:35.124724Z"), ETag: "37b51d194a7513e45b56f6524f2d51f2", Sequence: "F7E6D75DC742D108",
			User: "tester"}},
		"versitygw-delete": {versity},
		"versitygw-old":    {versity},
		"eventbridge-created": {{Kind: Created, Vendor: "eventbridge", Event: "Object Created",
			Bucket: "amzn-s3-demo-bucket1", Key: "example+key",
			Time: at(t, "2021-11-12T00:00:00Z"), Version: "IYV3p45BT0ac8hjHg1houSdS1a.Mro8e",
			ETag:     "b1946ac92492d2347c6235b4d2611184",
			Sequence: "617f08299329d189", User: "123456789012"}},
		"eventbridge-deleted": {{Kind: Removed, Vendor: "eventbridge", Event: "Object Deleted",
			Bucket: "amzn-s3-demo-bucket1", Key: "example-key",
			Time: at(t, "2021-11-12T00:00:00Z"), Version: "1QW9g1Z99LUNbvaaYVpW9xDlOLU.qxgF",
			ETag:     "d41d8cd98f00b204e9800998ecf8427e",
			Sequence: "617f0837b476e463", User: "123456789012"}},
		"sns":            {aws},
		"sqs":            {aws},
		"lambda-sqs":     {aws},
		"lambda-sns":     {aws},
		"aws-test":       nil,
		"versitygw-test": nil,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(read(t, name+".json"))
			must(t, err)
			alone(t, got)
			if got = withoutRaw(got); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func withoutRaw(hints []Hint) []Hint {
	var out []Hint
	for _, h := range hints {
		h.raw = nil
		out = append(out, h)
	}
	return out
}

// alone checks that each hint, sent alone, is parsed as the same hint.
func alone(t *testing.T, hints []Hint) {
	t.Helper()
	var left []Hint
	for _, h := range hints {
		if h.Kind != Irrelevant {
			left = append(left, h)
		}
	}
	for i, m := range Split(schemas.Foreign("x"), hints) {
		got, err := Parse(m.Value)
		if err != nil || len(got) != 1 || !reflect.DeepEqual(withoutRaw(got), withoutRaw(left[i:i+1])) {
			t.Errorf("alone: got %+v, %v, want %+v", got, err, left[i])
		}
	}
}

func TestParseRefuses(t *testing.T) {
	record := func(fields string) string { return `{"Records":[{"eventSource":"aws:s3",` + fields + `}]}` }
	deep := `{"Records":[]}`
	for range 6 {
		deep = `{"Messages":[{"Body":` + quoted(deep) + `}]}`
	}
	for name, tt := range map[string]struct{ value, want string }{
		"nothing":           {"", "empty"},
		"spaces":            {" \n", "empty"},
		"no JSON":           {"hello", "invalid character"},
		"half":              {`{"Records":[`, "unexpected end"},
		"another object":    {`{"a":1}`, "no Records"},
		"records no list":   {`{"Records":7}`, "not a JSON array"},
		"messages no list":  {`{"Messages":{}}`, "not a JSON array"},
		"a message of text": {`{"Messages":["x"]}`, "message 0"},
		"no records":        {`{"Records":null}`, "no Records"},
		"a record of text":  {`{"Records":["x"]}`, "record 0"},
		"no event":          {record(`"s3":{}`), "eventName is missing"},
		"no bucket":         {record(`"eventName":"ObjectCreated:Put","s3":{"object":{"key":"k"}}`), "has no bucket"},
		"no key": {record(`"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"}}`),
			"has no bucket or no key"},
		"a bad escape": {record(
			`"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"100%"}}`), "invalid URL escape"},
		"key not UTF-8": {record(`"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"%ff"}}`),
			"not UTF-8"},
		"a time of words": {record(
			`"eventName":"ObjectCreated:Put","eventTime":"now","s3":{"bucket":{"name":"b"},"object":{"key":"k"}}`), "eventTime"},
		"too many": {`[` + strings.Repeat(`{"eventName":"ObjectTagging:Put"},`, maxHints) + `{"eventName":"x"}]`,
			"more than 1000"},
		"too deep":           {deep, "envelopes in each other"},
		"SNS around nothing": {`{"Type":"Notification","Message":"hello"}`, "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse([]byte(tt.value))
			if !errors.Is(err, errForm) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// The kinds of events by name. Only events of removals give a removal.
func TestKindOf(t *testing.T) {
	for event, want := range map[string]Kind{
		"ObjectCreated:Put": Created, "s3:ObjectCreated:CompleteMultipartUpload": Created, "s3:ObjectSynced:Create": Created,
		"s3:ObjectRemoved:Delete": Removed, "ObjectRemoved:DeleteMarkerCreated": Removed,
		"LifecycleExpiration:Delete":            Removed,
		"s3:ObjectLifecycle:Expiration:Current": Removed, "s3:ObjectSynced:Delete": Removed,
		"s3:ObjectLifecycle:Expiration:AbortMultipartUpload": Irrelevant,
		"s3:ObjectLifecycle:Expiration:NonCurrent":           Irrelevant,
		"s3:ObjectLifecycle:Expiration:DeleteMarker":         Irrelevant, "s3:ObjectRemoved:NoOP": Irrelevant,
		"ObjectRestore:Delete": Irrelevant,
		"ObjectTagging:Delete": Irrelevant, "s3:ObjectAccessed:Get": Irrelevant, "LifecycleTransition": Irrelevant,
		"ObjectAcl:Put":                          Irrelevant,
		"s3:LifecycleDelMarkerExpiration:Delete": Irrelevant, "ReducedRedundancyLostObject": Other, "s3:Tomorrow:New": Other,
	} {
		if got := kindOf(event); got != want {
			t.Errorf("%s: got %d, want %d", event, got, want)
		}
	}
	for event, want := range map[string]Kind{
		"Object Created": Created, "Object Deleted": Removed, "Object Tags Added": Irrelevant,
		"Object Restore Expired": Irrelevant, "Object New": Other,
	} {
		if got := eventBridgeKind(event); got != want {
			t.Errorf("%s: got %d, want %d", event, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, name := range files {
		f.Add(read(f, filepath.Base(name)))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		hints, err := Parse(value)
		if err != nil {
			if !errors.Is(err, errForm) {
				t.Errorf("%v", err)
			}
			return
		}
		for _, h := range hints {
			if h.Kind != Irrelevant && (h.Bucket == "" || h.Key == "" || h.Event == "") {
				t.Errorf("%+v is about nothing", h)
			}
		}
		alone(t, hints)
	})
}
