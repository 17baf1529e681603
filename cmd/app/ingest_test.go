package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/ingest"
	"github.com/millrace/millrace/streams/ingest/hint"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/policy"
)

const bucketEvents = "bucket-events"

// newIngestSite returns a site with a notification topic for store 1, and one for store 3.
func newIngestSite(t *testing.T) (*site, *kafkatest.Broker) {
	t.Helper()
	s := newSite(t)
	b := kafkatest.New(t, kafkatest.Options{Loopback: true, RealTime: true, Foreign: []string{bucketEvents, "far"}})
	s.cfg.Kafka.Brokers = b.Config().Brokers
	s.cfg.Ingest.Notifications = []config.Notification{{Topic: bucketEvents, Account: "acme", Store: "1"},
		{Topic: "far", Account: "acme", Store: "3"}}
	s.cfg.Ingest.Listen = free(t)
	t.Setenv("LOADER", "0123456789abcdef-loader")
	token, _, err := config.Load(config.Sources{Env: []string{"MILLRACE_CLICKHOUSE__PASSWORD=env:LOADER"}})
	must(t, err)
	s.cfg.Ingest.Tokens = []config.Token{{Name: "loader", Account: "acme", Stores: []string{"1", "2"},
		Token: token.ClickHouse.Password}}
	return s, b
}

