package ingest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
)

func notification(bucket, key string) string {
	return fmt.Sprintf(
		`{"Records":[{"eventSource":"minio:s3","eventName":"s3:ObjectCreated:Put",`+
			`"s3":{"bucket":{"name":%q},"object":{"key":%q}}}]}`, bucket, key)
}

func TestNotifications(t *testing.T) {
	two := `[{"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"a+1"}}},` +
		`{"eventName":"ObjectTagging:Put"},
		{"eventName":"ObjectRemoved:Delete","s3":{"bucket":{"name":"b"},"object":{"key":"c"}}}]`
	for name, tt := range map[string]struct {
		query, body string
		token       string
		status      int
		topic       schemas.Topic
		keys        []string
		answer      string
	}{
		"one": {"", notification("photos", "x%2Fa"), hook, 202, "foreign:webhook/acme/2", []string{"photos/x%2Fa"},
			`{"accepted":1,"ignored":0}`},
		"of a store": {"?store=2", notification("photos", "a"), secret, 202, "foreign:webhook/acme/2", []string{"photos/a"},
			`{"accepted":1,"ignored":0}`},
		"of one of several": {"", notification("photos", "a"), secret, 422, "", nil, ""},
		"of another store":  {"?store=1", notification("photos", "a"), hook, 403, "", nil, ""},
		"several": {"", two, hook, 202, "foreign:webhook/acme/2", []string{"b/a 1", "b/c"},
			`{"accepted":2,"ignored":1}`},
		"a test": {"", `{"Service":"S3","Event":"s3:TestEvent"}`, hook, 202, "", nil, `{"accepted":0,"ignored":0}`},
		"SNS subscription": {"", `{"Type":"SubscriptionConfirmation","SubscribeURL":"https://example.org"}`, hook, 202,
			"", nil, `{"accepted":0,"ignored":0}`},
		"unknown store": {"?store=9", notification("photos", "a"), secret, 422, "", nil, ""},
		"another's account": {"?account=other&store=1", notification("photos", "a"), secret, 202, "foreign:webhook/acme/1",
			[]string{"photos/a"}, `{"accepted":1,"ignored":0}`},
		"without tokens": {"", notification("photos", "a"), "", 202, "foreign:webhook//", []string{"photos/a"},
			`{"accepted":1,"ignored":0}`},
		"nothing":            {"", "", hook, 400, "", nil, ""},
		"no notification":    {"", `{"a":1}`, hook, 400, "", nil, ""},
		"a record too large": {"", notification("photos", strings.Repeat("x", schemas.MaxBytes)), hook, 413, "", nil, ""},
		"a good and a broken": {"",
			`[{"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"a"}}},{}]`, hook, 400, "", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := &topic{}
			h := handler(t, out, func(c *Config) {
				if tt.token == "" {
					c.Tokens = nil
				}
			})
			w := post(h, pathNotifications+tt.query, "text/plain", tt.token, []byte(tt.body))
			if w.Code != tt.status || tt.status == 202 && strings.TrimSpace(w.Body.String()) != tt.answer {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			var keys []string
			for _, m := range out.msgs {
				keys = append(keys, string(m.Key))
				if m.Topic != tt.topic || m.Body != nil || len(m.Value) == 0 {
					t.Errorf("got %+v, want topic %s", m, tt.topic)
				}
			}
			if !slices.Equal(keys, tt.keys) {
				t.Errorf("keys %q, want %q", keys, tt.keys)
			}
		})
	}
	for _, tt := range [][2]string{{"", ""}, {"acme", ""}, {"acme", "2"}} {
		if a, s, ok := Webhook(WebhookTopic(tt[0], tt[1])); !ok || a != tt[0] || s != tt[1] {
			t.Errorf("%v: got %q, %q, %v", tt, a, s, ok)
		}
	}
	if _, _, ok := Webhook(schemas.Foreign("events")); ok {
		t.Error("a topic is taken for a webhook")
	}
}