// write writes a file to a store without its driver, as a gateway does.
func (s *site) write(store, path, bytes string) {
	s.t.Helper()
	i := slices.IndexFunc(s.cfg.Accounts[0].Stores, func(c config.Store) bool { return c.ID == store })
	name := filepath.Join(s.cfg.Accounts[0].Stores[i].Root, path)
	must(s.t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(s.t, os.WriteFile(name, []byte(bytes), 0o644))
}

func notification(event, bucket, key string) []byte {
	return fmt.Appendf(nil, `{"Records":[{"eventSource":"minio:s3","eventName":"s3:%s",`+
		`"eventTime":"2026-05-04T10:00:00.25Z","userIdentity":{"principalId":"ann"},`+
		`"s3":{"bucket":{"name":%q},"object":{"key":%q,"sequencer":"17"}}}]}`, event, bucket, key)
}

func notify(topic, event, bucket, key string) kafkatest.Record {
	return kafkatest.Record{Partition: -1,
		Record: schemas.Record{Topic: schemas.Foreign(topic), Value: notification(event, bucket, key)}}
}

// changed waits until the journal has exactly the changes want.
func (s *site) changed(b *kafkatest.Broker, want ...string) {
	s.t.Helper()
	s.until(func() error {
		var got []string
		for _, body := range b.Bodies(schemas.Changes) {
			c := body.(*pb.Change)
			got = append(got, fmt.Sprintf("%s %s/%s/%s %d %s %q", c.GetOp(), c.GetStore(), c.GetSpace(), c.GetItem(),
				c.GetSize(), c.GetAgent(), c.GetUser()))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
}

// A verified notification becomes a Change. One about an unavailable store waits for it, and one
// about an unknown bucket is a dead letter.
func TestIngestNotifications(t *testing.T) {
	s, b := newIngestSite(t)
	s.write("1", "photos/2026/a b.jpg", "hello")
	b.Write(
		notify(bucketEvents, "ObjectCreated:Put", "photos", "2026%2Fa+b.jpg"),
		notify(bucketEvents, "ObjectRemoved:Delete", "photos", "gone"),
		notify(bucketEvents, "ObjectCreated:Put", "photos", "never"),
		notify(bucketEvents, "ObjectTagging:Put", "photos", "2026%2Fa+b.jpg"),
		notify("far", "ObjectRemoved:Delete", "maps", "m"),
		kafkatest.Record{Partition: -1,
			Record: schemas.Record{Topic: schemas.Foreign(bucketEvents), Value: []byte("no notification")}},
	)
	s.run(schemas.RoleIngester, schemas.RoleDelayer)
	gone, there := `OP_DELETE 1/photos/gone 0 notification/minio "ann"`, `OP_ADD 1/photos/2026/a b.jpg 5 `+
		`notification/minio "ann"`
	s.changed(b, gone, there)
	s.await("/startupz", 200, `"role": "ingester"`)
	s.await("/metrics", 200, `millrace_ingest_hints_total{row="current",way="notification"} 1`,
		`millrace_ingest_hints_total{row="removed",way="notification"} 1`,
		`millrace_ingest_hints_total{row="absent",way="notification"} 1`,
		`millrace_ingest_hints_total{row="irrelevant",way="notification"} 1`)
	marked(t, schemas.Key("acme", "3"), s.cfg.Accounts[0].Stores[2].Root) // only now is it known that the item is absent
	s.changed(b, gone, there, `OP_DELETE 3/maps/m 0 notification/minio "ann"`)
	s.until(func() error {
		dead := b.Read(schemas.Dead)
		if len(dead) != 1 || string(dead[0].Value) != "no notification" ||
			dead[0].Header(schemas.HeaderOriginTopic) != "foreign:"+bucketEvents {
			return fmt.Errorf("dead letters %v", dead)
		}
		return nil
	})
}

// post sends a body to the ingester. It returns 0 if there is no answer.
func (s *site) post(path, token, body string) (code int, err error) {
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+s.cfg.Ingest.Listen+path,
		strings.NewReader(body))
	must(s.t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func TestIngestHTTP(t *testing.T) {
	s, b := newIngestSite(t)
	s.write("1", "photos/b", "hello")
	b.Send(schemas.Message{Topic: schemas.Policies, Body: &pb.Policy{Id: schemas.NewID(), Account: "acme",
		Document: `{"defaultPolicies":[{"srcStoreId":"1","destStoreId":"2"}]}`}})
	s.run(schemas.RoleIngester)
	const change = `{"op":"OP_ADD","store":"1","space":"photos","item":"a","size":"7","time":"2026-05-04T10:00:00Z",` +
		`"digests":{"md5":"5d41402abc4b2a76b9719d911017c592"}}`
	const claim = `{"op":"OP_DELETE","store":"2","space":"photos","item":"gone","time":"2026-05-04T10:00:00Z"}`
	send := func(path, body string, want int) {
		t.Helper()
		s.until(func() error {
			if code, err := s.post(path, "0123456789abcdef-loader", body); code != want {
				return fmt.Errorf("got %d, %v, want %d", code, err, want)
			}
			return nil
		})
	}
	send("/v1/changes", change, http.StatusAccepted)
	if code, err := s.post("/v1/changes", "0123456789abcdef-nobody", change); code != http.StatusUnauthorized {
		t.Errorf("got %d, %v, want 401", code, err)
	}
	send("/v1/notifications/s3?store=1", string(notification("ObjectCreated:Put", "photos", "b")), http.StatusAccepted)
	send("/v1/notifications/s3?store=2", string(notification("ObjectRemoved:Delete", "photos", "gone")),
		http.StatusAccepted) // store 2 is a destination: what is absent there was not deleted
	send("/v1/notifications/s3", string(notification("ObjectCreated:Put", "photos", "b")), http.StatusUnprocessableEntity)
	send("/v1/notifications/s3?store=3", string(notification("ObjectCreated:Put", "photos", "b")), http.StatusForbidden)
	send("/v1/notifications/s3?store=1", string(notification("ObjectCreated:Put", "photos", strings.Repeat("x", 2000))),
		http.StatusAccepted) // no item has such a name
	send("/v1/changes", claim, http.StatusAccepted) // nor by this
	s.changed(b, `OP_ADD 1/photos/a 7 http/loader "loader"`, `OP_ADD 1/photos/b 5 notification/minio "ann"`)
	if n := len(slices.DeleteFunc(b.Read(schemas.Again(schemas.RoleIngester)), func(r kafkatest.Record) bool {
		return r.Header(schemas.HeaderOriginTopic) != string(hint.ClaimTopic("loader"))
	})); n != 1 {
		t.Errorf("got %d claims, want 1", n)
	}
	s.until(func() error {
		if dead := b.Read(schemas.Dead); len(dead) != 1 ||
			dead[0].Header(schemas.HeaderOriginTopic) != string(ingest.WebhookTopic("acme", "1")) {
			return fmt.Errorf("dead letters %v", dead)
		}
		return nil
	})
	s.await("/metrics", 200, `millrace_ingest_requests_total{path="/v1/changes",status="202"} 2`,
		`millrace_ingest_requests_total{path="/v1/changes",status="401"} 1`)
}

func TestBucketResolver(t *testing.T) {
	cfg := &config.Config{Accounts: []config.Account{
		{ID: "acme", Stores: []config.Store{{ID: "1", Driver: "file"}, {ID: "2", Driver: "file"}}}, {ID: "other",
			Stores: []config.Store{{ID: "1", Driver: "file"}}},
	}}
	cfg.Ingest.Notifications = []config.Notification{{Topic: "all"}, {Topic: "one", Account: "acme", Store: "2"},
		{Topic: "account", Account: "acme"}}
	stores, err := newStores(cfg, new(logtest.Lines).Log())
	must(t, err)
	p := newBucketResolver(cfg, stores, func(account, space, store string) bool {
		return account == "acme" && space == "photos" && store == "2"
	})
	for name, tt := range map[string]struct {
		topic schemas.Topic
		want  string // empty: nobody's
	}{
		"a store that was named":        {schemas.Foreign("one"), "acme/2/photos/a"},
		"by webhook for a store":        {ingest.WebhookTopic("acme", "1"), "acme/1/photos/a"},
		"by webhook, no such store":     {ingest.WebhookTopic("acme", "9"), ""},
		"by webhook of another account": {ingest.WebhookTopic("other", "2"), ""},
		"stores without buckets":        {schemas.Foreign("all"), ""},
		"an account's, without buckets": {schemas.Foreign("account"), ""},
		"a topic that is named no more": {schemas.Foreign("former"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			all, known := p.Resolve(tt.topic, "photos", "a")
			if known != (tt.want != "") || known && (len(all) != 1 || all[0].String() != tt.want) {
				t.Errorf("got %v, %v, want %q", all, known, tt.want)
			}
		})
	}
	at := func(store string) schemas.Copy {
		return schemas.Copy{Account: "acme", Store: store, Space: "photos", Item: "a"}
	}
	for name, tt := range map[string]struct {
		topic schemas.Topic
		store string
		want  bool
	}{
		"by webhook, of a destination": {ingest.WebhookTopic("acme", "2"), "2", true},
		"by webhook, of a source":      {ingest.WebhookTopic("acme", "1"), "1", false},
		"of a topic, of a destination": {schemas.Foreign("one"), "2", false},
	} {
		if got := p.IsClaim(tt.topic, at(tt.store)); got != tt.want {
			t.Errorf("%s: is a claim: %v", name, got)
		}
	}
}

func TestIngestWatch(t *testing.T) {
	s, b := newIngestSite(t)
	s.cfg.Accounts[0].Stores[1].Watch, s.cfg.Accounts[0].Stores[2].Watch = true, true // of which the third is not there
	s.run(schemas.RoleIngester)
	s.until(func() error {
		if s.said.Count(`msg="finish walk"`) != 1 || s.said.Count("stop watching") < 1 {
			return fmt.Errorf("the log does not say what is watched")
		}
		return nil
	})
	s.write("2", "photos/2026/a", "hello")
	s.changed(b, `OP_ADD 2/photos/2026/a 5 notification/watch ""`)
	s.await("/metrics", 200, `millrace_ingest_hints_total{row="current",way="watch"} 1`)
}

// While Kafka does not acknowledge, the answer is 503; a repeated event is stored once. The
// producer retries after a lost acknowledgement.
func TestIngestKafkaAway(t *testing.T) {
	const change = `{"op":"OP_ADD","account":"acme","store":"1","space":"photos","item":"a","time":"1999-05-04T10:00:00Z"}`
	for name, tt := range map[string]struct {
		fault kafkatest.Fault
		times int
		want  int
	}{
		"nothing is written":                  {kafkatest.NotDone, -1, http.StatusServiceUnavailable},
		"nothing is written, once":            {kafkatest.NotDone, 1, http.StatusAccepted},
		"it is written, but not acknowledged": {kafkatest.DoneNotAcknowledged, 1, http.StatusAccepted},
		"it is refused":                       {kafkatest.Refused, 1, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				out, err := kafka.NewProducer(b.Config(), "test")
				must(t, err)
				defer out.Close()
				stores, err := newStores(&config.Config{Accounts: []config.Account{{ID: "acme",
					Stores: []config.Store{{ID: "1", Driver: "file", Root: "/a"}}}}}, new(logtest.Lines).Log())
				must(t, err)
				h, err := ingest.New(ingest.Config{}, out, eventStores{&App{stores: stores,
					policyRegistry: policy.NewRegistry(stores.IDs)}}, nil, new(logtest.Lines).Log())
				must(t, err)
				send := func() *httptest.ResponseRecorder {
					r := httptest.NewRequest(http.MethodPost, "/v1/changes", strings.NewReader(change))
					r.Header.Set("Content-Type", "application/json")
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					return w
				}
				mend := b.FailProduce(schemas.Changes, tt.fault, tt.times)
				w := send()
				if w.Code != tt.want || (w.Header().Get("Retry-After") != "") != (tt.want == http.StatusServiceUnavailable) {
					t.Errorf("got %d %v %s, want %d", w.Code, w.Header(), w.Body, tt.want)
				}
				mend()
				if w.Code == http.StatusServiceUnavailable {
					if n := len(b.Bodies(schemas.Changes)); n != 0 {
						t.Errorf("%d records before it is sent again", n)
					}
					if w = send(); w.Code != http.StatusAccepted {
						t.Errorf("sent again: got %d %s", w.Code, w.Body)
					}
				}
				if n := len(b.Bodies(schemas.Changes)); n != 1 {
					t.Errorf("%d records, want 1", n)
				}
			})
		})
	}
}

// An address that is taken, or a token that is not set, prevents the start: no part runs, and the exit code is that of
// a precondition. Afterwards the address is free.
func TestIngestRefusedAtStart(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(t *testing.T, s *site)
		want  string
	}{
		"address is taken": {func(t *testing.T, s *site) {
			l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", s.cfg.Ingest.Listen)
			must(t, err)
			t.Cleanup(func() { l.Close() })
		}, "ingest.listen: "},
		"token is not set": {func(t *testing.T, _ *site) { t.Setenv("LOADER", "") }, "ingest.tokens: loader: "},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newIngestSite(t)
			tt.spoil(t, s)
			a, err := Open(t.Context(), s.cfg, Options{Log: s.said.Log(), Drain: time.Second})
			must(t, err)
			defer a.Close()
			err = a.Run(t.Context(), []schemas.Role{schemas.RoleIngester})
			if !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a precondition: %s", err, tt.want)
			}
			if s.said.Count("msg=run ") > 0 {
				t.Error("parts have run")
			}
		})
	}
}

// A start that fails later closes the address again.
func TestEventServerCloses(t *testing.T) {
	s, _ := newIngestSite(t)
	a, err := Open(t.Context(), s.cfg, Options{Log: s.said.Log(), Drain: time.Second})
	must(t, err)
	defer a.Close()
	if _, err := a.ingester(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		must(t, a.events.open(t.Context()))
		a.events.close()
	}
}

// A stop lets running requests end, and accepts no others.
func TestIngestStops(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	began, release := make(chan struct{}), make(chan struct{})
	srv := &http.Server{ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(began)
			<-release
			w.WriteHeader(http.StatusAccepted)
		})}
	ctx, cancel := context.WithCancel(t.Context())
	ended, code := make(chan error, 1), make(chan int, 1)
	go func() { ended <- serveOn(ctx, l, srv, 10*time.Second) }()
	s := &site{t: t, cfg: &config.Config{Ingest: config.Ingest{Listen: l.Addr().String()}}}
	go func() {
		c, _ := s.post("/", "", "")
		code <- c
	}()
	<-began
	cancel()
	s.until(func() error {
		if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err == nil {
			return errors.Join(errors.New("it still listens"), c.Close())
		}
		return nil
	})
	close(release)
	if err, c := <-ended, <-code; err != nil || c != http.StatusAccepted {
		t.Errorf("got %v, %d", err, c)
	}
}
